"""How long do the cache page's curves take, computed with arrays, beside a loop over every point and every layer?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from attention.known_models import find_model, known_models
from attention.kv_cache import KVCache
from benchmarks.ratios import Effort, Row, Target, in_ms, interleaved

SIX = ("Llama 3 8B", "Llama 2 7B", "Mistral 7B v0.1", "Gemma 3 27B", "DeepSeek-V3", "Qwen2.5 72B")
SHORTEST, LONGEST = 256, 1_048_576
SIX_LIMIT = 10.0  # ms: a chart redrawn while somebody types must not be noticed
BYTES_PER_NUMBER = 2


def measure(quick: bool) -> list[Row]:
    """Two rows: the six models of the Compare tab at 200 lengths, and the whole catalogue at 500."""
    effort = Effort(pairs=5, seconds=5) if quick else Effort(pairs=21, seconds=20, least=5)
    six = [find_model(name).cache for name in SIX]
    every = [model.cache for model in known_models() if not model.refusal]
    return [
        _row(f"{len(six)} models × 200 lengths", six, 200, Target(SIX_LIMIT, "most"), effort),
        _row(f"{len(every)} models × 500 lengths", every, 500, Target(50, "gain"), effort),
    ]


def _row(what: str, caches: Sequence[KVCache], points: int, target: Target | None, effort: Effort) -> Row:
    tokens = np.unique(np.geomspace(SHORTEST, LONGEST, points).round().astype(np.int64))
    lengths = tokens.tolist()
    if [curve.tolist() for curve in with_arrays(caches, tokens)] != with_a_loop(caches, lengths):
        raise RuntimeError(f"{what}: arrays and loop disagree.")
    pairs = interleaved(
        in_ms(lambda: with_arrays(caches, tokens)), in_ms(lambda: with_a_loop(caches, lengths)), effort, warm_up=1
    )
    return Row(
        f"cache curves, {what}",
        "ms",
        tuple(ours for ours, _ in pairs),
        tuple(theirs for _, theirs in pairs),
        target,
        "loop",
        "Ours: KVCache.bytes on an array of lengths. Peer: a Python loop over models, lengths and layers that adds "
        "min(length, window) × numbers × 2 bytes. Both give the same whole numbers, checked before timing.",
    )


def with_arrays(caches: Sequence[KVCache], tokens: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Bytes of one 16-bit sequence at every length, one array per model."""
    return [cache.bytes(tokens) for cache in caches]


def with_a_loop(caches: Sequence[KVCache], lengths: Sequence[int]) -> list[list[int]]:
    """The same numbers, point by point and layer by layer."""
    curves = []
    for cache in caches:
        layers = [(layer.window, layer.elements_per_token) for layer in cache.layers]
        curve = []
        for length in lengths:
            total = 0
            for window, elements in layers:
                kept = length if window is None else min(length, window)
                total += kept * elements * BYTES_PER_NUMBER
            curve.append(total)
        curves.append(curve)
    return curves
