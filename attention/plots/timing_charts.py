"""Figures of the PyTorch page: how long each way takes, and how memory grows with the sequence.

Times are median milliseconds; bytes are KiB, MiB, GiB (1024). The fused way is solid and dark,
the others are grey and dashed: the difference is in the shape too, not in colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from attention.kv_working import readable
from attention.plots.colours import Colour
from attention.plots.heatmaps import escaped

INK = Colour("#1f2328", "#e7e9ea")
GREY = Colour("#5b6470", "#9aa3ad")
_PALE = Colour("#c3c8ce", "#4d545c")
_MOST_TICKS = 6


@dataclass(frozen=True)
class WayBar:
    """One way: its title, what did the softmax part, its median seconds; ``fused`` is drawn dark."""

    title: str
    kernel: str
    seconds: float
    fused: bool


@dataclass(frozen=True)
class MemoryRow:
    """Peak bytes at one seq_len, explicit and fused, and the bytes of one score tensor."""

    seq_len: int
    explicit: int
    fused: int
    scores: int


@dataclass(frozen=True)
class Drawn:
    """A figure and what a listener hears of it."""

    figure: go.Figure
    alt: str


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with three digits: ``3.21 ms``, ``1,240 ms``."""
    amount = seconds * 1000
    return f"{amount:,.0f} ms" if amount >= 1000 else f"{amount:.3g} ms"


def time_bars(ways: Sequence[WayBar], theme: str) -> Drawn:
    """One bar per way, the first on top, on a linear axis from 0; name, kernel and time are printed."""
    places = list(range(len(ways)))
    longest = max(way.seconds for way in ways) * 1000
    figure = go.Figure(
        go.Bar(
            x=[way.seconds * 1000 for way in ways],
            y=places,
            orientation="h",
            width=0.42,
            text=[f"<b>{milliseconds(way.seconds)}</b>" for way in ways],
            textposition="outside",
            textfont={"size": 15, "color": INK.on(theme)},
            cliponaxis=False,
            marker={
                "color": [(INK if way.fused else _PALE).on(theme) for way in ways],
                "line": {"color": GREY.on(theme), "width": 1},
            },
            hoverinfo="skip",
        )
    )
    for place, way in zip(places, ways, strict=True):
        figure.add_annotation(
            x=0,
            xref="paper",
            xanchor="left",
            y=place - 0.26,
            yanchor="bottom",
            text=f"<b>{escaped(way.title)}</b> · {escaped(way.kernel)}",
            showarrow=False,
            font={"size": 13, "color": INK.on(theme)},
            align="left",
        )
    figure.update_xaxes(title="median milliseconds per run", range=[0, longest * 1.28], zeroline=False, nticks=6)
    figure.update_yaxes(range=[len(ways) - 0.6, -0.72], showticklabels=False, showgrid=False, zeroline=False)
    _calm(figure)
    spoken = "; ".join(f"{way.title} ({way.kernel}): {milliseconds(way.seconds)}" for way in ways)
    return Drawn(figure, f"Bars of median times per run. {spoken}.")


def memory_lines(rows: Sequence[MemoryRow], theme: str) -> Drawn:
    """Peak memory against seq_len, both axes logarithmic, with one score tensor for scale."""
    lengths = [row.seq_len for row in rows]
    figure = go.Figure()
    lines = (
        ("explicit", [row.explicit for row in rows], GREY, "solid", "square", 2.5),
        ("one table of scores", [row.scores for row in rows], GREY, "dot", "x-thin", 1.5),
        ("fused", [row.fused for row in rows], INK, "solid", "circle", 3.5),
    )
    for name, sizes, colour, dash, symbol, width in lines:
        ink = colour.on(theme)
        figure.add_scatter(
            x=lengths,
            y=sizes,
            name=name,
            mode="lines+markers",
            line={"color": ink, "width": width, "dash": dash},
            marker={"color": ink, "size": 9, "symbol": symbol, "line": {"color": ink, "width": 1.5}},
            text=[readable(size) for size in sizes],
            hovertemplate="%{x} tokens: %{text}<extra>" + name + "</extra>",
        )
    sizes = [size for row in rows for size in (row.explicit, row.fused, row.scores) if size > 0]
    ticks = _byte_ticks(min(sizes, default=1), max(sizes, default=1))
    figure.update_xaxes(
        title="seq_len in tokens (log)",
        type="log",
        tickmode="array",
        tickvals=lengths,
        ticktext=[f"{length:,}" for length in lengths],
    )
    figure.update_yaxes(
        title="peak memory (log)",
        type="log",
        tickmode="array",
        tickvals=ticks,
        ticktext=[readable(tick) for tick in ticks],
    )
    _calm(figure)
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 13}})
    spoken = "; ".join(
        f"{row.seq_len} tokens: explicit {readable(row.explicit)}, fused {readable(row.fused)}" for row in rows
    )
    return Drawn(figure, f"Lines of peak memory against seq_len. {spoken}.")


def _byte_ticks(least: int, most: int) -> list[int]:
    """Powers of two from below the least to above the most, thinned to a few."""
    low, high = math.floor(math.log2(least)), math.ceil(math.log2(most))
    step = max(1, math.ceil((high - low) / _MOST_TICKS))
    return [2**power for power in range(low, high + step, step)]


def _calm(figure: go.Figure) -> None:
    figure.update_xaxes(automargin=True, fixedrange=True)
    figure.update_yaxes(automargin=True, fixedrange=True)
    figure.update_layout(
        height=370,
        margin={"l": 8, "r": 12, "t": 12, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=len(figure.data) > 1,
    )
