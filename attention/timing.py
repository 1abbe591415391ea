"""The same attention four ways in PyTorch and NumPy: equal numbers, unequal time and memory; and PyTorch's traps.

Every figure is measured when asked for: kernels are named from the profiler's own record
of what ran, memory from the allocator's events, errors from snippets really executed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # the name every PyTorch text uses
from numpy.typing import NDArray
from torch import nn
from torch.profiler import ProfilerActivity, profile

from attention.errors import UserError
from attention.layout import HeadLayout
from attention.multihead import multi_head_attention, random_inputs
from attention.step_plan import Sizes, plan_steps

MAX_SCORE_BYTES = 256 * 2**20  # one float32 score tensor; explicit attention holds up to three at once
MAX_FLOPS = 20e9  # one run stays about a second on one core
_FLOAT32 = 4
_KERNELS = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "FLASH_ATTENTION",
    "aten::_scaled_dot_product_flash_attention": "FLASH_ATTENTION",
    "aten::_scaled_dot_product_efficient_attention": "EFFICIENT_ATTENTION",
    "aten::_scaled_dot_product_cudnn_attention": "CUDNN_ATTENTION",
    "aten::_scaled_dot_product_attention_math": "MATH",
    "aten::_native_multi_head_attention": "nn.MultiheadAttention's fast path",
}
_PROFILER = threading.Lock()  # torch allows one profiler per process at a time

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class WayTiming:
    """One way of computing the attention, measured.

    Seconds are per run, after one warm-up run. ``kernel`` names what did the softmax part.
    ``peak_bytes`` is the most memory held beyond weights, input and mask (None: not asked for);
    ``peak_how`` says how it was measured.
    """

    key: str
    title: str
    code: str
    kernel: str
    median_seconds: float
    fastest_seconds: float
    runs: int
    peak_bytes: int | None
    peak_how: str


@dataclass(frozen=True)
class TimingResult:
    """All ways on the same weights: ``differences`` maps a pair of keys to the largest |a - b| of the outputs.

    ``notes`` are sentences about ways that were adapted or left out.
    """

    ways: tuple[WayTiming, ...]
    differences: dict[tuple[str, str], float]
    threads: int
    torch_version: str
    notes: tuple[str, ...] = ()

    @property
    def largest_difference(self) -> float:
        """The largest difference between any two ways."""
        return max(self.differences.values())


@dataclass(frozen=True)
class MemoryPoint:
    """Peak bytes at one seq_len; ``score_bytes`` is one (batch, n_heads, seq, seq) float32 tensor, for scale."""

    seq_len: int
    explicit_bytes: int
    fused_bytes: int
    score_bytes: int
    fused_kernel: str


@dataclass(frozen=True)
class RightForm:
    """A correct form, run: its code and what it gave, in words."""

    code: str
    gave: str


@dataclass(frozen=True)
class Trap:
    """A trap run live: the snippet, what it did (``error`` where it raised), and the right forms.

    ``holds`` is whether this PyTorch still behaves as ``lesson`` says.
    """

    key: str
    title: str
    code: str
    happened: str
    lesson: str
    holds: bool
    right: tuple[RightForm, ...]
    error: str | None = None


@dataclass(frozen=True)
class _Ready:
    """Weights and input in float32, as each way wants them."""

    layout: HeadLayout
    causal: bool
    x: NDArray[np.float32]
    weights: dict[str, NDArray[np.float32]]

    @property
    def rows(self) -> torch.Tensor:
        return torch.from_numpy(self.x)

    def heads(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Q, K and V, each (batch, heads, seq, width)."""
        q, k, v = (
            (self.rows @ torch.from_numpy(self.weights[f"W_{name}"])).unflatten(-1, (count, -1)).transpose(1, 2)
            for name, count in (
                ("q", self.layout.n_heads),
                ("k", self.layout.n_kv_heads),
                ("v", self.layout.n_kv_heads),
            )
        )
        return q, k, v

    def joined(self, heads_out: torch.Tensor) -> torch.Tensor:
        return heads_out.transpose(1, 2).flatten(2) @ torch.from_numpy(self.weights["W_o"])


def time_attention(
    layout: HeadLayout,
    seq_len: int,
    batch_size: int = 1,
    causal: bool = False,
    *,
    seed: int = 0,
    runs: int = 7,
    seconds_per_way: float = 1.0,
    memory: bool = True,
    progress: Progress | None = None,
) -> TimingResult:
    """Compute one attention four ways on the same float32 weights, and time each.

    Ways: ``module`` (nn.MultiheadAttention), ``fused`` (F.scaled_dot_product_attention),
    ``explicit`` (matmul, softmax, matmul), ``ours`` (the seven steps in NumPy). Each runs
    once to warm up, then up to ``runs`` times or until ``seconds_per_way`` is used up, at
    least once. x and weights are seeded normal numbers, weights divided by √d_model.

    ``progress`` is called with a share of the work done (0..1) and a sentence. Peak memory:
    for torch, the highest sum of its CPU allocator's events during one profiled run; for
    NumPy, tracemalloc in a fresh process. Both exclude scratch that BLAS takes for itself.
    Raises UserError for sizes beyond what one page view should cost.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise UserError(f"runs is {runs!r}.", "It must be a whole number from 1 up.", "Use at least 1.")
    _check_size(layout, seq_len, batch_size)
    ready = _prepared(layout, seq_len, batch_size, causal, seed)
    chosen, notes = _ways(ready)
    outputs: dict[str, NDArray[Any]] = {}
    ways = []
    with torch.inference_mode():
        for at, (key, title, code, call) in enumerate(chosen):
            if progress:
                progress(at / len(chosen), f"Running {title}")
            outputs[key] = np.array(call())
            seconds = _timed(call, runs, seconds_per_way)
            ways.append(_measured(key, title, code, call, seconds, ready if memory else None))
    if progress:
        progress(1.0, "Done")
    differences = {
        (one, two): float(np.abs(outputs[one] - outputs[two]).max()) for one, two in combinations(outputs, 2)
    }
    return TimingResult(tuple(ways), differences, torch.get_num_threads(), torch.__version__, notes)


def memory_growth(
    layout: HeadLayout,
    seq_lens: tuple[int, ...],
    batch_size: int = 1,
    causal: bool = False,
    progress: Progress | None = None,
) -> tuple[MemoryPoint, ...]:
    """Peak bytes of explicit and fused attention at several lengths, measured as in ``time_attention``.

    Explicit attention holds the whole (seq, seq) table of every head, so it grows with
    seq_len²; the fused kernel works in blocks and grows with seq_len (FlashAttention,
    arXiv 2205.14135, section 3.1). Raises UserError for sizes beyond the limits.
    """
    for seq_len in seq_lens:
        _check_size(layout, seq_len, batch_size)
    points = []
    for at, seq_len in enumerate(seq_lens):
        if progress:
            progress(at / len(seq_lens), f"Measuring {seq_len} tokens")
        ready = _prepared(layout, seq_len, batch_size, causal, 0)
        calls = {key: call for key, _, _, call in _ways(ready)[0]}
        with torch.inference_mode():
            explicit, _ = _profiled(calls["explicit"])
            fused, kernel = _profiled(calls["fused"])
        scores = batch_size * layout.n_heads * seq_len * seq_len * _FLOAT32
        points.append(MemoryPoint(seq_len, explicit, fused, scores, kernel))
    if progress:
        progress(1.0, "Done")
    return tuple(points)


# ---- the four ways


def _ways(ready: _Ready) -> tuple[list[tuple[str, str, str, Callable[[], Any]]], tuple[str, ...]]:
    layout, causal = ready.layout, ready.causal
    seq_len = ready.x.shape[1]
    share = ", enable_gqa=True" if layout.q_per_kv > 1 else ""
    open_pairs = torch.ones(seq_len, seq_len, dtype=torch.bool).tril()

    def fused() -> torch.Tensor:
        q, k, v = ready.heads()
        return ready.joined(F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=bool(share)))

    def explicit() -> torch.Tensor:
        q, k, v = ready.heads()
        if layout.q_per_kv > 1:
            k, v = (rows.repeat_interleave(layout.q_per_kv, dim=1) for rows in (k, v))
        scores = q @ k.transpose(-2, -1) / layout.d_head**0.5
        if causal:
            scores = scores.masked_fill(~open_pairs, -torch.inf)
        return ready.joined(scores.softmax(dim=-1) @ v)

    def ours() -> NDArray[Any]:
        return multi_head_attention(ready.x, ready.weights, layout, causal).output

    masking = "scores.masked_fill(~mask, -torch.inf)" if causal else "scores"
    ways: list[tuple[str, str, str, Callable[[], Any]]] = [
        (
            "fused",
            "F.scaled_dot_product_attention",
            f"F.scaled_dot_product_attention(q, k, v, is_causal={causal}{share})",
            fused,
        ),
        (
            "explicit",
            "explicit matmul",
            f"scores = q @ k.transpose(-2, -1) / d_head**0.5; {masking}.softmax(dim=-1) @ v",
            explicit,
        ),
        ("ours", "ours (NumPy, every step kept)", f"multi_head_attention(x, weights, layout, causal={causal})", ours),
    ]
    if layout.n_heads * layout.d_head != layout.d_model or layout.d_head_v != layout.d_head:
        note = (
            f"nn.MultiheadAttention is left out: it only knows heads of d_model / n_heads numbers, "
            f"here {layout.d_model} / {layout.n_heads}."
        )
        return ways, (note,)
    arguments = "x, x, x, need_weights=False" + (", attn_mask=mask, is_causal=True" if causal else "")
    ways.insert(0, ("module", "nn.MultiheadAttention", f"mha({arguments})[0]", _module_call(ready, ~open_pairs)))
    if layout.q_per_kv == 1:
        return ways, ()
    return ways, (
        "nn.MultiheadAttention has no shared K/V heads: its W_k and W_v hold each K/V head "
        f"{layout.q_per_kv} times, which gives the same output for more work.",
    )


def _module_call(ready: _Ready, ignored: torch.Tensor) -> Callable[[], torch.Tensor]:
    layout = ready.layout
    module = nn.MultiheadAttention(layout.d_model, layout.n_heads, bias=False, batch_first=True).eval()
    owners = [layout.kv_head_of(head) for head in range(layout.n_heads)]
    stacked = [ready.weights["W_q"].T]
    for name in ("W_k", "W_v"):
        per_head = ready.weights[name].T.reshape(layout.n_kv_heads, layout.d_head, layout.d_model)
        stacked.append(per_head[owners].reshape(-1, layout.d_model))
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.from_numpy(np.concatenate(stacked)))
        module.out_proj.weight.copy_(torch.from_numpy(ready.weights["W_o"].T.copy()))
    rows = ready.rows
    options: dict[str, Any] = {"attn_mask": ignored, "is_causal": True} if ready.causal else {}
    return lambda: module(rows, rows, rows, need_weights=False, **options)[0]


def _prepared(layout: HeadLayout, seq_len: int, batch_size: int, causal: bool, seed: int) -> _Ready:
    x, weights = random_inputs(layout, seq_len, seed, batch_size=batch_size)
    scale = layout.d_model**-0.5  # keeps the scores near 1, so that softmax is not all or nothing
    return _Ready(
        layout,
        causal,
        x.astype(np.float32),
        {name: (array * scale).astype(np.float32) for name, array in weights.items()},
    )


def _check_size(layout: HeadLayout, seq_len: int, batch_size: int) -> None:
    flops = sum(step.flops for step in plan_steps(Sizes(layout, seq_len, batch_size)))
    scores = batch_size * layout.n_heads * seq_len**2 * _FLOAT32
    if scores > MAX_SCORE_BYTES:
        longest = int((MAX_SCORE_BYTES / (batch_size * layout.n_heads * _FLOAT32)) ** 0.5)
        raise UserError(
            f"At {seq_len} tokens one score tensor takes {scores / 2**20:,.0f} MiB.",
            f"The limit is {MAX_SCORE_BYTES // 2**20} MiB: up to {longest} tokens with this batch and these heads.",
            "Shorten the sequence, or use fewer heads or a smaller batch.",
        )
    if flops > MAX_FLOPS:
        raise UserError(
            f"One run would take {flops / 1e9:,.1f} billion operations.",
            f"The limit here is {MAX_FLOPS / 1e9:.0f} billion.",
            "Make d_model, the batch or the sequence smaller.",
        )


# ---- measuring


def _timed(call: Callable[[], Any], runs: int, budget: float) -> list[float]:
    seconds: list[float] = []
    while not seconds or (len(seconds) < runs and sum(seconds) < budget):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def _measured(
    key: str, title: str, code: str, call: Callable[[], Any], seconds: list[float], ready: _Ready | None
) -> WayTiming:
    peak, kernel, how = None, "NumPy", ""
    if key != "ours":
        allocated, kernel = _profiled(call)
        if ready:
            peak, how = allocated, "the CPU allocator's events in one profiled run"
    elif ready:
        peak = _numpy_peak(ready)
        how = (
            "tracemalloc in a fresh process; every step is kept, which costs memory"
            if peak
            else "not measured: the fresh process it takes did not finish"
        )
    return WayTiming(key, title, code, kernel, median(seconds), min(seconds), len(seconds), peak, how)


def _profiled(call: Callable[[], Any]) -> tuple[int, str]:
    """Peak bytes of one run by the allocator's events, and the kernel that did the attention."""
    with _PROFILER, tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            call()
        file = Path(folder) / "events.json"
        seen.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    moves = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    held = peak = 0
    for _, change in moves:
        held += change
        peak = max(peak, held)
    kernels = [f"{title} ({name})" for name, title in _KERNELS.items() if name in names]
    return peak, kernels[0] if kernels else "separate matmul and softmax"


def _numpy_peak(ready: _Ready) -> int | None:
    # A fresh process: tracemalloc counts every thread, and a server has other visitors.
    layout = {name: getattr(ready.layout, name) for name in ("d_model", "n_heads", "n_kv_heads", "d_head", "d_head_v")}
    batch_size, seq_len, _ = ready.x.shape
    program = f"""
import tracemalloc
import numpy as np
from attention.layout import HeadLayout
from attention.multihead import multi_head_attention, random_inputs
layout = HeadLayout(**{layout!r})
x, weights = random_inputs(layout, {seq_len}, batch_size={batch_size})
x, weights = x.astype(np.float32), {{name: array.astype(np.float32) for name, array in weights.items()}}
tracemalloc.start()
trace = multi_head_attention(x, weights, layout, {ready.causal})
print(tracemalloc.get_traced_memory()[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parent.parent,
    )
    return int(done.stdout) if done.returncode == 0 else None


# ---- traps, run for real

_START = """torch.manual_seed(0)
x = torch.randn(2, 5, 8)  # batch 2, seq 5, d_model 8
mha = nn.MultiheadAttention(8, 2, batch_first=True).eval()
"""
_HEADS = """torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 5, 4)  # batch 1, heads 2, seq 5, d_head 4
"""
_EYE = """v = torch.eye({keys}).expand(1, 2, {keys}, {keys})  # so that the output is the weights
"""


def pytorch_traps() -> tuple[Trap, ...]:
    """Run every trap of PyTorch's attention calls now, on this PyTorch, and say what happened.

    Sources: the documentation of torch.nn.MultiheadAttention and
    torch.nn.functional.scaled_dot_product_attention; each claim is checked in ``holds``.
    """
    with torch.random.fork_rng(devices=[]):  # the snippets seed the generator everyone shares
        return tuple(
            trap()
            for trap in (
                _is_causal_alone,
                _opposite_masks,
                _need_weights,
                _averaged_weights,
                _shared_heads,
                _batch_second,
                _dropout_stays,
                _top_left,
            )
        )


def _is_causal_alone() -> Trap:
    code = "mha(query=x, key=x, value=x, is_causal=True)"
    _, error = _ran(_START + code)
    forms = (
        "mask = nn.Transformer.generate_square_subsequent_mask(5)\n"
        "out, _ = mha(x, x, x, attn_mask=mask, is_causal=True)",
        "mask = torch.ones(5, 5, dtype=torch.bool).triu(1)  # True = ignore\nout, _ = mha(x, x, x, attn_mask=mask)",
        "q, k, v = (x @ mha.in_proj_weight.T + mha.in_proj_bias).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)\n"
        "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        "out = mha.out_proj(out.transpose(1, 2).flatten(2))",
    )
    outputs = [_ran(_START + form)[0]["out"] for form in forms]
    apart = [_apart(outputs[0], output) for output in outputs]
    right = tuple(
        RightForm(form, f"{tuple(output.shape)}, the same as the others" + (f" within {gap:.1g}" if gap else ""))
        for form, output, gap in zip(forms, outputs, apart, strict=True)
    )
    return Trap(
        "is_causal_without_mask",
        "is_causal=True alone",
        code,
        f"RuntimeError: {error}" if error else "It ran without an error.",
        "In nn.MultiheadAttention is_causal is only a hint about the mask you pass; it does not make one.",
        error is not None and "Need attn_mask" in error and max(apart) < 1e-5,
        right,
        error,
    )


def _opposite_masks() -> Trap:
    code = (
        "mask = torch.ones(5, 5, dtype=torch.bool).tril()\n"
        "_, by_module = mha(x, x, x, attn_mask=mask)\n"
        "by_sdpa = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)"
    )
    names, _ = _ran(_START + _HEADS.split("\n", 1)[1] + _EYE.format(keys=5) + code)
    module, fused = names["by_module"][0], names["by_sdpa"][0, 0]
    broken = bool(module[4].isnan().all())
    form = "_, weights = mha(x, x, x, attn_mask=~mask)"
    mended = _ran(f"{_START}mask = torch.ones(5, 5, dtype=torch.bool).tril()\n{form}")[0]["weights"][0, 1]
    return Trap(
        "opposite_masks",
        "True means opposite things",
        code,
        f"Token 1's weights from SDPA: {_shown(fused[1])}; from nn.MultiheadAttention: {_shown(module[1])}. "
        f"The module's last row, where all is True, is {'NaN' if broken else _shown(module[4])}.",
        "SDPA: True = may look. nn.MultiheadAttention: True = ignore. The same mask opens what the other closes.",
        broken and _opens(fused[1], 0, 1) and _opens(module[1], 2, 3, 4) and _opens(mended, 0, 1),
        (RightForm(form, f"token 1's weights: {_shown(mended)}"),),
    )


def _need_weights() -> Trap:
    code = "out, weights = mha(x, x, x)"
    fast = "out, weights = mha(x, x, x, need_weights=False)"
    kernels, given, outputs = [], [], []
    for line in (code, fast):
        names, _ = _ran(_START + line)
        given.append(names["weights"])
        outputs.append(names["out"])
        module, rows = names["mha"], names["x"]
        wanted = line == code
        kernels.append(_profiled(partial(module, rows, rows, rows, need_weights=wanted))[1])
    shape = tuple(given[0].shape)
    return Trap(
        "need_weights",
        "need_weights is on by default",
        code,
        f"It returned weights {shape}, computed by {kernels[0]}.",
        "Weights must be written out to be returned, so the fused kernel cannot be used. Ask for them only to look.",
        shape == (2, 5, 5)
        and given[1] is None
        and _apart(*outputs) < 1e-5
        and "_scaled_dot_product" in kernels[1]
        and "_scaled_dot_product" not in kernels[0],
        (
            RightForm(
                fast, f"weights is {given[1]}, computed by {kernels[1]}; same output within {_apart(*outputs):.1g}"
            ),
        ),
    )


def _averaged_weights() -> Trap:
    code = "out, weights = mha(x, x, x)"
    full = "out, weights = mha(x, x, x, average_attn_weights=False)"
    mean, each = (_ran(_START + line)[0]["weights"] for line in (code, full))
    gap = _apart(each.mean(1), mean)
    spread = _apart(each, mean[:, None])
    return Trap(
        "average_attn_weights",
        "The heads come back averaged",
        code,
        f"weights has shape {tuple(mean.shape)}: no head axis. One head differs from that mean by up to {spread:.2f}.",
        "The mean over heads is nobody's pattern. Ask for every head.",
        mean.shape == (2, 5, 5) and each.shape == (2, 2, 5, 5) and gap < 1e-6 and spread > 0.01,
        (
            RightForm(
                full, f"weights has shape {tuple(each.shape)}; its mean over heads is the other, within {gap:.1g}"
            ),
        ),
    )


def _shared_heads() -> Trap:
    start = (
        "torch.manual_seed(0)\nq = torch.randn(1, 4, 5, 8)  # 4 query heads\n"
        "k, v = torch.randn(2, 1, 2, 5, 8)  # 2 K/V heads\n"
    )
    code = "out = F.scaled_dot_product_attention(q, k, v)"
    names, error = _ran(start + code)
    form = "out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)"
    shared = _ran(start + form)[0]["out"]
    repeats = "out = F.scaled_dot_product_attention(q, k.{0}, v.{0})"
    interleaved = repeats.format("repeat_interleave(2, dim=1)")
    tiled = repeats.format("repeat(1, 2, 1, 1)")
    same = _apart(shared, _ran(start + interleaved)[0]["out"])
    other = _apart(shared, _ran(start + tiled)[0]["out"])
    return Trap(
        "enable_gqa",
        "Fewer K/V heads need enable_gqa",
        code,
        f"RuntimeError: {error}" if error else f"It ran and gave {tuple(names['out'].shape)}.",
        "enable_gqa=True repeats each K/V head for its neighbours (0, 0, 1, 1). Tensor.repeat tiles (0, 1, 0, 1) and "
        "is wrong without an error.",
        error is not None and same < 1e-6 and other > 1e-2,
        (
            RightForm(form, f"{tuple(shared.shape)}"),
            RightForm(interleaved, f"the same within {same:.1g}; with .repeat it would be off by {other:.2f}"),
        ),
        error,
    )


def _batch_second() -> Trap:
    start = _START.replace(", batch_first=True", "")
    code = "mha = nn.MultiheadAttention(8, 2).eval()\nout, _ = mha(x, x, x)"
    change = "other = x.clone()\nother[1] += 1  # only the second sequence\n"
    moved = []
    for line in (start, _START):
        names, _ = _ran(f"{line}{change}a, b = mha(x, x, x)[0], mha(other, other, other)[0]")
        moved.append(_apart(names["a"][0], names["b"][0]))
    return Trap(
        "batch_first",
        "The batch is second by default",
        code,
        f"It runs. Changing only sequence 1 moves sequence 0's output by {moved[0]:.2f}: the module took the batch "
        "for the sequence.",
        "Without batch_first=True nn.MultiheadAttention reads (seq, batch, d_model). A (batch, seq, d_model) input "
        "fits too, and sequences look at each other.",
        moved[0] > 1e-3 and moved[1] == 0,
        (
            RightForm(
                "mha = nn.MultiheadAttention(8, 2, batch_first=True).eval()\nout, _ = mha(x, x, x)",
                f"changing sequence 1 moves sequence 0 by {moved[1]:.2f}",
            ),
        ),
    )


def _dropout_stays() -> Trap:
    start = _START.replace("batch_first=True).eval()", "dropout=0.5, batch_first=True)")
    code = "one, weights = mha(x, x, x)\ntwo, _ = mha(x, x, x)"
    names, _ = _ran(start + code)
    apart = _apart(names["one"], names["two"])
    largest = float(names["weights"].detach().sum(-1).max())
    calm, _ = _ran(f"{start}mha.eval()\n{code}")
    still = _apart(calm["one"], calm["two"])
    line = "F.scaled_dot_product_attention(q, k, v, dropout_p={0})"
    fused, _ = _ran(f"{_HEADS}one, two = {line.format(0.5)}, {line.format(0.5)}")
    switched = "0.5 if mha.training else 0.0"
    quiet, _ = _ran(f"{start}{_HEADS}mha.eval()\none, two = {line.format(switched)}, {line.format(switched)}")
    fused_apart, quiet_apart = _apart(fused["one"], fused["two"]), _apart(quiet["one"], quiet["two"])
    return Trap(
        "dropout_until_eval",
        "Dropout stays on until .eval()",
        code,
        f"The same input twice gave outputs {apart:.2f} apart; a row of weights adds up to {largest:.2f}.",
        "A new module is in training mode. F.scaled_dot_product_attention has no mode: dropout_p acts in every call "
        f"(two calls with 0.5: {fused_apart:.2f} apart).",
        apart > 1e-3 and largest > 1.001 and still == 0 and fused_apart > 1e-3 and quiet_apart == 0,
        (
            RightForm(f"mha.eval()\n{code}", f"outputs {still:.2f} apart"),
            RightForm(line.format(switched), f"outputs {quiet_apart:.2f} apart after .eval()"),
        ),
    )


def _top_left() -> Trap:
    start = (
        "torch.manual_seed(0)\nq = torch.randn(1, 2, 1, 4)  # one new token\n"
        "k = torch.randn(1, 2, 6, 4)  # six tokens in the cache, its own included\n" + _EYE.format(keys=6)
    )
    code = "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    row = _ran(start + code)[0]["out"][0, 0, 0]
    forms = (
        "out = F.scaled_dot_product_attention(q, k, v)  # the newest token may look at all",
        "from torch.nn.attention.bias import causal_lower_right\n"
        "out = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(1, 6))",
    )
    rows = [_ran(start + form)[0]["out"][0, 0, 0] for form in forms]
    return Trap(
        "top_left_causal",
        "is_causal counts from the top left",
        code,
        f"The newest of 6 tokens looks with weights {_shown(row)}: only at the first.",
        "With fewer queries than keys, is_causal lines up query 0 with key 0, not the last with the last.",
        bool(row[0] == 1 and (row[1:] == 0).all() and all((each > 0).all() for each in rows)),
        tuple(RightForm(form, f"weights {_shown(each)}") for form, each in zip(forms, rows, strict=True)),
    )


def _ran(code: str) -> tuple[dict[str, Any], str | None]:
    """Execute one of this module's own snippets; its names, and the RuntimeError's text if it raised one."""
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    try:
        exec(code, names)
    except RuntimeError as error:
        return names, str(error)
    return names, None


def _apart(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one - two).detach().abs().max())


def _opens(row: torch.Tensor, *keys: int) -> bool:
    """Whether exactly these keys got any weight."""
    return row.nonzero().flatten().tolist() == list(keys)


def _shown(row: torch.Tensor) -> str:
    return "(" + ", ".join(f"{value:.2f}" for value in row.tolist()) + ")"
