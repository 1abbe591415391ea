"""The four ways agree, their figures are real, and every trap still springs on this PyTorch."""

from __future__ import annotations

import re
import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention import timing
from attention.errors import UserError
from attention.layout import HeadLayout
from attention.timing import Trap, memory_growth, pytorch_traps, time_attention

LAYOUTS = [HeadLayout(24, 6, 6), HeadLayout(24, 6, 2), HeadLayout(24, 6, 1)]


@pytest.fixture(scope="module")
def traps() -> dict[str, Trap]:
    return {trap.key: trap for trap in pytorch_traps()}


# ---- four ways, one attention


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
def test_all_ways_agree_on_the_same_weights(layout: HeadLayout, causal: bool) -> None:
    result = time_attention(layout, 7, 3, causal, runs=2, memory=False)
    assert [way.key for way in result.ways] == ["module", "fused", "explicit", "ours"]
    assert len(result.differences) == 6
    assert result.largest_difference == max(result.differences.values()) <= 1e-6
    assert bool(result.notes) == (layout.q_per_kv > 1)
    assert result.threads == torch.get_num_threads()
    assert result.torch_version == torch.__version__


def test_the_ways_really_compute_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference is seen: with one way broken, only its own differences grow."""
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(timing.F, "scaled_dot_product_attention", lambda *a, **k: real(*a, **k) * 1.01)
    result = time_attention(HeadLayout(24, 6, 2), 7, 2, runs=1, memory=False)
    far = {pair for pair, gap in result.differences.items() if gap > 1e-4}
    assert ("fused", "explicit") in far
    assert ("fused", "ours") in far
    assert ("explicit", "ours") not in far


def test_the_seed_and_the_mask_change_the_numbers() -> None:
    ready = timing._prepared(HeadLayout(24, 6, 2), 7, 2, True, 3)
    again = timing._prepared(HeadLayout(24, 6, 2), 7, 2, True, 3)
    other = timing._prepared(HeadLayout(24, 6, 2), 7, 2, True, 4)
    np.testing.assert_array_equal(ready.x, again.x)
    assert (ready.x != other.x).any()
    assert {array.dtype for array in (ready.x, *ready.weights.values())} == {np.dtype(np.float32)}


def test_module_is_left_out_where_it_cannot_be() -> None:
    for layout in (HeadLayout(20, 6, 2, d_head=4), HeadLayout(24, 6, 2, d_head_v=7)):
        result = time_attention(layout, 5, 1, True, runs=1, memory=False)
        assert [way.key for way in result.ways] == ["fused", "explicit", "ours"]
        assert result.largest_difference <= 1e-6
        assert "left out" in result.notes[0]


def test_kernels_are_named_as_they_ran() -> None:
    ways = {way.key: way for way in time_attention(HeadLayout(24, 6, 6), 7, 2, True, runs=1, memory=False).ways}
    assert ways["fused"].kernel == "FLASH_ATTENTION (aten::_scaled_dot_product_flash_attention_for_cpu)"
    assert ways["explicit"].kernel == "separate matmul and softmax"
    assert ways["ours"].kernel == "NumPy"
    # a value width of its own sends SDPA to its plain kernel
    wide = {way.key: way for way in time_attention(HeadLayout(24, 6, 6, d_head_v=7), 7, runs=1, memory=False).ways}
    assert wide["fused"].kernel == "MATH (aten::_scaled_dot_product_attention_math)"


def test_runs_are_bounded_by_number_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    clock = iter(np.arange(0, 100, 0.25).tolist())
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    one = [timing._timed(lambda: calls.append(1), runs, budget) for runs, budget in ((3, 100), (99, 1.0), (99, 0.0))]
    monkeypatch.undo()
    assert one == [[0.25] * 3, [0.25] * 4, [0.25]]
    assert len(calls) == 8


def test_medians_come_from_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_timed", lambda *_: [3.0, 1.0, 2.0, 9.0, 2.5])
    for way in time_attention(HeadLayout(8, 2, 2), 4, memory=False).ways:
        assert (way.median_seconds, way.fastest_seconds, way.runs) == (2.5, 1.0, 5)
        assert way.peak_bytes is None


def test_progress_climbs_to_one_with_a_sentence_each() -> None:
    seen: list[tuple[float, str]] = []
    time_attention(
        HeadLayout(8, 2, 2), 4, runs=1, memory=False, progress=lambda share, said: seen.append((share, said))
    )
    assert [share for share, _ in seen] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert all(said for _, said in seen)
    seen.clear()
    memory_growth(HeadLayout(8, 2, 2), (4, 8), progress=lambda share, said: seen.append((share, said)))
    assert [share for share, _ in seen] == [0.0, 0.5, 1.0]


# ---- memory


def test_the_peak_is_the_highest_sum_not_the_total() -> None:
    def call() -> None:
        for _ in range(3):
            held = torch.empty(1000, dtype=torch.float32)
            more = torch.empty(500, dtype=torch.float32)
            del held, more

    peak, kernel = timing._profiled(call)
    assert 6000 <= peak < 6000 + 256
    assert kernel == "separate matmul and softmax"


def test_memory_of_other_threads_is_not_counted() -> None:
    started, stop = threading.Event(), threading.Event()

    def noisy() -> None:
        while not stop.is_set():
            torch.empty(1 << 20)
            started.set()

    other = threading.Thread(target=noisy)
    other.start()
    try:
        started.wait(10)
        peak, _ = timing._profiled(lambda: [torch.empty(1000) for _ in range(200)])
    finally:
        stop.set()
        other.join()
    assert 200 * 4000 <= peak < 200 * 4000 + (1 << 20)


def test_explicit_memory_grows_with_the_square_and_fused_with_the_length() -> None:
    points = memory_growth(HeadLayout(32, 4, 4), (128, 256, 512), batch_size=2)
    assert [point.score_bytes for point in points] == [2 * 4 * n * n * 4 for n in (128, 256, 512)]
    for point in points:
        assert point.explicit_bytes >= 2 * point.score_bytes
        assert point.fused_kernel.startswith("FLASH_ATTENTION")
    for small, large in pairwise(points):
        assert 3.3 < large.explicit_bytes / small.explicit_bytes < 4.1
        assert 1.4 < large.fused_bytes / small.fused_bytes < 2.2
    assert points[-1].fused_bytes < points[-1].score_bytes / 4


def test_every_way_reports_its_peak_and_how() -> None:
    layout, seq_len, batch = HeadLayout(32, 4, 2), 64, 2
    result = time_attention(layout, seq_len, batch, True, runs=1)
    peaks = {way.key: way.peak_bytes for way in result.ways}
    scores = batch * 4 * seq_len**2 * 4
    assert peaks["explicit"] > 2 * scores > peaks["fused"]
    assert peaks["ours"] > 3 * scores  # scores, masked and weights are all kept
    assert peaks["ours"] < 12 * scores
    how = {way.key: way.peak_how for way in result.ways}
    assert "allocator" in how["fused"]
    assert "tracemalloc" in how["ours"]


def test_a_measuring_process_that_dies_is_said_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.sys, "executable", "/bin/false")
    ways = {way.key: way for way in time_attention(HeadLayout(8, 2, 2), 4, runs=1).ways}
    assert ways["ours"].peak_bytes is None
    assert "did not finish" in ways["ours"].peak_how


# ---- limits


def test_sizes_beyond_a_page_view_are_refused_with_what_would_fit() -> None:
    with pytest.raises(UserError, match=r"one score tensor takes 1,024 MiB.*up to 2048 tokens") as caught:
        time_attention(HeadLayout(64, 16, 16), 4096)
    allowed = int(re.search(r"up to (\d+) tokens", caught.value.allowed)[1])
    assert 16 * allowed**2 * 4 <= timing.MAX_SCORE_BYTES < 16 * (allowed + 1) ** 2 * 4
    with pytest.raises(UserError, match="billion operations"):
        memory_growth(HeadLayout(8192, 8, 8), (8, 64))
    with pytest.raises(UserError, match="runs is 0"):
        time_attention(HeadLayout(8, 2, 2), 4, runs=0)
    with pytest.raises(UserError, match="seq_len is 0"):
        time_attention(HeadLayout(8, 2, 2), 0)


# ---- traps


def test_every_trap_of_the_list_is_run_and_holds(traps: dict[str, Trap]) -> None:
    assert list(traps) == [
        "is_causal_without_mask",
        "opposite_masks",
        "need_weights",
        "average_attn_weights",
        "enable_gqa",
        "batch_first",
        "dropout_until_eval",
        "top_left_causal",
    ]
    for trap in traps.values():
        assert trap.holds, trap
        assert trap.code
        assert trap.happened
        assert trap.lesson
        assert all(form.code and form.gave for form in trap.right)
        assert trap.right


def test_the_copied_snippet_raises_and_three_forms_agree(traps: dict[str, Trap]) -> None:
    trap = traps["is_causal_without_mask"]
    assert trap.code == "mha(query=x, key=x, value=x, is_causal=True)"
    module, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    with pytest.raises(RuntimeError) as caught:
        module(query=x, key=x, value=x, is_causal=True)
    assert trap.error == str(caught.value)
    assert trap.error.startswith("Need attn_mask")
    assert len(trap.right) == 3
    outputs = []
    for form in trap.right:
        names = {"torch": torch, "nn": nn, "F": F, "mha": module.eval(), "x": x}
        exec(form.code, names)
        outputs.append(names["out"])
    lower = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = module.eval()(x, x, x, attn_mask=lower)[0]
    for output in outputs:
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)


def test_shared_heads_error_is_torchs_own(traps: dict[str, Trap]) -> None:
    q, kv = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    with pytest.raises(RuntimeError) as caught:
        F.scaled_dot_product_attention(q, kv, kv)
    assert traps["enable_gqa"].error == str(caught.value)
    off = float(re.search(r"off by ([\d.]+)", traps["enable_gqa"].right[1].gave)[1])
    assert off > 0.01


def test_mask_meanings_are_shown_with_numbers(traps: dict[str, Trap]) -> None:
    rows = [
        [float(part) for part in row.split(", ")]
        for row in re.findall(r"\(([\d., ]+)\)", traps["opposite_masks"].happened)
    ]
    by_sdpa, by_module = rows
    assert by_sdpa[2:] == [0, 0, 0]
    assert by_module[:2] == [0, 0]
    for row in rows:
        assert sum(row) == pytest.approx(1, abs=0.03)
    assert "NaN" in traps["opposite_masks"].happened
    mended = re.search(r"\(([\d., ]+)\)", traps["opposite_masks"].right[0].gave)[1].split(", ")
    assert mended[2:] == ["0.00", "0.00", "0.00"]
    assert float(mended[0]) + float(mended[1]) == pytest.approx(1, abs=0.03)


def test_weights_cost_the_fused_kernel(traps: dict[str, Trap]) -> None:
    trap = traps["need_weights"]
    assert "separate matmul and softmax" in trap.happened
    assert "_scaled_dot_product_flash_attention_for_cpu" in trap.right[0].gave
    assert "weights is None" in trap.right[0].gave


def test_top_left_alignment_sees_only_the_first_key(traps: dict[str, Trap]) -> None:
    trap = traps["top_left_causal"]
    assert "(1.00, 0.00, 0.00, 0.00, 0.00, 0.00)" in trap.happened
    assert trap.right[0].gave == trap.right[1].gave
    assert "0.00" not in trap.right[0].gave


def test_a_trap_that_no_longer_springs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = nn.MultiheadAttention.forward

    def mended(self: nn.MultiheadAttention, query, key, value, is_causal=False, attn_mask=None, **options):
        if is_causal and attn_mask is None:
            attn_mask = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).triu(1)
        return real(self, query, key, value, attn_mask=attn_mask, **options)

    monkeypatch.setattr(nn.MultiheadAttention, "forward", mended)
    trap = timing._is_causal_alone()
    assert trap.error is None
    assert not trap.holds
    assert "It ran" in trap.happened


def test_traps_leave_the_shared_generator_alone() -> None:
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    pytorch_traps()
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
