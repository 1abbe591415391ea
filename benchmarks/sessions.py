"""What one more visitor costs in memory, what stays when all have left, and what several processes share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from benchmarks.arithmetic import fitted
from benchmarks.ratios import Row, Target
from benchmarks.server import AppServer, start_app
from benchmarks.visitor import Visitor

VISITORS = 50
WARM = 5  # who come and go before: what the first ones load is the app's, not theirs
PAGES = ("finder", "cache", "shapes", "")
MOST_PER_SESSION = 3.0  # MiB
MOST_LEFT = 1.1
LOADED = 60.0  # seconds; both models are loaded long before


@dataclass(frozen=True)
class Growth:
    """Resident memory in MiB: with 0, 1, … visitors on their pages, and after the last has left."""

    with_visitors: tuple[float, ...]
    left: float

    @property
    def per_session(self) -> float:
        """The slope of the line through all points."""
        return fitted(list(enumerate(self.with_visitors))).slope


def session_rows() -> list[Row]:
    """The rows of the table."""
    server = start_app()
    try:
        server.first_run()
        _wait_until_loaded(server)
        growth = asyncio.run(grown(server.url, lambda: resident(server)))
    finally:
        server.stop()
        server.log_path.unlink(missing_ok=True)
    note = (
        f"{VISITORS} websocket visitors, each on five pages, all with the same sentence, so that the engine's bounded "
        "caches do not grow."
    )
    points = {"points": growth.with_visitors}
    return [
        Row(
            "memory: one more session",
            "MiB",
            (growth.per_session,),
            target=Target(MOST_PER_SESSION, "most"),
            note=note,
            details=points,
        ),
        Row(
            "memory: after all have left",
            "MiB",
            (growth.left,),
            (growth.with_visitors[0],),
            Target(MOST_LEFT),
            "before",
            note,
        ),
        *shared_rows(),
    ]


def shared_rows(processes: int = 2) -> list[Row]:
    """Several processes with both models: together, each counted alone, and with what they share counted once."""
    servers = [start_app() for _ in range(processes)]
    try:
        for server in servers:
            server.first_run()
            _wait_until_loaded(server)
        infos = [psutil.Process(server.process.pid).memory_full_info() for server in servers]
    finally:
        for server in servers:
            server.stop()
            server.log_path.unlink(missing_ok=True)
    once = sum(getattr(info, "pss", info.rss) for info in infos) / 2**20
    alone = sum(info.rss for info in infos) / 2**20
    note = "Converted weights are mapped from the same file: the system holds them once for all processes (Linux PSS)."
    return [
        Row(
            f"memory: {processes} processes, both models",
            "MiB",
            (once,),
            (alone,),
            None,
            "if nothing were shared",
            note,
        )
    ]


async def grown(url: str, look: Callable[[], float], visitors: int = VISITORS) -> Growth:
    """Let visitors come one by one, then leave; ``look`` tells the memory."""
    for _ in range(WARM):
        early = await _tour(Visitor(url))
        await early.close()
    points = [look()]
    here = []
    for _ in range(visitors):
        here.append(await _tour(Visitor(url)))
        points.append(look())
    for visitor in here:
        await visitor.close()
    return Growth(tuple(points), look())


def resident(server: AppServer) -> float:
    """MiB of the process that are in memory, mapped files included."""
    used: int = psutil.Process(server.process.pid).memory_info().rss
    return used / 2**20


async def _tour(visitor: Visitor) -> Visitor:
    await visitor.open()
    for path in PAGES:
        await visitor.go(path)
    return visitor


def _wait_until_loaded(server: AppServer) -> None:
    """Until the process grows no more: the second model is loaded beside the first page."""
    pause = threading.Event()
    before = 0.0
    for _ in range(int(LOADED)):
        now = resident(server)
        if now - before < 1.0:
            return
        before = now
        pause.wait(1.0)
