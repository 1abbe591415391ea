"""Pictures about heads: a head's small map with one cell marked, numbers before and after muting, the pruning curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from attention.plots.colours import BROKEN, KEY, QUERY, WEIGHT_SCALE, WEIGHT_SCALE_DARK, Colour
from attention.plots.head_grid import GREY, GROUND, Head
from attention.plots.heatmaps import escaped
from attention.plots.numbers import percent

if TYPE_CHECKING:
    from attention.atlas import PruningCurve
    from attention.muting import Change

INK = Colour("#1f2328", "#e7e9ea")


@dataclass(frozen=True)
class Picture:
    """A figure and what a listener hears of it."""

    figure: go.Figure
    alt: str


def link_map(
    weights: npt.NDArray[np.floating], words: Sequence[str], query: int, key: int, head: Head, theme: str, causal: bool
) -> Picture:
    """One head's small map between words (query, key), scale 0 to 1; the link's cell framed, its words named."""
    shown = np.asarray(weights, dtype=np.float32)
    if causal:
        shown = np.where(np.tri(len(shown), dtype=bool), shown, np.float32(np.nan))
    scale = WEIGHT_SCALE_DARK if theme == "dark" else WEIGHT_SCALE
    ink = INK.on(theme)
    figure = go.Figure(
        go.Heatmap(
            z=shown,
            x=np.arange(shown.shape[1]),
            y=np.arange(shown.shape[0]),
            zmin=0,
            zmax=1,
            colorscale=[list(stop) for stop in scale],
            showscale=False,
            text=[[f"{escaped(one)} → {escaped(other)}" for other in words] for one in words],
            hovertemplate="%{text}: %{z:.2f}<extra></extra>",
            hoverongaps=False,
        )
    )
    figure.add_shape(
        type="rect",
        x0=key - 0.5, x1=key + 0.5, y0=query - 0.5, y1=query + 0.5,
        line={"color": KEY.on(theme), "width": 3},
    )  # fmt: skip
    plain: dict[str, Any] = {"showgrid": False, "zeroline": False, "showline": True, "mirror": True, "linecolor": ink}
    figure.update_xaxes(
        type="linear", range=[-0.5, len(words) - 0.5], tickmode="array", tickvals=[key],
        ticktext=[_tick(words[key])], tickfont={"color": KEY.on(theme), "size": 13}, tickangle=0, fixedrange=True,
        **plain,
    )  # fmt: skip
    figure.update_yaxes(
        type="linear", range=[len(words) - 0.5, -0.5], tickmode="array", tickvals=[query],
        ticktext=[_tick(words[query])], tickfont={"color": QUERY.on(theme), "size": 13}, tickangle=-90, fixedrange=True,
        **plain,
    )  # fmt: skip
    _bare(figure, height=165)
    figure.update_layout(margin={"l": 22, "r": 4, "t": 4, "b": 22})
    alt = (
        f"Map of layer {head[0]}, head {head[1]} between {len(words)} words: {words[query]} looks at {words[key]} with "
        f"{percent(float(weights[query, key]))}. Rows look, columns are looked at."
    )
    return Picture(figure, alt)


def _tick(word: str) -> str:
    return escaped(word if len(word) <= 12 else word[:11] + "…")


def change_bars(changes: Sequence[Change], unit: str, theme: str, *, quoted: bool) -> Picture:
    """Numbers before and after muting as pairs of bars. ``unit`` names them; ``quoted``: shares of pieces of text."""
    labels = [f"“{one.text.replace(chr(10), '⏎')}”" if quoted else one.text for one in changes]
    places = np.arange(len(changes))
    before, after = (np.array([getattr(one, side) for one in changes]) for side in ("before", "after"))
    small = {"size": 13, "color": INK.on(theme)}
    figure = go.Figure()
    sides: tuple[tuple[str, npt.NDArray[np.float64], float, dict[str, Any]], ...] = (
        ("before", before, -0.19, {"color": QUERY.on(theme)}),
        (
            "with the heads muted",
            after,
            0.19,
            {
                "color": GROUND.on(theme),
                "line": {"color": BROKEN.on(theme), "width": 1.5},
                "pattern": {"shape": "/", "fgcolor": BROKEN.on(theme), "size": 5, "solidity": 0.35},
            },
        ),
    )
    for name, values, shift, marker in sides:
        figure.add_trace(
            go.Bar(
                x=values,
                y=places + shift,
                orientation="h",
                name=name,
                marker=marker,
                width=0.36,
                text=[_written(value, quoted) for value in values],
                textposition="outside",
                textfont={**small, "size": 12},
                cliponaxis=False,
                customdata=[escaped(label) for label in labels],
                hovertemplate=f"%{{customdata}}, {name}: %{{x:.4f}}<extra></extra>",
            )
        )
    least = min(0.0, float(min(before.min(), after.min()))) * 1.15
    figure.update_xaxes(
        title={"text": unit, "font": small}, range=[least, max(0.05, float(max(before.max(), after.max()))) * 1.18],
        tickfont=small, fixedrange=True, zeroline=least < 0, tickformat=".0%" if quoted else ".2f",
    )  # fmt: skip
    figure.update_yaxes(
        tickmode="array", tickvals=places, ticktext=[escaped(_short(label)) for label in labels],
        range=[len(changes) - 0.4, -0.6], tickfont={**small, "size": 14}, automargin=True, fixedrange=True,
    )  # fmt: skip
    _bare(figure, height=90 + 38 * len(changes))
    figure.update_layout(
        barmode="overlay",
        showlegend=True,
        legend={
            "orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": small, "traceorder": "normal",
            "bgcolor": "rgba(0,0,0,0)",
        },
        margin={"l": 8, "r": 12, "t": 30, "b": 8},
    )  # fmt: skip
    told = (
        f"{label} {_written(one.before, quoted)}, then {_written(one.after, quoted)}"
        for label, one in zip(labels, changes, strict=True)
    )
    return Picture(figure, f"{unit} before and after muting: {'; '.join(told)}.")


def _written(value: float, share: bool) -> str:
    return percent(float(value)) if share else f"{value:.2f}"


def _short(label: str) -> str:
    return label if len(label) <= 34 else label[:33] + "…"


def pruning_chart(curve: PruningCurve, theme: str) -> Picture:
    """Held-out loss against heads silenced, the least important first, beside silencing them in random order."""
    counts = np.array([point.n_muted for point in curve.points])
    loss = np.array([point.loss for point in curve.points])
    random = np.array([point.random_loss for point in curve.points])
    small = {"size": 13, "color": INK.on(theme)}
    figure = go.Figure(
        [
            go.Scatter(
                x=counts, y=random, mode="lines+markers", name="in random order",
                line={"color": GREY.on(theme), "width": 2, "dash": "dot"}, marker={"size": 6, "symbol": "diamond"},
                hovertemplate="%{x} heads at random: %{y:.2f} nats<extra></extra>",
            ),
            go.Scatter(
                x=counts, y=loss, mode="lines+markers", name="least important first",
                line={"color": QUERY.on(theme), "width": 3}, marker={"size": 8},
                hovertemplate="%{x} heads, least important first: %{y:.2f} nats<extra></extra>",
            ),
        ]
    )  # fmt: skip
    figure.add_vline(
        x=curve.n_free, line={"color": GREY.on(theme), "width": 1.5, "dash": "dash"},
        annotation={"text": f"{curve.n_free} heads", "font": small, "yanchor": "bottom", "y": 1},
        annotation_position="top right",
    )  # fmt: skip
    figure.update_xaxes(
        title={"text": "heads silenced", "font": small}, tickfont=small, zeroline=False, fixedrange=True
    )
    figure.update_yaxes(
        title={"text": "loss (nats)", "font": small}, tickfont=small, rangemode="tozero", fixedrange=True,
        automargin=True,
    )  # fmt: skip
    _bare(figure, height=300)
    figure.update_layout(
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.12, "yanchor": "bottom", "font": small, "bgcolor": "rgba(0,0,0,0)"},
        margin={"l": 8, "r": 12, "t": 56, "b": 8},
    )
    alt = (
        f"Held-out loss against heads silenced. Least important first: {loss[0]:.2f} nats with none, {loss[-1]:.2f} "
        f"with all {counts[-1]}; with {curve.n_free} it is within {percent(curve.tolerance)} of the first."
    )
    return Picture(figure, alt)


def _bare(figure: go.Figure, height: int) -> None:
    figure.update_layout(height=height, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", showlegend=False)
