"""Whether the shared engine can be reached, and what visitors are told while it cannot. No torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

AWAY = (
    "The shared engine does not answer, so this server computes by itself. Answers are the same, but may take longer."
)
TRY_AGAIN = 30.0  # seconds


class Reach:
    """Whether to try the shared engine now. After a failure nobody tries for ``TRY_AGAIN`` seconds, then one does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._away_until: float | None = None

    @property
    def away(self) -> bool:
        """Whether the last try failed."""
        return self._away_until is not None

    def may_try(self) -> bool:
        """Whether the caller should ask the shared engine; while it is away, only one caller a while is let through."""
        with self._lock:
            if self._away_until is None:
                return True
            if self._clock() < self._away_until:
                return False
            self._away_until = self._clock() + TRY_AGAIN
            return True

    def failed(self) -> None:
        """It did not answer."""
        with self._lock:
            self._away_until = self._clock() + TRY_AGAIN

    def answered(self) -> None:
        """It did."""
        with self._lock:
            self._away_until = None


default_reach = Reach()


def notice() -> str:
    """One sentence for the visitor while the shared engine is away, else nothing."""
    return AWAY if default_reach.away else ""
