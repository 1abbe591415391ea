"""From a key press on the latent's slider to the repainted ladder, in Chromium: held ready against computed now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from attention.model_facts import BUNDLED
from benchmarks.browser import DESKTOP, PATIENCE, STOPWATCH
from benchmarks.chromium import launch
from benchmarks.peers.serving import OURS, streamlit_server
from benchmarks.ratios import Effort, Row, Target, interleaved

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LIVE = ("run", "benchmarks/peers/live_ladder.py")
MINILM = BUNDLED[0]
RANKS = (768, 640, 512, 384, 256, 192, 128, 64)  # both sliders' stops
RATIO, WAIT = Target(10, "gain"), Target(300, "most")

# Ours writes its stop beside the picture in the frame that draws it; the peer's is the title of the chart.
BOARD = """
window.board = () => {
  const within = (node) => {
    const found = node.querySelector("section.hsl");
    if (found) return found;
    for (const host of node.querySelectorAll("*")) {
      const inside = host.shadowRoot && within(host.shadowRoot);
      if (inside) return inside;
    }
    return null;
  };
  if (!window.boardKept?.isConnected) window.boardKept = within(document);
  return window.boardKept;
};
window.peerTitle = () => document.querySelector(".gtitle")?.textContent ?? "";
"""
OUR_STEP = "(rank) => startStopwatch(() => board().dataset.latent === String(rank))"
PEER_STEP = """(rank) => {
  const before = heads();
  startStopwatch(() => window.peerTitle() === `latent ${rank}` && heads().length > 0 && heads()[0] !== before[0]);
}"""
PICTURE = "() => [...(window.board() ?? document).querySelectorAll('canvas')].map((canvas) => canvas.toDataURL())"


@dataclass
class Side:
    """One page and its slider, at ``RANKS[place]``; ``received`` counts the bytes that came over its websocket."""

    page: Page
    ours: bool
    place: int = 3
    down: bool = True
    received: int = 0

    def press(self) -> tuple[float, int]:
        """One key on the slider: milliseconds until the new rung is painted, bytes received for it."""
        # With 384 numbers or more nothing is lost: those ranks look alike.
        if self.place + (1 if self.down else -1) not in range(3, len(RANKS)):
            self.down = not self.down
        self.place += 1 if self.down else -1
        self.settle()
        before, came = self.picture(), self.received
        self.page.locator("#hsl-latent" if self.ours else "input[type=range]").first.focus()
        self.page.evaluate(OUR_STEP if self.ours else PEER_STEP, RANKS[self.place])
        self.page.keyboard.press("ArrowRight" if self.down else "ArrowLeft")
        milliseconds = float(self.page.evaluate("() => window.stopwatch"))
        self.settle()
        if self.picture() == before:
            raise RuntimeError(f"{'Our' if self.ours else 'The peer'} page says it painted, but no pixel changed.")
        return milliseconds, self.received - came

    def picture(self) -> list[str]:
        """The maps as they stand."""
        shown: list[str] = self.page.evaluate(PICTURE if self.ours else "() => heads()")
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
    """Two rows: the time to the new rung against a live recompute and against 300 ms; the bytes it took."""
    from playwright.sync_api import sync_playwright

    effort = Effort(pairs=5, seconds=15, least=2) if quick else Effort(pairs=15, seconds=60, least=5)
    with sync_playwright() as playwright, streamlit_server(OURS) as server, streamlit_server(LIVE) as live:
        browser = launch(playwright)
        with (
            _opened(browser, f"{server.url}/ladder?l_model={quote(MINILM.title)}", ours=True) as ours,
            _opened(browser, live.url, ours=False) as peer,
        ):
            pairs = interleaved(ours.press, peer.press, effort, warm_up=1)
        browser.close()
    times = tuple(ours[0] for ours, _ in pairs)
    note = (
        "Chromium, from the key's event on the latent's slider to two animation frames after the new rung is painted. "
        "MiniLM, ranks 384 to 64. Peer: a Streamlit page that measures the rung on 48 sentences and traces the text "
        "anew, with our own engine, and draws two Plotly charts."
    )
    return [
        Row("ladder slider → rung painted", "ms", times, tuple(theirs[0] for _, theirs in pairs), RATIO, "live", note),
        Row("  the same, by the clock", "ms", times, (), WAIT, "", "At most 300 ms is asked."),
        Row(
            "  bytes from the server for it",
            "B",
            tuple(float(ours[1]) for ours, _ in pairs),
            tuple(float(theirs[1]) for _, theirs in pairs),
            None,
            "live",
            "Websocket frames, uncompressed.",
        ),
    ]


@contextmanager
def _opened(browser: Browser, url: str, ours: bool) -> Iterator[Side]:
    context = browser.new_context(viewport=DESKTOP)
    context.add_init_script(STOPWATCH + BOARD)
    page = context.new_page()
    side = Side(page, ours)

    def count(payload: str | bytes) -> None:
        side.received += len(payload)

    page.on("websocket", lambda socket: socket.on("framereceived", count))
    page.goto(url)
    ready = "() => board()?.dataset.painted > 0" if ours else "() => heads().length === 1"
    page.wait_for_function(ready, timeout=PATIENCE)
    side.settle()
    yield side
    context.close()
