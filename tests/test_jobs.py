"""Long runs shared by those who ask for the same, with progress, and stopped when the last one leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from attention import single_flight
from attention.jobs import AbandonedError, Jobs
from attention.single_flight import SingleFlight


def wait(condition: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    gate = threading.Event()
    while not condition():
        assert time.monotonic() < end, "it never came"
        gate.wait(0.005)


def test_a_result_and_its_progress() -> None:
    go = threading.Event()

    def work(say: Callable[[float], None]) -> str:
        say(0.5)
        go.wait(5)
        return "done"

    with Jobs().watch("a", work) as job:
        wait(lambda: job.share == 0.5)
        assert not job.done.is_set()
        go.set()
        assert job.done.wait(5)
        assert (job.result, job.error) == ("done", None)


def test_equal_requests_share_one_run_and_others_do_not() -> None:
    jobs, go, begun = Jobs(), threading.Event(), []

    def work(say: Callable[[float], None]) -> int:
        begun.append(1)
        go.wait(5)
        return len(begun)

    with jobs.watch("a", work) as one, jobs.watch("a", work) as two, jobs.watch("b", work) as other:
        assert one is two
        assert other is not one
        wait(lambda: len(begun) == 2)
        go.set()
        assert one.done.wait(5)
        assert other.done.wait(5)
    assert len(begun) == 2


def test_a_run_goes_on_while_one_still_waits_and_stops_with_the_last() -> None:
    jobs, ended = Jobs(), threading.Event()

    def work(say: Callable[[float], None]) -> None:
        try:
            while True:
                say(0.1)
                threading.Event().wait(0.002)
        except AbandonedError:
            ended.set()
            raise

    with jobs.watch("a", work) as job:
        with jobs.watch("a", work):
            pass
        assert not ended.wait(0.05)
        assert not job.left
    assert ended.wait(1)
    assert job.done.wait(1)
    assert isinstance(job.error, AbandonedError)


def test_who_comes_back_after_leaving_gets_a_new_run() -> None:
    jobs, hold = Jobs(), threading.Event()
    with jobs.watch("a", lambda say: hold.wait(5)) as first:
        pass
    with jobs.watch("a", lambda say: "fresh") as second:
        assert second is not first
        assert second.done.wait(5)
        assert second.result == "fresh"
    hold.set()
    assert first.done.wait(5)


def test_a_fault_is_told_to_everyone_and_not_kept() -> None:
    jobs, go = Jobs(), threading.Event()

    def fail(say: Callable[[float], None]) -> None:
        go.wait(5)
        raise ValueError("broken")

    with jobs.watch("a", fail) as one, jobs.watch("a", fail) as two:
        go.set()
        assert one.done.wait(5)
        for job in (one, two):
            with pytest.raises(ValueError, match="broken"):
                raise job.error  # type: ignore[misc]
    with jobs.watch("a", lambda say: 7) as again:
        assert again.done.wait(5)
        assert again.result == 7


def test_a_run_given_up_by_one_session_does_not_fail_another_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever changes a box leaves and comes back at once, while the old run has not yet noticed."""
    waits, go, runs = threading.Event(), threading.Event(), []

    class Watched(Future):
        def result(self, timeout: float | None = None) -> object:
            waits.set()
            return super().result(timeout)

    monkeypatch.setattr(single_flight, "Future", Watched)
    jobs, kept = Jobs(), SingleFlight(1024, len)

    def compute(say: Callable[[float], None]) -> str:
        runs.append(1)
        go.wait(5)
        say(0.5)
        return "done"

    def work(say: Callable[[float], None]) -> str:
        return str(kept.get("k", lambda: compute(say)))

    with jobs.watch("a", work) as first:
        wait(lambda: runs == [1])
    with jobs.watch("a", work) as second:
        assert waits.wait(5)
        go.set()
        assert second.done.wait(5)
        assert (second.result, second.error) == ("done", None)
    assert isinstance(first.error, AbandonedError)
    assert runs == [1, 1]
