"""From a key press on the seq_len slider to a redrawn track, in Chromium: our page against twelve Plotly heatmaps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.browser import DESKTOP, PATIENCE, STOPWATCH
from benchmarks.chromium import launch
from benchmarks.peers.serving import OURS, streamlit_server
from benchmarks.ratios import Effort, Row, Target, interleaved

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAIVE_SHAPES = ("run", "benchmarks/peers/naive_shapes.py")
SIZES = "s_width=64&s_heads=8&s_kv=8"
SHORTEST, LONGEST = 4, 12
TARGET = Target(5, "gain")

# Both pages say the new seq_len in the frame that draws it: ours in its facts, the peer in a heatmap's title.
TRACK = """
window.track = () => {
  const within = (node) => {
    const found = node.querySelector("section.hst");
    if (found) return found;
    for (const host of node.querySelectorAll("*")) {
      const inside = host.shadowRoot && within(host.shadowRoot);
      if (inside) return inside;
    }
    return null;
  };
  if (!window.trackKept?.isConnected) window.trackKept = within(document);
  return window.trackKept;
};
window.ourPicture = () => [...track().querySelectorAll("canvas")].map((canvas) => canvas.toDataURL());
"""
OUR_STEP = """(length) => startStopwatch(
  () => track().querySelector(".hst-facts").textContent.startsWith(`${length} tokens`)
)"""
PEER_STEP = """(length) => {
  const before = heads();
  startStopwatch(() => {
    const title = document.querySelector(".annotation-text")?.textContent ?? "";
    return title.startsWith(`1 Q (${length},`) && allNew(before);
  });
}"""


@dataclass
class Side:
    """One page and its slider."""

    page: Page
    ours: bool
    length: int = 4
    rising: bool = True

    def press(self) -> float:
        """One key on the slider: milliseconds until the new length is painted."""
        self.rising = self.length < LONGEST if self.rising else self.length <= SHORTEST
        self.length += 1 if self.rising else -1
        self.settle()
        before = self.picture()
        self.page.locator("input[type=range]").first.focus()
        self.page.evaluate(OUR_STEP if self.ours else PEER_STEP, self.length)
        self.page.keyboard.press("ArrowRight" if self.rising else "ArrowLeft")
        milliseconds = float(self.page.evaluate("() => window.stopwatch"))
        self.settle()
        if self.picture() == before:
            raise RuntimeError(f"{'Our' if self.ours else 'The peer'} page says it painted, but no pixel changed.")
        return milliseconds

    def picture(self) -> list[str]:
        """The pictures as they stand."""
        shown: list[str] = self.page.evaluate("() => ourPicture()" if self.ours else "() => heads()")
        return shown

    def settle(self) -> None:
        """Wait until the script has ended and the page draws nothing more."""
        self.page.wait_for_function(
            "() => document.querySelector('[data-testid=\"stApp\"]')?.dataset.testScriptState === 'notRunning'",
            timeout=PATIENCE,
        )
        self.page.evaluate(
            "() => new Promise((done) => requestIdleCallback(() => requestAnimationFrame(done), { timeout: 5000 }))"
        )


def measure(quick: bool) -> list[Row]:
    """One row: seq_len slider → redrawn track, d_model 64, 8 heads."""
    from playwright.sync_api import sync_playwright

    effort = Effort(pairs=5, seconds=15, least=2) if quick else Effort(pairs=15, seconds=60, least=5)
    with sync_playwright() as playwright, streamlit_server(OURS) as server, streamlit_server(NAIVE_SHAPES) as naive:
        browser = launch(playwright)
        with (
            _opened(browser, f"{server.url}/shapes?{SIZES}", ours=True) as ours,
            _opened(browser, naive.url, ours=False) as peer,
        ):
            pairs = interleaved(ours.press, peer.press, effort, warm_up=1)
        browser.close()
    return [
        Row(
            "slider → track redrawn",
            "ms",
            tuple(ours for ours, _ in pairs),
            tuple(theirs for _, theirs in pairs),
            TARGET,
            "Streamlit + Plotly",
            "Chromium, from the key's event on the seq_len slider to two animation frames after the new shapes are "
            "painted. d_model 64, 8 heads, 4 to 12 tokens. Peer: the same tensors as 12 labelled Plotly heatmaps.",
        )
    ]


@contextmanager
def _opened(browser: Browser, url: str, ours: bool) -> Iterator[Side]:
    context = browser.new_context(viewport=DESKTOP)
    context.add_init_script(STOPWATCH + TRACK)
    page = context.new_page()
    side = Side(page, ours)
    page.goto(url)
    ready = "() => track()?.dataset.painted > 0" if ours else "() => heads().length === 12"
    page.wait_for_function(ready, timeout=PATIENCE)
    side.settle()
    yield side
    context.close()
