"""Why this weight? One cell worked out from the real q and k: dot product, scale, softmax."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention.errors import UserError
from attention.tracing import AttentionTrace


@dataclass(frozen=True)
class KeyWorking:
    """One visible key of the row: its dot product with the query, its score, e^(score - largest), its weight."""

    index: int
    label: str
    dot: float
    score: float
    exponential: float
    weight: float


@dataclass(frozen=True)
class CellWorking:
    """The working of one weight. ``keys`` are the row's visible keys, largest weight first; ``total`` is the sum of
    their exponentials; ``weight`` of the chosen key is its exponential divided by ``total``; ``recorded`` is what the
    model's own pass gave."""

    layer: int
    head: int
    kv_head: int
    query_label: str
    key: KeyWorking
    keys: tuple[KeyWorking, ...]
    d_head: int
    scaling: float
    softcap: float | None
    total: float
    recorded: float


def explain_cell(traced: AttentionTrace, head: int, query: int, key: int) -> CellWorking:
    """Work out weight (head, query, key) of the layer whose q and k the trace kept.

    softmax(q·k × scaling), arXiv 1706.03762, eq. 1; computed here in float64. Raises UserError when q and k
    were not kept, for a cell outside the text, and where the model adds something to its scores that q and k
    do not show (a position bias or a learned sink), since the working would then not give its weight.
    """
    kept = traced.kept
    if kept is None or not {"q", "k"} <= set(kept.tensors):
        raise UserError("This trace kept no q and k.", 'Trace with keep=("q", "k") and layer=….', "Trace again.")
    _check_cell(traced, head, query, key)
    kv_head = traced.layout.kv_head_of(head)
    q = kept.tensors["q"][head, query].astype(np.float64)
    dots = kept.tensors["k"][kv_head].astype(np.float64) @ q
    scores = dots * kept.scaling
    if kept.softcap is not None:
        scores = np.tanh(scores / kept.softcap) * kept.softcap
    visible = np.flatnonzero(traced.visible(kept.layer)[query])
    exponentials = np.exp(scores[visible] - scores[visible].max())
    total = float(exponentials.sum())
    rows = [
        KeyWorking(int(i), traced.tokens[i].label, float(dots[i]), float(scores[i]), float(e), float(e / total))
        for i, e in zip(visible, exponentials, strict=True)
    ]
    recorded = traced.weights[kept.layer, head, query]
    if max(abs(row.weight - float(recorded[row.index])) for row in rows) > 1e-4:
        raise UserError(
            "This model adds something to its scores besides q·k (a position bias or a learned sink).",
            "The working is shown only where it gives the model's own weight.",
            "Choose another model to see it.",
        )
    return CellWorking(
        layer=kept.layer,
        head=head,
        kv_head=kv_head,
        query_label=traced.tokens[query].label,
        key=next(row for row in rows if row.index == key),
        keys=tuple(sorted(rows, key=lambda row: -row.weight)),
        d_head=len(q),
        scaling=kept.scaling,
        softcap=kept.softcap,
        total=total,
        recorded=float(recorded[key]),
    )


def _check_cell(traced: AttentionTrace, head: int, query: int, key: int) -> None:
    size = len(traced.tokens)
    if not (0 <= head < traced.layout.n_heads and 0 <= query < size and 0 <= key < size):
        raise UserError(
            f"There is no cell (head {head}, query {query}, key {key}).",
            f"Heads go to {traced.layout.n_heads - 1}, rows and columns to {size - 1}.",
            "Choose a cell inside.",
        )
    assert traced.kept is not None
    if not traced.visible(traced.kept.layer)[query, key]:
        raise UserError(
            f"{traced.tokens[query].label} may not look at {traced.tokens[key].label}: the mask hides it.",
            "A left-to-right model looks only at earlier words.",
            "Choose an earlier word.",
        )
