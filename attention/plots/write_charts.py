"""Pictures of a text being written: the cache as it grows, the time a token takes, the text with what is looked at.

Teal is cached bytes, blue the token that looks, orange what it looks at.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from attention.plots.colours import CACHE, LATENT, QUERY, Colour
from attention.plots.numbers import percent
from attention.written import Run

_TURNING = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]")
KIB = 2**10
GREY = Colour("#5b6470", "#9aa3ad")
INK = Colour("#1f2328", "#e7e9ea")
# Behind a word, so that the word stays readable on it: the key's orange at full weight.
SHADE = Colour("194, 98, 26, {:.2f}", "214, 120, 40, {:.2f}")
DEEPEST = 0.55
HEIGHT = 205


@dataclass(frozen=True)
class Picture:
    """A figure and what a listener hears of it."""

    figure: go.Figure
    alt: str


@dataclass(frozen=True)
class Share:
    """One line of a list of shares: what it is of, how much, and a word behind it."""

    label: str
    share: float
    note: str = ""
    chosen: bool = False


def growth_chart(run: Run, at: int, theme: str) -> Picture:
    """KiB of the cache against tokens cached: measured dots on the formula's line, 16 bit below; step ``at`` ringed."""
    ink = CACHE.on(theme)
    tokens = np.array([step.n_cached for step in run.steps])
    measured = np.array([step.cache_bytes for step in run.steps]) / KIB
    formula = np.array([step.formula_bytes for step in run.steps]) / KIB
    half = np.array([step.formula_bytes_16bit for step in run.steps]) / KIB
    words = "%{x} tokens: %{y:,.1f} KiB"
    figure = go.Figure(
        [
            _line(tokens, half, GREY.on(theme), "at 16 bit, by formula", words, dash="dot"),
            _line(tokens, formula, ink, "by formula", words),
            go.Scatter(
                x=tokens,
                y=measured,
                mode="markers",
                name="measured",
                marker={"color": ink, "size": 6},
                hovertemplate=f"measured, {words}<extra></extra>",
            ),
            _ring(tokens[at], measured[at], theme),
        ]
    )
    _framed(figure, "tokens cached", "KiB cached", theme)
    alt = (
        f"Cached KiB against tokens cached: from {measured[0]:,.1f} KiB at {tokens[0]} tokens to "
        f"{measured[-1]:,.1f} KiB at {tokens[-1]}. Measured dots on the formula's line; at 16 bit, half of it."
    )
    return Picture(figure, alt)


def time_chart(run: Run, at: int, theme: str) -> Picture:
    """Milliseconds for the next token against tokens read: with the cache, and the whole text read again without it."""
    later = run.steps[1:]  # the first step reads the whole prompt, which no cache can spare
    tokens = np.array([step.n_cached for step in later])
    with_cache = np.array([step.seconds_with_cache for step in later]) * 1000
    words = "%{x} tokens: %{y:,.0f} ms"
    figure = go.Figure(_line(tokens, with_cache, CACHE.on(theme), "with the cache", words, mode="lines+markers"))
    alt = "Milliseconds for the next token against tokens so far. With the cache: "
    alt += f"{np.median(with_cache):,.0f} ms in the middle." if len(later) else "not measured yet."
    if run.recomputed:
        lengths, seconds = (np.array(values) for values in zip(*run.recomputed, strict=True))
        figure.add_trace(
            _line(lengths, seconds * 1000, LATENT.on(theme), "without: all read again", words, "dash", "lines+markers")
        )
        alt += f" Read again without it: {seconds[0] * 1000:,.0f} ms at {lengths[0]} tokens, "
        alt += f"{seconds[-1] * 1000:,.0f} ms at {lengths[-1]}."
    if 0 < at < len(run.steps):
        figure.add_trace(_ring(tokens[at - 1], with_cache[at - 1], theme))
    _framed(figure, "tokens so far", "ms for the next token", theme)
    return Picture(figure, alt)


def text_html(run: Run, at: int, row: npt.NDArray[np.floating], theme: str) -> str:
    """The text up to step ``at``: every token shaded by ``row``, its weight; the last one looks, then the new token."""
    step = run.steps[at]
    spans = []
    for index in range(step.n_cached):
        depth = DEEPEST * float(row[index]) ** 0.5
        looks = " hs-w-looks" if index == step.n_cached - 1 else ""
        looks += " hs-w-special" if index == 0 and run.start else ""
        style = f"background: rgba({SHADE.on(theme).format(depth)}); outline-color: {QUERY.on(theme)}"
        title = html.escape(f"{run.labels[index]}: {percent(float(row[index]))}", quote=True)
        spans.append(
            f'<span class="hs-w-token{looks}" style="{style}" title="{title}">{_written(run.tokens[index])}</span>'
        )
    return f'<p class="hs-w-text" dir="auto">{"".join(spans)}<ins class="hs-w-new">{_written(step.token)}</ins></p>'


def plain_text_html(tokens: Sequence[str]) -> str:
    """Tokens as they stand, the last one marked new: a text while it is being written."""
    old = "".join(f'<span class="hs-w-token">{_written(token)}</span>' for token in tokens[:-1])
    return f'<p class="hs-w-text" dir="auto">{old}<ins class="hs-w-new">{_written(tokens[-1])}</ins></p>'


def shares_html(title: str, lines: Sequence[Share], colour: Colour, theme: str) -> str:
    """A short list of shares of one with bars. Titles and labels are shown literally."""
    ink = colour.on(theme)
    items = "".join(_share_item(line, ink) for line in lines)
    noted = " hs-w-noted" if any(line.note for line in lines) else ""
    return f'<h3 class="hs-w-title">{html.escape(title)}</h3><ul class="hs-w-shares{noted}">{items}</ul>'


def _share_item(line: Share, ink: str) -> str:
    width = max(line.share, 0.005) * 100  # a sliver stays visible
    return (
        f'<li class="{"hs-w-chosen" if line.chosen else ""}"><bdi class="hs-w-what">{html.escape(line.label)}</bdi>'
        f'<span class="hs-w-bar" aria-hidden="true"><i style="width:{width:.1f}%;background:{ink}"></i></span>'
        f"<span>{percent(line.share)}{html.escape(line.note)}</span></li>"
    )


def follows_itself(run: Run, at: int, row: npt.NDArray[np.floating]) -> bool:
    """Whether the token most looked at is what followed an earlier token equal to the one that looks (induction)."""
    best, looks = int(np.argmax(row)), run.steps[at].n_cached - 1
    return 0 < best < looks and run.ids[best - 1] == run.ids[looks]


def looked_at(run: Run, at: int, row: npt.NDArray[np.floating], most: int = 5) -> list[Share]:
    """The tokens with the largest weights in ``row``, largest first."""
    order = np.argsort(-row, kind="stable")[:most]
    return [Share(run.labels[index], float(row[index])) for index in order]


def _written(token: str) -> str:
    """A token as it stands; a character that would turn the order of those after it is named instead."""
    named = _TURNING.sub(lambda found: f"‹U+{ord(found[0]):04X}›", token.replace("\n", "⏎"))
    return html.escape(named)


def _line(
    x: npt.NDArray[np.floating],
    y: npt.NDArray[np.floating],
    ink: str,
    name: str,
    words: str,
    dash: str = "solid",
    mode: str = "lines",
) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        mode=mode,
        name=name,
        line={"color": ink, "width": 2, "dash": dash},
        marker={"size": 5},
        hovertemplate=f"{name}, {words}<extra></extra>",
    )


def _ring(x: float, y: float, theme: str) -> go.Scatter:
    return go.Scatter(
        x=[x],
        y=[y],
        mode="markers",
        name="this step",
        showlegend=False,
        marker={"size": 14, "symbol": "circle-open", "color": INK.on(theme), "line": {"width": 2.5}},
        hoverinfo="skip",
    )


def _framed(figure: go.Figure, x_title: str, y_title: str, theme: str) -> None:
    small = {"size": 13, "color": INK.on(theme)}
    figure.update_xaxes(title={"text": x_title, "font": small}, tickfont=small, automargin=True, zeroline=False)
    figure.update_yaxes(
        title={"text": y_title, "font": small}, tickfont=small, automargin=True, rangemode="tozero", nticks=5
    )
    figure.update_layout(
        height=HEIGHT,
        margin={"l": 8, "r": 12, "t": 30, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={
            "orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": small, "bgcolor": "rgba(0,0,0,0)",
        },
    )  # fmt: skip
