"""Rooms: one person shows a page of the app, others follow it. Kept in memory, and forgotten.

A room holds one thing only, the address of the page being shown. Whoever knows the four letters may follow; only
whoever holds the token may lead. Knows no Streamlit and no network (the routes in room_routes.py speak for it), and
is meant to be used from one thread, the server's event loop.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

# No vowels, so that chance spells no word; no Y, which is said like another letter.
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
CODE_LENGTH = 4
TOKEN_BYTES = 16  # 128 bits
MOST_ROOMS = 200
MOST_FOLLOWERS = 200
MOST_STATE_BYTES = 4_096
# Seconds. A reload of the leading page takes a few; a lost connection is noticed at the next heartbeat.
GONE_AFTER = 5.0
ENDS_WITHOUT_LEADER = 15 * 60.0
LONGEST = 6 * 3600.0
SILENT_AFTER = 20.0
MOST_REMEMBERED = 1_000

_CODE = re.compile(f"[{LETTERS}]{{{CODE_LENGTH}}}")
TOO_LONG = "The link of the teacher's page is too long for a room. You stay where you are."
NOT_WHOLE = "The teacher's sentence is too long for a link. You see the same page with another sentence."
# What URLSearchParams writes, and nothing else.
_QUERY = re.compile(r"[A-Za-z0-9*._+%=&-]*")
# Of the one who leads only: followers do not present, nor join twice.
OWN_PARAMETERS = frozenset({"present", "room"})


class RefusedError(Exception):
    """A request that a room does not grant: an HTTP status and one sentence for the person."""

    def __init__(self, status: int, sentence: str) -> None:
        self.status = status
        self.sentence = sentence
        super().__init__(sentence)


class Limiter:
    """Token buckets: each ``key`` may do ``burst`` things at once and ``per_second`` in the long run."""

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._rate, self._clock = burst, per_second, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, key: str) -> bool:
        """Take one; False, taking nothing, when none is left."""
        left = self.left(key)
        if left < 1:
            return False
        self._left[key] = (left - 1, self._clock())
        self._left.move_to_end(key)
        while len(self._left) > MOST_REMEMBERED:
            self._left.popitem(last=False)
        return True

    def left(self, key: str) -> float:
        """How many things ``key`` may do now."""
        left, at = self._left.get(key, (self._burst, 0.0))
        return min(self._burst, left + (self._clock() - at) * self._rate)


class Seat:
    """One who listens. Of each kind of news only the newest is kept: a slow listener misses steps, not the place."""

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        self._wake = wake
        self._clock = clock
        self._news: dict[str, dict[str, Any]] = {}
        self.heard_at = clock()

    def tell(self, kind: str, **facts: Any) -> None:
        """Leave a message and wake the listener."""
        self._news[kind] = facts
        self._wake()

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """The messages since the last time, an ending last."""
        self.heard_at = self._clock()
        news, self._news = self._news, {}
        return sorted(news.items(), key=lambda item: item[0] == "ended")


@dataclass
class _Room:
    code: str
    token: str
    opened_at: float
    left_at: float | None  # since when nobody leads; None while somebody does
    state: str = ""
    note: str = ""  # what of the leader's page cannot be shown, in a sentence
    leader: Seat | None = None
    followers: list[Seat] = field(default_factory=list)
    said_gone: bool = False


class Rooms:
    """All rooms of this server. ``paths`` are the pages that may be shown, ``clock`` gives seconds."""

    def __init__(self, paths: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = frozenset(paths)
        self._clock = clock
        self._rooms: dict[str, _Room] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()  # code -> how it ended
        self._openings = Limiter(10, 1 / 60, clock)
        # A class joins at once, often from one address behind the school's router.
        self._joins = Limiter(120, 2, clock)
        self._wrong_codes = Limiter(20, 1 / 6, clock)
        self._shows = Limiter(20, 10, clock)
        self.stopped = False

    def __len__(self) -> int:
        return len(self._rooms)

    def open(self, address: str) -> tuple[str, str]:
        """A new room's code and the token that leads it. ``address`` is the asker's, for the rate limit."""
        self._end_old()
        if self.stopped or len(self._rooms) >= MOST_ROOMS:
            raise RefusedError(503, f"All {MOST_ROOMS} rooms of this server are taken. Try again later.")
        if not self._openings.spend(address):
            raise RefusedError(429, "Too many rooms were opened from here. Wait a minute, then try again.")
        code = self._free_code()
        token = secrets.token_urlsafe(TOKEN_BYTES)
        now = self._clock()
        self._rooms[code] = _Room(code, token, opened_at=now, left_at=now)
        self._ended.pop(code, None)
        return code, token

    def lead(self, code: object, token: object, wake: Callable[[], None]) -> Seat:
        """Take the leader's seat. Who sat there before, a copy of the window, is told so."""
        room = self._led(code, token)
        if room.leader is not None:
            room.leader.tell("ended", why="replaced", sentence="Another window leads this room now.")
        room.leader = Seat(wake, self._clock)
        room.left_at = None
        if room.said_gone:
            room.said_gone = False
            self._tell_followers(room, "leader", here=True)
        self._count(room)
        return room.leader

    def show(self, code: object, token: object, state: object, whole: bool = True) -> None:
        """Show a page state, path and query, to all who follow.

        ``whole`` says whether the address holds all of the page; a long sentence is not in it. Those who follow are
        told when it does not, and when it is too long for a room at all.
        """
        room = self._led(code, token)
        if not self._shows.spend(room.code):
            raise RefusedError(429, "The page changes faster than a room can follow. Wait a second.")
        try:
            checked = self.checked_state(state)
        except RefusedError as refusal:
            if refusal.status == 413:
                self._note(room, TOO_LONG)
            raise
        self._note(room, "" if whole else NOT_WHOLE)
        if checked != room.state:
            room.state = checked
            self._tell_followers(room, "state", state=checked)

    def close(self, code: object, token: object) -> None:
        """End the room for everybody."""
        room = self._led(code, token)
        self._end(room, f"The teacher closed room {room.code}. You stay where you are.")

    def follow(self, code: object, address: str, wake: Callable[[], None]) -> Seat:
        """A seat among the followers; told at once what is shown. ``address`` is for the rate limits."""
        if self._wrong_codes.left(address) < 1 or not self._joins.spend(address):
            raise RefusedError(429, "Too many tries from here. Wait a minute, then try again.")
        self._end_old()
        try:
            room = self._room(code)
        except RefusedError:
            self._wrong_codes.spend(address)
            raise
        if len(room.followers) >= MOST_FOLLOWERS:
            raise RefusedError(503, f"Room {room.code} is full: {MOST_FOLLOWERS} follow already.")
        seat = Seat(wake, self._clock)
        room.followers.append(seat)
        if room.state:
            seat.tell("state", state=room.state)
        if room.note:
            seat.tell("note", sentence=room.note)
        seat.tell("leader", **self._presence(room))
        self._count(room)
        return seat

    def leave(self, code: object, seat: Seat) -> None:
        """Give up a seat, the leader's or a follower's; nothing happens when it is gone already."""
        room = self._rooms.get(str(code))
        if room is None:
            return
        if seat is room.leader:
            room.leader, room.left_at = None, self._clock()
        elif seat in room.followers:
            room.followers.remove(seat)
            self._count(room)

    def tick(self, code: object) -> None:
        """What time does to a room; called at every heartbeat of everyone in it."""
        room = self._rooms.get(str(code))
        if room is None:
            return
        now = self._clock()
        for seat in [seat for seat in room.followers if now - seat.heard_at > SILENT_AFTER]:
            self.leave(code, seat)
        if self._is_over(room, now):
            self._end(room, self._why_over(room))
        elif room.left_at is not None and now - room.left_at > GONE_AFTER and not room.said_gone:
            room.said_gone = True
            self._tell_followers(room, "leader", **self._presence(room))

    def stop(self) -> None:
        """End every room, because the server ends."""
        self.stopped = True
        for room in list(self._rooms.values()):
            self._end(room, "The server was stopped. You stay where you are.")

    def checked_state(self, state: object) -> str:
        """A page's path and query without what only the leader's page needs; RefusedError when it is anything else."""
        if not isinstance(state, str) or not state.isascii():
            raise RefusedError(400, "Only a page of this app can be shown to a room.")
        if len(state) > MOST_STATE_BYTES:
            raise RefusedError(413, "This page's link is too long for a room. Shorten the sentence.")
        path, _, query = state.partition("?")
        if path not in self._paths or not _QUERY.fullmatch(query):
            raise RefusedError(400, "Only a page of this app can be shown to a room.")
        kept = [part for part in query.split("&") if part and part.partition("=")[0] not in OWN_PARAMETERS]
        return f"{path}?{'&'.join(kept)}" if kept else path

    def _free_code(self) -> str:
        while True:
            code = "".join(secrets.choice(LETTERS) for _ in range(CODE_LENGTH))
            if code not in self._rooms:
                return code

    def _room(self, code: object) -> _Room:
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            raise RefusedError(
                404, f"A room code has {CODE_LENGTH} letters, for example KXTR. Ask your teacher for it."
            )
        room = self._rooms.get(code)
        if room is None:
            raise RefusedError(*((410, self._ended[code]) if code in self._ended else (404, _unknown(code))))
        return room

    def _led(self, code: object, token: object) -> _Room:
        room = self._room(code)
        given = token if isinstance(token, str) else ""
        if not hmac.compare_digest(given.encode(), room.token.encode()):
            raise RefusedError(403, "Only the window that opened this room can lead it.")
        return room

    def _presence(self, room: _Room) -> dict[str, Any]:
        if room.leader is not None or not room.said_gone:
            return {"here": True}
        return {"here": False, "sentence": "The teacher's page is gone. You stay where you are."}

    def _count(self, room: _Room) -> None:
        if room.leader is not None:
            room.leader.tell("count", followers=len(room.followers))

    def _tell_followers(self, room: _Room, kind: str, **facts: Any) -> None:
        for seat in room.followers:
            seat.tell(kind, **facts)

    def _note(self, room: _Room, sentence: str) -> None:
        if sentence != room.note:
            room.note = sentence
            self._tell_followers(room, "note", sentence=sentence)

    def _is_over(self, room: _Room, now: float) -> bool:
        alone = room.left_at is not None and now - room.left_at > ENDS_WITHOUT_LEADER
        return alone or now - room.opened_at > LONGEST

    def _why_over(self, room: _Room) -> str:
        return f"Room {room.code} has ended after a long time. You stay where you are."

    def _end_old(self) -> None:
        now = self._clock()
        for room in [room for room in self._rooms.values() if self._is_over(room, now)]:
            self._end(room, self._why_over(room))

    def _end(self, room: _Room, sentence: str) -> None:
        del self._rooms[room.code]
        self._ended[room.code] = sentence
        while len(self._ended) > MOST_REMEMBERED:
            self._ended.popitem(last=False)
        for seat in [*room.followers, *([room.leader] if room.leader else [])]:
            seat.tell("ended", why="closed", sentence=sentence)


def _unknown(code: str) -> str:
    return f"There is no room {code}. Check the letters with your teacher."
