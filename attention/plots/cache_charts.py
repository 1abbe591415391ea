"""Figures of the KV cache page: each comes with its alternative text and the exact numbers behind it.

Axes say their unit of 1024s. Teal is cached bytes; a solid shape is what the model is, an outlined one what it
is not (the same model as if it shared otherwise).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from attention.kv_working import readable, unit_of
from attention.plots.colours import BROKEN, CACHE, KEY, LATENT, QUERY, VALUE, Colour
from attention.plots.heatmaps import escaped

GIB = 2**30
INK = Colour("#1f2328", "#e7e9ea")
GREY = Colour("#5b6470", "#9aa3ad")
LINES = (CACHE, KEY, QUERY, LATENT, VALUE, BROKEN)
DASHES = ("solid", "dash", "dashdot", "longdash", "longdashdot", "12px,3px")
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chart:
    """A figure, what a listener hears of it, and its numbers as a table (bytes exact, never rounded)."""

    figure: go.Figure
    alt: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]

    @property
    def csv(self) -> str:
        """The table as comma-separated values, one header line."""
        return csv_text(self.headers, self.rows)


def csv_text(headers: Sequence[str], rows: Sequence[Sequence[str | int | float]]) -> str:
    """A table as comma-separated values; no cell can be taken for a formula."""
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(headers)
    writer.writerows([[_harmless(cell) for cell in row] for row in rows])
    return lines.getvalue()


@dataclass(frozen=True)
class Bar:
    """One way of sharing: its label, its bytes, and whether the model really has it."""

    label: str
    bytes: int
    own: bool


@dataclass(frozen=True)
class Curve:
    """Bytes of one model at several lengths; ``length_limit`` is what it was trained for (None: not known)."""

    name: str
    tokens: Ints
    bytes: Ints
    length_limit: int | None = None


@dataclass(frozen=True)
class Level:
    """A named height to compare with: the memory of a GPU, or the weights of a model."""

    name: str
    bytes: int


def sharing_bars(bars: Sequence[Bar], theme: str, room: Level | None = None) -> Chart:
    """Bytes of one model under each way of sharing; ``room`` is drawn as a line when it is near the bars."""
    ink = CACHE.on(theme)
    unit, step = unit_of(max(bar.bytes for bar in bars))
    sizes = [bar.bytes / step for bar in bars]
    largest = max([*sizes, 1e-12])
    figure = go.Figure(
        go.Bar(
            x=sizes,
            y=list(range(len(bars))),
            orientation="h",
            text=[f"<b>{readable(bar.bytes)}</b>" if bar.own else readable(bar.bytes) for bar in bars],
            textposition="outside",
            cliponaxis=False,
            textfont={"size": 16, "color": INK.on(theme)},
            marker={
                "color": [ink if bar.own else _faint(theme) for bar in bars],
                "line": {"color": ink, "width": 2},
            },
            width=0.62,
            hovertemplate="%{text}<extra></extra>",
        )
    )
    reach = largest * 1.3
    if room is not None and 0 < room.bytes / step < largest * 1.2:
        at = room.bytes / step
        figure.add_vline(x=at, line={"color": GREY.on(theme), "width": 1.5, "dash": "dash"})
        figure.add_annotation(
            x=at,
            y=1,
            yref="paper",
            yanchor="bottom",
            text=escaped(room.name),
            showarrow=False,
            font={"size": 13, "color": GREY.on(theme)},
            xanchor="right" if at > largest * 0.5 else "left",
            xshift=-5 if at > largest * 0.5 else 5,
        )
    figure.update_xaxes(title=f"{unit} of keys and values", range=[0, reach], zeroline=False, nticks=6)
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(bars))),
        ticktext=[f"<b>{escaped(bar.label)}</b>" if bar.own else escaped(bar.label) for bar in bars],
        range=[len(bars) - 0.4, -0.6],
        tickfont={"size": 15, "color": INK.on(theme)},
        showgrid=False,
    )
    _calm(figure, height=100 + 62 * len(bars))
    figure.update_layout(margin={"t": 28})
    alt = "Bars of cached bytes. " + "; ".join(
        f"{bar.label}: {readable(bar.bytes)}{' (this model)' if bar.own else ''}" for bar in bars
    )
    rows = tuple((bar.label, bar.bytes, "this model" if bar.own else "as if") for bar in bars)
    return Chart(figure, alt + ".", ("sharing", "bytes", "which"), rows)


def context_curves(curves: Sequence[Curve], levels: Sequence[Level], theme: str) -> Chart:
    """Cached bytes of up to six models against the length of one text, both axes logarithmic; GPU memories as lines.

    A curve is solid up to the length its model was trained for, and thin and dotted beyond.
    """
    figure = go.Figure()
    for index, curve in enumerate(curves):
        colour = LINES[index % len(LINES)].on(theme)
        sizes = curve.bytes / GIB
        inside = np.ones(len(sizes), bool) if curve.length_limit is None else curve.tokens <= curve.length_limit
        for shown, trained in ((inside, True), (_tail(inside), False)):
            if shown.any() and (trained or not inside.all()):
                figure.add_scatter(
                    x=curve.tokens[shown].astype(float),
                    y=np.where(sizes[shown] > 0, sizes[shown], np.nan),
                    mode="lines",
                    name=escaped(curve.name),
                    legendgroup=str(index),
                    showlegend=trained or not inside.any(),
                    line={
                        "color": colour,
                        "width": 3 if trained else 1.5,
                        "dash": DASHES[index % len(DASHES)] if trained else "dot",
                    },
                    opacity=1 if trained else 0.75,
                    hovertemplate="%{x:,.0f} tokens: %{y:.3g} GiB<extra>" + escaped(curve.name) + "</extra>",
                )
    for level in levels:
        figure.add_hline(y=level.bytes / GIB, line={"color": GREY.on(theme), "width": 1, "dash": "dash"})
        figure.add_annotation(
            x=0, xref="paper", xanchor="left", y=float(np.log10(level.bytes / GIB)), yanchor="bottom",
            text=escaped(level.name), showarrow=False, font={"size": 12, "color": GREY.on(theme)},
        )  # fmt: skip
    _logarithmic(figure, "tokens in one text (log)", "GiB of keys and values (log)")
    figure.update_layout(legend={"orientation": "h", "y": -0.2, "x": 0})
    _calm(figure, height=480)
    ends = "; ".join(f"{curve.name} {readable(int(curve.bytes[-1]))}" for curve in curves)
    longest = int(curves[0].tokens[-1]) if curves else 0
    rows = tuple(
        (curve.name, int(tokens), int(size))
        for curve in curves
        for tokens, size in zip(curve.tokens, curve.bytes, strict=True)
    )
    return Chart(
        figure,
        f"Lines of cached bytes against length. At {longest:,} tokens: {ends}.",
        ("model", "tokens", "bytes"),
        rows,
    )


def memory_stack(
    users: Ints, cached: Ints, weights: int, overhead: int, capacity: int, theme: str, now: int | None = None
) -> Chart:
    """Weights, overhead and cache stacked against the number of users, under the line of what the GPUs have."""
    figure = go.Figure()
    parts = (
        ("weights", np.full(len(users), weights), GREY, "/"),
        ("overhead", np.full(len(users), overhead), Colour("#c3c8ce", "#4d545c"), "."),
        ("keys and values", cached, CACHE, ""),
    )
    for name, sizes, colour, pattern in parts:
        figure.add_bar(
            x=list(range(len(users))),
            y=sizes / GIB,
            name=name,
            marker={"color": colour.on(theme), "pattern": {"shape": pattern, "fillmode": "overlay", "size": 6}},
            customdata=users,
            hovertemplate="%{customdata:,} users: %{y:.4g} GiB<extra>" + name + "</extra>",
        )
    figure.add_hline(y=capacity / GIB, line={"color": BROKEN.on(theme), "width": 2, "dash": "dash"})
    figure.add_annotation(
        x=0, xref="paper", xanchor="left", y=capacity / GIB, yanchor="bottom", showarrow=False,
        text=f"the memory there is: {readable(capacity)}", font={"size": 13, "color": BROKEN.on(theme)},
    )  # fmt: skip
    figure.update_xaxes(
        title="users at once",
        tickmode="array",
        tickvals=list(range(len(users))),
        ticktext=[f"<b>{count:,}</b>" if count == now else f"{count:,}" for count in users.tolist()],
    )
    figure.update_yaxes(title="GiB", rangemode="tozero")
    figure.update_layout(barmode="stack", bargap=0.25, legend={"orientation": "h", "y": -0.2, "x": 0})
    _calm(figure, height=420)
    rows = tuple(
        (int(count), weights, overhead, int(size), weights + overhead + int(size), capacity)
        for count, size in zip(users, cached, strict=True)
    )
    fitting = [count for count, *_, used, room in rows if used <= room]
    alt = (
        f"Stacked bars of weights {readable(weights)}, overhead {readable(overhead)} and the cache, which grows "
        f"with users, under a line at {readable(capacity)}. "
        + (f"Of the bars drawn, those up to {max(fitting):,} users fit." if fitting else "None of them fits.")
    )
    headers = ("users", "weights bytes", "overhead bytes", "cache bytes", "together bytes", "memory bytes")
    return Chart(figure, alt, headers, rows)


@dataclass(frozen=True)
class Crossing:
    """A model whose cache outgrows its weights: bytes per token in flight, bytes of the weights, and where."""

    name: str
    per_token: float
    weights: int
    tokens: int


def crossing_lines(crossings: Sequence[Crossing], theme: str, now: int) -> Chart:
    """Cache divided by weights against tokens in flight, both logarithmic; ``now`` tokens are marked.

    At 1 the cache outgrows the weights.
    """
    figure = go.Figure()
    grid = np.unique(np.geomspace(1_000, 2_000_000, 120).round())
    for index, crossing in enumerate(crossings):
        colour = LINES[index % len(LINES)].on(theme)
        figure.add_scatter(
            x=grid, y=grid * crossing.per_token / crossing.weights, mode="lines", name=escaped(crossing.name),
            line={"color": colour, "width": 2.5, "dash": DASHES[index % len(DASHES)]},
            hovertemplate="%{x:,.0f} tokens: %{y:.2f} × the weights<extra>" + escaped(crossing.name) + "</extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=[crossing.tokens], y=[1.0], mode="markers", showlegend=False,
            marker={"color": colour, "size": 11, "symbol": "circle"},
            hovertemplate=f"{crossing.tokens:,} tokens<extra>{escaped(crossing.name)}</extra>",
        )  # fmt: skip
    figure.add_hline(y=1, line={"color": GREY.on(theme), "width": 1.5, "dash": "dash"})
    if grid[0] <= now <= grid[-1]:
        figure.add_vline(x=now, line={"color": GREY.on(theme), "width": 1})
        figure.add_annotation(
            x=float(np.log10(now)), y=1, yref="paper", yanchor="top", xanchor="left", xshift=5, showarrow=False,
            text=f"you: {now:,} tokens", font={"size": 12, "color": GREY.on(theme)},
        )  # fmt: skip
    figure.add_annotation(
        x=0, xref="paper", xanchor="left", y=0, yanchor="bottom", showarrow=False,
        text="as large as the weights", font={"size": 12, "color": GREY.on(theme)},
    )  # fmt: skip
    _logarithmic(figure, "tokens in flight, all users together (log)", "cache / weights (log)")
    figure.update_layout(legend={"orientation": "h", "y": -0.24, "x": 0})
    _calm(figure, height=420)
    alt = "Lines of cache over weights. The cache outgrows the weights at " + "; ".join(
        f"{crossing.tokens:,} tokens for {crossing.name}" for crossing in crossings
    )
    rows = tuple((one.name, one.per_token, one.weights, one.tokens) for one in crossings)
    return Chart(figure, alt + ".", ("model", "bytes per token", "weights bytes", "tokens at which it outgrows"), rows)


def head_groups(n_heads: int, n_kv_heads: int, most_groups: int = 16, most_queries: int = 32) -> str:
    """HTML of the query heads, each group standing on the one K/V head it shares; many equal groups are cut short."""
    q_per_kv = n_heads // n_kv_heads
    drawn = min(n_kv_heads, most_groups)
    groups = "".join(_group(kv, q_per_kv, most_queries) for kv in range(drawn))
    more = (
        f'<span class="hs-more">and {n_kv_heads - drawn:,} more groups like these</span>' if drawn < n_kv_heads else ""
    )
    share = "its own K/V head" if q_per_kv == 1 else f"one K/V head for every {q_per_kv} of them"
    words = f"{n_heads} query heads, {share}: {n_kv_heads} K/V head{'s' if n_kv_heads > 1 else ''}."
    return f'{_GROUP_STYLE}<div class="hs-groups" role="img" aria-label="{words}">{groups}{more}</div>'


def latent_group(n_heads: int, d_latent: int, d_rope: int, most_queries: int = 64) -> str:
    """HTML of MLA: all query heads stand on one latent row C, from which keys and values are rebuilt."""
    shown = min(n_heads, most_queries)
    queries = "".join(f'<span class="hs-q">Q{head}</span>' for head in range(shown))
    rest = f'<span class="hs-q">… Q{n_heads - 1}</span>' if shown < n_heads else ""
    words = f"{n_heads} query heads share one latent row of {d_latent} and {d_rope} numbers."
    return (
        f'{_GROUP_STYLE}<div class="hs-groups" role="img" aria-label="{words}"><div class="hs-group">'
        f'<div class="hs-qs">{queries}{rest}</div>'
        f'<div class="hs-kv hs-latent">C: {d_latent} + {d_rope} numbers for each token</div></div></div>'
    )


_GROUP_STYLE = """<style>
.hs-groups { display: flex; flex-wrap: wrap; gap: 0.5rem; align-items: flex-end; font-size: 0.8rem; }
.hs-group { border-radius: 0.45rem; padding: 0.25rem; flex: 0 1 auto; }
.hs-group:nth-of-type(odd) { background: #1d4ed818; } .hs-group:nth-of-type(even) { background: #1d4ed830; }
.hs-qs { display: flex; flex-wrap: wrap; gap: 0.2rem; justify-content: center; }
.hs-q { padding: 0.1rem 0.35rem; min-width: 2.1rem; text-align: center; border-radius: 0.3rem;
  border: 1px solid #7596dc; }
.hs-kv { margin-top: 0.25rem; text-align: center; border-radius: 0.3rem; padding: 0.1rem 0.3rem; font-weight: 700;
  border: 2px solid #c2621a; white-space: nowrap; }
.hs-latent { border-color: #8b5cf6; }
.hs-more { opacity: 0.85; }
</style>"""


def _group(kv_head: int, q_per_kv: int, most: int) -> str:
    first = kv_head * q_per_kv
    shown = range(first, first + min(q_per_kv, most))
    queries = "".join(f'<span class="hs-q">Q{head}</span>' for head in shown)
    rest = f'<span class="hs-q">… Q{first + q_per_kv - 1}</span>' if q_per_kv > most else ""
    return f'<div class="hs-group"><div class="hs-qs">{queries}{rest}</div><div class="hs-kv">KV {kv_head}</div></div>'


def _tail(inside: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The points outside, and the last one inside, so that the two lines meet."""
    outside = ~inside
    if inside.any():
        outside[np.flatnonzero(inside)[-1]] = True
    return outside


def _faint(theme: str) -> str:
    return "rgba(79, 209, 197, 0.10)" if theme == "dark" else "rgba(15, 107, 107, 0.07)"


def _logarithmic(figure: go.Figure, x_title: str, y_title: str) -> None:
    figure.update_xaxes(title=x_title, type="log", tickformat="~s", dtick=1, exponentformat="none")
    figure.update_yaxes(title=y_title, type="log", tickformat=",~g", dtick=1, exponentformat="none")


def _calm(figure: go.Figure, height: int) -> None:
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    figure.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 16, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"align": "left"},
    )


def _harmless(cell: str | int | float) -> str | int | float:
    """A cell that a spreadsheet cannot take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t") else cell
