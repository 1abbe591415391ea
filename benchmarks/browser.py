"""From a key press to a painted picture, in Chromium: our page against a plain Streamlit page with twelve heatmaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attention.models import BUNDLED, package_file
from benchmarks.chromium import launch
from benchmarks.peers.serving import NAIVE, OURS, streamlit_server
from benchmarks.ratios import Effort, Row, Target, interleaved
from benchmarks.texts import counter, text_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MINILM = BUNDLED[0]
N_TOKENS = 64
DESKTOP: Any = {"width": 1440, "height": 900}
PATIENCE = 180_000  # ms; a busy machine is slow, and a slow figure is still a figure

# The clock starts with the key's own event and stops two animation frames after the page shows what was asked for:
# the first frame paints it, the second comes when that one is on the screen. Both pages are asked once per frame.
STOPWATCH = """
window.viewer = () => {
  const within = (node) => {
    const found = node.querySelector("section.hs");
    if (found) return found;
    for (const host of node.querySelectorAll("*")) {
      const inside = host.shadowRoot && within(host.shadowRoot);
      if (inside) return inside;
    }
    return null;
  };
  if (!window.viewerKept?.isConnected) window.viewerKept = within(document);
  return window.viewerKept;
};
window.heads = () => [...document.querySelectorAll(".heatmaplayer image")].map((image) => image.getAttribute("href"));
window.allNew = (before) => heads().length === 12 && heads().every((image, at) => image !== before[at]);
window.startStopwatch = (shown) => {
  window.stopwatch = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error("The page did not show in time what was asked for.")), 180000);
    window.addEventListener("keydown", (event) => {
      const began = event.timeStamp;
      const look = () => {
        if (shown()) requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - began)));
        else requestAnimationFrame(look);
      };
      requestAnimationFrame(look);
    }, { capture: true, once: true });
  });
};
"""
# Shows a new layer: the viewer says so in the frame that paints it; the peer's twelve pictures are all new ones.
OUR_LAYER = """(layer) => {
  const before = viewer().dataset.painted;
  startStopwatch(() => viewer().dataset.layer === layer && viewer().dataset.painted !== before);
}"""
PEER_LAYER = """(layer) => {
  const before = heads();
  startStopwatch(() => {
    const title = document.querySelector(".annotation-text")?.textContent ?? "";
    return title.startsWith(`Layer ${layer},`) && allNew(before);
  });
}"""
# Shows a new sentence: words of the other vocabulary stand where they stand, in the frame that paints the heads.
OUR_SENTENCE = """(words) => startStopwatch(() => {
  const shown = [...(viewer()?.querySelectorAll(".hs-word") ?? [])].map((word) => word.textContent);
  const ordinary = shown.filter((word) => !word.startsWith("["));
  return ordinary.length > 0 && ordinary.every((word) => words.includes(word));
})"""
PEER_SENTENCE = """(words) => {
  const before = heads();
  startStopwatch(() => {
    const label = document.querySelectorAll(".xtick text")[1]?.textContent;
    return words.includes(label) && allNew(before);
  });
}"""
OUR_PICTURE = "() => [...viewer().querySelectorAll('canvas')].map((canvas) => canvas.toDataURL())"
PEER_PICTURE = "() => heads()"


@dataclass
class Side:
    """One page and how to drive it. ``received`` counts the bytes that came over its websocket."""

    page: Page
    ours: bool
    layer: int = 0
    received: int = 0

    def press_layer(self) -> tuple[float, int]:
        """One key press on the layer control: milliseconds until the next layer is painted, bytes received."""
        down = self.layer < 5
        self.layer += 1 if down else -1
        if self.ours:
            self.page.locator(".hs-scroll[role=application]").first.focus()
            return self._timed("PageDown" if down else "PageUp", OUR_LAYER, str(self.layer))
        self.page.locator("input[type=range]").focus()
        return self._timed("ArrowRight" if down else "ArrowLeft", PEER_LAYER, str(self.layer))

    def type_sentence(self, text: str) -> tuple[float, int]:
        """A new sentence and Enter: milliseconds until its heads are painted, bytes received."""
        box = self.page.get_by_label("Sentence", exact=True)
        box.fill(text)
        timed = self._timed("Enter", OUR_SENTENCE if self.ours else PEER_SENTENCE, text.split())
        if self.ours:
            self.layer = int(self.page.evaluate("() => viewer().dataset.layer"))
        return timed

    def settle(self) -> None:
        """Wait until the script has ended and the page draws nothing more."""
        self.page.wait_for_function(
            "() => document.querySelector('[data-testid=\"stApp\"]')?.dataset.testScriptState === 'notRunning'",
            timeout=PATIENCE,
        )
        self.page.evaluate(
            "() => new Promise((done) => requestIdleCallback(() => requestAnimationFrame(done), { timeout: 5000 }))"
        )

    def _timed(self, key: str, ask: str, argument: object) -> tuple[float, int]:
        picture = OUR_PICTURE if self.ours else PEER_PICTURE
        self.settle()
        before, came = self.page.evaluate(picture), self.received
        self.page.evaluate(ask, argument)
        self.page.keyboard.press(key)
        milliseconds = float(self.page.evaluate("() => window.stopwatch"))
        self.settle()
        if self.page.evaluate(picture) == before:
            raise RuntimeError(f"{'Our' if self.ours else 'The peer'} page says it painted, but no pixel changed.")
        return milliseconds, self.received - came


def measure(quick: bool) -> list[Row]:
    """Key press → new layer, and new sentence → heads, both with 64 tokens."""
    from playwright.sync_api import sync_playwright

    environ = {"BENCH_MODEL": str(package_file(MINILM).parent)}
    with (
        sync_playwright() as playwright,
        streamlit_server(OURS) as server,
        streamlit_server(NAIVE, environ) as naive,
    ):
        browser = launch(playwright)
        with _opened(browser, server.url, ours=True) as ours, _opened(browser, naive.url, ours=False) as peer:
            rows = [_sentence_row(ours, peer, quick), _layer_row(ours, peer, quick)]
        browser.close()
    return [row for pair in reversed(rows) for row in pair]


def _layer_row(ours: Side, peer: Side, quick: bool) -> list[Row]:
    effort = Effort(pairs=5, seconds=8, least=2) if quick else Effort(pairs=15, seconds=35, least=3)
    pairs = interleaved(ours.press_layer, peer.press_layer, effort, warm_up=1)
    return _rows("key press → new layer painted", pairs, Target(10, "gain"))


def _sentence_row(ours: Side, peer: Side, quick: bool) -> list[Row]:
    effort = Effort(pairs=4, seconds=8, least=2) if quick else Effort(pairs=11, seconds=35, least=3)
    pairs = interleaved(_typing(ours), _typing(peer), effort, warm_up=1)
    return _rows("new sentence → heads painted", pairs, Target(3, "gain"))


def _rows(what: str, pairs: list[tuple[tuple[float, int], tuple[float, int]]], target: Target) -> list[Row]:
    return [
        Row(
            f"{what}, {N_TOKENS} tokens",
            "ms",
            tuple(ours[0] for ours, _ in pairs),
            tuple(theirs[0] for _, theirs in pairs),
            target,
            "Streamlit + Plotly",
            "Chromium, from the key's event to two animation frames after the picture changed. Peer: 12 labelled "
            "Plotly heatmaps in one figure, eager attention, st.cache_data. Both servers on this machine.",
        ),
        Row(
            "  bytes from the server for it",
            "B",
            tuple(float(ours[1]) for ours, _ in pairs),
            tuple(float(theirs[1]) for _, theirs in pairs),
            None,
            "",
            "Websocket frames, uncompressed, of everything the page then shows: ours holds all 72 heads and the exact "
            "map below them, the peer's 12 heads.",
        ),
    ]


def _typing(side: Side) -> Callable[[], tuple[float, int]]:
    """Each call types a sentence this server has not seen, in turn from the two vocabularies."""
    texts = new_sentences()
    return lambda: side.type_sentence(next(texts))


def new_sentences() -> Iterator[str]:
    """Endless sentences of 64 tokens; no two in a row share a word."""
    from attention import load_model

    count = counter(load_model(MINILM.id).tokenizer)
    seed = 0
    while True:
        yield text_of(count, N_TOKENS, seed)
        seed += 1


@contextmanager
def _opened(browser: Browser, url: str, ours: bool) -> Iterator[Side]:
    context = browser.new_context(viewport=DESKTOP)
    context.add_init_script(STOPWATCH)
    page = context.new_page()
    side = Side(page, ours)

    def count(payload: str | bytes) -> None:
        side.received += len(payload)

    page.on("websocket", lambda socket: socket.on("framereceived", count))
    page.goto(url)
    ready = "() => viewer()?.dataset.painted > 0" if ours else "() => heads().length === 12"
    page.wait_for_function(ready, timeout=PATIENCE)
    side.settle()
    yield side
    context.close()
