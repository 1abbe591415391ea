"""Whose turn it is: a few slots, handed on strictly in the order in which people asked."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType

from attention.jobs import PATIENCE, stop_if_left


class Turns:
    """``slots`` may be busy at once; everybody else waits in line.

    A plain semaphore lets whoever has just left take the slot again before the next in line has
    woken up. Here a slot that becomes free belongs at once to whoever has waited longest, so
    somebody who works in small pieces, one turn each, lets the others in between any two.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._lock = threading.Lock()
        self._free = slots
        self._line: deque[Ticket] = deque()

    def join(self) -> Ticket:
        """A place in line, already called when a slot is free."""
        ticket = Ticket(self)
        with self._lock:
            if self._free:
                self._free -= 1
                ticket._call()
            else:
                self._line.append(ticket)
        return ticket

    @property
    def busy(self) -> int:
        """Slots in use."""
        with self._lock:
            return self.slots - self._free

    def __enter__(self) -> Turns:
        ticket = self.join()
        try:
            stop_if_left()
            while not ticket.wait(PATIENCE):
                stop_if_left()
        except BaseException:  # an interrupt while waiting must not keep a place that nobody will use
            ticket.leave()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._hand_on()

    def _hand_on(self) -> None:
        with self._lock:
            if self._line:
                self._line.popleft()._call()
            else:
                self._free += 1

    def _ahead_of(self, ticket: Ticket) -> int:
        with self._lock:
            return self._line.index(ticket) if ticket in self._line else 0

    def _give_up(self, ticket: Ticket) -> bool:
        """Take a ticket out of the line; False when it is not in it."""
        with self._lock:
            if ticket not in self._line:
                return False
            self._line.remove(ticket)
            return True


class Ticket:
    """One place in line. Whoever holds it must ``leave`` in the end, called or not."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._called = threading.Event()
        self._left = False

    @property
    def ahead(self) -> int:
        """How many others wait before this one; 0 for the next, and for one who has been called."""
        return self._turns._ahead_of(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be called, at most ``timeout`` seconds; whether it has been."""
        return self._called.wait(timeout)

    def leave(self) -> None:
        """Give back the slot, or the place in line. A second time does nothing."""
        if self._left:
            return
        self._left = True
        if not self._turns._give_up(self):
            self._turns._hand_on()

    def _call(self) -> None:
        self._called.set()
