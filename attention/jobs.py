"""Long work in a thread of its own: equal requests share one run, everyone sees its progress, a few run at once,
and a run that nobody waits for any more stops."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attention.turns import Ticket, Turns


PATIENCE = 0.1  # seconds between two looks whether anybody still waits


class AbandonedError(Exception):
    """Raised inside a run whose last watcher has left."""


def _stays() -> bool:
    return False


_is_left: ContextVar[Callable[[], bool]] = ContextVar("is_left", default=_stays)


@contextmanager
def stoppable(is_left: Callable[[], bool]) -> Iterator[None]:
    """While the block runs, ``stop_if_left`` ends this thread's work once ``is_left()`` is true."""
    before = _is_left.set(is_left)
    try:
        yield
    finally:
        _is_left.reset(before)


def stop_if_left() -> None:
    """Raise AbandonedError inside work that nobody waits for any more; asked before every forward pass."""
    if _is_left.get()():
        raise AbandonedError


class Job:
    """One run: ``share`` done (0 to 1), then ``result`` or ``error``. ``ticket`` is its place in line."""

    def __init__(self, ticket: Ticket | None = None) -> None:
        self.ticket = ticket
        self.share = 0.0
        self.result: Any = None
        self.error: BaseException | None = None
        self.watchers = 0
        self.done = threading.Event()
        self._left = threading.Event()

    def say(self, share: float) -> None:
        """Called by the work between its steps: note progress, or stop when nobody is waiting."""
        self.share = share
        if self._left.is_set():
            raise AbandonedError

    def leave(self) -> None:
        """Tell the work that nobody waits."""
        self._left.set()

    @property
    def ahead(self) -> int | None:
        """How many other runs wait before this one; None once it has begun."""
        return None if self.ticket is None or self.ticket.wait(0) else self.ticket.ahead

    @property
    def left(self) -> bool:
        """Whether the run was told to stop."""
        return self._left.is_set()


class Jobs:
    """Runs by key, as many at once as ``places`` has; all of them when None. A finished run is forgotten.

    What it made is for the caller's cache.
    """

    def __init__(self, places: Turns | None = None) -> None:
        self.places = places
        self._lock = threading.Lock()
        self._running: dict[str, Job] = {}

    @contextmanager
    def watch(self, key: str, work: Callable[[Callable[[float], None]], Any]) -> Iterator[Job]:
        """The run of ``key``, begun if there is none. Leaving the block last stops it."""
        with self._lock:
            job = self._running.get(key)
            if job is None or job.left:
                job = self._running[key] = Job(self.places.join() if self.places else None)
                threading.Thread(
                    target=contextvars.Context().run, args=(self._run, key, job, work), daemon=True
                ).start()
            job.watchers += 1
        try:
            yield job
        finally:
            with self._lock:
                job.watchers -= 1
                if job.watchers == 0 and not job.done.is_set():
                    job.leave()

    def _run(self, key: str, job: Job, work: Callable[[Callable[[float], None]], Any]) -> None:
        try:
            with stoppable(lambda: job.left):
                while job.ticket is not None and not job.ticket.wait(PATIENCE):
                    stop_if_left()
                job.result = work(job.say)
        except BaseException as error:  # told to every watcher, whatever it is
            job.error = error
        finally:
            if job.ticket is not None:
                job.ticket.leave()
            with self._lock:
                if self._running.get(key) is job:
                    del self._running[key]
            job.done.set()
