"""The lesson's own figures: recipes of heads, a layer side by side, head widths, shared keys, the ladder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from attention.plots.cache_charts import GREY, INK, Chart
from attention.plots.colours import (
    CACHE,
    KEY,
    LATENT,
    QUERY,
    VALUE,
    WEIGHT_SCALE,
    WEIGHT_SCALE_DARK,
    Colour,
)
from attention.plots.heatmaps import escaped
from attention.plots.numbers import percent

Floats = npt.NDArray[np.floating]
LEAST_LABELLED = 0.07  # a narrower segment has no room for its word
USUAL = (64, 128)
"""Head widths that most decoders keep to: the lesson counts them in the catalogue."""
TINTS = (Colour("#cdebdd", "#0d4a37"), Colour("#9fd8bd", "#14664c"))
MARKS = ("circle", "diamond", "square", "triangle-up", "cross")
WAY_COLOURS = (QUERY, KEY, LATENT, VALUE, CACHE)


@dataclass(frozen=True, eq=False)
class Recipe:
    """One head's blend for one query: its name and the weight of every word, (key,)."""

    name: str
    weights: Floats


@dataclass(frozen=True)
class Shape:
    """What the chart of widths needs of a model."""

    name: str
    d_model: int
    n_heads: int
    d_head: int


@dataclass(frozen=True)
class Stop:
    """One measured stop of the ladder: how it was made, numbers cached per token and layer, its quality."""

    way: str
    name: str
    numbers: int
    quality: float


def recipe_bars(recipes: Sequence[Recipe], words: Sequence[str], theme: str) -> Chart:
    """One bar of length 1 for each recipe, cut into the words' weights; what is too narrow for a label is hovered."""
    names = [escaped(one.name) for one in recipes]
    figure = go.Figure()
    for at, word in enumerate(words):
        shares = np.array([float(one.weights[at]) for one in recipes])
        figure.add_trace(
            go.Bar(
                x=shares,
                y=np.arange(len(recipes)),
                orientation="h",
                marker={"color": TINTS[at % 2].on(theme), "line": {"width": 1, "color": VALUE.on(theme)}},
                text=[_segment(word, share) for share in shares],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                textfont={"size": 14, "color": INK.on(theme)},
                hovertemplate=[f"%{{customdata}}, {escaped(word)}: {share:.3f}<extra></extra>" for share in shares],
                customdata=names,
            )
        )
    figure.update_yaxes(
        tickvals=np.arange(len(recipes)), ticktext=names, autorange="reversed", tickfont={"size": 14}, showgrid=False
    )
    figure.update_xaxes(title="share of the blend (each bar adds up to 1)", range=[0, 1], tickformat=".1f")
    figure.update_layout(barmode="stack", bargap=0.35)
    _calm(figure, theme, 90 + 62 * len(recipes))
    told = "; ".join(f"{one.name}: {top_words(one.weights, words)}" for one in recipes)
    rows: list[tuple[str | int | float, ...]] = [
        (one.name, *(round(float(weight), 3) for weight in one.weights)) for one in recipes
    ]
    return Chart(figure, f"The blend of each head, cut into words. {told}.", ("recipe", *words), tuple(rows))


def top_words(weights: Floats, words: Sequence[str], most: int = 3) -> str:
    """The heaviest words of one row with their weights: ``because .48, cats .20``."""
    order = np.argsort(-np.asarray(weights), kind="stable")[:most]
    return ", ".join(f"{words[at]} {share_text(float(weights[at]))}" for at in order if weights[at] >= 0.005)


def share_text(share: float) -> str:
    """A weight with two digits and no leading zero: ``.48``; the whole is ``1.00``."""
    return f"{share:.2f}".removeprefix("0") if share < 0.995 else f"{share:.2f}"


def lens_grid(maps: Floats, words: Sequence[str], theme: str, columns: int = 4) -> Chart:
    """The heads of one layer side by side as one picture: (head, query, key), a fixed scale from 0 to 1."""
    n_heads, n_words = maps.shape[:2]
    rows, pitch = -(-n_heads // columns), n_words + 2
    board = np.full((rows * pitch, columns * pitch - 2), np.nan, np.float32)
    said = np.full(board.shape, "", dtype=object)
    figure = go.Figure()
    for head in range(n_heads):
        top, left = head // columns * pitch + 2, head % columns * pitch
        cell = np.s_[top : top + n_words, left : left + n_words]
        board[cell] = maps[head]
        said[cell] = [[f"head {head}: {escaped(q)} → {escaped(k)}" for k in words] for q in words]
        figure.add_annotation(
            x=left - 0.5,
            y=top - 0.5,
            yanchor="bottom",
            text=f"head {head}",
            showarrow=False,
            xanchor="left",
            font={"size": 14},
        )
    figure.add_trace(
        go.Heatmap(
            z=board,
            text=said,
            hovertemplate="%{text}: %{z:.2f}<extra></extra>",
            hoverongaps=False,
            zmin=0.0,
            zmax=1.0,
            colorscale=[list(stop) for stop in (WEIGHT_SCALE_DARK if theme == "dark" else WEIGHT_SCALE)],
            colorbar={"title": {"text": "weight (0 to 1)", "side": "right"}, "thickness": 12},
        )
    )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, autorange="reversed")
    _calm(figure, theme, 160 * rows)
    strongest = [_strongest(one, words) for one in maps]
    told = "; ".join(f"head {head}: {link}" for head, (link, _) in enumerate(strongest))
    table = [(f"head {head}", link, round(weight, 2)) for head, (link, weight) in enumerate(strongest)]
    alt = f"{n_heads} heads of one layer side by side. The strongest link of each: {told}."
    return Chart(figure, alt, ("head", "strongest link", "weight"), tuple(table))


def seven_steps(seq_len: int, n_heads: int, d_head: int, theme: str) -> str:
    """HTML of the seven steps in miniature: one block where heads are one matrix, pieces where each is on its own."""
    d_model = n_heads * d_head
    whole, split, apart = (
        f"({seq_len}, {d_model})",
        f"({seq_len}, {n_heads}, {d_head})",
        f"({n_heads}, {seq_len}, {d_head})",
    )
    square = f"({n_heads}, {seq_len}, {seq_len})"
    q, k, v = (colour.on(theme) for colour in (QUERY, KEY, VALUE))
    lines = (
        ("1 project", whole, _blocks(1, "Q", q) + _blocks(1, "K", k) + _blocks(1, "V", v), ""),
        ("2 split Q", split, _blocks(n_heads, "Q", q), "hs-7-joined"),
        ("3 permute Q", apart, _blocks(n_heads, "Q", q), ""),
        ("4 scores, softmax", square, _blocks(n_heads, "", q), "hs-7-square"),
        ("5 weights @ V", apart, _blocks(n_heads, "out ", v), ""),
        ("6 concat", whole, _blocks(n_heads, "out ", v), "hs-7-joined"),
        ("7 W_o", whole, _blocks(1, "output", v), ""),
    )
    items = "".join(
        f'<li><b>{name}</b><code>{shape}</code><span class="hs-7-row {kind}" aria-hidden="true">{drawn}</span></li>'
        for name, shape, drawn, kind in lines
    )
    return f'{_SEVEN_STYLE}<ol class="hs-7">{items}</ol>'


_SEVEN_STYLE = """<style>
ol.hs-7 { list-style: none; margin: 0 !important; padding: 0 !important; }
.hs-7 li { display: grid; grid-template-columns: 9rem 6.5rem 1fr; gap: 0.6rem; align-items: center; min-height: 2.1rem;
  margin: 0 !important; padding: 0 !important; }
.hs-7 code { font-size: 0.9rem; background: none; color: inherit; padding: 0; }
.hs-7-row { display: flex; gap: 0.35rem; min-width: 0; }
.hs-7-row i { flex: 1 1 0; min-width: 0; height: 1.5rem; border: 2px solid; border-radius: 0.25rem; font-style: normal;
  font-size: 0.8rem; font-weight: 700; line-height: 1.3rem; text-align: center; overflow: hidden; }
.hs-7-joined { gap: 0; } .hs-7-joined i { border-radius: 0; margin-inline-start: -1px; }
.hs-7-square i { flex: 0 0 1.5rem; border-style: dashed; }
@media (max-width: 700px) {
  .hs-7 li { grid-template-columns: 1fr auto; padding-top: 0.5rem !important; }
  .hs-7-row { grid-column: 1 / -1; }
}
</style>"""


def _blocks(count: int, letter: str, ink: str) -> str:
    names = [letter] if count == 1 else [f"{letter}{head}" if letter and count <= 8 else "" for head in range(count)]
    return "".join(f'<i style="color:{ink}">{name}</i>' for name in names)


def width_chart(shapes: Sequence[Shape], chosen: int, theme: str) -> Chart:
    """Number of heads and width of one head against d_model, both logarithmic; the usual widths as a band."""
    wide = np.array([one.d_model for one in shapes])
    figure = go.Figure()
    figure.add_hrect(y0=USUAL[0], y1=USUAL[1], fillcolor=KEY.on(theme), opacity=0.14, line_width=0)
    for name, values, colour, mark in (
        ("number of query heads", [one.n_heads for one in shapes], QUERY, "circle-open"),
        ("width of one head, d_head", [one.d_head for one in shapes], KEY, "diamond"),
    ):
        figure.add_trace(
            go.Scatter(
                x=wide,
                y=values,
                mode="markers",
                name=name,
                marker={"color": colour.on(theme), "symbol": mark, "size": 8, "opacity": 0.75},
                text=[escaped(one.name) for one in shapes],
                hovertemplate="%{text}: %{y}<extra>" + name + "</extra>",
            )
        )
    figure.add_hline(y=chosen, line={"color": INK.on(theme), "width": 2, "dash": "dot"})
    figure.add_annotation(
        x=1, xref="paper", xanchor="right", y=np.log10(chosen), yanchor="bottom", showarrow=False,
        text=f"your d_head: {chosen}", font={"size": 14, "color": INK.on(theme)},
    )  # fmt: skip
    figure.update_xaxes(
        title="d_model: numbers for one token",
        type="log",
        tickvals=[2**power for power in range(7, 16)],
        tickformat=",",
    )
    figure.update_yaxes(title="count (log scale)", type="log", tickvals=[2**power for power in range(1, 10)])
    _calm(figure, theme, 370)
    inside = sum(USUAL[0] <= one.d_head <= USUAL[1] for one in shapes)
    alt = (
        f"Head count and head width of {len(shapes)} decoders against d_model. Counts grow with d_model; "
        f"{inside} of {len(shapes)} widths stay between {USUAL[0]} and {USUAL[1]}."
    )
    rows = [(one.name, one.d_model, one.n_heads, one.d_head) for one in shapes]
    return Chart(figure, alt, ("model", "d_model", "query heads", "d_head"), tuple(rows))


def group_rows(weights: Floats, words: Sequence[str], n_kv_heads: int, theme: str) -> Chart:
    """Where one token looks in every query head of a layer, (head, key); heads that share a K/V head lie together."""
    n_heads, n_words = weights.shape
    shared = n_heads // n_kv_heads
    board = np.full((n_heads + n_kv_heads - 1, n_words), np.nan, np.float32)
    names = [""] * len(board)
    said = np.full(board.shape, "", dtype=object)
    for head in range(n_heads):
        row = head + head // shared
        board[row], names[row] = weights[head], f"Q{head} on KV {head // shared}"
        said[row] = [f"Q{head} → {escaped(word)}" for word in words]
    figure = go.Figure(
        go.Heatmap(
            z=board,
            text=said,
            hovertemplate="%{text}: %{z:.2f}<extra></extra>",
            hoverongaps=False,
            zmin=0.0,
            zmax=1.0,
            ygap=2,
            colorscale=[list(stop) for stop in (WEIGHT_SCALE_DARK if theme == "dark" else WEIGHT_SCALE)],
            colorbar={"title": {"text": "weight (0 to 1)", "side": "right"}, "thickness": 12},
        )
    )
    figure.update_xaxes(
        tickvals=np.arange(n_words), ticktext=[escaped(word) for word in words], tickangle=-45, showgrid=False
    )
    figure.update_yaxes(tickvals=np.arange(len(board)), ticktext=names, autorange="reversed", showgrid=False)
    _calm(figure, theme, 80 + 24 * len(board))
    tops = [int(np.argmax(row)) for row in weights]
    told = "; ".join(
        f"query head {head} looks most at {words[at]}, {percent(float(weights[head, at]))}"
        for head, at in enumerate(tops)
    )
    rows = [
        (f"Q{head}", f"KV {head // shared}", words[at], round(float(weights[head, at]), 2))
        for head, at in enumerate(tops)
    ]
    alt = f"{n_heads} query heads in {n_kv_heads} groups, each group on one K/V head. {told}."
    return Chart(figure, alt, ("query head", "reads", "looks most at", "weight"), tuple(rows))


def rung_chart(stops: Sequence[Stop], quality: str, lower_is_better: bool, theme: str) -> Chart:
    """Quality against numbers cached per token and layer, one line a way of getting there."""
    figure = go.Figure()
    ways = list(dict.fromkeys(stop.way for stop in stops))
    for at, way in enumerate(ways):
        own = sorted((stop for stop in stops if stop.way == way), key=lambda stop: stop.numbers)
        figure.add_trace(
            go.Scatter(
                x=[stop.numbers for stop in own],
                y=[stop.quality for stop in own],
                mode="lines+markers",
                name=way,
                line={"color": WAY_COLOURS[at % len(WAY_COLOURS)].on(theme), "width": 2},
                marker={"symbol": MARKS[at % len(MARKS)], "size": 11},
                text=[escaped(stop.name) for stop in own],
                hovertemplate="%{text}: %{y:,.3~g}, %{x} numbers<extra></extra>",
            )
        )
    most = max(stop.numbers for stop in stops)
    figure.update_xaxes(title="numbers cached for each token in each layer", range=[0, most * 1.06])
    figure.update_yaxes(title=quality)
    if lower_is_better:
        figure.update_yaxes(type="log", autorange="reversed", dtick=1, tickformat=",~g")
    _calm(figure, theme, 420)
    told = "; ".join(f"{stop.name} at {stop.numbers} numbers: {stop.quality:,.3g}" for stop in stops)
    rows = [(stop.way, stop.name, stop.numbers, round(stop.quality, 4)) for stop in stops]
    alt = f"{quality} against numbers cached per token and layer; better is higher up. {told}."
    return Chart(figure, alt, ("way", "setting", "numbers", quality), tuple(rows))


def _segment(word: str, share: float) -> str:
    if share < LEAST_LABELLED:
        return ""
    short = word if len(word) <= 12 else word[:11] + "…"
    return f"{escaped(short)}<br>{share_text(share)}"


def _strongest(weights: Floats, words: Sequence[str]) -> tuple[str, float]:
    query, key = np.unravel_index(int(np.argmax(weights)), weights.shape)
    return f"{words[int(query)]} → {words[int(key)]}", float(weights[query, key])


def _calm(figure: go.Figure, theme: str, height: int) -> None:
    ink = INK.on(theme)
    figure.update_xaxes(automargin=True, zeroline=False, title_font={"size": 14, "color": ink})
    figure.update_yaxes(automargin=True, zeroline=False, title_font={"size": 14, "color": ink})
    figure.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 30, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"size": 14, "color": ink},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 14}},
        showlegend=len(figure.data) > 1 and all(trace.name for trace in figure.data),
        hoverlabel={"font": {"size": 14}},
    )
    figure.update_xaxes(gridcolor=_faint(theme))
    figure.update_yaxes(gridcolor=_faint(theme))


def _faint(theme: str) -> str:
    return GREY.on(theme) + "33"
