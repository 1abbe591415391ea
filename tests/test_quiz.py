"""The quick check's engine: every answer against a formula of its own, every fact against its source."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from attention import HeadLayout, UserError, multi_head_attention, random_inputs
from attention.known_models import find_model
from attention.models import LoadedModel
from attention.plots.quiz_maps import maps_data
from attention.quiz import (
    FILE,
    MAKERS,
    Question,
    class_plan,
    grade,
    lengths,
    paper,
    question,
    read_shape,
    wording,
)
from attention.quiz_heads import MINILM, SMOLLM
from attention.quiz_maps import HEADS, SENTENCES, measured_facts, shipped_facts, shipped_maps, unpacked

ROOT = Path(__file__).parents[1]
SEEDS = range(1, 201)
IDS = [entry["id"] for entry in wording()["questions"]]
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE = r"([\d,.]+) (bytes|KiB|MiB|GiB)"


def size(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * UNITS[unit]


def rank_of_a_product(n_tokens: int, d_head: int) -> int:
    Q, K = np.random.default_rng(5).normal(size=(2, n_tokens, d_head))
    return int(np.linalg.matrix_rank(Q @ K.T))


# What a student could work out from the words of the question alone.
ORACLES: dict[str, tuple[str, Callable[..., Any]]] = {
    "split_shape": (r"(\d+) tokens, d_model (\d+), (\d+) query", lambda t, d, h: (t, h, d // h)),
    "kv_shape": (r"(\d+) tokens, d_model (\d+), (\d+) query heads, (\d+) K/V", lambda t, d, h, kv: (kv, t, d // h)),
    "scores_shape": (r"(\d+) tokens, d_model \d+, (\d+) query", lambda t, h: (h, t, t)),
    "concat_shape": (r"(\d+) tokens, d_model (\d+)", lambda t, d: (t, d)),
    "weights_of_k": (r"is (\d+), with \d+ query heads of width (\d+) and (\d+)", lambda d, w, kv: d * kv * w),
    "d_head": (r"d_model (\d+) is split evenly over (\d+)", lambda d, h: d // h),
    "kv_head": (
        r"^(\d+) query heads share (\d+) .* query head (\d+) read",
        lambda h, kv, q: np.repeat(np.arange(kv), h // kv)[q],
    ),
    "rank": (
        r"(\d+) tokens, d_model (\d+), (\d+) heads",
        lambda t, d, h: rank_of_a_product(t, d // h),
    ),
    "scale": (r"q·k = (-?\d+), and d_head is (\d+)", lambda dot, d: dot / d**0.5),
    "causal_share": (
        r"text of (\d+) .* row (\d+)",
        lambda t, row: 100 * float(torch.full((t, t), -torch.inf).triu(1).softmax(-1)[row, 0]),
    ),
    "q_per_kv": (r"has (\d+) query heads and (\d+)", lambda h, kv: h / kv),
    "token_kib": (r"(\d+) layers, (\d+) K/V heads of width (\d+)", lambda n, kv, w: n * kv * w * 2 * 2 / 1024),
    "saved": (r"has (\d+) query heads and (\d+)", lambda h, kv: h / kv),
    "window": (r"last (\d+) tokens. The text has (\d+)", min),
    "latent": (r"latent of (\d+) numbers and (\d+) RoPE", lambda c, r: c + r),
}  # fmt: skip


def worked_out(asked: Question) -> Any:
    """The answer by a formula on the question's own words."""
    text = asked.text
    if asked.id in ORACLES:
        pattern, formula = ORACLES[asked.id]
        found = re.search(pattern, text.replace(",", "") if asked.id == "window" else text)
        assert found, text
        return formula(*map(int, found.groups()))
    sizes = [size(*pair) for pair in re.findall(SIZE, text)]
    if asked.id == "cache_gib":
        users, tokens = re.findall(r"(\d[\d,]*) (?:users|tokens)", text)
        return sizes[0] * int(tokens.replace(",", "")) * int(users) / 2**30
    if asked.id == "fp8_gib":
        return sizes[0] / 2 / 2**30
    if asked.id in ("max_context", "max_users"):
        gpu, weights, each = sizes
        return (0.9 * gpu - weights) // each
    if asked.id == "heat_share":
        query, key = re.findall("“(.+?)”", text)
        one = asked.picture
        assert one is not None
        return 100 * one.weights[one.labels.index(query), one.labels.index(key)]
    raise KeyError(asked.id)


NUMERIC = [name for name in IDS if question(name, 1).form in ("number", "shape")]


@pytest.mark.parametrize("name", NUMERIC)
def test_every_number_and_shape_follows_from_the_question_alone(name: str) -> None:
    answers = set()
    for seed in SEEDS:
        asked = question(name, seed)
        right = worked_out(asked)
        answers.add(asked.answer)
        if asked.form == "shape":
            assert asked.answer == right, asked.text
            assert grade(asked, ", ".join(map(str, right)))
            assert not grade(asked, str(right[::-1])) or right == right[::-1]
        else:
            assert isinstance(asked.answer, int | float)
            assert grade(asked, float(right)), (asked.text, right, asked.answer)
            wrong = asked.answer + 1.01 * asked.tolerance + 0.011
            assert not grade(asked, wrong)
            assert not grade(asked, 2 * asked.answer - wrong)
            written = asked.right_words.removesuffix(asked.unit).replace(",", "")
            assert float(written) == pytest.approx(asked.answer, abs=0.0051)
    assert len(answers) > 3, "a seed must bring fresh values"


def test_the_tolerance_is_the_one_the_page_states() -> None:
    for name in NUMERIC:
        asked = question(name, 5)
        if asked.form == "shape":
            continue
        assert isinstance(asked.answer, int | float)
        said = {
            "Only the exact number is right.": 0.0,
            "Within 1 % is right.": 0.01 * abs(asked.answer),
            "Within 2 % is right.": 0.02 * abs(asked.answer),
            "Within 2 %, or one user, is right.": max(1.0, 0.02 * abs(asked.answer)),
            "Within 10 points is right.": 10.0,
            "Within half a point is right.": 0.5,
            "Within 0.01 is right.": 0.01,
        }
        assert asked.tolerance == pytest.approx(said[asked.allowed])


# ---- order


def in_right_order(asked: Question) -> list[str]:
    assert isinstance(asked.answer, tuple)
    return [asked.choices[place] for place in asked.answer]


@pytest.mark.parametrize("name", [entry["id"] for entry in wording()["questions"] if entry["kind"] == "number"])
def test_the_number_told_as_the_answer_is_accepted_as_one(name: str) -> None:
    for seed in SEEDS:
        asked = question(name, seed)
        if asked.form == "number":
            assert grade(asked, float(asked.right_words.split()[0].replace(",", ""))), (seed, asked.right_words)


def test_numbers_below_one_keep_three_digits() -> None:
    asked = replace(question("fp8_gib", 1), answer=0.375)
    assert asked.right_words == "0.375 GiB"
    assert replace(asked, answer=0.0625).right_words == "0.0625 GiB"
    assert replace(asked, answer=8.4375).right_words == "8.44 GiB"


@pytest.mark.parametrize("name", IDS)
def test_the_model_a_question_names_is_the_one_its_link_opens(name: str) -> None:
    """And what it says of that model is said of no other: the count of heads is the model's own."""
    for seed in range(1, 30):
        asked = question(name, seed)
        told = " ".join((asked.text, asked.reason, *asked.choices))
        opens = dict(asked.link.state).get("model", "")
        if asked.link.path in ("", "finder"):
            assert ("SmolLM2" in told) <= ("SmolLM2" in opens), told
            assert ("MiniLM" in told) <= ("SmolLM2" not in opens), told
        counts = re.findall(r"(MiniLM|SmolLM2) has (\d+) heads", told)
        assert all(int(many) == {"MiniLM": 72, "SmolLM2": 270}[model] for model, many in counts), told
    assert name != "pruning" or counts == [("SmolLM2", "270")]


def test_no_word_depends_on_the_theme() -> None:
    """In the dark the largest weight is the brightest cell."""
    lesson = FILE.with_name("lesson.json").read_text(encoding="utf-8")
    for words in (FILE.read_text(encoding="utf-8"), lesson):
        assert (
            re.findall(r"(?i)\b(dark|darker|darkest|bright|brighter|brightest|pale|paler|black|white)\b", words) == []
        )


@pytest.mark.parametrize("seed", range(1, 31))
def test_orders_are_right_and_shuffled(seed: int) -> None:
    steps = question("step_order", seed)
    assert in_right_order(steps) == ["project", "split", "permute", "scores", "weights @ V", "concat", "W_o"]
    masked = question("mask_order", seed)
    assert in_right_order(masked) == ["scores", "mask", "softmax", "weights @ V", "permute back", "concat"]
    rungs = question("rung_order", seed)
    width = int(re.search(r"width (\d+)", rungs.text)[1])  # type: ignore[index]
    heads = int(re.search(r"has (\d+)", rungs.text)[1])  # type: ignore[index]

    def numbers(words: str) -> int:
        found = list(map(int, re.findall(r"\d+", words)))
        if words.startswith("MLA"):
            return sum(found)
        return 2 * width * {"MHA": heads, "MQA": 1}.get(words, found[0] if found else 0)

    told = [numbers(words) for words in in_right_order(rungs)]
    assert told == sorted(told, reverse=True)
    assert len(set(told)) == 4
    with pytest.raises(UserError, match="2 of 7 have a place"):
        grade(steps, (0, 1))
    assert grade(steps, steps.answer)
    assert not grade(steps, tuple(reversed(steps.answer)))  # type: ignore[arg-type]


def test_what_is_shuffled_comes_in_every_order() -> None:
    for name in ("torch_mask", "head_even", "heat_rows"):
        assert {question(name, seed).answer for seed in SEEDS} >= {0, 1, 2, 3}


# ---- heads


def distance_mean(weights: np.ndarray, offset: int) -> float:
    return float(np.diagonal(weights, offset).mean())


def evenness(one: Any) -> float:
    rows = [row[: place + 1] if one.causal else row for place, row in enumerate(one.weights)]
    shares = [row / row.sum() for row in rows if len(row) > 1]
    return float(np.mean([np.exp(-(p[p > 0] * np.log(p[p > 0])).sum()) / len(p) for p in shares]))


def resting(one: Any) -> float:
    columns = [one.weights[key if one.causal else 0 :, key].mean() for key in range(len(one.labels))]
    return float(max(columns))


@pytest.mark.parametrize("seed", range(1, 41))
def test_one_head_stands_out_from_the_five_beside_it(seed: int) -> None:
    for name in ("head_neighbour", "head_word", "head_rest", "head_even"):
        asked = question(name, seed)
        if name == "head_neighbour":
            offset = -1 if "before" in asked.text else 1
            scores = [distance_mean(one.weights, offset) for one in asked.maps]
        elif name == "head_word":
            assert asked.mark is not None
            row, column = asked.mark
            words = re.findall("“(.+?)”", asked.text)
            assert words == [asked.maps[0].labels[row], asked.maps[0].labels[column]]
            scores = [float(one.weights[row, column]) for one in asked.maps]
        else:
            scores = [(resting if name == "head_rest" else evenness)(one) for one in asked.maps]
        ranked = sorted(scores, reverse=True)
        assert scores.index(ranked[0]) == asked.answer
        assert ranked[1] < (0.85 if name == "head_even" else 0.55) * ranked[0]
        assert len({(one.layer, one.head) for one in asked.maps}) == 6
        assert len({one.text for one in asked.maps}) == 1
        assert dict(asked.link.state)["v.head"] == str(asked.maps[asked.answer].head)  # type: ignore[index]


@pytest.mark.parametrize("seed", range(1, 41))
def test_the_word_most_looked_at_is_the_darkest_cell(seed: int) -> None:
    asked = question("heat_word", seed)
    (query,) = re.findall("“(.+?)”", asked.text)
    one = asked.picture
    assert one is not None
    assert one.labels.count(query) == 1
    row = one.weights[one.labels.index(query)]
    assert asked.choices[asked.answer] == one.labels[int(row.argmax())]  # type: ignore[index]
    assert len(set(asked.choices)) == len(asked.choices) >= 3


def test_the_browser_is_not_told_which_map_is_right_before_the_answer() -> None:
    asked = question("head_word", 2)
    names = list("ABCDEF")
    open_data, other = (maps_data(asked.maps, names, "light", label="", chosen=chosen) for chosen in (1, 4))
    assert not any(one["right"] or one["wrong"] for one in open_data["maps"])
    assert not open_data["answered"]
    for data, chosen in ((open_data, 1), (other, 4)):
        assert [one["chosen"] for one in data["maps"]] == [place == chosen for place in range(6)]
    assert "layer" not in json.dumps(open_data)
    closed = maps_data(asked.maps, names, "dark", label="", chosen=1, right=3)
    assert [one["right"] for one in closed["maps"]] == [place == 3 for place in range(6)]
    assert [one["wrong"] for one in closed["maps"]] == [place == 1 for place in range(6)]


def test_shipped_maps_are_what_the_models_give(minilm: LoadedModel, smollm: LoadedModel) -> None:
    shipped, fresh = shipped_facts()["sentences"], measured_facts([minilm, smollm])["sentences"]
    assert len(shipped) == sum(map(len, SENTENCES.values()))
    for one, other in zip(shipped, fresh, strict=True):
        assert {key: value for key, value in one.items() if key != "weights"} == {
            key: value for key, value in other.items() if key != "weights"
        }
        apart = unpacked(one).astype(int) - unpacked(other)
        assert np.abs(apart).max() <= 1  # rounding only
    assert len(shipped_maps()) == sum(len(SENTENCES[model]) * len(HEADS[model]) for model in HEADS)


# ---- facts behind the fixed questions


def raw_atlas(model: str) -> dict[str, Any]:
    return json.loads((ROOT / "assets" / f"atlas_{model}.json").read_text(encoding="utf-8"))


def right_choice(name: str, seed: int = 3) -> str:
    asked = question(name, seed)
    return asked.choices[asked.answer]  # type: ignore[index]


def test_measured_facts_are_those_of_the_shipped_files() -> None:
    curve = raw_atlas(SMOLLM)["pruning"]
    free = [point["n_muted"] for point in curve["points"] if point["loss"] <= 1.05 * curve["points"][0]["loss"]]
    assert right_choice("pruning") == str(max(free))
    five = next(one for one in raw_atlas(SMOLLM)["groups"] if one["title"] == "the 5 strongest induction heads")
    assert five["heads"] == [[17, 3], [17, 4], [17, 5], [18, 6], [18, 7]]  # what the page mutes at first
    assert right_choice("induction") == f"It rises from {five['before']:.1f} to {five['after']:.1f} nats."
    head = next(row for row in raw_atlas(MINILM)["rows"] if (row["layer"], row["head"]) == (1, 3))
    first = head["evidence"][0]
    asked = question("evidence", 1)
    assert f"right in {100 * first['value']:.0f} % of {first['n']} sentences" in asked.reason
    assert f"reaches {100 * first['baseline']:.0f} %" in asked.reason
    assert dict(asked.link.state)["f_head"] == "3"


def test_what_is_said_of_single_maps_is_so() -> None:
    rows = question("heat_rows", 1).picture
    assert rows is not None
    assert np.abs(rows.weights.sum(-1) - 1).max() < 0.05
    assert np.abs(rows.weights.sum(0) - 1).max() > 0.5
    masked = question("heat_mask", 1).picture
    assert masked is not None
    assert masked.causal
    assert not masked.weights[~np.tri(len(masked.labels), dtype=bool)].any()
    rest = question("heat_rest", 1)
    assert rest.picture is not None
    share = rest.picture.weights.mean(0).max()
    assert f"gets {100 * share:.0f} % of all looks" in rest.reason
    labels = {(row["layer"], row["head"]): row["label"] for row in raw_atlas(MINILM)["rows"]}
    assert labels[rest.picture.layer, rest.picture.head] == "rest"
    assert set(labels.values()) != {"rest"}
    trap = question("heat_trap", 1).picture
    assert trap is not None
    label = next(r["label"] for r in raw_atlas(SMOLLM)["rows"] if (r["layer"], r["head"]) == (trap.layer, trap.head))
    assert label == "previous"


@pytest.mark.parametrize("seed", range(1, 20))
def test_who_reads_the_same_keys(seed: int) -> None:
    asked = question("mates", seed)
    n_heads, n_kv, head = map(int, re.findall(r"(\d+) query heads and (\d+).*query head (\d+)", asked.text)[0])
    groups = np.repeat(np.arange(n_kv), n_heads // n_kv)
    assert right_choice("mates", seed) == ", ".join(map(str, np.flatnonzero(groups == groups[head])))
    assert len(set(asked.choices)) == 4


def test_pytorchs_two_masks_are_opposite() -> None:
    q = k = torch.ones(1, 1, 2, 4)
    v = torch.tensor([[[[1.0], [5.0]]]])
    only_first = torch.tensor([[True, False], [True, False]])
    assert functional.scaled_dot_product_attention(q, k, v, attn_mask=only_first).unique().tolist() == [1.0]
    module = torch.nn.MultiheadAttention(4, 1, batch_first=True)
    _, weights = module(q[0], k[0], k[0], attn_mask=only_first)
    assert weights[0].tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert right_choice("torch_mask").startswith("scaled_dot_product_attention may look there; nn.Multi")


def test_pytorchs_causal_mask_starts_at_the_top_left() -> None:
    q, k = torch.ones(1, 1, 1, 4), torch.ones(1, 1, 5, 4)
    v = torch.arange(5.0).reshape(1, 1, 5, 1)
    assert functional.scaled_dot_product_attention(q, k, v, is_causal=True).item() == 0.0
    assert functional.scaled_dot_product_attention(q, k, v).item() == pytest.approx(2.0)  # all five
    assert right_choice("torch_causal") == "Key 0 only."


def test_pytorchs_module_averages_its_heads() -> None:
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 5, 8)
    weights, single = (module(x, x, x, **asked)[1] for asked in ({}, {"average_attn_weights": False}))
    assert (tuple(weights.shape), tuple(single.shape)) == ((3, 5, 5), (3, 2, 5, 5))
    assert torch.allclose(weights, single.mean(1))
    assert right_choice("torch_average").startswith("(batch, query, key): averaged")


def test_heads_meet_in_step_7_only() -> None:
    layout = HeadLayout(12, 3, 3)
    x, weights = random_inputs(layout, 5)
    other = weights | {"W_v": weights["W_v"] + np.eye(1, 12, 0)}  # head 0 only
    before, after = (multi_head_attention(x, one, layout) for one in (weights, other))
    changed = (before.step("6.concat").array != after.step("6.concat").array).any(0)
    assert set(np.flatnonzero(changed)) <= set(range(4))
    assert (before.output != after.output).any(0).all()
    assert right_choice("meet") == "In step 7, the product with W_o."


def test_bytes_said_in_choices() -> None:
    assert find_model("all-MiniLM-L6-v2").cache.bytes(512) == 0
    assert right_choice("encoder") == "0 bytes: it has none."
    for seed in range(1, 20):
        asked = question("weights_bits", seed)
        name, stated = re.findall(rf"^(.*) has a cache of {SIZE}", asked.text)[0][0], re.search(SIZE, asked.text)
        tokens = int(re.findall(r"([\d,]+) tokens", asked.text)[0].replace(",", ""))
        assert stated is not None
        assert size(*stated.groups()) == pytest.approx(find_model(name).cache.bytes(tokens), rel=0.005)
        assert stated[0] in right_choice("weights_bits", seed)
        assert len(set(asked.choices)) == 4


# ---- six lines of code


def expected(x: np.ndarray, weights: dict[str, np.ndarray], layout: HeadLayout, causal: bool) -> torch.Tensor:
    """The heads' outputs side by side, (seq, heads·d_head), by PyTorch."""
    split = {
        name: torch.from_numpy(x @ weights[f"W_{name}"]).reshape(len(x), -1, layout.d_head).transpose(0, 1)
        for name in "qkv"
    }
    out = functional.scaled_dot_product_attention(*split.values(), is_causal=causal, enable_gqa=True)
    return out.transpose(0, 1).reshape(len(x), -1)


def ran(lines: list[str], asked: Question) -> np.ndarray:
    """Run six lines from where the question says they start."""
    state = dict(asked.link.state)
    seq_len, width, n_heads, n_kv = (int(state[name]) for name in ("s_seq", "s_width", "s_heads", "s_kv"))
    layout = HeadLayout(width, n_heads, n_kv)
    x, weights = random_inputs(layout, seq_len)
    causal = state.get("s_causal") == "true"
    names: dict[str, Any] = {
        "np": np, "seq_len": seq_len, "n_heads": n_heads, "n_kv_heads": n_kv, "d_head": layout.d_head,
        "q_per_kv": n_heads // n_kv, "mask": np.tri(seq_len, dtype=bool), "W_o": weights["W_o"],
        "softmax": lambda scores, axis=-1: torch.from_numpy(scores).softmax(axis).numpy(),
    }  # fmt: skip
    split = {
        "given": asked.text.split("wrong. ")[1],
        **{name: x @ weights[f"W_{name.lower()}"] for name in "QKV"},
    }
    ready = "QKV" if "have (n_kv_heads" in split["given"] else "QK" if "Q and K are split" in split["given"] else ""
    for name in "QKV":
        value = split[name]
        names[name] = value.reshape(seq_len, -1, layout.d_head).swapaxes(0, 1) if name in ready else value
    exec("\n".join(lines), names)  # our own six lines
    right = expected(x, weights, layout, causal).numpy()
    if "output" in names:
        return np.asarray(names["output"] - right @ weights["W_o"])
    got = names["concat"] if "concat" in names else names["heads_out"].swapaxes(0, 1).reshape(right.shape)
    return np.asarray(got - right)


@pytest.mark.parametrize("name", ["bug_address", "bug_softmax", "bug_late"])
def test_the_line_named_is_wrong_and_the_line_given_mends_it(name: str) -> None:
    lines_wrong = set()
    for seed in range(1, 25):
        asked = question(name, seed)
        assert len(asked.code) == len(asked.choices) == 6
        assert isinstance(asked.answer, int)
        (mended,) = re.findall("Right is `(.+?)`", asked.reason)
        lines = list(asked.code)
        lines_wrong.add(lines[asked.answer])
        assert np.abs(ran(lines, asked)).max() > 1e-6
        lines[asked.answer] = mended
        if mended.startswith("K = np.repeat"):
            assert lines[1].startswith("V = np.repeat")
        assert np.abs(ran(lines, asked)).max() < 1e-9
    assert len(lines_wrong) == 2


# ---- papers


def digest(seed: int, length: int) -> str:
    return repr([(q.text, q.choices, q.answer, q.code, q.link.address) for q in paper(seed, length).questions])


def test_a_seed_gives_the_same_paper_in_another_process_without_torch() -> None:
    code = (
        "from attention.quiz import paper; import sys\n"
        "print(repr([(q.text, q.choices, q.answer, q.code, q.link.address) for q in paper(7, 24).questions]))\n"
        "print([name for name in ('torch', 'transformers', 'plotly', 'streamlit') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    same, heavy = told.splitlines()
    assert same == digest(7, 24)
    assert heavy == "[]"


def test_other_seeds_give_other_papers() -> None:
    assert len({digest(seed, 12) for seed in range(1, 31)}) == 30


@pytest.mark.parametrize("length", lengths())
def test_a_paper_has_every_kind_in_the_lessons_order(length: int) -> None:
    topics = list(wording()["topics"])
    for seed in range(1, 16):
        questions = paper(seed, length).questions
        assert len(questions) == len({one.id for one in questions}) == length
        assert {one.kind for one in questions} == set(wording()["kinds"])
        places = [topics.index(one.topic) for one in questions]
        assert places == sorted(places)
        assert set(places) == set(range(len(topics)))
        if length == 12:
            assert min(map(places.count, places)) >= 2
            assert max(map(places.count, places)) <= 5
    assert lengths()[-1] == len(IDS) >= 24


@pytest.mark.parametrize("seed", [0, -1, 10_000, True, "7", 1.5])
def test_a_paper_there_is_not(seed: Any) -> None:
    with pytest.raises(UserError, match="no paper"):
        paper(seed)


def test_lengths_and_questions_there_are_not() -> None:
    with pytest.raises(UserError, match="13 questions"):
        paper(1, 13)
    with pytest.raises(UserError, match="no question 'nonsense'"):
        question("nonsense", 1)


@pytest.mark.parametrize("text", ["(5, 4, 8)", "5 4 8", "5x4x8", "[5,4,8]", " 5 × 4 × 8 ", "5;4;8", "(5,4,8,)"])
def test_a_shape_may_be_written_as_people_do(text: str) -> None:
    assert read_shape(text) == (5, 4, 8)


@pytest.mark.parametrize("text", ["", "five", "(5, n, 8)", "-5, 4", "5.5, 2", "()", "9" * 30])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(UserError, match="is not a shape"):
        read_shape(text)


@pytest.mark.parametrize("given", [float("nan"), float("inf"), -1e300])
def test_odd_numbers_are_wrong_and_no_fault(given: float) -> None:
    assert not grade(question("max_context", 4), given)


# ---- words


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [one for item in value.values() for one in strings(item)]
    if isinstance(value, list | tuple):
        return [one for item in value for one in strings(item)]
    return [value] if isinstance(value, str) else []


def test_sentences_are_short_and_nobody_understands_anything() -> None:
    filled = [
        words
        for seed, name in itertools.product((1, 2, 3), IDS)
        for one in [question(name, seed)]
        for words in (one.text, one.reason, one.allowed, *one.choices)
    ]
    for words in (*filled, *(slide.ask for slide in class_plan())):
        assert "{" not in words, words
        for sentence in re.split(r"(?<=[.?!:;])\s", words):
            assert len(sentence.split()) <= 25, sentence
    assert "understand" not in " ".join(strings(json.loads(FILE.read_text(encoding="utf-8")))).lower()


def test_every_maker_has_words_and_no_fixed_question_needs_one() -> None:
    assert set(MAKERS) <= set(IDS)
    for entry in wording()["questions"]:
        if entry["id"] not in MAKERS:
            assert len(set(entry["choices"])) == 4


def test_the_class_plan_is_45_minutes_in_ten_links() -> None:
    plan = class_plan()
    assert len(plan) == 10
    assert sum(slide.minutes for slide in plan) == 45
    assert all(slide.ask.endswith("?") for slide in plan)
    assert len({slide.link.address for slide in plan}) == 10
