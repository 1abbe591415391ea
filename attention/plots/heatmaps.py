"""Labelled maps of attention weights: rows are queries (top to bottom), columns are keys (left to right)."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from attention.plots.colours import DIFFERENCE_SCALE, WEIGHT_SCALE, WEIGHT_SCALE_DARK

Floats = npt.NDArray[np.floating]
MOST_TICKS = 40
MOST_HOVER_WORDS = 128
QUERY_TITLE = "query (row): the word that looks"
KEY_TITLE = "key (column): the word looked at"


def escaped(text: str) -> str:
    """Text as Plotly shows it literally: Plotly reads ``<b>``, ``<br>`` and ``<a>`` as markup in any label."""
    return html.escape(text, quote=False)


def heatmap(
    weights: Floats,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    *,
    title: str = "",
    theme: str = "light",
    visible: npt.NDArray[np.bool_] | None = None,
) -> go.Figure:
    """One head's weights (query, key) on a fixed 0-1 scale.

    Axes are integer positions with the words as tick labels only, so that repeated words stay
    separate rows. Cells hidden by the mask (``visible`` False) are left blank.
    """
    shown = np.asarray(weights, dtype=np.float32)
    if visible is not None and not visible.all():
        shown = np.where(visible, shown, np.float32(np.nan))
    scale = WEIGHT_SCALE_DARK if theme == "dark" else WEIGHT_SCALE
    figure = go.Figure(_cells(shown, query_labels, key_labels, scale, 0.0, 1.0, "weight (0 to 1)"))
    return _labelled(figure, query_labels, key_labels, title)


def difference_map(
    first: Floats, second: Floats, query_labels: Sequence[str], key_labels: Sequence[str], *, title: str = ""
) -> go.Figure:
    """``second - first`` of two maps of one shape, on one diverging scale centred on 0."""
    difference = np.asarray(second, dtype=np.float32) - np.asarray(first, dtype=np.float32)
    largest = max(float(np.abs(difference).max()), 1e-6)
    cells = _cells(difference, query_labels, key_labels, DIFFERENCE_SCALE, -largest, largest, "difference of weights")
    return _labelled(go.Figure(cells), query_labels, key_labels, title)


def _cells(
    values: Floats,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    scale: Sequence[tuple[float, str]],
    lowest: float,
    highest: float,
    legend: str,
) -> go.Heatmap:
    words: dict[str, object] = {"hovertemplate": "row %{y}, column %{x}: %{z:.3f}<extra></extra>"}
    if max(values.shape) <= MOST_HOVER_WORDS:
        words = {
            "text": [[f"{escaped(q)} → {escaped(k)}" for k in key_labels] for q in query_labels],
            "hovertemplate": "%{text}: %{z:.3f}<extra></extra>",
        }
    return go.Heatmap(
        z=values,
        x=np.arange(values.shape[1]),
        y=np.arange(values.shape[0]),
        zmin=lowest,
        zmax=highest,
        colorscale=[list(stop) for stop in scale],
        colorbar={"title": {"text": legend, "side": "right"}, "thickness": 12},
        xgap=1 if max(values.shape) <= MOST_TICKS else 0,
        ygap=1 if max(values.shape) <= MOST_TICKS else 0,
        **words,
    )


def _labelled(figure: go.Figure, query_labels: Sequence[str], key_labels: Sequence[str], title: str) -> go.Figure:
    rows, columns = len(query_labels), len(key_labels)
    figure.update_xaxes(
        title=KEY_TITLE, range=[-0.5, columns - 0.5], tickangle=-45 if columns > 8 else 0, **_ticks(key_labels)
    )
    figure.update_yaxes(title=QUERY_TITLE, range=[rows - 0.5, -0.5], autorange=False, **_ticks(query_labels))
    figure.update_layout(
        title={"text": escaped(title), "x": 0.0, "font": {"size": 15}},
        height=min(900, max(420, 170 + 24 * min(rows, MOST_TICKS))),
        margin={"l": 10, "r": 10, "t": 48 if title else 16, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure


def _ticks(labels: Sequence[str]) -> dict[str, object]:
    """Every label while they fit, then every second, fourth … so that no two overlap."""
    step = 1
    while len(labels) / step > MOST_TICKS:
        step *= 2
    positions = list(range(0, len(labels), step))
    return {
        "type": "linear",
        "tickmode": "array",
        "tickvals": positions,
        "ticktext": [escaped(_short(labels[i])) for i in positions],
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
    }


def _short(label: str) -> str:
    return label if len(label) <= 18 else label[:17] + "…"
