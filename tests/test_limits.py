"""Long work waits in line and says so, and stops where it stands once nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attention import atlas_build, calibration, kernel, settings
from attention.engine import Engine
from attention.jobs import AbandonedError, Job, Jobs, stop_if_left, stoppable
from attention.rungs import SweepRequest
from attention.settings import Settings, settings_from
from attention.sharing import LatentKV, ShareKV
from attention.single_flight import SingleFlight
from attention.texts import bundled_text
from attention.tracing import trace
from attention.turns import Turns
from pages.cost.ladder_live import waiting
from pages.see.finder_parts import Measuring
from tests.tiny_models import tiny

SOON = 1.0  # second; what is promised to a visitor who presses Stop
PATIENCE = 30.0  # seconds a test waits for what must come


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds work up; opened at the end whatever happens."""
    event = threading.Event()
    yield event
    event.set()


def until(condition: Callable[[], bool]) -> None:
    end, pause = time.monotonic() + PATIENCE, threading.Event()
    while not condition():
        assert time.monotonic() < end, "it never came"
        pause.wait(0.005)


def left_in(jobs: Jobs, key: str, work: Callable[[Any], Any], begun: Callable[[Job], bool]) -> tuple[Job, float]:
    """Watch a run until it has begun, leave it, and the seconds until it has ended."""
    with jobs.watch(key, work) as job:
        until(lambda: begun(job))
    left_at = time.monotonic()
    assert job.done.wait(PATIENCE)
    return job, time.monotonic() - left_at


def test_as_many_run_as_there_are_places_and_each_knows_who_is_before_it(gate: threading.Event) -> None:
    jobs = Jobs(Turns(1))
    with jobs.watch("a", lambda _: gate.wait(PATIENCE)) as first:
        until(lambda: first.ahead is None)
        with jobs.watch("b", lambda _: "b") as second, jobs.watch("c", lambda _: "c") as third:
            assert (second.ahead, third.ahead) == (0, 1)
            assert not second.done.wait(0.05)
            gate.set()
            assert second.done.wait(PATIENCE)
            assert third.done.wait(PATIENCE)
            assert (second.result, third.result, third.ahead) == ("b", "c", None)
    until(lambda: jobs.places is not None and jobs.places.busy == 0)


def test_who_leaves_the_line_gives_up_the_place(gate: threading.Event) -> None:
    jobs, ran = Jobs(Turns(1)), []
    with jobs.watch("a", lambda _: gate.wait(PATIENCE)):
        job, seconds = left_in(jobs, "b", lambda _: ran.append(1), lambda job: job.ahead == 0)
        assert isinstance(job.error, AbandonedError)
        assert seconds < 10 * SOON
        with jobs.watch("c", lambda _: "c") as third:
            assert third.ahead == 0
    assert ran == []


def test_a_run_stops_while_it_waits_for_a_forward_pass(gate: threading.Event) -> None:
    slots = Turns(1)

    def work(say: Callable[[float], None]) -> None:
        say(0.5)
        with slots:
            say(1.0)

    with slots:
        job, seconds = left_in(Jobs(), "a", work, lambda job: job.share == 0.5)
    assert isinstance(job.error, AbandonedError)
    assert seconds < 10 * SOON
    assert slots.busy == 0
    with slots:
        assert slots.busy == 1, "the place in line was given back"


def test_a_run_stops_while_another_computes_what_it_needs(gate: threading.Event) -> None:
    shared = SingleFlight(100, lambda _: 1)
    computing = threading.Thread(target=lambda: shared.get("x", lambda: gate.wait(PATIENCE)), daemon=True)
    computing.start()
    until(lambda: bool(shared._running))

    def work(say: Callable[[float], None]) -> Any:
        say(0.5)
        return shared.get("x", lambda: pytest.fail("it is being computed already"))

    job, seconds = left_in(Jobs(), "a", work, lambda job: job.share == 0.5)
    assert isinstance(job.error, AbandonedError)
    assert seconds < 10 * SOON
    gate.set()
    computing.join(PATIENCE)
    assert shared.get("x", lambda: "again") is True, "whoever computes it is not disturbed"


def test_only_the_work_of_whoever_left_is_stopped() -> None:
    stop_if_left()
    with stoppable(lambda: True):
        with pytest.raises(AbandonedError):
            stop_if_left()
        with pytest.raises(AbandonedError), Turns(1):
            pass
        with stoppable(lambda: False):
            stop_if_left()
    stop_if_left()


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many forward passes were begun, one entry each."""
    begun: list[int] = []
    join = Turns.join

    def counted(turns: Turns) -> Any:
        if turns is kernel.forward_slot:
            begun.append(1)
        return join(turns)

    monkeypatch.setattr(Turns, "join", counted)
    return begun


def test_measuring_keys_and_values_stops_at_the_next_piece(
    forwards: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "settings", lambda: Settings(cache_dir=tmp_path, max_tokens=16))
    model = tiny("llama", hidden_size=54)
    pieces = len(calibration.calibration_pieces(model, bundled_text("calibration")))
    job, _ = left_in(Jobs(), "a", lambda _: calibration.moments_of(model), lambda _: len(forwards) >= 3)
    assert isinstance(job.error, AbandonedError)
    assert 3 <= len(forwards) < pieces - 10
    assert not list(tmp_path.rglob("moments.npz")), "nothing half measured is kept"
    assert not list(tmp_path.rglob(".*"))


def test_a_forward_pass_stops_at_its_next_layer() -> None:
    model, layers, left = tiny("llama", hidden_size=78), [], threading.Event()

    def first_layer_done(*_: Any) -> None:
        layers.append(1)
        left.set()

    for layer in model.model.model.layers:
        layer.register_forward_hook(first_layer_done)
    with stoppable(left.is_set), pytest.raises(AbandonedError):
        trace(model, "the cat sat on the mat")
    assert len(layers) == 1
    assert kernel.forward_slot.busy == 0
    layers.clear()
    trace(model, "the cat sat on the mat")
    assert len(layers) == model.n_layers


def test_muting_heads_one_by_one_stops_at_the_next_layer() -> None:
    model, heads, left = tiny("bert", hidden_size=48), [(0, 0)] * 100, threading.Event()
    passes: list[int] = []
    model.model.register_forward_hook(lambda *_: passes.append(1))
    with stoppable(left.is_set), pytest.raises(AbandonedError):
        atlas_build._muted_alone(model, heads, [], lambda _: left.set())
    stopped_after = len(passes)
    passes.clear()
    atlas_build._muted_alone(model, heads, [], lambda _: None)
    assert 0 < stopped_after < len(passes) / 2


def test_a_sweep_stops_at_the_next_forward_pass(
    forwards: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attention import engine

    monkeypatch.setattr(calibration, "settings", lambda: Settings(cache_dir=tmp_path))
    model = tiny("llama", hidden_size=66)
    monkeypatch.setattr(engine, "load_model", lambda _: model)
    rungs = (None, ShareKV(1), LatentKV(4, whiten=True))
    with Engine(trace_mb=1).sweep_job(SweepRequest(model.id, rungs)) as job:
        until(lambda: len(forwards) >= 2)
    assert job.done.wait(PATIENCE)
    assert isinstance(job.error, AbandonedError)
    after = len(forwards)
    assert not threading.Event().wait(0.1)
    assert len(forwards) == after


def test_an_atlas_nobody_waits_for_is_left_only_when_all_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    from pages.see import finder_parts

    here = {"one", "two"}

    class Server:
        @staticmethod
        def exists() -> bool:
            return True

        @classmethod
        def instance(cls) -> type[Server]:
            return cls

        @staticmethod
        def is_active_session(session: str) -> bool:
            return session in here

    measuring = Measuring()
    monkeypatch.setattr(finder_parts, "Runtime", Server)
    assert not measuring.is_left(), "nobody has asked yet: it has just begun"
    measuring.asked_by |= here
    assert not measuring.is_left()
    here.remove("one")
    assert not measuring.is_left()
    here.remove("two")
    assert measuring.is_left()


@pytest.mark.parametrize(("ahead", "words"), [(0, "You are next"), (1, "One other is"), (7, "7 others are before you")])
def test_the_line_is_told_in_words(ahead: int, words: str) -> None:
    assert words in waiting(ahead)


def test_an_owner_sets_the_limits() -> None:
    asked = settings_from({"HEADSCOPE_HEAVY_JOBS": "5", "HEADSCOPE_MAX_VISITORS": "40"})
    assert (asked.heavy_jobs, asked.max_visitors) == (5, 40)
    places = Engine(trace_mb=1)._jobs.places
    assert places is not None
    assert places.slots == settings.settings().heavy_jobs
