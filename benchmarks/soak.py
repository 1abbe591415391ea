"""``python -m benchmarks.soak --minutes 60``: a small class for a long time, one of its two processes killed midway.

Says how many actions failed, whether everybody came back, and whether the process that lived through it all grew.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass, field

import psutil

from benchmarks.__main__ import keep
from benchmarks.arithmetic import fitted, percentile
from benchmarks.ratios import Row, Target, table
from benchmarks.server import ROOT, free_port
from benchmarks.students import RERUNS, Diary, Lesson, teach
from deploy.front_ends import FrontEndError, FrontEnds, find_haproxy, front_ends

STUDENTS = 10
RAMP = 10.0  # seconds
SAMPLES = 200
KILL_AT, FIT_FROM = 0.3, 0.4  # shares of the time: the line is drawn through what comes after both
DOWN = 10.0  # seconds until the killed one is started again
# MiB. The engine keeps traces up to this bound; a low one is full soon, and what grows after that is a leak.
TRACE_MB = "16"
LOG_END = 4_000  # characters


@dataclass
class Watched:
    """The survivor's memory in MiB, each with its hour; the name of the process that was killed."""

    memory: list[tuple[float, float]] = field(default_factory=list)
    killed: str = ""
    back: list[str] = field(default_factory=list)


def soak(ends: FrontEnds, students: int, seconds: float) -> tuple[Diary, Watched]:
    """A class at ``ends`` for that long; its second process is killed at KILL_AT and started again."""

    async def both() -> tuple[Diary, Watched]:
        lesson, watched = Lesson(students, seconds), Watched()
        watch = asyncio.create_task(_watch(ends, lesson, watched, seconds))
        diary = await teach(ends.url, students, lesson, min(RAMP, seconds / 4))
        await watch
        return diary, watched

    return asyncio.run(both())


def rows_of(diary: Diary, watched: Watched, students: int, seconds: float) -> list[Row]:
    """The table's rows."""
    reruns = [1000 * length for kind in RERUNS for _, length in diary.took[kind]]
    later = [(hour, used) for hour, used in watched.memory if hour * 3600 >= FIT_FROM * seconds]
    note = (
        f"{students} students for {seconds / 60:.0f} minutes on two processes behind HAProxy; {watched.killed} was "
        f"killed after {KILL_AT * seconds / 60:.1f} and started again {DOWN:.0f} s later. Memory is the other one's."
    )
    return [
        Row(
            "soak: actions that failed",
            "errors",
            (float(len(diary.errors)),),
            target=Target(0, "most"),
            note=note,
            details={"errors": diary.errors},
        ),
        Row("soak: reruns", "reruns", (float(len(reruns)),)),
        Row("soak: p95 of a rerun", "ms", (percentile(reruns, 95),), details={"reruns": reruns}),
        Row("soak: connections lost to the kill, and found again", "times", (float(diary.reconnects),)),
        Row("soak: memory, at the end", "MiB", (watched.memory[-1][1],), details={"memory": watched.memory}),
        Row("soak: memory, slope", "MiB an hour", (fitted(later).slope,)),
    ]


async def _watch(ends: FrontEnds, lesson: Lesson, watched: Watched, seconds: float) -> None:
    await lesson.begun.wait()
    survivor, victim = psutil.Process(ends.processes[0].process.pid), ends.processes[1].process
    killed_at = 0.0
    while (now := time.perf_counter()) < lesson.end:
        watched.memory.append(((now - lesson.begin) / 3600, survivor.memory_info().rss / 2**20))
        if not killed_at and now - lesson.begin > KILL_AT * seconds:
            victim.send_signal(signal.SIGKILL)
            watched.killed, killed_at = "app2", now
        elif killed_at and not watched.back and now - killed_at > min(DOWN, seconds / 10):
            watched.back = await asyncio.to_thread(ends.restart_dead)
        await asyncio.sleep(min(seconds / SAMPLES, max(0.0, lesson.end - time.perf_counter())))


def main(arguments: list[str] | None = None) -> int:
    """Run and print. 0 when nothing failed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--students", type=int, default=STUDENTS)
    chosen = parser.parse_args(arguments)
    before = os.getloadavg()[0]
    seconds = chosen.minutes * 60
    try:
        find_haproxy(install=True)
        with front_ends(2, free_port(), environ={"HEADSCOPE_TRACE_MB": TRACE_MB}) as ends:
            for server in ends.processes:
                server.first_run()
            print(f"{chosen.students} students for {chosen.minutes:g} minutes…", file=sys.stderr, flush=True)
            diary, watched = soak(ends, chosen.students, seconds)
            said = [server.log() for server in ends.processes] if diary.errors else []
    except FrontEndError as error:
        print(error, file=sys.stderr)
        return 1
    rows = rows_of(diary, watched, chosen.students, seconds)
    print(table(rows))
    print("\n".join(f"  {error}" for error in dict.fromkeys(diary.errors)))
    print("\n".join(f"The end of a process's log:\n{words[-LOG_END:]}" for words in said))
    print(f"Load {before:.1f} → {os.getloadavg()[0]:.1f}. Kept in {keep(rows, False, before).relative_to(ROOT)}.")
    return 1 if diary.errors else 0


if __name__ == "__main__":
    sys.exit(main())
