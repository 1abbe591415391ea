"""One text on every rung, as plain values that can be stored and sent. No torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention.rungs import Rung, rung_from, rung_name, to_fact_rung
from attention.sharing import named_values


@dataclass(frozen=True)
class ViewRequest:
    """Everything a view depends on. ``key`` is the only thing any cache may use."""

    model: str
    text: str
    layer: int
    head: int
    start: str | None = None
    revision: str = ""

    @property
    def key(self) -> str:
        """Canonical JSON with class names."""
        return json.dumps(named_values(self), sort_keys=True, ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True)
class Written:
    """One token written on, and the probability it had."""

    token: str
    probability: float


@dataclass(frozen=True)
class RungView:
    """One rung on one text. ``weights`` (query, key) float32 of the chosen head.

    Decoders: ``next_tokens``, the likeliest with probabilities, and ``written``, the text continued greedily.
    Encoders: ``cosine`` to the sentence's own embedding on the unchanged model, and ``similar``, the cosine to each
    sentence of ``COMPARED_WITH``.
    """

    rung: Rung
    name: str
    numbers: int
    weights: np.ndarray
    next_tokens: tuple[tuple[str, float], ...] = ()
    written: tuple[Written, ...] = ()
    cosine: float | None = None
    similar: tuple[float, ...] = ()


@dataclass(frozen=True)
class LadderView:
    """Every rung of one text and head; the first is the model as shipped. NumPy only, picklable."""

    request: ViewRequest
    labels: tuple[str, ...]
    kind: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    causal: bool
    rungs: tuple[RungView, ...]
    compared_with: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the maps."""
        return sum(one.weights.nbytes for one in self.rungs)


def view_to_fact(view: LadderView) -> dict[str, Any]:
    """A view as plain JSON-able values, maps rounded to four places."""
    return {
        "request": {"model": view.request.model, "text": view.request.text, "layer": view.request.layer}
        | {"head": view.request.head, "start": view.request.start, "revision": view.request.revision},
        "labels": list(view.labels),
        "kind": view.kind,
        "n_layers": view.n_layers,
        "n_heads": view.n_heads,
        "n_kv_heads": view.n_kv_heads,
        "d_head": view.d_head,
        "causal": view.causal,
        "compared_with": list(view.compared_with),
        "rungs": [
            {
                "what_if": to_fact_rung(one.rung),
                "numbers": one.numbers,
                "weights": np.round(one.weights.astype(float), 4).tolist(),
                "next_tokens": [list(pair) for pair in one.next_tokens],
                "written": [[step.token, step.probability] for step in one.written],
                "cosine": one.cosine,
                "similar": list(one.similar),
            }
            for one in view.rungs
        ],
    }


def view_from_fact(fact: dict[str, Any]) -> LadderView:
    """The reverse of ``view_to_fact``."""
    rungs = []
    for one in fact["rungs"]:
        rung = rung_from(one["what_if"])
        rungs.append(
            RungView(
                rung,
                rung_name(rung),
                one["numbers"],
                np.array(one["weights"], dtype=np.float32),
                tuple((token, p) for token, p in one["next_tokens"]),
                tuple(Written(token, p) for token, p in one["written"]),
                one["cosine"],
                tuple(one["similar"]),
            )
        )
    plain = {key: fact[key] for key in ("kind", "n_layers", "n_heads", "n_kv_heads", "d_head", "causal")}
    return LadderView(
        request=ViewRequest(**fact["request"]),
        labels=tuple(fact["labels"]),
        rungs=tuple(rungs),
        compared_with=tuple(fact["compared_with"]),
        **plain,
    )
