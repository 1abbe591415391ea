"""Named formulas about attention heads on plain NumPy arrays, each with its source.

``weights`` is ``(..., query, key)``: one head's map, or all of a model's as ``(layer, head, query, key)``.
Every result keeps the leading axes. Rows need not sum to 1 where a model has learned sinks.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attention.errors import UserError

Floats = NDArray[np.floating]
Pattern = Literal["previous", "duplicate", "induction"]
SINK_EPSILON = 0.3
POSITIONAL_SHARE = 0.9


def offset_cells(
    n_tokens: int, offset: int, rows: ArrayLike | None = None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Query and key positions of the cells A[i, i + offset] that lie inside a text of ``n_tokens``.

    ``rows`` are the queries that count; ``None`` means all.
    """
    queries = np.arange(n_tokens) if rows is None else np.asarray(rows, dtype=np.intp)
    inside = (queries + offset >= 0) & (queries + offset < n_tokens)
    return queries[inside], queries[inside] + offset


def offset_weight(weights: Floats, offset: int, rows: ArrayLike | None = None) -> Floats:
    """Mean weight A[i, i + offset]: previous token -1, next +1, current 0. Shape of the leading axes.

    NaN where no cell lies inside the text.
    """
    queries, keys = offset_cells(weights.shape[-1], offset, rows)
    if not queries.size:
        return np.full(weights.shape[:-2], np.nan)
    return np.asarray(weights[..., queries, keys].mean(axis=-1, dtype=np.float64))


def offset_share(weights: Floats, offset: int, rows: ArrayLike | None = None) -> Floats:
    """Share of rows (0 to 1) whose single largest weight lies at ``offset``.

    A head is positional when this is at least ``POSITIONAL_SHARE`` for one offset
    (Voita et al. 2019, arXiv 1905.09418, section 5.1). A tie is no hit: a uniform row points nowhere.
    """
    queries, keys = offset_cells(weights.shape[-1], offset, rows)
    if not queries.size:
        return np.full(weights.shape[:-2], np.nan)
    return np.asarray(largest_at(weights[..., queries, :], keys).mean(axis=-1))


def largest_at(rows: Floats, columns: ArrayLike) -> NDArray[np.bool_]:
    """Whether each row's largest weight lies at its column and nowhere else: (..., row) booleans."""
    at = np.asarray(columns, dtype=np.intp)
    here = np.take_along_axis(rows, np.broadcast_to(at[:, None], (*rows.shape[:-1], 1)), axis=-1)
    return np.asarray((rows >= here).sum(axis=-1) == 1)


def sink_mass(weights: Floats, visible: NDArray[np.bool_] | None = None) -> Floats:
    """Each column's mean weight over the rows that may look at it: (..., key).

    A column above ``SINK_EPSILON`` is a sink (Gu et al. 2024, arXiv 2410.10781, section 3.2, who ask it of the
    first token). ``visible`` is (query, key), True where a row may look; ``None`` means everywhere.
    """
    n_tokens = weights.shape[-1]
    seen = np.full(n_tokens, weights.shape[-2]) if visible is None else visible.sum(axis=0)
    return np.asarray(weights.sum(axis=-2, dtype=np.float64) / np.maximum(seen, 1))


def duplicate_weight(weights: Floats, ids: ArrayLike, rows: ArrayLike | None = None) -> Floats:
    """Mean over queries of the weight on earlier copies of the same token.

    Queries without an earlier copy do not count (duplicate-token heads: Wang et al. 2022, arXiv 2211.00593,
    section 3.1). NaN when no query has one.
    """
    return _mean_on(weights, detection_pattern("duplicate", ids), rows)


def induction_weight(weights: Floats, ids: ArrayLike, rows: ArrayLike | None = None) -> Floats:
    """Mean over queries of the weight on the tokens that followed earlier copies of the query's token.

    Queries without an earlier copy do not count (Olsson et al. 2022, arXiv 2209.11895, "prefix matching").
    NaN when no query has one.
    """
    return _mean_on(weights, detection_pattern("induction", ids), rows)


def entropy(weights: Floats) -> Floats:
    """Shannon entropy of each row in nats: (..., query). Rows are scaled to sum to 1 first; an empty row gives 0."""
    total = weights.sum(axis=-1, keepdims=True, dtype=np.float64)
    shares = np.divide(weights, total, out=np.zeros(weights.shape, np.float64), where=total > 0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(-(shares * logs).sum(axis=-1))


def broadness(weights: Floats, visible: NDArray[np.bool_] | None = None) -> Floats:
    """How evenly each row spreads, from near 0 (one key) to 1 (all it may see alike): (..., query).

    exp(entropy), the number of keys an even row of this entropy would hold, over the number of visible keys.
    Rows that see one key only give NaN: they have no choice.
    """
    seen = np.full(weights.shape[-2], weights.shape[-1]) if visible is None else visible.sum(axis=-1)
    return np.asarray(np.where(seen > 1, np.exp(entropy(weights)) / np.maximum(seen, 1), np.nan))


def value_norms(weights: Floats, transformed: Floats) -> Floats:
    """Length of what each key really adds, ``‖A[i, j] · f(x_j)‖``: (..., query, key).

    ``transformed`` is f(x) = value @ W_O of the head, (..., key, d_model): a key with a large weight but a short
    vector adds little (Kobayashi et al. 2020, arXiv 2004.10102, section 3).
    """
    lengths = np.linalg.norm(np.asarray(transformed, dtype=np.float64), axis=-1)
    return np.asarray(weights * lengths[..., None, :])


def rollout(weights: Floats) -> Floats:
    """Attention followed through all layers: (layer, query, key) -> (query, key).

    Each layer counts half for its map and half for the residual stream, 0.5 A + 0.5 I, and later layers
    multiply from the left (Abnar & Zuidema 2020, arXiv 2005.00928, section 3). Average heads first.
    """
    if weights.ndim != 3 or weights.shape[-1] != weights.shape[-2]:
        raise UserError(
            f"Rollout got weights of shape {weights.shape}.",
            "It takes one square map a layer: (layer, query, key).",
            "Average over heads first.",
        )
    flow = np.eye(weights.shape[-1])
    for layer in np.asarray(weights, dtype=np.float64):
        flow = (0.5 * layer + 0.5 * np.eye(len(layer))) @ flow
    return flow


def detection_pattern(pattern: Pattern, ids: ArrayLike) -> Floats:
    """The ideal map of a kind of head as TransformerLens draws it: (query, key) of 0 and 1, never ahead.

    ``previous``: the token before. ``duplicate``: earlier copies of the token. ``induction``: what followed them.
    ``ids`` are the token numbers, (seq_len,).
    """
    tokens = np.asarray(ids)
    if pattern == "previous":
        return np.eye(len(tokens), k=-1)
    if pattern not in ("duplicate", "induction"):
        raise UserError(
            f"{pattern!r} is not a kind of head.", "previous, duplicate and induction are.", "Choose one of these."
        )
    same = np.tril(tokens[:, None] == tokens[None, :], k=-1).astype(np.float64)
    if pattern == "duplicate":
        return same
    after = np.zeros_like(same)
    after[:, 1:] = same[:, :-1]
    return after


def detector_score(
    weights: Floats,
    pattern: Floats,
    measure: Literal["mul", "abs"] = "mul",
    *,
    exclude_first: bool = False,
    exclude_current: bool = False,
) -> Floats:
    """How well maps match an ideal one, by TransformerLens's two measures (``head_detector.py``; unrounded).

    ``mul``: the share of all weight that lies on the pattern. ``abs``: 1 - mean |A - pattern| · seq_len, which can
    fall below 0. ``exclude_first`` ignores column 0, ``exclude_current`` the diagonal. Shape of the leading axes;
    NaN where ``mul`` has no weight left.
    """
    n_tokens = weights.shape[-1]
    if weights.shape[-2:] != (n_tokens, n_tokens) or pattern.shape != (n_tokens, n_tokens):
        raise UserError(
            f"The maps have shape {weights.shape}, the pattern {pattern.shape}.",
            "Both must be square and of the same length: (query, key).",
            "Make the pattern from the same tokens.",
        )
    counted = np.ones((n_tokens, n_tokens))
    if exclude_first:
        counted[:, 0] = 0
    if exclude_current:
        np.fill_diagonal(counted, 0)
    if measure == "abs":
        return np.asarray(1 - (np.abs(weights - pattern) * counted).mean(axis=(-2, -1)) * n_tokens)
    if measure != "mul":
        raise UserError(f"{measure!r} is not a measure.", "mul and abs are.", "Choose one of these.")
    total = (weights * counted).sum(axis=(-2, -1), dtype=np.float64)
    hits = (weights * counted * pattern).sum(axis=(-2, -1), dtype=np.float64)
    return np.divide(hits, total, out=np.full(np.shape(total), np.nan), where=total > 0)


def _mean_on(weights: Floats, pattern: Floats, rows: ArrayLike | None) -> Floats:
    queries = np.arange(len(pattern)) if rows is None else np.asarray(rows, dtype=np.intp)
    queries = queries[pattern[queries].any(axis=-1)]
    if not queries.size:
        return np.full(weights.shape[:-2], np.nan)
    on = (weights[..., queries, :] * pattern[queries]).sum(axis=-1, dtype=np.float64)
    return np.asarray(on.mean(axis=-1))
