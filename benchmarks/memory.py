"""Resident memory of the server and of its sessions, and whether a page of 512 tokens stays quick under the pointer."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import psutil

from attention import load_model
from attention.models import BUNDLED
from benchmarks.browser import DESKTOP, PATIENCE, STOPWATCH
from benchmarks.chromium import launch, wait_until_drawn
from benchmarks.peers.serving import OURS, streamlit_server
from benchmarks.ratios import Row
from benchmarks.sessions import session_rows
from benchmarks.texts import counter, text_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

MINILM, SMOLLM = BUNDLED
LONG = 512
POINTS = 120  # places the pointer visits, one per animation frame
PAINTED = "() => viewer()?.dataset.painted > 0"
# The longest time between two frames while the pointer, or the scroll bar, moves: what a person feels as a freeze.
WATCH_FRAMES = """() => {
  window.gaps = [];
  let last = performance.now();
  const look = (now) => { window.gaps.push(now - last); last = now; if (window.gaps) requestAnimationFrame(look); };
  requestAnimationFrame((now) => { last = now; requestAnimationFrame(look); });
}"""
TAKE_FRAMES = "() => { const gaps = window.gaps; window.gaps = null; return gaps.sort((one, other) => one - other); }"


def measure(_: bool) -> list[Row]:
    """Memory when idle, with both models, and after a page of 512 tokens; the longest frame on that page."""
    from playwright.sync_api import sync_playwright

    text = text_of(counter(load_model(MINILM.id).tokenizer), LONG)
    with sync_playwright() as playwright, streamlit_server(OURS) as server:
        process = psutil.Process(server.process.pid)
        browser = launch(playwright)
        context = browser.new_context(viewport=DESKTOP)
        context.add_init_script(STOPWATCH)
        page = context.new_page()
        memory = {"server answers, nothing loaded yet": _mebibytes(process)}
        for model in (MINILM, SMOLLM):
            _open(page, f"{server.url}/?{urlencode({'model': model.title})}")
        memory["both models loaded, one sentence each"] = _mebibytes(process)
        _open(page, f"{server.url}/?{urlencode({'text': text})}")
        memory["a page of 512 MiniLM tokens opened"] = _mebibytes(process)
        hovered, scrolled = _hover(page), _scroll(page)
        memory["the same, hovered and scrolled"] = _mebibytes(process)
        context.close()
        browser.close()
    note = (
        "Of the server process (psutil rss). The trace of 512 MiniLM tokens is 72 MiB of float32 and stays in the "
        "engine's cache, which is bounded (HEADSCOPE_TRACE_MB)."
    )
    frames = "Milliseconds between two animation frames in Chromium without a GPU; 16.7 is a smooth screen."
    return [
        *(Row(f"memory: {when}", "MiB", (used,), note=note) for when, used in memory.items()),
        Row(f"longest frame, hovering {LONG} tokens", "ms", (hovered[-1],), note=frames, details={"frames": hovered}),
        Row(
            f"longest frame, scrolling {LONG} tokens", "ms", (scrolled[-1],), note=frames, details={"frames": scrolled}
        ),
        *session_rows(),
    ]


def _open(page: Page, url: str) -> None:
    page.goto(url)
    page.wait_for_function(PAINTED, timeout=PATIENCE)
    wait_until_drawn(page)


def _hover(page: Page) -> list[float]:
    """Move the pointer across the head and the grid; the gaps between frames, in ms, shortest first."""
    page.evaluate(WATCH_FRAMES)
    for selector in (".hs-scroll[role=application]", ".hs-grid"):
        box = page.locator(selector).first.bounding_box()
        assert box is not None
        for step in range(POINTS):
            share = (step + 0.5) / POINTS
            page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] * share)
    return [float(gap) for gap in page.evaluate(TAKE_FRAMES)]


def _scroll(page: Page) -> list[float]:
    """Scroll the head from its first to its last word; the gaps between frames as above."""
    page.locator(".hs-scroll[role=application]").first.hover()
    page.evaluate(WATCH_FRAMES)
    for _ in range(POINTS):
        page.mouse.wheel(0, 120)
    return [float(gap) for gap in page.evaluate(TAKE_FRAMES)]


def _mebibytes(process: psutil.Process) -> float:
    used: int = process.memory_info().rss
    return used / 2**20
