"""The simulated class: its arithmetic against other ways to compute it, its students against one that only listens."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention import preload
from benchmarks.arithmetic import fitted, interactive_response, percentile
from benchmarks.classroom import Class, Load, Outcome, kinds_table, rows_of
from benchmarks.ratios import table
from benchmarks.sessions import Growth
from benchmarks.soak import Watched
from benchmarks.soak import rows_of as soak_rows
from benchmarks.students import BROWSER, CONTROL, HEAD, OPEN, PAGE, RERUNS, SENTENCE, Diary, Lesson, Student
from benchmarks.visitor import AppError

FINITE = st.floats(-1e6, 1e6)


@given(st.lists(FINITE, min_size=1, max_size=50), st.floats(0, 100))
def test_a_percentile_is_what_numpy_says(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.percentile(values, share)), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(("values", "share"), [([], 50.0), ([1.0], 101.0), ([1.0], -1.0)])
def test_a_percentile_that_cannot_be_told_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="cannot be told"):
        percentile(values, share)


@given(st.lists(st.tuples(st.integers(-100, 100), FINITE), min_size=2, max_size=30, unique_by=lambda point: point[0]))
def test_a_line_is_what_numpy_fits(points: list[tuple[float, float]]) -> None:
    slope, start = np.polyfit(*zip(*points, strict=True), 1)
    line = fitted(points)
    assert line.slope == pytest.approx(float(slope), rel=1e-6, abs=1e-5)
    assert line.start == pytest.approx(float(start), rel=1e-6, abs=1e-3)


def test_a_line_needs_two_places() -> None:
    with pytest.raises(ValueError, match="two different places"):
        fitted([(1.0, 2.0), (1.0, 3.0)])


def simulated(people: int, service: float, think: float, until: float) -> tuple[float, float]:
    """A closed queue with one server, event by event: interactions a second, and the mean response."""
    draw = random.Random(3)
    ready = sorted(draw.expovariate(1 / think) for _ in range(people))
    free, responses = 0.0, []
    while ready[0] < until:
        asked = ready.pop(0)
        free = max(free, asked) + draw.expovariate(1 / service)
        responses.append(free - asked)
        ready.append(free + draw.expovariate(1 / think))
        ready.sort()
    return len(responses) / until, sum(responses) / len(responses)


@pytest.mark.parametrize(("people", "service"), [(5, 0.3), (30, 0.2), (60, 0.1)])
def test_the_interactive_law_holds_of_a_simulated_queue(people: int, service: float) -> None:
    rate, response = simulated(people, service, think=3.0, until=20_000.0)
    assert interactive_response(people, rate, 3.0) == pytest.approx(response, rel=0.05, abs=0.05)


def made_up() -> Outcome:
    """90 s of a class of 30: 200 sentences of 0.5 s, 800 looks in the browser, 30 openings of 2 s."""
    took = {SENTENCE: [0.5] * 200, BROWSER: [0.0] * 800, OPEN: [2.0] * 30}
    load = Load(seconds=90.0, app=45.0, proxy=9.0, client=4.5, resident=1000.0, machine=[0.5, 0.7])
    return Outcome(Class(30, 1, 1.0), took, [2.6] * 900, load, ("one went wrong",), 2)


def test_the_rows_of_a_class_say_what_was_counted() -> None:
    rows = {row.measure.removeprefix("30 on 1: "): row for row in rows_of(made_up())}
    assert rows["mean rerun"].ours == (500.0,)
    # 30 people, 1,000 interactions in 90 s: 2.7 s each, of which 2.6 were thought; a fifth of them took all the rest.
    assert rows["mean rerun"].peer[0] == pytest.approx(500.0)
    assert rows["p95 of all reruns"].ours == (2000.0,)  # 30 of 230 are openings
    assert rows["p95 of the slowest kind"].met is False
    assert rows["reruns"].ours[0] == pytest.approx(230 / 90)
    assert rows["CPU of the app"].ours == (0.5,)
    assert rows["CPU of HAProxy"].ours == (0.1,)
    assert rows["CPU of the clients"].ours == (0.05,)
    assert rows["errors"].met is False
    assert rows["connections lost"].met is False
    assert "type a new sentence" in kinds_table(made_up())


def test_a_soak_draws_its_line_through_what_comes_after_the_kill() -> None:
    diary = Diary()
    diary.took[SENTENCE] = [(1.0, 0.1)]
    early = [(at / 1000, 900.0 + at) for at in range(400)]
    late = [(at / 1000, 1500.0 + 7.0 * at / 1000) for at in range(400, 1000)]
    rows = {row.measure: row for row in soak_rows(diary, Watched([*early, *late], "app2"), 10, 3600.0)}
    assert rows["soak: memory, slope"].ours[0] == pytest.approx(7.0)
    assert rows["soak: actions that failed"].met is True
    assert "app2 was killed after 18.0" in rows["soak: actions that failed"].note
    assert "18.0" in table(list(rows.values()))


def test_a_session_costs_what_the_line_says() -> None:
    assert Growth(tuple(400 + 1.5 * many for many in range(51)), 401.0).per_session == pytest.approx(1.5)


class Still:
    """A visitor that only says what it was told to do."""

    reconnects = 1

    def __init__(self, path: str = "") -> None:
        self.path, self.own, self.pages = path, {}, {"": "a", "cache": "b", "quiz": "c"}
        self.done: list[tuple[str, Any]] = []

    async def fetch_files(self) -> None:
        self.done.append(("files", None))

    async def open(self) -> None:
        self.done.append(("open", None))

    async def close(self) -> None:
        self.done.append(("close", None))

    async def go(self, path: str) -> None:
        self.path = path

    async def turn(self, key: str, value: object) -> None:
        if value == ["fail"]:
            raise AppError("no")
        self.done.append((key, value))


def test_students_do_what_students_do_in_the_measured_mix() -> None:
    visitor = Still()
    student = Student(visitor, Diary(), seed=1)  # type: ignore[arg-type]
    draw = random.Random(5)
    kinds = [student.choose(draw)[0] for _ in range(4000)]
    assert kinds.count(BROWSER) / len(kinds) == pytest.approx(0.8, abs=0.03)
    assert {kind for kind in kinds if kind != BROWSER} <= set(RERUNS) - {OPEN, CONTROL}
    assert min(kinds.count(SENTENCE), kinds.count(HEAD), kinds.count(PAGE)) > 100
    visitor.path = "cache"
    assert {student.choose(draw)[0] for _ in range(200)} == {BROWSER, PAGE, CONTROL}


def test_a_lesson_counts_from_when_the_last_is_there_and_ends() -> None:
    async def held() -> tuple[Diary, Lesson]:
        lesson = Lesson(3, 0.05)
        diary = Diary()
        crowd = [Student(Still(), diary, number, think=0.01) for number in range(3)]  # type: ignore[arg-type]
        await asyncio.gather(*(one.attend(0.01 * at, lesson) for at, one in enumerate(crowd)))
        return diary, lesson

    diary, lesson = asyncio.run(held())
    assert lesson.end - lesson.begin == pytest.approx(0.05)
    assert max(at for at, _ in diary.took[OPEN]) <= lesson.begin
    assert all(seconds >= 0 for rows in diary.took.values() for _, seconds in rows)
    assert diary.reconnects == 3
    assert SENTENCE not in diary.between(0.0, lesson.begin - 10)


def test_what_goes_wrong_is_written_down_and_the_lesson_goes_on() -> None:
    diary = Diary()
    asyncio.run(diary.note(CONTROL, lambda: Still().turn("key", ["fail"])))
    assert diary.errors == [f"{CONTROL}: AppError no"]
    assert CONTROL not in diary.took


def test_what_is_loaded_at_the_start_is_looked_through_once_and_new_rubbish_is_still_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streamlit collects after every run; with torch in sight that took a quarter of a second."""

    class Thing:
        pass

    monkeypatch.setattr(preload, "list_models", lambda: ())
    before = gc.get_freeze_count()
    try:
        preload._load_all()
        assert gc.get_freeze_count() > before + 10_000
        thing = Thing()
        thing.itself = thing  # type: ignore[attr-defined]
        gone = weakref.ref(thing)
        del thing
        gc.collect()
        assert gone() is None
    finally:
        gc.unfreeze()
