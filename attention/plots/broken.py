"""A tensor made right, made wrong, and their difference, side by side: plotly and numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attention.plots.colours import BROKEN, DIFFERENCE_SCALE, WEIGHT_SCALE, WEIGHT_SCALE_DARK
from attention.plots.heatmaps import escaped

Floats = npt.NDArray[np.floating]
MOST_PRINTED = 120
"""Cells up to which every number is printed."""
TITLES = ("correct", "wrong", "difference: wrong − correct")


def broken_maps(
    correct: Floats,
    wrong: Floats,
    wrong_rows: npt.NDArray[np.bool_],
    row_names: Sequence[str],
    column_name: str,
    *,
    theme: str = "light",
) -> go.Figure:
    """Two tables (row, column) of one shape on one shared scale, and wrong − correct on a scale centred on 0.

    Rows that are wrong are crossed in their label and framed, so that colour is never alone.
    Numbers that are not finite stay blank.
    """
    blank = [np.where(np.isfinite(values), values, np.nan).astype(np.float32) for values in (correct, wrong)]
    difference = blank[1] - blank[0]
    lowest = float(np.nanmin(blank)) if np.isfinite(blank).any() else 0.0
    highest = float(np.nanmax(blank)) if np.isfinite(blank).any() else 1.0
    far = max(float(np.nanmax(np.abs(difference), initial=0.0)), 1e-6)
    figure = make_subplots(1, 3, subplot_titles=[escaped(title) for title in TITLES], horizontal_spacing=0.1)
    scale = WEIGHT_SCALE_DARK if theme == "dark" else WEIGHT_SCALE
    for place, (values, colours, low, high) in enumerate(
        (
            (blank[0], scale, lowest, highest),
            (blank[1], scale, lowest, highest),
            (difference, DIFFERENCE_SCALE, -far, far),
        ),
        start=1,
    ):
        figure.add_trace(_cells(values, colours, low, high), row=1, col=place)
        names = (
            row_names if place == 1 else [_marked(name, bad) for name, bad in zip(row_names, wrong_rows, strict=True)]
        )
        _dress(figure, place, values.shape, names, column_name)
    for row in np.flatnonzero(wrong_rows).tolist():
        figure.add_shape(
            type="rect",
            x0=-0.5,
            x1=wrong.shape[1] - 0.5,
            y0=row - 0.5,
            y1=row + 0.5,
            line={"color": BROKEN.on(theme), "width": 2},
            row=1,
            col=2,
        )
    figure.update_layout(
        height=min(560, 120 + 34 * len(row_names)),
        margin={"l": 10, "r": 10, "t": 36, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,
    )
    return figure


def _cells(values: Floats, scale: Sequence[tuple[float, str]], lowest: float, highest: float) -> go.Heatmap:
    printed = {"texttemplate": "%{z:.2f}"} if values.size <= MOST_PRINTED else {}
    return go.Heatmap(
        z=values,
        zmin=lowest,
        zmax=highest,
        colorscale=[list(stop) for stop in scale],
        showscale=False,
        xgap=1 if values.shape[1] <= 40 else 0,
        ygap=1,
        hovertemplate="row %{y}, column %{x}: %{z:.3f}<extra></extra>",
        **printed,
    )


def _dress(figure: go.Figure, place: int, shape: tuple[int, ...], names: Sequence[str], column_name: str) -> None:
    step = max(1, -(-shape[1] // 16))
    figure.update_xaxes(
        title=escaped(column_name),
        tickmode="array",
        tickvals=list(range(0, shape[1], step)),
        showgrid=False,
        zeroline=False,
        row=1,
        col=place,
    )
    step = max(1, -(-shape[0] // 24))
    places = list(range(0, shape[0], step))
    figure.update_yaxes(
        range=[shape[0] - 0.5, -0.5],
        autorange=False,
        tickmode="array",
        tickvals=places,
        ticktext=[escaped(names[at]) for at in places],
        showgrid=False,
        zeroline=False,
        automargin=True,
        row=1,
        col=place,
    )


def _marked(name: str, bad: np.bool_) -> str:
    return f"✗ {name}" if bad else name
