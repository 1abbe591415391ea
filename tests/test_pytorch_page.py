"""The PyTorch page run by Streamlit itself: its figures are the engine's, its code runs, and it measures in turns."""

from __future__ import annotations

import base64
import html
import itertools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from streamlit.testing.v1 import AppTest
from torch import nn

from attention import timing
from attention.kv_working import readable
from attention.plots.timing_charts import MemoryRow, WayBar, memory_lines, milliseconds, time_bars
from attention.timing import MemoryPoint, TimingResult, Trap, WayTiming
from pages.compute import measuring
from pages.compute.four_ways import setup_code, way_codes
from pages.compute.measuring import MOST_RESULTS, Bench, Measured, Request, bench, traps, wait_for_preload
from pages.compute.trap_code import NAMES, snippet

ENTRY = str(Path(__file__).parent.parent / "pages" / "entry.py")
DEFAULT = Request(1, 512, 8, 8, True)
WAYS = ("module", "fused", "explicit", "ours")
FLASH = "FLASH_ATTENTION (aten::_scaled_dot_product_flash_attention_for_cpu)"


def opened(**address: str) -> AppTest:
    app = AppTest.from_file(ENTRY, default_timeout=120)
    for name, value in address.items():
        app.query_params[name] = value
    app.switch_page("compute/pytorch.py")
    return app.run()


def headline(app: AppTest) -> str:
    (found,) = [part.proto.body for part in app.get("html") if '<h2 class="hs-answer">' in part.proto.body]
    return re.sub("<[^>]+>", "", found)


def plots(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(part.proto.spec) for part in app.get("plotly_chart")]


def numbers(values: Any) -> list[float]:
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]).tolist()
    return list(values)


def captions(app: AppTest) -> str:
    return " ".join(part.value.replace("\\", "") for part in app.caption)


def codes(app: AppTest) -> list[str]:
    return [part.value for part in app.code]


def assert_sound(app: AppTest) -> None:
    assert len(app.exception) == 0


def made_up(
    explicit: float = 0.03, fused: float = 0.01, *, gap: float = 2e-6, runs: int = 5, spread: float = 1.0
) -> Measured:
    """Figures of one's choice, in seconds; ``spread`` is median over fastest."""
    seconds = {"module": 0.012, "fused": fused, "explicit": explicit, "ours": 0.2}
    kernels = {"module": FLASH, "fused": FLASH, "explicit": "separate matmul and softmax", "ours": "NumPy"}
    ways = tuple(
        WayTiming(key, f"title of {key}", "", kernels[key], seconds[key], seconds[key] / spread, runs, None, "")
        for key in WAYS
    )
    differences = dict.fromkeys(itertools.combinations(WAYS, 2), gap / 2) | {("module", "ours"): gap}
    points = tuple(MemoryPoint(n, 100 * n * n, 3000 * n, 32 * n * n, FLASH) for n in (32, 64, 128))
    return Measured(TimingResult(ways, differences, 1, "2.13", ()), points)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Measured]]:
    """Figures by request key that stand in for measuring; any other request gets made-up ones. Counted."""
    figures: dict[str, Measured] = {}
    asked: list[Request] = []

    def figure(request: Request, report: Any) -> Measured:
        report(0.5, "Running something")
        asked.append(request)
        return figures.get(request.key, made_up())

    monkeypatch.setattr(measuring, "_measured", figure)
    bench.clear()
    figures["asked"] = asked  # type: ignore[assignment]
    yield figures
    bench.clear()


# ---- the first screen


def test_opening_measures_the_default_and_draws_those_figures() -> None:
    bench.clear()
    app = opened()
    assert_sound(app)
    measured = bench().kept(DEFAULT)
    assert measured is not None
    assert [way.key for way in measured.timing.ways] == list(WAYS)
    assert measured.timing.largest_difference <= 1e-5
    assert headline(app).startswith("Four ways, one answer: largest difference 0.00000")
    times, memory = plots(app)
    assert numbers(times["data"][0]["x"]) == [way.median_seconds * 1000 for way in measured.timing.ways]
    labels = [note["text"] for note in times["layout"]["annotations"]]
    assert labels[1] == "<b>F.scaled_dot_product_attention</b> · fused: FLASH_ATTENTION"
    lines = {line["name"]: line for line in memory["data"]}
    assert numbers(lines["fused"]["x"]) == [32, 64, 128, 256, 512]
    assert numbers(lines["fused"]["y"]) == [point.fused_bytes for point in measured.memory]
    assert numbers(lines["explicit"]["y"]) == [point.explicit_bytes for point in measured.memory]
    assert numbers(lines["one table of scores"]["y"])[-1] == 8 * 512 * 512 * 4
    last = measured.memory[-1]
    assert f"takes {readable(last.explicit_bytes)}" in captions(app)
    assert f"takes {readable(last.fused_bytes)}" in captions(app)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (made_up(0.031, 0.01), "Four ways, one answer: largest difference 0.000002. "
         "The fused one is 3.1× faster than the explicit one here."),
        (made_up(0.01, 0.02), "The fused one is 2.0× slower than the explicit one here."),
        (made_up(0.0104, 0.01), "The fused one takes about as long as the explicit one here."),
        (made_up(runs=2), "The server is too busy to say which is faster: measure again."),
        (made_up(spread=1.7), "The server is too busy to say which is faster: measure again."),
        (made_up(gap=0.02), "Four ways that should agree differ by 0.02."),
    ],
)  # fmt: skip
def test_the_headline_says_what_was_measured(told: dict[str, Measured], figures: Measured, sentence: str) -> None:
    told[DEFAULT.key] = figures
    assert sentence in headline(opened())


def test_a_result_is_kept_until_measured_again(told: dict[str, Any]) -> None:
    told[DEFAULT.key] = made_up(0.02, 0.01)
    app = opened()
    app.run()
    opened()
    assert told["asked"] == [DEFAULT]
    told[DEFAULT.key] = made_up(0.05, 0.01)
    app.button(key="p_measure").click().run()
    assert told["asked"] == [DEFAULT, DEFAULT]
    assert "5.0× faster" in headline(app)


def test_large_sizes_wait_for_the_button(told: dict[str, Any]) -> None:
    app = opened(p_seq="2048", p_batch="2", p_heads="4", p_kv="2", p_causal="false")
    large = Request(2, 2048, 4, 2, False)
    assert headline(app) == "2 × 2,048 tokens: not measured yet. This takes some seconds: press Measure."
    assert app.button(key="p_measure").label == "Measure"
    assert large not in told["asked"]
    (shown,) = told["asked"]
    assert shown.is_small
    assert (shown.n_heads, shown.n_kv_heads, shown.causal) == (4, 2, False)
    assert f"{shown.seq_len} tokens, with the same heads." in captions(app)
    app.button(key="p_measure").click().run()
    assert told["asked"][-1] == large
    assert app.button(key="p_measure").label == "Measure again"
    assert "3.0× faster" in headline(app)


def test_a_size_beyond_the_limits_is_a_sentence_and_the_page_stays() -> None:
    app = opened(p_seq="2048", p_batch="8")
    app.button(key="p_measure").click().run()
    assert_sound(app)
    (error,) = [part.value.replace("\\", "") for part in app.error]
    assert error.startswith("At 2048 tokens one score tensor takes 1,024 MiB.")
    assert "Shorten the sequence" in error
    assert len(plots(app)) == 2
    assert not measuring.bench()._turn.locked()


@pytest.mark.parametrize("small", [DEFAULT, Request(8, 64, 16, 1, False)])
def test_what_runs_unasked_is_small(small: Request) -> None:
    assert small.is_small
    assert not Request(small.batch_size, 2048, small.n_heads, small.n_kv_heads, small.causal).is_small


def test_fewer_heads_take_the_kv_heads_along_aloud(told: dict[str, Any]) -> None:
    app = opened(p_heads="8", p_kv="8")
    app.selectbox(key="p_heads").set_value(2).run()
    assert app.selectbox(key="p_kv").value == 2
    assert app.selectbox(key="p_kv").options == ["1", "2"]
    assert [part.value for part in app.toast] == ["n_kv_heads is now 2: 8 no longer fits. It may be 1, 2."]
    assert told["asked"][-1] == Request(1, 512, 2, 2, True)


def test_an_odd_link_is_answered_aloud(told: dict[str, Any]) -> None:
    app = opened(p_seq="77<b>")
    assert_sound(app)
    assert told["asked"] == [DEFAULT]
    (words,) = [part.value.replace("\\", "") for part in app.toast]
    assert words.startswith("This link asks for seq_len 77<b>. It may be 64, 128,")


# ---- taking turns


def waited(thread: threading.Thread) -> None:
    thread.join(30)
    assert not thread.is_alive()


def test_two_visitors_never_measure_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go, told_to_wait = threading.Event(), threading.Event(), threading.Event()
    running: list[int] = [0, 0]

    def slow(request: Request, report: Any) -> Measured:
        running[0] += 1
        running[1] = max(running)
        inside.set()
        assert go.wait(30)
        running[0] -= 1
        return made_up()

    monkeypatch.setattr(measuring, "_measured", slow)
    shared = Bench()
    first = threading.Thread(target=shared.measure, args=(DEFAULT, lambda *_: None))
    first.start()
    assert inside.wait(30)
    words: list[str] = []

    def hear(_: float, said: str) -> None:
        words.append(said)
        told_to_wait.set()

    second = threading.Thread(target=shared.measure, args=(Request(1, 64, 8, 8, True), hear))
    second.start()
    assert told_to_wait.wait(30)
    assert words[0].startswith("Somebody else is measuring.")
    go.set()
    waited(first)
    waited(second)
    assert running == [0, 1]


def test_who_waited_for_the_same_request_takes_over_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go, waiting = threading.Event(), threading.Event(), threading.Event()
    calls: list[Request] = []

    def slow(request: Request, report: Any) -> Measured:
        calls.append(request)
        inside.set()
        assert go.wait(30)
        return made_up()

    monkeypatch.setattr(measuring, "_measured", slow)
    shared = Bench()
    got: list[Measured] = []
    threads = [
        threading.Thread(target=lambda: got.append(shared.measure(DEFAULT, lambda *_: waiting.set()))) for _ in range(2)
    ]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    assert waiting.wait(30)
    go.set()
    for thread in threads:
        waited(thread)
    assert calls == [DEFAULT]
    assert got[0] is got[1]


class LeftError(Exception):
    """Stands for what Streamlit raises in a script whose visitor has left."""


def test_leaving_ends_the_measurement_and_frees_the_turn() -> None:
    seen: list[str] = []

    def leave(_: float, words: str) -> None:
        seen.append(words)
        if words == "Running explicit matmul":
            raise LeftError

    shared = Bench()
    with pytest.raises(LeftError):
        shared.measure(Request(1, 64, 2, 2, True), leave)
    assert seen[-1] == "Running explicit matmul"
    assert shared.kept(Request(1, 64, 2, 2, True)) is None
    assert not shared._turn.locked()


def test_progress_runs_from_nothing_to_all() -> None:
    shares: list[float] = []
    measured = Bench().measure(Request(1, 64, 2, 1, False), lambda share, _: shares.append(share))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert [point.seq_len for point in measured.memory] == [32, 64]


def test_only_the_latest_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_measured", lambda request, report: made_up())
    shared = Bench()
    requests = [Request(batch, 64, 1, 1, True) for batch in range(1, MOST_RESULTS + 3)]
    for request in requests:
        shared.measure(request, lambda *_: None)
    assert [shared.kept(request) is None for request in requests] == [True] * 2 + [False] * MOST_RESULTS


def test_a_server_that_is_loading_its_models_is_waited_for() -> None:
    loaded = threading.Event()
    loading = threading.Thread(target=loaded.wait, name="preload", args=(30,))
    loading.start()
    words: list[str] = []

    def hear(_: float, said: str) -> None:
        words.append(said)
        if len(words) == 2:
            loaded.set()

    wait_for_preload(hear)
    assert not loading.is_alive()
    assert len(words) >= 2
    assert "loading its models" in words[0]
    wait_for_preload(lambda *_: pytest.fail("nothing is loading"))


# ---- the code


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_the_code_on_the_page_runs_and_the_four_ways_agree(n_kv_heads: int, causal: bool) -> None:
    request = Request(2, 64, 4, n_kv_heads, causal)
    ways = way_codes(request)
    assert tuple(ways) == WAYS
    outputs = {}
    for key, code in ways.items():
        names: dict[str, Any] = {}
        exec(setup_code(request) + code, names)
        outputs[key] = np.asarray(names["out"])
        assert outputs[key].shape == (2, 64, measuring.D_MODEL)
        assert names["k"].shape == (2, n_kv_heads, 64, 64)
    # with is_causal=True the module may ignore its mask: without, the mask itself must be right
    names = {}
    exec(setup_code(request) + ways["module"].replace(", is_causal=True", ""), names)
    np.testing.assert_allclose(names["out"], outputs["module"], atol=1e-5)
    for one, two in itertools.combinations(WAYS, 2):
        np.testing.assert_allclose(outputs[one], outputs[two], atol=1e-5)
    # the mask is in them: causal, the first token can only look at itself
    only_itself = np.asarray((names["v"][:, :, :1].repeat_interleave(4 // n_kv_heads, dim=1)).transpose(1, 2).flatten(2)
                             @ names["W_o"])[:, 0]  # fmt: skip
    assert np.allclose(outputs["fused"][:, 0], only_itself, atol=1e-5) == causal


def test_the_page_shows_the_code_of_its_settings(told: dict[str, Any]) -> None:
    app = opened(p_heads="4", p_kv="2", p_seq="128", p_causal="false")
    request = Request(1, 128, 4, 2, False)
    shown = [code.strip() for code in codes(app)]
    for code in (setup_code(request), *way_codes(request).values()):
        assert code.strip() in shown
    assert "enable_gqa=True" in way_codes(request)["fused"]
    assert "is_causal" not in "".join(way_codes(request).values())


# ---- traps


def test_the_copied_snippet_shows_the_error_this_torch_raises(told: dict[str, Any]) -> None:
    x = torch.randn(2, 5, 8)
    with pytest.raises(RuntimeError) as raised:
        nn.MultiheadAttention(8, 2, batch_first=True)(query=x, key=x, value=x, is_causal=True)
    app = opened()
    shown = codes(app)
    place = shown.index("mha(query=x, key=x, value=x, is_causal=True)")
    assert shown[place + 1] == f"RuntimeError: {raised.value}"
    assert all("attn_mask=mask" in code or "F.scaled" in code for code in shown[place + 2 : place + 5])
    assert "All three give the same output." in [part.value for part in app.markdown]


def test_every_trap_and_every_right_form_is_shown(told: dict[str, Any]) -> None:
    app = opened()
    assert_sound(app)
    shown, said = codes(app), captions(app)
    titles = " ".join(part.proto.body for part in app.get("html"))
    run = traps()
    assert len(run) == 8
    for trap in run:
        assert f">{html.escape(trap.title)}</h3>" in titles
        assert snippet(trap) in shown
        assert (trap.error is None) != (f"RuntimeError: {trap.error}" in shown)
        for form in trap.right:
            assert form.code in shown
            assert f"Gave: {form.gave}." in said
    assert not app.info


def test_a_trap_that_springs_no_more_is_said(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    calm = Trap("is_causal_without_mask", "Title", "code", "It ran without an error.", "Lesson.", False, (), None)
    traps.clear()
    monkeypatch.setattr(timing, "pytorch_traps", lambda: (calm,))
    try:
        app = opened()
    finally:
        traps.clear()
    assert [part.value for part in app.info] == [
        "This PyTorch no longer does what the text says. What it did is below."
    ]
    assert "It ran without an error." in " ".join(part.value.replace("\\", "") for part in app.markdown)
    assert not [part.value for part in app.markdown if part.value.startswith("All ")]


def test_running_the_traps_again_runs_them(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real, runs = timing.pytorch_traps, []
    monkeypatch.setattr(timing, "pytorch_traps", lambda: runs.append(1) or real())
    traps.clear()
    app = opened()
    app.run()
    assert len(runs) == 1
    app.button(key="p_traps").click().run()
    assert len(runs) == 2


@pytest.mark.parametrize("place", range(8))
def test_a_copied_snippet_runs_by_itself_as_told(place: int) -> None:
    trap = timing.pytorch_traps()[place]
    names: dict[str, Any] = {}
    exec(NAMES, names)
    if trap.error is None:
        exec(snippet(trap), names)
    else:
        with pytest.raises(RuntimeError, match=re.escape(trap.error)):
            exec(snippet(trap), names)
    if trap.key == "dropout_until_eval":
        assert not torch.equal(names["one"], names["two"])
    if trap.key == "opposite_masks":
        torch.testing.assert_close(names["by_sdpa"].sum(-1), torch.ones(1, 2, 5))  # the output is the weights
    for form in trap.right:
        exec(form.code, names)
    if trap.key == "dropout_until_eval":
        assert torch.equal(names["one"], names["two"])
    if trap.key == "top_left_causal":
        torch.testing.assert_close(names["out"].sum(-1), torch.ones(1, 2, 1))
        assert F.scaled_dot_product_attention(names["q"], names["k"], names["v"], is_causal=True)[0, 0, 0, 0] == 1


# ---- charts


def test_bars_are_told_and_escaped() -> None:
    drawn = time_bars([WayBar("a <b>", "k&", 0.0032, True), WayBar("slow", "NumPy", 1.2345, False)], "dark")
    assert [note.text for note in drawn.figure.layout.annotations] == [
        "<b>a &lt;b&gt;</b> · k&amp;",
        "<b>slow</b> · NumPy",
    ]
    assert drawn.alt == "Bars of median times per run. a <b> (k&): 3.2 ms; slow (NumPy): 1,234 ms."
    dark, pale = drawn.figure.data[0].marker.color
    assert dark != pale
    assert drawn.figure.layout.xaxis.range[0] == 0


@pytest.mark.parametrize(("seconds", "words"), [(0.00321, "3.21 ms"), (0.0999, "99.9 ms"), (1.24, "1,240 ms")])
def test_times_have_three_digits(seconds: float, words: str) -> None:
    assert milliseconds(seconds) == words


def test_memory_is_on_two_log_axes_with_named_units() -> None:
    rows = [MemoryRow(64, 2**20, 2**18, 2**16), MemoryRow(2048, 2**30, 2**23, 2**28)]
    drawn = memory_lines(rows, "light")
    axes = drawn.figure.layout.xaxis, drawn.figure.layout.yaxis
    assert [axis.type for axis in axes] == ["log", "log"]
    assert list(axes[0].ticktext) == ["64", "2,048"]
    assert axes[1].tickvals[0] == 2**16
    assert axes[1].tickvals[-1] >= 2**30
    assert len(axes[1].tickvals) <= 8
    assert list(axes[1].ticktext) == [readable(tick) for tick in axes[1].tickvals]
    assert drawn.alt == (
        "Lines of peak memory against seq_len. 64 tokens: explicit 1 MiB, fused 256 KiB; "
        "2048 tokens: explicit 1 GiB, fused 8 MiB."
    )
