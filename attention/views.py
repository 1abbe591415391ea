"""Small readings of a trace that pages place: averages, whole words, blocks of a pair, the chosen cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention.tokens import merge_to_words, named, words_of
from attention.tracing import AttentionTrace

Cell = tuple[int, int, int, int]


@dataclass(frozen=True)
class AverageView:
    """A mean over several heads: a short name, a title that says which heads, weights (query, key)."""

    name: str
    title: str
    weights: np.ndarray


def averages(traced: AttentionTrace, layer: int, head: int) -> tuple[AverageView, ...]:
    """Mean maps around a head: its layer, its K/V group (when heads share), the whole model."""
    views = [AverageView("This layer", f"Mean of layer {layer}'s heads", traced.weights[layer].mean(axis=0))]
    if traced.layout.q_per_kv > 1:
        kv_head = traced.layout.kv_head_of(head)
        members = list(traced.layout.query_heads_of(kv_head))
        title = f"Mean of layer {layer}, query heads {members[0]} to {members[-1]} (K/V head {kv_head})"
        views.append(AverageView("This K/V group", title, traced.weights[layer, members].mean(axis=0)))
    views.append(AverageView("The whole model", "Mean of all heads of all layers", traced.weights.mean(axis=(0, 1))))
    return tuple(views)


def word_view(traced: AttentionTrace, layer: int, head: int) -> tuple[list[str], np.ndarray]:
    """Labels and weights between whole words (special tokens each their own), Clark's rule as in ``tokens``."""
    groups = words_of(traced.tokens)
    labels = [_word_label(traced, group) for group in groups]
    return labels, merge_to_words(traced.weights[layer, head], groups)


def pair_blocks(traced: AttentionTrace, layer: int, head: int) -> list[tuple[str, tuple[float, float, float]]]:
    """For a pair: the mean share each sentence's words give to the first, the second, and special tokens."""
    segment = np.array([2 if token.special else token.segment for token in traced.tokens])
    weights = traced.weights[layer, head]
    blocks = []
    for number, name in ((0, "first sentence"), (1, "second sentence")):
        rows = weights[segment == number]
        blocks.append((name, tuple(float(rows[:, segment == to].sum(axis=-1).mean()) for to in (0, 1, 2))))
    return blocks  # type: ignore[return-value]


@dataclass(frozen=True)
class Opened:
    """What the viewer opened on: the model, the number of tokens, and the (layer, head, query) of its start."""

    model: str
    seq_len: int
    start: tuple[int, int, int]


def still_asked(params: Mapping[str, Any], before: Opened | None, now: Opened) -> dict[str, Any]:
    """The link's ``v.*`` without those a new text or model moves, by the same rule as the viewer's own selection.

    The browser rewrites its address only after it has drawn: until then the link still names the old word.
    """
    moved: set[str] = set()
    if before is not None:
        if before.model != now.model or before.start[:2] != now.start[:2]:
            moved |= {"v.layer", "v.head"}
        if before.start[2] != now.start[2] or before.seq_len != now.seq_len:
            moved.add("v.query")
    return {name: value for name, value in params.items() if name not in moved}


def cell_from(
    traced: AttentionTrace, lock: Mapping[str, Any] | None, params: Mapping[str, Any], start: tuple[int, int, int]
) -> Cell:
    """The (layer, head, query, key) to detail: the locked cell, else the link's, else the scene's start.

    A missing or invalid key becomes the row's strongest one; invalid indices fall back to ``start``.
    """
    n_layers, n_heads, seq_len, _ = traced.weights.shape
    asked = lock if lock else {name: params.get(f"v.{name}") for name in ("layer", "head", "query")}
    layer = _index(asked.get("layer"), n_layers, start[0])
    head = _index(asked.get("head"), n_heads, start[1])
    query = _index(asked.get("query"), seq_len, start[2])
    strongest = int(traced.weights[layer, head, query].argmax())
    key = _index(asked.get("key"), seq_len, strongest)
    return layer, head, query, key if traced.visible(layer)[query, key] else strongest


def _index(value: Any, size: int, fallback: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):  # infinity is a number, and none that can be whole
        return fallback
    return number if 0 <= number < size else fallback


def _word_label(traced: AttentionTrace, group: tuple[int, ...]) -> str:
    first, last = traced.tokens[group[0]], traced.tokens[group[-1]]
    if first.special or len(group) == 1:  # a token's own label hides nothing
        return first.label
    text = (traced.request.pair or "") if first.segment else traced.text
    return named(text[first.start : last.end].strip()) or first.label
