"""How much dearer is a trace, with tokens, labels and checks, than transformers' eager forward alone?"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from attention import load_model, trace
from benchmarks.peers.eager import EagerPeer
from benchmarks.ratios import Effort, Row, Target, interleaved
from benchmarks.texts import counter, text_of

SIZES = {"all-MiniLM-L6-v2": (64, 128, 512), "SmolLM2-135M-Instruct": (64, 128)}
TARGET = Target(1.15)
Pair = tuple[tuple[float, float], tuple[float, float]]
SAME = 1e-5  # what both return must agree, else the comparison would mean nothing


def measure(quick: bool) -> list[Row]:
    """Two rows per model and length, by the clock and in processor time.

    One thread; capture only, the comparison with SDPA being a second, lazy call.
    """
    torch.set_num_threads(1)
    effort = Effort(pairs=15, seconds=2.5) if quick else Effort(pairs=41, seconds=12, least=5)
    cases = [(name, n_tokens) for name, sizes in SIZES.items() for n_tokens in sizes]
    return [row for name, n_tokens in cases for row in _rows(name, n_tokens, effort)]


def _rows(name: str, n_tokens: int, effort: Effort) -> list[Row]:
    loaded = load_model(name)
    text = text_of(counter(loaded.tokenizer), n_tokens)
    ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
    peer = EagerPeer(loaded)
    theirs = torch.cat(peer.run(ids)).numpy()
    difference = float(np.abs(trace(loaded, text).weights - theirs).max())
    if difference > SAME:
        raise RuntimeError(f"{name}: the weights of trace and of eager differ by {difference:.1e}.")
    pairs = interleaved(_timed(lambda: trace(loaded, text)), _timed(lambda: peer.run(ids)), effort, warm_up=2)
    title = f"trace, {loaded.title.split(':')[0]}, {n_tokens} tokens"
    return [_clock(title, pairs, 0, TARGET), _clock("  the same in processor time", pairs, 1, None)]


def _clock(title: str, pairs: list[Pair], which: int, target: Target | None) -> Row:
    """A row of one of the two clocks: with one thread they agree, unless other programs hold the cores."""
    return Row(
        title,
        "ms",
        tuple(ours[which] for ours, _ in pairs),
        tuple(theirs[which] for _, theirs in pairs),
        target,
        "eager",
        "Ours: attention.trace from text to read-only arrays, labels and checks; capture only. "
        "Peer: transformers eager, output_attentions=True, from ids to its tuple of tensors. One thread each.",
    )


def _timed(run: Callable[[], object]) -> Callable[[], tuple[float, float]]:
    """Milliseconds by the clock and of processor time."""

    def timed() -> tuple[float, float]:
        clock, processor = time.perf_counter(), time.process_time()
        run()
        return (time.perf_counter() - clock) * 1e3, (time.process_time() - processor) * 1e3

    return timed
