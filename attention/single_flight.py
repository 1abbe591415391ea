"""A cache bounded by bytes in which equal requests run once, also while the first is still running."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from attention.jobs import PATIENCE, AbandonedError, stop_if_left


class SingleFlight:
    """A cache bounded by bytes in which equal requests run once, also while the first is still running.

    ``size_of`` gives a result's bytes. Failures are told to everyone who waited and are not kept. A run that was
    given up by those who began it is begun anew by one of those who still wait.
    """

    def __init__(self, max_bytes: int, size_of: Callable[[Any], int]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._lock = threading.Lock()
        self._done: OrderedDict[str, Any] = OrderedDict()
        self._running: dict[str, Future[Any]] = {}
        self.nbytes = 0

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """The kept result for ``key``, or the one being computed, or a new one."""
        while True:
            with self._lock:
                if key in self._done:
                    self._done.move_to_end(key)
                    return self._done[key]
                future = self._running.get(key)
                mine = future is None
                if future is None:
                    future = self._running[key] = Future()
            if mine:
                self._run(key, future, compute)
                return future.result()
            try:
                return future.result(PATIENCE)
            except AbandonedError:
                continue  # given up by others, not by whoever waits here
            except TimeoutError:
                stop_if_left()

    def _run(self, key: str, future: Future[Any], compute: Callable[[], Any]) -> None:
        try:
            result = compute()
        except BaseException as error:
            with self._lock:
                del self._running[key]
            future.set_exception(error)
            return
        with self._lock:
            del self._running[key]
            self._keep(key, result)
        future.set_result(result)

    def _keep(self, key: str, result: Any) -> None:
        size = self._size_of(result)
        if size > self._max_bytes:
            return
        self._done[key] = result
        self.nbytes += size
        while self.nbytes > self._max_bytes:
            _, old = self._done.popitem(last=False)
            self.nbytes -= self._size_of(old)
