"""A class of simulated students: each opens the app, then thinks, acts, thinks, acts, until the lesson is over."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import WebSocketException

from benchmarks.visitor import AppError, Visitor

THINK = 3.0  # seconds on average, evenly spread between half and one and a half of it
# Four of five things people do (another layer or head, a word, the scale) happen in the browser and send nothing.
IN_BROWSER = 0.8
BROWSER, FILES, OPEN, SENTENCE, EXAMPLE, HEAD, CONTROL, PAGE = (
    *("in the browser, nothing sent", "fetch the page's files", "open", "type a new sentence", "take an example"),
    *("lock a head", "move a slider, choose", "go to another page"),
)
RERUNS = (OPEN, SENTENCE, EXAMPLE, HEAD, CONTROL, PAGE)
EXAMPLES = (
    "The trophy did not fit in the suitcase because it was too big.",
    "Alice fed the cats because they were hungry.",
    "The keys to the cabinet are on the table.",
    "My sister lost her phone, so she borrowed mine.",
)
VOCABULARY = (
    "the a old small red quick teacher student dog cat river house window letter garden saw found wrote opened "
    "lost because while after near under with and but it they she he was were hungry tired happy green rain today"
)
# The one control a student moves on each page, and what it may be set to, in the words of the browser.
CONTROLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "shapes": ("s_seq", tuple([float(length)] for length in range(2, 13))),
    "cache": ("c_tokens", (2048, 4096, 16384, 32768, 131072)),
    "write": ("w_step", tuple([float(step)] for step in range(1, 40))),
    "lesson": ("n_part", tuple([str(part)] for part in range(1, 10))),
    "finder": ("f_rank", (["weight"], ["weight beyond distance"])),
    "ladder": ("l_tokens", (["128"], ["8,192"], ["32,768"])),
}
PROBLEMS = (AppError, TimeoutError, OSError, WebSocketException)


@dataclass
class Diary:
    """What happened: seconds by kind of action, each with when it ended, and what went wrong."""

    took: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    thought: list[tuple[float, float]] = field(default_factory=list)  # pauses: when each ended, and its seconds
    errors: list[str] = field(default_factory=list)
    reconnects: int = 0

    async def note(self, kind: str, action: Callable[[], Awaitable[object]]) -> None:
        """Do it, and write down how long it took or why it failed."""
        began = time.perf_counter()
        try:
            await action()
        except PROBLEMS as error:
            self.errors.append(f"{kind}: {type(error).__name__} {error}"[:200])
        else:
            ended = time.perf_counter()
            self.took[kind].append((ended, ended - began))

    def between(self, begin: float, end: float) -> dict[str, list[float]]:
        """Seconds by kind, of what ended in that time (``time.perf_counter``)."""
        return {
            kind: [seconds for at, seconds in rows if begin <= at < end]
            for kind, rows in self.took.items()
            if any(begin <= at < end for at, _ in rows)
        }


class Lesson:
    """The time that counts: from when the last student has the page until ``seconds`` later."""

    def __init__(self, students: int, seconds: float) -> None:
        self._missing = students
        self._seconds = seconds
        self.begun = asyncio.Event()
        self.begin = self.end = math.inf

    def here(self) -> None:
        """One more has the page, or has failed to get it."""
        self._missing -= 1
        if self._missing == 0:
            self.begin = time.perf_counter()
            self.end = self.begin + self._seconds
            self.begun.set()


@dataclass
class Student:
    """One student at one tab. The same ``seed`` does the same things, in an order that answers do not change."""

    visitor: Visitor
    diary: Diary
    seed: int
    think: float = THINK

    async def attend(self, late: float, lesson: Lesson) -> None:
        """Come ``late`` seconds after the bell, stay until the lesson ends."""
        draw = random.Random(self.seed)
        await asyncio.sleep(late)
        await self.diary.note(FILES, self.visitor.fetch_files)
        await self.diary.note(OPEN, self.visitor.open)
        lesson.here()
        while time.perf_counter() < lesson.end:
            paused = time.perf_counter()
            await asyncio.sleep(self.think * draw.uniform(0.5, 1.5))
            now = time.perf_counter()  # a busy machine wakes a sleeper late, which is not the app's doing
            self.diary.thought.append((now, now - paused))
            kind, action = self.choose(draw)
            await self.diary.note(kind, action)
        self.diary.reconnects += self.visitor.reconnects
        await self.visitor.close()

    def choose(self, draw: random.Random) -> tuple[str, Callable[[], Awaitable[object]]]:
        """What to do next, and how."""
        visitor = self.visitor
        if draw.random() < IN_BROWSER:
            return BROWSER, lambda: look_around(visitor, draw.randrange(6))
        if draw.random() < 0.3:
            path = draw.choice([page for page in visitor.pages if page != visitor.path] or [""])
            return PAGE, lambda: visitor.go(path)
        if visitor.path == "":
            return self._on_heads(draw)
        if visitor.path in CONTROLS:
            key, values = CONTROLS[visitor.path]
            value = draw.choice(values)
            return CONTROL, lambda: visitor.turn(key, value)
        return PAGE, lambda: visitor.go("")

    def _on_heads(self, draw: random.Random) -> tuple[str, Callable[[], Awaitable[object]]]:
        what = draw.choices((SENTENCE, EXAMPLE, HEAD), (4, 2, 4))[0]
        if what == HEAD:
            lock = {"layer": draw.randrange(6), "head": draw.randrange(12), "query": 2, "key": 1}
            return HEAD, lambda: self.visitor.turn("viewer", json.dumps({"lock": lock}))
        text = new_sentence(draw) if what == SENTENCE else draw.choice(EXAMPLES)
        return what, lambda: self.visitor.turn("text", text)


async def look_around(visitor: Visitor, layer: int) -> None:
    """The viewer shows another layer: it writes the link's own parameter and tells the server nothing."""
    if visitor.path == "":
        visitor.own["v.layer"] = str(layer)


def new_sentence(draw: random.Random) -> str:
    """Six to fourteen words that nobody has typed before."""
    words = draw.choices(VOCABULARY.split(), k=draw.randint(6, 14))
    return " ".join(words).capitalize() + "."


async def teach(url: str, students: int, lesson: Lesson, ramp: float, seed: int = 0) -> Diary:
    """A class at ``url``: all arrive within ``ramp`` seconds, work at once, and stay until the lesson's end."""
    diary = Diary()
    arrivals = random.Random(seed)
    await asyncio.gather(
        *(
            Student(Visitor(url), diary, seed * 10_000 + number).attend(arrivals.uniform(0, ramp), lesson)
            for number in range(students)
        )
    )
    return diary
