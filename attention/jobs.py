"""Long work in a thread of its own: equal requests share one run, everyone sees its progress, and a run that
nobody waits for any more stops."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class AbandonedError(Exception):
    """Raised inside a run whose last watcher has left."""


class Job:
    """One run: ``share`` done (0 to 1), then ``result`` or ``error``."""

    def __init__(self) -> None:
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
    def left(self) -> bool:
        """Whether the run was told to stop."""
        return self._left.is_set()


class Jobs:
    """Runs by key. A finished run is forgotten; what it made is for the caller's cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Job] = {}

    @contextmanager
    def watch(self, key: str, work: Callable[[Callable[[float], None]], Any]) -> Iterator[Job]:
        """The run of ``key``, begun if there is none. Leaving the block last stops it."""
        with self._lock:
            job = self._running.get(key)
            if job is None or job.left:
                job = self._running[key] = Job()
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
            job.result = work(job.say)
        except BaseException as error:  # told to every watcher, whatever it is
            job.error = error
        finally:
            with self._lock:
                if self._running.get(key) is job:
                    del self._running[key]
            job.done.set()
