"""From nothing: server to first painted page against ``streamlit hello``, and import to first trace."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from attention.models import BUNDLED, package_file
from benchmarks.browser import DESKTOP, PATIENCE, STOPWATCH
from benchmarks.chromium import launch
from benchmarks.peers.serving import HELLO, OURS, streamlit_server
from benchmarks.ratios import Effort, Row, Target, interleaved
from benchmarks.server import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MINILM = BUNDLED[0]
TEXT = "Alice fed the cats because they were hungry."
OUR_FIRST_TRACE = """import sys
from attention import load_model, trace
print(len(trace(load_model(sys.argv[1]), sys.argv[2]).weights))"""
# Both conditions are asked once per frame. Two frames later what was painted is on the screen.
OUR_PAGE = """() => [...(viewer()?.querySelectorAll("canvas") ?? [])].some((canvas) =>
  canvas.width > 0 && canvas.height > 0
  && canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value > 0))"""
HELLO_PAGE = "() => document.querySelector('h1')?.textContent.startsWith('Welcome to Streamlit') ?? false"
# The tabs below the viewer come with the model; until then a shipped picture is shown.
OUR_LIVE_PAGE = "() => document.querySelector('[role=tab]') !== null"
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def measure(quick: bool) -> list[Row]:
    """Both rows. The browser runs already; each visit has a fresh server and an empty browser cache."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        visits = interleaved(
            partial(first_page, browser, OURS, OUR_PAGE, OUR_LIVE_PAGE),
            partial(first_page, browser, HELLO, HELLO_PAGE),
            Effort(pairs=2, seconds=8, least=1) if quick else Effort(pairs=5, seconds=35, least=3),
        )
        browser.close()
    folder = str(package_file(MINILM).parent)
    traces = interleaved(
        _process(["-c", OUR_FIRST_TRACE, MINILM.id, TEXT]),
        _process(["-m", "benchmarks.peers.first_trace", folder, TEXT]),
        Effort(pairs=2, seconds=8, least=1) if quick else Effort(pairs=5, seconds=30, least=3),
    )
    return [
        Row(
            "cold server → first painted page",
            "s",
            tuple(ours.painted for ours, _ in visits),
            tuple(theirs.painted for _, theirs in visits),
            Target(2.5),
            "streamlit hello",
            "From starting the process; the browser, already running and with an empty cache, comes as soon as the "
            "server answers. Ours ends when a canvas of the viewer has pixels, the peer when its heading is there.",
            {"until_healthy": [(ours.healthy, theirs.healthy) for ours, theirs in visits]},
        ),
        Row(
            "cold server → model loaded, page live",
            "s",
            tuple(ours.live for ours, _ in visits),
            note="The same visits, until the model has loaded and the traced page has replaced the shipped picture.",
        ),
        Row(
            "import → first trace, fresh process",
            "s",
            tuple(ours for ours, _ in traces),
            tuple(theirs for _, theirs in traces),
            None,
            "transformers eager",
            "From starting python to the printed result, MiniLM loaded from disk. Ours also checks the weights' "
            "SHA-256 and that they are finite, and probes the layout.",
        ),
    ]


@dataclass(frozen=True)
class Visit:
    """Seconds from starting a server until it answers, until its page is painted, until all of it works."""

    healthy: float
    painted: float
    live: float


def first_page(browser: Browser, command: Sequence[str], painted: str, live: str = "() => true") -> Visit:
    """Start a server, open its page at once; ``painted`` and ``live`` are asked in the page."""
    context = browser.new_context(viewport=DESKTOP)
    context.add_init_script(STOPWATCH)
    page = context.new_page()
    began = time.perf_counter()
    with streamlit_server(command) as server:
        times = [time.perf_counter() - began]
        page.goto(server.url, wait_until="commit")
        for shown in (painted, live):
            page.wait_for_function(shown, timeout=PATIENCE)
            page.evaluate(TWO_FRAMES)
            times.append(time.perf_counter() - began)
        context.close()
    return Visit(*times)


def _process(arguments: list[str]) -> Callable[[], float]:
    """Each call runs python with these arguments: seconds from its start to its first line."""

    def run() -> float:
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            seconds = time.perf_counter() - began
        if not line.strip() or process.returncode:
            raise RuntimeError(f"python {' '.join(arguments[:2])} ended with code {process.returncode}.")
        return seconds

    return run
