"""The lesson run by Streamlit itself: every part opens, its sentences are short, its numbers are the engine's."""

from __future__ import annotations

import base64
import html
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from attention.engine import default_engine
from attention.tracing import TraceRequest
from pages.learn.lesson_text import FILE, parts
from pages.shared.site import PAGES

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "assets"
MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
ALICE = "Alice fed the cats because they were hungry."
HEADS = ((0, 2), (2, 0), (1, 3))
MOST_WORDS = 25


def opened(part: int, **address: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "pages" / "entry.py"), default_timeout=120)
    for name, value in {"n_part": str(part), **address}.items():
        app.query_params[name] = value
    app.switch_page("learn/lesson.py")
    return app.run()


@cache
def part(number: int) -> AppTest:
    """A part as its plain link opens it; no test changes it."""
    return opened(number)


def bodies(app: AppTest) -> list[str]:
    return [re.sub(r"<style>.*?</style>", "", one.proto.body, flags=re.S) for one in app.get("html")]


def lines(app: AppTest) -> list[str]:
    """What a person reads on the page outside tables and drawn heads, paragraph by paragraph."""
    found = []
    for body in bodies(app):
        if "<table" not in body and "hs-groups" not in body:
            found += re.split(r"</p>|</li>|</h2>", body)
    return [html.unescape(re.sub(r"<[^>]+>", " ", one)).strip() for one in found]


def text(app: AppTest) -> str:
    return re.sub(r"\s+", " ", " ".join(lines(app)))


def numbers(values: Any) -> np.ndarray:
    if isinstance(values, dict):
        flat = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
        return flat.reshape([int(size) for size in str(values["shape"]).split(",")]) if "shape" in values else flat
    return np.array(values, dtype=float)


def traces(app: AppTest) -> list[dict[str, Any]]:
    (chart,) = app.get("plotly_chart")
    return list(json.loads(chart.proto.spec)["data"])


def asset(name: str) -> Any:
    return json.loads((ASSETS / name).read_text(encoding="utf-8"))


def sentences(line: str) -> list[str]:
    return re.split(r"(?<=[.?!:])\s+", line)


@pytest.mark.parametrize("number", range(1, 10))
def test_every_part_opens_says_where_one_is_and_keeps_its_sentences_short(number: int) -> None:
    app = part(number)
    assert not app.exception
    assert not app.error
    assert f"Part {number} of 9" in text(app)
    assert parts()[number - 1].title in text(app)
    assert [one for line in lines(app) for one in sentences(line) if len(one.split()) > MOST_WORDS] == []
    assert "{" not in text(app)


def test_the_words_are_the_fields() -> None:
    raw = FILE.read_text(encoding="utf-8")
    assert not re.search(r"understand|\bknows what\b|lossless", raw, re.I)
    assert sum(one.minutes for one in parts()) == 15
    assert "about 15 minutes" in text(part(1))


def test_every_part_but_none_other_leads_on_to_pages_of_the_site() -> None:
    paths = {page.path for page in PAGES}
    for number in range(1, 10):
        links = re.findall(r'href="/([a-z]*)\??[^"]*" target="_blank"', " ".join(bodies(part(number))))
        assert links
        assert set(links) <= paths
    assert len(links) == 5  # the last part: five lines, each a link


@pytest.mark.parametrize("asked", ["99", "0", "*two*"])
def test_a_link_to_a_part_there_is_not_says_so(asked: str) -> None:
    app = AppTest.from_file(str(ROOT / "pages" / "entry.py"), default_timeout=120)
    app.query_params["n_part"] = asked
    app.switch_page("learn/lesson.py")
    app.run()
    assert [re.sub(r"\\(\W)", r"\1", one.value) for one in app.info] == [
        f"This link asks for part {asked}. The lesson has parts 1 to 9. Showing part 1."
    ]
    assert "Part 1 of 9" in text(app)
    assert not part(2).info


def test_buttons_step_through_the_parts() -> None:
    app = opened(1)
    assert app.button(key="n_back").disabled
    app.button(key="n_next").click().run()
    assert "Part 2 of 9" in text(app)
    app.button(key="n_on").click().run()
    assert "Part 3 of 9" in text(app)
    app.button(key="n_back").click().run()
    assert "Part 2 of 9" in text(app)
    assert part(9).button(key="n_next").disabled


@pytest.mark.parametrize(("which", "model"), [("Trained", MINILM), ("Untrained twin", f"{MINILM}~untrained")])
def test_recipes_are_the_trace_s_and_the_twin_is_flat(which: str, model: str) -> None:
    app = part(1) if which == "Trained" else opened(1, n_weights=which)
    traced = default_engine().trace(TraceRequest(model, ALICE))
    query = [token.label for token in traced.tokens].index("they")
    rows = [traced.weights[layer, head, query] for layer, head in HEADS]
    rows.append(np.mean(rows, axis=0))
    shown = np.stack([numbers(one["x"]) for one in traces(app)], axis=-1)  # (recipe, word)
    assert np.abs(shown - np.stack(rows)).max() < 0.004
    if which == "Trained":
        average = dict(zip([token.label for token in traced.tokens], rows[-1], strict=True))
        told = ", ".join(f"{word} {average[word]:.2f}".replace(" 0.", " .") for word in ("because", "cats", "[CLS]"))
        assert told == "because .48, cats .20, [CLS] .17"
        assert told in text(app)
    else:
        assert max(row.max() for row in rows[:3]) < 0.2
        assert f"Random weights: the largest share in these bars is .{100 * max(map(np.max, rows)):02.0f}" in text(app)


def test_the_seven_steps_follow_the_boxes() -> None:
    app = opened(2, n_seq="7", n_heads="6")
    body = " ".join(bodies(app))
    for shape in ("(7, 24)", "(7, 6, 4)", "(6, 7, 4)", "(6, 7, 7)"):
        assert body.count(shape) >= 2  # drawn, and in the table
    assert "6 × 4 = 24" in text(app)
    assert len(re.findall(r">out \d</i>", body)) == 12


def test_lenses_are_the_layer_s_heads_and_the_trap_is_counted() -> None:
    app = opened(3, n_layer="2")
    board = numbers(traces(app)[0]["z"])
    traced = default_engine().trace(TraceRequest(MINILM, ALICE)).weights[2]
    seen = board[~np.isnan(board)]
    assert seen.size == traced.size == 12 * 11 * 11
    first, last = board[2:13, 0:11], board[28:39, 39:50]
    assert np.abs(first - traced[0]).max() < 0.004
    assert np.abs(last - traced[11]).max() < 0.004
    labels = Counter(row["label"] for row in asset(f"atlas_{MINILM}.json")["rows"])
    jobs = 72 - labels["unclear"] - labels["rest"]
    assert f"Of 72 heads in this model, {jobs} have a job" in text(app)
    assert f"{labels['rest']} only rest" in text(app)
    head = next(row for row in asset(f"atlas_{SMOLLM}.json")["rows"] if (row["layer"], row["head"]) == (16, 0))
    assert (head["label"], len(head["evidence"])) == ("previous", 1)
    assert f"whatever it is, in {100 * head['evidence'][0]['value']:.0f} % of rows" in text(app)
    trap = opened(3, n_lens="The trap, SmolLM2")
    weights = numbers(traces(trap)[0]["z"])  # row 7 is “that”: a start token comes first
    before = np.mean([weights[at, at - 1] for at in range(1, len(weights))])
    assert f"gives “mat” {100 * weights[7, 6]:.0f} %" in text(trap)
    assert f"the word before gets {100 * before:.0f} % on average" in text(trap)


def test_widths_are_counted_in_the_catalogue_and_the_rank_is_measured() -> None:
    models = [one for one in asset("models.json")["models"] if one["architecture"] == "decoder"]
    inside = sum(64 <= one["head_dim"] <= 128 for one in models)
    assert (inside, len(models)) == (127, 160)
    assert f"{inside} of {len(models)} decoders" in text(part(4))
    heads, widths = traces(part(4))
    assert numbers(heads["y"]).tolist() == [one["n_heads"] for one in models]
    assert numbers(widths["y"]).tolist() == [one["head_dim"] for one in models]
    assert "rank 16. It cannot exceed 16" in text(part(4))
    assert "rank 4. It cannot exceed 4" in text(opened(4, n_width="4"))


def test_the_cache_is_the_recording_s() -> None:
    run = asset("recording.json")
    third = run["steps"][2]
    assert f"{third['n_cached']} tokens, {third['cache_bytes'] / 1024:.0f} KiB" in text(part(5))
    assert third["n_cached"] == run["steps"][0]["n_cached"] + 2
    assert f"The cache so far: {third['cache_bytes'] / 1024:.0f} KiB for {third['n_cached']} tokens" in text(part(5))
    n_far, seconds = run["recomputed"][-1]
    assert f"At {n_far} tokens that took {1000 * seconds:.0f} ms" in text(part(5))
    later = run["steps"][30]["n_cached"]
    assert f"for {later} tokens" in text(opened(5, n_tokens="31"))


def test_sharing_is_counted_and_the_heads_are_real() -> None:
    each = 2 * 32 * 128 * 2 * 8192  # keys and values, layers, d_head, bytes, tokens: for one K/V head
    assert (8 * each, 32 * each) == (2**30, 4 * 2**30)
    assert "its cache takes 1 GiB; with one K/V head for each query head, 4 GiB. That is 4x less cache" in text(part(6))
    assert "2 K/V heads: 256 MiB at 8,192 tokens, 16x less than 4 GiB" in text(opened(6, n_kv="2"))
    assert "Nothing is shared" in text(opened(6, n_kv="32"))
    board = numbers(traces(part(6))[0]["z"])
    rows = board[~np.isnan(board).all(axis=1)]
    assert rows.shape == (9, 13)
    assert np.abs(rows.sum(axis=1) - 1).max() < 0.05  # each weight is right to 0.4 percentage points
    assert np.isnan(board[[3, 7]]).all()  # a gap between the groups


def test_the_ladder_is_the_shipped_sweep_and_the_catalogue() -> None:
    points = asset(f"sweeps/{MINILM}.json")["points"]
    three, latent = (
        next(one for one in points if (one["what_if"] or {}).items() >= wanted.items())
        for wanted in (
            {"class": "ShareKV", "n_kv_heads": 3, "how": "mean", "groups": "adjacent"},
            {"class": "LatentKV", "rank": 192, "split": None, "whiten": True},
        )
    )
    assert three["numbers"] == latent["numbers"] < 384, "with 384 or more the token itself would fit"
    assert f"averaged to 3 K/V heads, {three['numbers']} numbers a token and layer" in text(part(7))
    assert f"a likeness of {three['quality'][0]['value']:.2f}" in text(part(7))
    assert f"A latent of as many numbers keeps {latent['quality'][0]['value']:.2f}" in text(part(7))
    drawn = {one["name"]: one for one in traces(part(7))}
    averaged = drawn["averaged, no training"]
    at = numbers(averaged["x"]).tolist().index(three["numbers"])
    assert numbers(averaged["y"])[at] == pytest.approx(three["quality"][0]["value"])
    rungs = [one["head_sharing"] for one in asset("models.json")["models"]]
    told = [
        f"{rungs.count(rung)}{' stand' if rung == 'MHA' else ''} on {rung}" for rung in ("MHA", "GQA", "MQA", "MLA")
    ]
    assert ", ".join(told) in text(part(7))
    latents = opened(7, n_rung="MLA", n_model="SmolLM2")
    assert f"{rungs.count('MLA')} models on MLA" in text(latents)
    assert " ".join(bodies(latents)).count("<li>") > rungs.count("MLA")
    assert min(numbers(one["y"]).min() for one in traces(latents)) > 30  # perplexity, not a cosine


def test_the_trap_of_pytorch_was_run() -> None:
    assert "RuntimeError: Need attn_mask" in text(part(8))
    fused = opened(8, n_call="Fused call")
    assert "scaled_dot_product_attention(q, k, v, is_causal=True)" in fused.code[0].value
    assert re.search(r"\(2, 5, 8\), the same as the others within \S+", text(fused))
