"""``python -m benchmarks.classroom``: a class of 30 on one process, a hundred on two, and all typing the same at once.

Real websocket clients in this process, the app and HAProxy in others; every figure says which CPU it used.
``--students 30 --processes 1 --seconds 120`` measures one class of your own size.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from benchmarks.__main__ import keep
from benchmarks.arithmetic import interactive_response, percentile
from benchmarks.ratios import Row, Target, table
from benchmarks.server import ROOT, AppServer, free_port, start_app
from benchmarks.students import BROWSER, FILES, OPEN, RERUNS, THINK, Diary, Lesson, teach
from benchmarks.visitor import Visitor
from deploy.front_ends import FrontEndError, find_haproxy, front_ends

SAMPLE = 2.0  # seconds between two looks at the memory
RAMP_PER_STUDENT = 0.5  # a class of thirty takes fifteen seconds to open the link
STAMPEDE = 30
FRESH = "Thirty students type this very sentence at one moment and nobody typed it before."


@dataclass(frozen=True)
class Class:
    """How many come, how many processes answer, and the longest a rerun may take at the 95th percentile (seconds)."""

    students: int
    processes: int
    limit: float | None = None


CLASSES = (Class(30, 1, 1.0), Class(100, 2, 3.0))


@dataclass
class Load:
    """What the processes used between two moments: seconds of CPU each, and the most memory seen (MiB)."""

    seconds: float = 0.0
    app: float = 0.0
    proxy: float = 0.0
    client: float = 0.0
    resident: float = 0.0
    idle_resident: float = 0.0
    machine: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """One class, measured: seconds by kind of action, the load, and what went wrong."""

    room: Class
    took: dict[str, list[float]]
    thought: list[float]
    load: Load
    errors: tuple[str, ...]
    reconnects: int

    @property
    def reruns(self) -> list[float]:
        """Seconds of every action that ran a script."""
        return [seconds for kind, rows in self.took.items() if kind in RERUNS for seconds in rows]

    @property
    def acted(self) -> list[float]:
        """``reruns`` without the opening, which comes before the time that counts."""
        return [seconds for kind, rows in self.took.items() if kind in RERUNS and kind != OPEN for seconds in rows]

    @property
    def predicted(self) -> float:
        """Mean seconds of what ``acted`` times, by the interactive law: from how many there were, not from their times.

        The law speaks of all interactions; those in the browser take no time, so a rerun takes the whole of it.
        """
        many = len(self.acted) + len(self.took.get(BROWSER, ()))
        think = statistics.fmean(self.thought)
        return interactive_response(self.room.students, many / self.load.seconds, think) * many / len(self.acted)


def hold(room: Class, seconds: float, url: str, apps: Sequence[int], proxy: int | None) -> Outcome:
    """One class at ``url``, watched. ``apps`` and ``proxy`` are process ids."""

    async def watched() -> tuple[Diary, Lesson, Load]:
        load = Load(idle_resident=_resident(apps))
        lesson = Lesson(room.students, seconds)
        watch = asyncio.create_task(_watch(load, apps, proxy, lesson))
        diary = await teach(url, room.students, lesson, room.students * RAMP_PER_STUDENT)
        await watch
        return diary, lesson, load

    diary, lesson, load = asyncio.run(watched())
    begin, end = lesson.begin, lesson.end
    took = diary.between(begin, end)
    for kind in (FILES, OPEN):  # they come before the time that counts, and count all the same
        took[kind] = [length for _, length in diary.took[kind]]
    thought = [pause for at, pause in diary.thought if begin <= at < end]
    return Outcome(room, took, thought, load, tuple(diary.errors), diary.reconnects)


def stampede(server: AppServer, visitors: int = STAMPEDE, text: str = FRESH) -> tuple[int, float]:
    """All type the same sentence at one moment. How many traces the engine computed, and seconds until all have it.

    The server's log must say each trace (``benchmarks.logged``).
    """

    async def all_at_once() -> tuple[int, float]:
        crowd = [Visitor(server.url) for _ in range(visitors)]
        await asyncio.gather(*(one.open() for one in crowd))
        before = traces(server)
        began = time.perf_counter()
        await asyncio.gather(*(one.turn("text", text) for one in crowd))
        took = time.perf_counter() - began
        await asyncio.gather(*(one.close() for one in crowd))
        return traces(server) - before, took

    return asyncio.run(all_at_once())


def traces(server: AppServer) -> int:
    """How many traces the engine says it has computed."""
    return sum(line.startswith("trace ") for line in server.log().splitlines())


def measure_stampede() -> list[Row]:
    """30 identical sentences at once, on one process."""
    server = start_app()
    try:
        server.first_run()
        computed, took = stampede(server)
    finally:
        server.stop()
        server.log_path.unlink(missing_ok=True)
    note = f"{STAMPEDE} websocket clients send the same new sentence at one moment; traces are counted in the log."
    return [
        Row(
            f"{STAMPEDE} equal sentences: traces computed",
            "traces",
            (float(computed),),
            target=Target(1, "most"),
            note=note,
        ),
        Row(f"{STAMPEDE} equal sentences: until all have it", "s", (took,), note=note),
    ]


def measure_class(room: Class, seconds: float) -> tuple[Outcome, list[Row]]:
    """One class behind HAProxy where there are several processes, else straight at the app."""
    with _served(room.processes) as (url, apps, proxy):
        outcome = hold(room, seconds, url, apps, proxy)
    return outcome, rows_of(outcome)


def rows_of(outcome: Outcome) -> list[Row]:
    """The figures that have targets or explain one, for the table and the file."""
    room, load = outcome.room, outcome.load
    name = f"{room.students} on {room.processes}"
    target = Target(room.limit * 1000, "most") if room.limit else None
    note = f"Think time {THINK:g} s, four of five actions stay in the browser. Load before each: {load.machine[0]:.1f}."
    thousand = {kind: [1000 * one for one in rows] for kind, rows in outcome.took.items()}
    worst = max((percentile(thousand[kind], 95) for kind in RERUNS if kind in thousand), default=0.0)
    cores = load.seconds
    return [
        Row(f"{name}: p95 of all reruns", "ms", (1000 * percentile(outcome.reruns, 95),), note=note),
        Row(f"{name}: p95 of the slowest kind", "ms", (worst,), target=target, note=note, details=thousand),
        Row(
            f"{name}: mean rerun",
            "ms",
            (1000 * statistics.fmean(outcome.acted),),
            (1000 * outcome.predicted,),
            None,
            "N/X − Z",
        ),
        Row(f"{name}: reruns", "a second", (len(outcome.reruns) / load.seconds,)),
        Row(
            f"{name}: errors",
            "errors",
            (float(len(outcome.errors)),),
            target=Target(0, "most"),
            details={"errors": outcome.errors},
        ),
        Row(f"{name}: connections lost", "times", (float(outcome.reconnects),), target=Target(0, "most")),
        Row(f"{name}: CPU of the app", "cores", (load.app / cores,)),
        Row(f"{name}: CPU of HAProxy", "cores", (load.proxy / cores,)),
        Row(f"{name}: CPU of the clients", "cores", (load.client / cores,)),
        Row(f"{name}: most memory of the app", "MiB", (load.resident,), details={"before": load.idle_resident}),
    ]


def kinds_table(outcome: Outcome) -> str:
    """Percentiles by kind of action, in milliseconds."""
    lines = [f"{'action':<30} {'times':>6} {'p50':>8} {'p95':>8} {'p99':>8} {'longest':>8}  ms"]
    for kind in (FILES, *RERUNS, BROWSER):
        rows = outcome.took.get(kind)
        if rows:
            figures = " ".join(f"{1000 * percentile(rows, share):8,.0f}" for share in (50, 95, 99, 100))
            lines.append(f"{kind:<30} {len(rows):>6} {figures}")
    return "\n".join(lines)


@contextmanager
def _served(processes: int) -> Iterator[tuple[str, list[int], int | None]]:
    """One process straight, several behind HAProxy: the address, their process ids, the proxy's. All have run once."""
    if processes == 1:
        server = start_app()
        try:
            server.first_run()
            yield server.url, [server.process.pid], None
        finally:
            server.stop()
            server.log_path.unlink(missing_ok=True)
        return
    with front_ends(processes, free_port()) as ends:
        for server in ends.processes:
            server.first_run()
        yield ends.url, [server.process.pid for server in ends.processes], ends.proxy.pid


async def _watch(load: Load, apps: Sequence[int], proxy: int | None, lesson: Lesson) -> None:
    """Fill ``load`` with what is used in the time that counts."""
    load.machine.append(os.getloadavg()[0])
    await lesson.begun.wait()
    began = time.perf_counter()
    app, through, own = _cpu(apps), _cpu([proxy] if proxy else []), time.process_time()
    while time.perf_counter() < lesson.end:
        load.resident = max(load.resident, _resident(apps))
        await asyncio.sleep(min(SAMPLE, max(0.0, lesson.end - time.perf_counter())))
    load.seconds = time.perf_counter() - began
    load.app, load.proxy = _cpu(apps) - app, _cpu([proxy] if proxy else []) - through
    load.client = time.process_time() - own
    load.machine.append(os.getloadavg()[0])


def _cpu(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(one.user + one.system for one in times))


def _resident(pids: Sequence[int]) -> float:
    return float(sum(psutil.Process(pid).memory_info().rss for pid in pids)) / 2**20


def main(arguments: list[str] | None = None) -> int:
    """Measure and print. 0 when every target is met, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classroom", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--students", type=int, help="one class of this size instead of the two standard ones")
    parser.add_argument("--processes", type=int, default=1, help="processes that answer them")
    parser.add_argument("--seconds", type=float, default=120, help="how long each class lasts once all have come")
    chosen = parser.parse_args(arguments)
    classes = (Class(chosen.students, chosen.processes),) if chosen.students else CLASSES
    before = os.getloadavg()[0]
    try:
        find_haproxy(install=True)
    except FrontEndError as error:
        print(error, file=sys.stderr)
        return 1
    rows = [] if chosen.students else measure_stampede()
    for room in classes:
        print(
            f"{room.students} students, {room.processes} process(es), {chosen.seconds:g} s…",
            file=sys.stderr,
            flush=True,
        )
        outcome, more = measure_class(room, chosen.seconds)
        rows += more
        loads = " → ".join(f"{load:.1f}" for load in outcome.load.machine)
        print(f"\n{room.students} students on {room.processes} process(es); load {loads}\n{kinds_table(outcome)}\n")
        print("\n".join(f"  {error}" for error in dict.fromkeys(outcome.errors)), flush=True)
    print(table(rows))
    print(
        f"\n{os.cpu_count()} cores, load {before:.1f} at the start. "
        f"Every time is in {keep(rows, False, before).relative_to(ROOT)}."
    )
    missed = [row.measure for row in rows if row.met is False]
    if missed:
        print("Missed: " + "; ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
