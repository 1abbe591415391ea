"""The shared engine beside the app's own: what one trace costs more, and how many traces a second replicas make."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import torch

from attention.engine import Engine
from attention.model_facts import BUNDLED
from attention.models import load_model
from attention.reach import Reach
from attention.remote import RemoteEngine
from attention.tracing import AttentionTrace, TraceRequest
from benchmarks.ratios import Effort, Row, interleaved
from benchmarks.server import ROOT, free_port
from benchmarks.texts import counter, text_of

MINILM = BUNDLED[0].id
CLIENTS = 8
PATIENCE = 240.0  # Ray starts a dozen processes
Trace = Callable[[TraceRequest], AttentionTrace]


@dataclass(frozen=True)
class Served:
    """A running shared engine. ``folder`` is the one its files lie in; ``log`` is what it printed."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path

    @property
    def log(self) -> str:
        """What it printed so far."""
        return (self.folder / "log").read_text(errors="replace")

    def get(self, path: str) -> str | None:
        """The text at a path; None when nobody answers."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except OSError:
            return None
        finally:
            connection.close()

    def client(self) -> RemoteEngine:
        """An app's side of it, which keeps nothing yet."""
        return RemoteEngine(self.url, Engine(), Reach())


@contextmanager
def served(replicas: int, models: tuple[str, ...] = (MINILM,)) -> Iterator[Served]:
    """``python -m deploy.serve_app`` on a free port, ready, and stopped at the end.

    Raises RuntimeError with its own words when it ends early or is not ready after ``PATIENCE`` seconds.
    """
    # Ray's sockets lie in this folder, and their paths may have 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="hs", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_port()
        with (folder / "log").open("wb") as log:
            command = (sys.executable, "-m", "deploy.serve_app", "--port", str(port), "--replicas", str(replicas))
            process = subprocess.Popen(
                [*command, "--models", *models],
                cwd=ROOT,
                # A dozen processes import the same files: the first to read one compiles it for the others.
                env={**os.environ, "TMPDIR": name, "PYTHONDONTWRITEBYTECODE": ""},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        running = Served(process, f"http://127.0.0.1:{port}", folder)
        try:
            _wait(running)
            yield running
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> int:
    """End it as Ctrl+C's sibling SIGTERM does; its exit code."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _wait(running: Served) -> None:
    deadline = time.monotonic() + PATIENCE
    while running.get("/health") != "ok":
        try:
            code = running.process.wait(0.2)  # the pause between two questions, cut short when it ends
        except subprocess.TimeoutExpired:
            if time.monotonic() < deadline:
                continue
            code = None
        raise RuntimeError(f"The shared engine is not ready (exit code {code}). It said:\n{running.log}")


def measure(quick: bool) -> list[Row]:
    """What one trace costs more at 128 tokens, then traces a second of 1 and 2 replicas at 64 and 128 tokens."""
    torch.set_num_threads(1)
    texts = _Texts()
    with ExitStack() as stack:
        one, two = (stack.enter_context(served(replicas)) for replicas in (1, 2))
        own, through_one, through_two = Engine().trace, one.client().trace, two.client().trace
        for trace in (own, through_one, through_two):
            for _ in range(4):  # every replica, and every library's first call
                _many(trace, texts, 16, CLIENTS)
        rows = [_overhead(through_one, own, texts, quick)]
        for n_tokens in (64, 128):
            rows += _throughput(own, through_one, through_two, texts, n_tokens, quick)
    return rows


class _Texts:
    """Texts never asked before, so that no cache answers."""

    def __init__(self) -> None:
        self._count = counter(load_model(MINILM).tokenizer)
        self._seeds = count()

    def next(self, n_tokens: int) -> TraceRequest:
        return TraceRequest(MINILM, text_of(self._count, n_tokens, next(self._seeds)))


def _overhead(through: Trace, own: Trace, texts: _Texts, quick: bool) -> Row:
    effort = Effort(pairs=15, seconds=10) if quick else Effort(pairs=41, seconds=40)

    def timed(trace: Trace) -> Callable[[], float]:
        def run() -> float:
            asked = texts.next(128)
            began = time.perf_counter()
            trace(asked)
            return (time.perf_counter() - began) * 1e3

        return run

    pairs = interleaved(timed(through), timed(own), effort, warm_up=3)
    return Row(
        "one trace through the shared engine, 128 tokens",
        "ms",
        tuple(ours for ours, _ in pairs),
        tuple(peer for _, peer in pairs),
        None,
        "in-process",
        "MiniLM, 4.9 MB an answer, every text new. Ours: HTTP to deploy.serve_app on this machine, one replica. "
        "Peer: attention.Engine in the same process. One thread each.",
    )


def _throughput(
    own: Trace, through_one: Trace, through_two: Trace, texts: _Texts, n_tokens: int, quick: bool
) -> list[Row]:
    """Three rows, measured in rounds in which each takes its turn."""
    rates: dict[str, list[float]] = {"own": [], "one": [], "two": []}
    for _ in range(3 if quick else 7):
        for name, trace in (("own", own), ("one", through_one), ("two", through_two)):
            rates[name].append(_many(trace, texts, n_tokens, CLIENTS * (4 if quick else 8)))
    note = (
        f"{CLIENTS} clients at once in one process, every text new. The clients, the door and the replicas share this "
        "machine's cores. A ratio above 1 is faster."
    )

    def row(title: str, ours: str, peer: str, name: str) -> Row:
        return Row(title, "traces/s", tuple(rates[ours]), tuple(rates[peer]), None, name, note)

    return [
        row(f"{CLIENTS} clients, {n_tokens} tokens: 1 replica", "one", "own", "in-process"),
        row("  2 replicas", "two", "one", "1 replica"),
    ]


def _many(trace: Trace, texts: _Texts, n_tokens: int, n_traces: int) -> float:
    """Traces a second when ``CLIENTS`` ask at once."""
    asked = [texts.next(n_tokens) for _ in range(n_traces)]
    with ThreadPoolExecutor(CLIENTS) as clients:
        began = time.perf_counter()
        for _ in clients.map(trace, asked):
            pass
        return n_traces / (time.perf_counter() - began)
