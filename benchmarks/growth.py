"""How cost grows: time of a trace, bytes sent and time to paint, against tokens and against heads, on log axes."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from attention import load_model, trace
from attention.layout import HeadLayout
from attention.multihead import multi_head_attention, random_inputs
from attention.plots.colours import CACHE
from attention.plots.viewer import ViewedTrace, ViewerScene, viewer_html
from attention.tracing import AttentionTrace
from benchmarks.browser import DESKTOP, OUR_LAYER, PATIENCE, STOPWATCH
from benchmarks.chromium import launch
from benchmarks.ratios import Row, in_ms
from benchmarks.server import ROOT
from benchmarks.texts import counter, text_of
from benchmarks.viewer_bytes import message_bytes

PICTURE = ROOT / "benchmarks" / "results" / "growth.html"
MODEL = "all-MiniLM-L6-v2"
TOKENS = (16, 32, 64, 128, 256, 512)
HEADS = (1, 2, 4, 8, 16, 32)
D_MODEL, SEQ_LEN = 512, 256  # of the layer whose heads are counted: d_head is D_MODEL / heads
NOTE = (
    "Slope on log axes over all points, and in the file over the last doubling: 1 is proportional, 2 is quadratic. "
    "Tokens: MiniLM, 16 to 512. Heads: one layer in NumPy, d_model 512, 256 tokens, 1 to 32 heads; its bytes are "
    "those of the weights. Painting: PageDown in the viewer's own file."
)


@dataclass(frozen=True)
class Curve:
    """One quantity: its name, its unit, against what, and its points."""

    name: str
    unit: str
    against: str
    at: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def slope(self) -> float:
        """Of the straight line through all points on log axes."""
        return slope(self.at, self.values)

    @property
    def last(self) -> float:
        """The same between the last two points."""
        return slope(self.at[-2:], self.values[-2:])


def slope(at: Sequence[float], values: Sequence[float]) -> float:
    """The exponent k of values ≈ c · at^k, by least squares on the logarithms."""
    return float(np.polyfit(np.log(at), np.log(values), 1)[0])


def measure(quick: bool) -> list[Row]:
    """One row per curve: its slope; the points and the chart are kept beside the other results."""
    torch.set_num_threads(1)
    loaded = load_model(MODEL)
    count = counter(loaded.tokenizer)
    runs = 3 if quick else 9
    texts = [text_of(count, n_tokens) for n_tokens in TOKENS]
    traces = [trace(loaded, text) for text in texts]
    curves = (
        Curve("trace", "ms", "tokens", TOKENS, tuple(_median(partial(trace, loaded, text), runs) for text in texts)),
        Curve("bytes sent", "B", "tokens", TOKENS, tuple(float(message_bytes(one)[0]) for one in traces)),
        Curve("layer painted", "ms", "tokens", TOKENS, tuple(_painted(traces, runs))),
        Curve("trace", "ms", "heads", HEADS, tuple(_median(_layer(n_heads), runs) for n_heads in HEADS)),
        Curve("bytes of weights", "B", "heads", HEADS, tuple(float(n * SEQ_LEN**2) for n in HEADS)),
    )
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    chart(curves).write_html(PICTURE, include_plotlyjs=True)
    return [
        Row(
            f"growth of {curve.name} with {curve.against}",
            "slope",
            (curve.slope,),
            note=NOTE,
            details={"at": curve.at, curve.unit: curve.values, "last": curve.last},
        )
        for curve in curves
    ]


def chart(curves: Sequence[Curve]) -> go.Figure:
    """One log-log panel per curve, its slope in the title and a dotted line of that slope."""
    titles = [f"{one.name} with {one.against}: slope {one.slope:.2f}, last {one.last:.2f}" for one in curves]
    figure = make_subplots(rows=2, cols=3, subplot_titles=titles)
    for place, one in enumerate(curves):
        row, column = divmod(place, 3)
        middle = float(np.exp(np.mean(np.log(one.values)) - one.slope * np.mean(np.log(one.at))))
        fitted = [middle * at**one.slope for at in one.at]
        ink = CACHE.light
        points = go.Scatter(x=one.at, y=one.values, mode="lines+markers", line={"color": ink}, name=one.name)
        line = go.Scatter(x=one.at, y=fitted, mode="lines", line={"color": "#6b7280", "dash": "dot"}, name="slope")
        figure.add_trace(points, row + 1, column + 1)
        figure.add_trace(line, row + 1, column + 1)
        figure.update_xaxes(type="log", title=one.against, tickvals=one.at, row=row + 1, col=column + 1)
        figure.update_yaxes(type="log", title=one.unit, row=row + 1, col=column + 1)
    return figure.update_layout(showlegend=False, template="plotly_white", title="How cost grows", height=800)


def _median(run: Callable[[], object], runs: int) -> float:
    run()
    return statistics.median(in_ms(run)() for _ in range(runs))


def _layer(n_heads: int) -> Callable[[], object]:
    layout = HeadLayout(D_MODEL, n_heads, n_heads)
    x, weights = random_inputs(layout, SEQ_LEN)
    return lambda: multi_head_attention(x, weights, layout)


def _painted(traces: Sequence[AttentionTrace], runs: int) -> list[float]:
    """Milliseconds from a key press to the next layer on the screen, in the viewer's offline file."""
    from playwright.sync_api import sync_playwright

    medians = []
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = launch(playwright)
        for traced in traces:
            path = Path(folder) / "viewer.html"
            path.write_text(viewer_html(ViewerScene((ViewedTrace(traced),), start=(0, 0, 1))), encoding="utf-8")
            page = browser.new_page(viewport=DESKTOP)
            page.goto(path.as_uri())
            page.evaluate(STOPWATCH)
            page.wait_for_function("() => viewer()?.dataset.painted > 0", timeout=PATIENCE)
            page.locator(".hs-scroll[role=application]").first.focus()
            taken = []
            for turn in range(2 * runs):
                layer = (turn + 1) % 2  # down to layer 1 and up to layer 0 again
                page.evaluate(OUR_LAYER, str(layer))
                page.keyboard.press("PageDown" if layer else "PageUp")
                taken.append(float(page.evaluate("() => window.stopwatch")))
            medians.append(statistics.median(taken))
            page.close()
        browser.close()
    return medians
