"""Small maps of heads to choose from, as plain values for ``assets/quiz_maps.js``: numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from attention.plots.colours import KEY, QUERY
from attention.plots.head_grid import shade
from attention.plots.numbers import percent
from attention.plots.scripts import script, style

_SHORT = 9


class _Map(Protocol):
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def weights(self) -> npt.NDArray[np.float32]: ...
    @property
    def visible(self) -> npt.NDArray[np.bool_]: ...


def quiz_maps_js() -> str:
    """The maps' script, one ES module."""
    return script("quiz_maps.js")


def quiz_maps_css() -> str:
    """The maps' style."""
    return style("quiz_maps.css")


def maps_data(
    maps: Sequence[_Map],
    names: Sequence[str],
    theme: str,
    *,
    label: str,
    mark: tuple[int, int] | None = None,
    chosen: int | None = None,
    right: int | None = None,
) -> dict[str, Any]:
    """What the component takes. ``mark`` names one row and column; ``right`` is None until the question is answered."""
    labels = maps[0].labels
    return {
        "label": label,
        "answered": right is not None,
        "mark": None if mark is None else _mark(labels, mark),
        "ink": {"query": QUERY.on(theme), "key": KEY.on(theme)},
        "maps": [
            {
                "name": name,
                "words": in_words(one),
                "side": len(one.labels),
                "cells": [
                    shade(float(weight), theme) if seen else ""
                    for weight, seen in zip(one.weights.ravel(), one.visible.ravel(), strict=True)
                ],
                "chosen": place == chosen,
                "right": place == right,
                "wrong": right is not None and place == chosen != right,
            }
            for place, (one, name) in enumerate(zip(maps, names, strict=True))
        ],
    }


def in_words(one: _Map) -> str:
    """Each row's darkest cell, for who hears the map."""
    tops = one.weights.argmax(axis=-1)
    told = (
        f"{one.labels[query]} looks at {one.labels[key]} {percent(float(one.weights[query, key]))}"
        for query, key in enumerate(tops)
    )
    return "; ".join(told) + "."


def _mark(labels: Sequence[str], mark: tuple[int, int]) -> dict[str, Any]:
    row, column = mark
    return {"row": row, "column": column, "query": _short(labels[row]), "key": _short(labels[column])}


def _short(label: str) -> str:
    return label if len(label) <= _SHORT else label[: _SHORT - 1] + "…"
