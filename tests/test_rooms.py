"""Rooms with a clock of our own, their routes over plain ASGI, and the code as a scanner would read it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import segno
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from pages.shared import rooms as rules
from pages.shared.room_routes import RoomRoutes, end_with_the_server, qr_svg
from pages.shared.rooms import LETTERS, Limiter, RefusedError, Rooms, Seat

PATHS = ("/", "/finder", "/cache")


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class House:
    """Rooms under a clock, and how often each listener was woken."""

    clock: Clock = field(default_factory=Clock)
    rooms: Rooms = field(init=False)

    def __post_init__(self) -> None:
        self.rooms = Rooms(PATHS, self.clock)

    def opened(self) -> tuple[str, str, Seat]:
        code, token = self.rooms.open("teacher")
        return code, token, self.rooms.lead(code, token, lambda: None)

    def follower(self, code: str, address: str = "student") -> Seat:
        return self.rooms.follow(code, address, lambda: None)


@pytest.fixture
def house() -> House:
    return House()


def refused(act: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(RefusedError) as told:
        act()
    assert re.fullmatch(r"[A-Z][^.]*(\. [A-Z][^.]*)?\.", told.value.sentence), told.value.sentence
    return told.value.status, told.value.sentence


class TestShowing:
    def test_who_follows_sees_what_is_shown_now_and_then(self, house: House) -> None:
        code, token, _ = house.opened()
        house.rooms.show(code, token, "/?text=a+cat")
        seat = house.follower(code)
        assert seat.take() == [("state", {"state": "/?text=a+cat"}), ("leader", {"here": True})]
        house.rooms.show(code, token, "/finder")
        house.rooms.show(code, token, "/cache?c_seq=5")  # a slow listener goes straight to the last one
        assert seat.take() == [("state", {"state": "/cache?c_seq=5"})]
        house.rooms.show(code, token, "/cache?c_seq=5&present=true")
        assert seat.take() == []

    def test_who_follows_is_told_what_a_link_cannot_hold(self, house: House) -> None:
        code, token, _ = house.opened()
        seat = house.follower(code)
        seat.take()
        house.rooms.show(code, token, "/", whole=False)
        state, note = ("state", {"state": "/"}), ("note", {"sentence": rules.NOT_WHOLE})
        assert sorted(seat.take()) == [note, state]
        assert note in house.follower(code, "late").take()
        house.rooms.show(code, token, "/", whole=False)
        assert seat.take() == []  # once is enough
        told = refused(lambda: house.rooms.show(code, token, "/?text=" + "a" * 4096))
        assert told == (413, "This page's link is too long for a room. Shorten the sentence.")
        assert seat.take() == [("note", {"sentence": rules.TOO_LONG})]
        house.rooms.show(code, token, "/")
        assert seat.take() == [("note", {"sentence": ""})]

    def test_the_leader_hears_how_many_follow(self, house: House) -> None:
        code, _, leader = house.opened()
        seats = [house.follower(code, f"student {number}") for number in range(3)]
        house.rooms.leave(code, seats[1])
        house.rooms.leave(code, seats[1])
        assert leader.take() == [("count", {"followers": 2})]

    def test_rooms_keep_apart(self, house: House) -> None:
        (one, token_one, _), (other, token_other, _) = house.opened(), house.opened()
        house.rooms.show(one, token_one, "/finder")
        house.rooms.show(other, token_other, "/cache")
        assert house.follower(other).take()[0] == ("state", {"state": "/cache"})
        assert refused(lambda: house.rooms.show(one, token_other, "/")) == (
            403,
            "Only the window that opened this room can lead it.",
        )

    @pytest.mark.parametrize("token", [None, "", "é", 5])
    def test_without_its_token_nobody_leads(self, house: House, token: Any) -> None:
        code, _, _ = house.opened()
        for act in (
            lambda: house.rooms.lead(code, token, lambda: None),
            lambda: house.rooms.show(code, token, "/"),
            lambda: house.rooms.close(code, token),
        ):
            assert refused(act)[0] == 403

    def test_tokens_hold_128_bits_and_codes_spell_nothing(self, house: House) -> None:
        pairs = [house.rooms.open(f"teacher {number}") for number in range(50)]
        assert len({code for code, _ in pairs}) == len({token for _, token in pairs}) == 50
        assert all(re.fullmatch(r"[\w-]{22}", token) for _, token in pairs)  # 22 letters of 6 bits hold 16 bytes
        assert all(len(code) == 4 and set(code) <= set(LETTERS) for code, _ in pairs)
        assert not set(LETTERS) & set("AEIOU")


class TestEndings:
    def test_a_closed_room_says_so_to_those_inside_and_those_who_come(self, house: House) -> None:
        code, token, leader = house.opened()
        seat = house.follower(code)
        seat.take()
        house.rooms.close(code, token)
        sentence = f"The teacher closed room {code}. You stay where you are."
        assert seat.take() == [("ended", {"why": "closed", "sentence": sentence})]
        assert leader.take()[-1][0] == "ended"
        assert refused(lambda: house.follower(code)) == (410, sentence)
        assert len(house.rooms) == 0

    def test_a_wrong_code_is_told_apart_from_no_code(self, house: House) -> None:
        code, _, _ = house.opened()
        wrong = "BBBB" if code != "BBBB" else "CCCC"
        assert refused(lambda: house.follower(wrong)) == (
            404,
            f"There is no room {wrong}. Check the letters with your teacher.",
        )
        for odd in ("", "BBB", "<b>B", "AEIO", None, 7):
            status, sentence = refused(lambda odd=odd: house.rooms.follow(odd, "student", lambda: None))  # type: ignore[misc]
            assert (status, sentence[:23]) == (404, "A room code has 4 lette")

    def test_a_teacher_who_reloads_is_not_gone_and_one_who_leaves_is(self, house: House) -> None:
        code, token, leader = house.opened()
        seat = house.follower(code)
        seat.take()
        house.rooms.leave(code, leader)
        house.clock.now += rules.GONE_AFTER - 1
        house.rooms.tick(code)
        assert seat.take() == []
        house.clock.now += 2
        house.rooms.tick(code)
        gone = {"here": False, "sentence": "The teacher's page is gone. You stay where you are."}
        assert seat.take() == [("leader", gone)]
        assert ("leader", gone) in house.follower(code).take()
        house.rooms.lead(code, token, lambda: None)
        assert seat.take() == [("leader", {"here": True})]

    def test_two_windows_cannot_lead_at_once(self, house: House) -> None:
        code, token, first = house.opened()
        second = house.rooms.lead(code, token, lambda: None)
        told = first.take()[-1]
        assert told == ("ended", {"why": "replaced", "sentence": "Another window leads this room now."})
        house.rooms.leave(code, first)  # the first window's stream ends; the second still leads
        house.clock.now += rules.GONE_AFTER + 1
        seat = house.follower(code)
        house.rooms.tick(code)
        assert seat.take() == [("leader", {"here": True})]
        assert second.take() == [("count", {"followers": 1})]

    def test_rooms_expire(self, house: House) -> None:
        left, token, leader = house.opened()
        house.rooms.leave(left, leader)
        house.clock.now += rules.ENDS_WITHOUT_LEADER - 1
        house.rooms.tick(left)
        house.rooms.lead(left, token, lambda: None)
        house.clock.now += rules.LONGEST - rules.ENDS_WITHOUT_LEADER
        house.rooms.tick(left)
        assert len(house.rooms) == 1
        seat = house.follower(left)
        house.clock.now += 2
        house.rooms.tick(left)
        assert seat.take()[-1][1]["sentence"] == f"Room {left} has ended after a long time. You stay where you are."
        again, _ = house.rooms.open("teacher")
        house.clock.now += rules.ENDS_WITHOUT_LEADER + 1
        assert refused(lambda: house.follower(again))[0] == 410

    def test_who_falls_silent_loses_the_seat(self, house: House) -> None:
        code, _, leader = house.opened()
        house.follower(code)
        awake = house.follower(code)
        house.clock.now += rules.SILENT_AFTER + 1
        awake.take()
        house.rooms.tick(code)
        assert leader.take() == [("count", {"followers": 1})]

    def test_the_servers_end_ends_all(self, house: House) -> None:
        code, _, leader = house.opened()
        seat = house.follower(code)
        house.rooms.stop()
        assert seat.take()[-1][0] == leader.take()[-1][0] == "ended"
        assert refused(lambda: house.rooms.open("teacher"))[0] == 503


class TestLimits:
    def test_only_so_many_rooms_and_followers(self, house: House) -> None:
        code, _, _ = house.opened()
        for number in range(rules.MOST_FOLLOWERS):
            house.follower(code, f"student {number}")
        assert refused(lambda: house.follower(code, "one more"))[0] == 503
        for number in range(rules.MOST_ROOMS - 1):
            house.rooms.open(f"teacher {number}")
        assert refused(lambda: house.rooms.open("one more"))[0] == 503
        house.clock.now += rules.ENDS_WITHOUT_LEADER + 1
        house.rooms.open("one more")
        assert len(house.rooms) == 2  # the led one and this

    def test_guessing_codes_is_slow_even_with_luck(self, house: House) -> None:
        code, _, _ = house.opened()
        wrong = "BBBB" if code != "BBBB" else "CCCC"
        statuses = [refused(lambda: house.follower(wrong))[0] for _ in range(25)]
        assert statuses == [404] * 20 + [429] * 5
        assert refused(lambda: house.follower(code))[0] == 429
        house.follower(code, "another student")
        house.clock.now += 7
        house.follower(code)

    def test_a_class_behind_one_address_joins_at_once(self, house: House) -> None:
        code, _, _ = house.opened()
        seats = [house.follower(code, "school") for _ in range(60)]
        assert len(seats) == 60
        more = [house.follower(code, "school") for _ in range(60)]
        assert len(more) == 60
        assert refused(lambda: house.follower(code, "school"))[0] == 429

    def test_opening_and_showing_are_limited(self, house: House) -> None:
        pairs = [house.rooms.open("teacher") for _ in range(10)]
        assert refused(lambda: house.rooms.open("teacher"))[0] == 429
        code, token = pairs[0]
        for _ in range(20):
            house.rooms.show(code, token, "/")
        assert refused(lambda: house.rooms.show(code, token, "/"))[0] == 429
        house.clock.now += 1
        house.rooms.show(code, token, "/")

    def test_a_limiter_forgets_the_oldest(self) -> None:
        limiter = Limiter(1, 0.0, Clock())
        for number in range(rules.MOST_REMEMBERED + 1):
            assert limiter.spend(str(number))
        assert not limiter.spend("5")
        assert limiter.spend("0")


class TestStates:
    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ("/", "/"),
            ("/finder?present=true", "/finder"),
            ("/?text=caf%C3%A9+%26&room=BCDF&v.layer=3", "/?text=caf%C3%A9+%26&v.layer=3"),
        ],
    )
    def test_a_page_of_the_app_is_kept(self, house: House, given: str, kept: str) -> None:
        assert house.rooms.checked_state(given) == kept

    @pytest.mark.parametrize(
        "odd",
        [
            *("", "finder", "//evil.example/", "https://evil.example/", "/nowhere", "/finder/../x", "/finder#x"),
            *("/\\evil", "/?a=<script>", "/?a=b c", "/?a=\n", "/?ä=1", "javascript:alert(1)", None, 4, ["/"]),
        ],
    )
    def test_anything_else_is_refused(self, house: House, odd: Any) -> None:
        assert refused(lambda: house.rooms.checked_state(odd)) == (
            400,
            "Only a page of this app can be shown to a room.",
        )

    def test_a_state_has_at_most_4096_bytes(self, house: House) -> None:
        assert len(house.rooms.checked_state("/?t=" + "a" * 4092)) == 4096
        assert refused(lambda: house.rooms.checked_state("/?t=" + "a" * 4093))[0] == 413

    @given(st.text(max_size=60).map(lambda rest: "/" + rest))
    def test_what_passes_is_always_a_page_and_a_plain_query(self, state: str) -> None:
        try:
            kept = House().rooms.checked_state(state)
        except RefusedError:
            return
        path, _, query = kept.partition("?")
        assert path in PATHS
        assert not set(query) & set("<>\"'\\/: #\n\r\t")


# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def sentence(self) -> str:
        return str(json.loads(self.body)["sentence"])


JSON = {"content-type": "application/json"}


class Wire:
    """The routes, asked over ASGI as a server asks them, without a socket."""

    def __init__(self) -> None:
        self.rooms = Rooms(PATHS)
        self.app = Starlette(routes=RoomRoutes(self.rooms).routes)

    async def begin(
        self, name: str, facts: Any, headers: dict[str, str], said: asyncio.Queue[Any], gone: asyncio.Event
    ) -> None:
        body = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        scope = {
            **{"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"},
            **{"method": "POST", "scheme": "http", "path": f"/room/{name}", "raw_path": b"", "query_string": b""},
            **{"client": ("10.0.0.1", 5), "server": ("app", 80), "root_path": ""},
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
        }
        await self.app(scope, receive, said.put)

    async def ask(self, name: str, facts: Any, **headers: str) -> Reply:
        said: asyncio.Queue[Any] = asyncio.Queue()
        names = {key.replace("_", "-"): value for key, value in headers.items()}
        await self.begin(name, facts, {**JSON, **names}, said, asyncio.Event())
        begun = said.get_nowait()
        body = b"".join(said.get_nowait().get("body", b"") for _ in range(said.qsize()))
        return Reply(begun["status"], {k.decode(): v.decode() for k, v in begun["headers"]}, body)


async def heard(said: asyncio.Queue[Any]) -> str:
    """The next event of a stream; heartbeats and the begin of the answer are passed over."""
    while True:
        message = await asyncio.wait_for(said.get(), 10)
        text = message.get("body", b"").decode()
        if text.startswith("event:") or (message["type"] == "http.response.body" and not message.get("more_body")):
            return str(text)


def run(story: Callable[[Wire], Awaitable[None]]) -> None:
    async def tell() -> None:
        await story(Wire())

    asyncio.run(tell())


class TestRoutes:
    def test_a_lesson_over_the_wire(self) -> None:
        async def story(wire: Wire) -> None:
            opened = json.loads((await wire.ask("open", {})).body)
            code, token = opened["code"], opened["token"]
            gone, said = asyncio.Event(), asyncio.Queue()  # type: ignore[var-annotated]
            following = asyncio.create_task(wire.begin("follow", {"code": code}, JSON, said, gone))
            assert await heard(said) == 'event: leader\ndata: {"here": true}\n\n'
            shown = await wire.ask("show", {"code": code, "state": "/finder?a=1"}, x_room_token=token)
            assert shown.status == 200
            assert await heard(said) == 'event: state\ndata: {"state": "/finder?a=1"}\n\n'
            again = {"code": code, "state": "/finder?a=1", "whole": False}
            assert (await wire.ask("show", again, x_room_token=token)).status == 200
            assert await heard(said) == f'event: note\ndata: {{"sentence": "{rules.NOT_WHOLE}"}}\n\n'
            assert (await wire.ask("close", {"code": code}, x_room_token=token)).status == 200
            assert (await heard(said)).startswith("event: ended\n")
            await asyncio.wait_for(following, 5)  # the stream ends by itself, the tab still open

        run(story)

    def test_a_closed_tab_gives_up_its_seat(self) -> None:
        async def story(wire: Wire) -> None:
            code, token = wire.rooms.open("teacher")
            leader = wire.rooms.lead(code, token, lambda: None)
            gone, said = asyncio.Event(), asyncio.Queue()  # type: ignore[var-annotated]
            following = asyncio.create_task(wire.begin("follow", {"code": code}, JSON, said, gone))
            await heard(said)
            assert leader.take() == [("count", {"followers": 1})]
            gone.set()
            await asyncio.wait_for(following, 5)
            assert leader.take() == [("count", {"followers": 0})]

        run(story)

    @pytest.mark.parametrize("name", ["open", "lead", "show", "close", "follow", "qr"])
    def test_no_other_site_may_ask(self, name: str) -> None:
        async def story(wire: Wire) -> None:
            for headers in ({"content_type": "text/plain"}, {"sec_fetch_site": "cross-site"}):
                reply = await wire.ask(name, {"code": "BCDF"}, **headers)
                assert (reply.status, reply.sentence[:5]) == (403, "Rooms")
                assert "access-control-allow-origin" not in reply.headers

        run(story)

    def test_odd_bodies_are_refused_in_a_sentence(self) -> None:
        async def story(wire: Wire) -> None:
            code, token = wire.rooms.open("teacher")
            for body, status in ((b"{", 400), (b"[]", 400), (b"\xff", 400), (b'"' + b"a" * 9000 + b'"', 413)):
                assert (await wire.ask("show", body, x_room_token=token)).status == status
            assert (await wire.ask("show", {"code": code, "state": "/"})).status == 403
            assert (await wire.ask("lead", {"code": code}, x_room_token="no")).status == 403
            assert (await wire.ask("follow", {"code": {"a": 1}})).status == 404
            assert (await wire.ask("follow", {})).status == 404

        run(story)

    def test_codes_are_drawn_of_links_only(self) -> None:
        async def story(wire: Wire) -> None:
            drawn = await wire.ask("qr", {"link": "http://app/?room=BCDF"})
            assert (drawn.status, drawn.headers["content-type"]) == (200, "image/svg+xml")
            assert drawn.body == qr_svg("http://app/?room=BCDF")
            for odd in (None, "javascript:alert(1)", "app/?room=BCDF", "http://äpp/"):
                assert (await wire.ask("qr", {"link": odd})).status == 400
            long = await wire.ask("qr", {"link": "http://app/" + "a" * 600})
            assert long.status == 413
            statuses = [(await wire.ask("qr", {"link": "http://app/"})).status for _ in range(40)]
            assert 429 in statuses

        run(story)

    def test_the_servers_end_reaches_the_rooms_and_the_handler_before(self) -> None:
        numbers: list[int] = []

        async def story(wire: Wire) -> None:
            end_with_the_server(wire.rooms)
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
            assert wire.rooms.stopped
            assert numbers == [signal.SIGTERM]

        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
        try:
            run(story)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def test_the_drawn_code_is_the_links() -> None:
    """The SVG's dark strokes, module by module, are the code's, with four white modules around."""
    link = "http://127.0.0.1:8501/?room=KXTR"
    drawing = ET.fromstring(qr_svg(link))
    side = int(drawing.attrib["viewBox"].split()[2])
    dark = set()
    x = y = 0.0
    strokes = next(path for path in drawing if path.get("stroke"))
    for command, first, second in re.findall(r"([Mmh])(-?[\d.]+)(?: (-?[\d.]+))?", strokes.attrib["d"]):
        if command == "h":
            dark |= {(int(y), int(x) + step) for step in range(int(first))}
            x += float(first)
        else:
            base = (0.0, 0.0) if command == "M" else (x, y)
            x, y = base[0] + float(first), base[1] + float(second or 0)
    matrix = segno.make(link, micro=False, error="m").matrix
    assert side == len(matrix) + 8
    assert dark == {(r + 4, c + 4) for r, row in enumerate(matrix) for c, module in enumerate(row) if module}
