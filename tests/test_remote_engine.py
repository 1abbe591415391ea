"""The shared engine without Ray: messages read by type, hostile servers survived, the door's turns, the fallback."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import logging
import pickle
import socket
import struct
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from streamlit.testing.v1 import AppTest

from attention import (
    Engine,
    LatentKV,
    MuteHeads,
    ShareKV,
    TraceRequest,
    UserError,
    batching,
    engine,
    reach,
    remote,
    trace,
    wire,
)
from attention.atlas import ScoresRequest
from attention.doors import DOORS, LinkRequest
from attention.jobs import AbandonedError
from attention.layout import HeadLayout
from attention.links import HeadLink
from attention.models import LoadedModel
from attention.muting import CopyEffect, MuteRequest
from attention.reach import Reach
from attention.remote import RemoteEngine
from attention.rungs import SweepRequest, shipped_sweep
from attention.settings import Settings, settings_from
from attention.tracing import AttentionTrace, Check
from deploy import door, replica
from deploy.door import Answers, door_app

ROOT = Path(__file__).parent.parent
MINILM = "all-MiniLM-L6-v2"
ASKED = TraceRequest(MINILM, "Alice fed the cats because they were hungry.")
CHECK = Check("Own SDPA output", 1e-6, "off by 1e-6", True, "The same output.")
WAIT = 30


def same(one: Any, other: Any) -> bool:
    """Equality of two results, arrays bit by bit and NaN equal to itself."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if is_dataclass(one):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return type(one) is type(other) and (one == other or (one != one and other != other))


# --- messages --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def traced(minilm: LoadedModel) -> AttentionTrace:
    found: AttentionTrace = trace(minilm, ASKED.text, keep=("q", "k"), layer=2, what_if=(MuteHeads(((0, 1),)),))
    return found


@pytest.mark.parametrize("name", ["trace", "verify", "scores", "link", "muted", "sweep"])
def test_every_answer_comes_out_as_it_went_in(name: str, traced: AttentionTrace) -> None:
    asked: dict[str, Any] = {
        "trace": traced.request,
        "verify": traced.request,  # a what-if: its number is NaN
        "scores": ScoresRequest(MINILM),
        "link": LinkRequest(ASKED, "Alice", "cats"),
        "muted": MuteRequest(MINILM, "The cat", ((0, 1),), others=("A dog",)),
        "sweep": SweepRequest(MINILM, tuple(point.what_if for point in shipped_sweep(MINILM)[:9])),
    }
    own = DOORS[name].ask(Engine(), asked[name], lambda _: None)
    came = wire.decode(DOORS[name].gives, wire.to_bytes(own))
    assert same(came, own)
    assert same(wire.decode(DOORS[name].asks, wire.to_bytes(asked[name])), asked[name])


def test_arrays_come_as_read_only_views(traced: AttentionTrace) -> None:
    data = bytearray(wire.to_bytes(traced))
    came = wire.decode(AttentionTrace, data)
    assert np.shares_memory(came.weights, np.frombuffer(data, np.uint8))
    assert came.weights.ctypes.data % 4 == 0
    with pytest.raises(ValueError, match="read-only"):
        came.weights[0] = 0


@given(
    text=st.text(max_size=20),
    start=st.none() | st.text(max_size=4),
    layer=st.none() | st.integers(),
    what_if=st.lists(
        st.sampled_from([ShareKV(2), LatentKV(4, split=(1, 3)), MuteHeads(((1, 2),), "mean")]), max_size=2
    ),
)
def test_every_request_comes_out_as_it_went_in(text: str, start: str | None, layer: int | None, what_if: Any) -> None:
    request = TraceRequest(MINILM, text, start=start, layer=layer, keep=("q",), what_if=tuple(what_if))
    assert wire.decode(TraceRequest, wire.to_bytes(request)) == request
    lone = replace(request, text="\ud800 alone")
    assert wire.decode(TraceRequest, wire.to_bytes(lone)) == lone


def message(value: Any, arrays: Any = (), body: bytes = b"") -> bytes:
    """A message written by hand, as a stranger would."""
    header = json.dumps({"value": value, "arrays": list(arrays)}).encode()
    return wire.MAGIC + struct.pack("<I", len(header)) + header + body


LINK = {"layer": 0, "head": 1, "kv_head": 1, "weight": 0.5, "rank": 1, "positional": 0.25}
LINKS = tuple[HeadLink, ...]


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "boom")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (LINKS, b""),
        (LINKS, b"HSW1"),
        (LINKS, b"HSW1\xff\xff\xff\xff"),
        (LINKS, wire.MAGIC + struct.pack("<I", 2**31) + b"{}"),
        (LINKS, b"XXXX" + message([])[4:]),
        (LINKS, wire.MAGIC + struct.pack("<I", 200_000) + b"[" * 200_000),
        (LINKS, wire.MAGIC + struct.pack("<I", 4) + b"[12]"),
        (LINKS, message({"is": "HeadLink", "of": LINK})),
        (LINKS, message([{"is": "TraceRequest", "of": LINK}])),
        (LINKS, message([{"is": "HeadLink", "of": LINK | {"more": 1}}])),
        (LINKS, message([{"is": "HeadLink", "of": LINK | {"layer": True}}])),
        (LINKS, message([{"is": "HeadLink", "of": LINK | {"layer": 1.5}}])),
        (LINKS, message([{"is": "HeadLink", "of": LINK | {"weight": "0.5"}}])),
        (LINKS, message([{"is": "HeadLink", "of": LINK | {"weight": None}}])),
        (LINKS, message([{"is": "HeadLink", "of": {name: LINK[name] for name in ("layer", "head")}}])),
        (HeadLayout, message({"is": "HeadLayout", "of": {"d_model": 7, "n_heads": 0}})),
        (np.ndarray, message({"array": 0}, [["|O", [1], 0]], b"\0" * 8)),
        (np.ndarray, message({"array": 0}, [["<f4", [2], 0]], b"\0" * 4)),
        (np.ndarray, message({"array": 0}, [["<f4", [2**40, 2**40], 0]], b"\0" * 4)),
        (np.ndarray, message({"array": 0}, [["<f4", [1], -4]], b"\0" * 4)),
        (np.ndarray, message({"array": 0}, [["<f4", [-1], 0]], b"\0" * 4)),
        (np.ndarray, message({"array": 0}, [["|b1", [1], 0]], b"\x02")),
        (np.ndarray, message({"array": 1}, [["<f4", [1], 0]], b"\0" * 4)),
        (np.ndarray, message({"array": -1}, [["<f4", [1], 0]], b"\0" * 4)),
        (np.ndarray, message(0, [["<f4", [1], 0]], b"\0" * 4)),
        (dict[str, np.ndarray], message([1])),
        (tuple[int, int], message([1])),
        (str | None, message(3)),
        (Any, message(3)),
    ],
)
def test_bytes_that_are_not_the_answer_are_refused(kind: Any, data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(kind, data)


def test_an_impossible_layout_is_refused_where_it_is_built() -> None:
    names = {one.name: 1 for one in fields(HeadLayout)} | {"n_heads": 3, "n_kv_heads": 2}
    with pytest.raises(wire.WireError):
        wire.decode(HeadLayout, message({"is": "HeadLayout", "of": names}))


def test_a_pickle_stays_a_pickle(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "boom"))
    for data in (bomb, message({"array": 0}, [["|O", [1], 0]], bomb), message(bomb.hex(), body=bomb)):
        with pytest.raises(wire.WireError):
            wire.decode(AttentionTrace, data)
    assert not (tmp_path / "boom").exists()
    for module in (wire, remote):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not (named | imported) & {"pickle", "cloudpickle", "marshal", "eval", "exec", "getattr_static"}


@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_a_message_with_one_byte_changed_is_read_or_refused(at: float, byte: int) -> None:
    data = bytearray(wire.to_bytes((HeadLink(1, 2, 2, 0.5, 1, 0.25),)))
    data[int(at * len(data))] = byte
    try:
        (link,) = wire.decode(LINKS, data)
    except (wire.WireError, ValueError) as error:
        assert isinstance(error, wire.WireError) or "unpack" in str(error)  # noqa: PT017
    else:
        assert isinstance(link, HeadLink)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["a"]), np.array([object()]), b"bytes".hex])
def test_what_has_no_place_in_a_message_is_not_sent(value: Any) -> None:
    with pytest.raises(wire.WireError):
        wire.encode(value)


@pytest.mark.parametrize("data", [b"", b"[", b"{}", b'["a", "b"]', b'["a", "b", 3]', b"[" * 200_000])
def test_a_mistake_is_three_sentences(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.mistake_from_bytes(data)
    error = UserError("wrong", "allowed", "next")
    assert vars(wire.mistake_from_bytes(wire.mistake_to_bytes(error))) == vars(error)


# --- the client, and servers one would not wish for ------------------------------------------------


class Stub:
    """A server that does what ``handle(connection, question)`` does; ``questions`` holds what it was sent."""

    def __init__(self, handle: Callable[[socket.socket, bytes], None]) -> None:
        self.questions: list[bytes] = []
        self._handle = handle
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            question = b""
            while b"\r\n\r\n" not in question:
                question += connection.recv(65_536)
            self.questions.append(question)
            try:
                self._handle(connection, question)
            except OSError:
                return

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # while a thread waits in accept(), closing alone lets one in
        self._listener.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nConnection: close\r\n\r\n"


def answer(value: Any) -> bytes:
    return HEAD + door.frame(wire.ANSWER, wire.to_bytes(value))


def say(*shares: float) -> bytes:
    return b"".join(door.frame(wire.PROGRESS, wire.SHARE.pack(share)) for share in shares)


class Local:
    """Stands for the engine of the app's own process."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def models(self) -> tuple[str, ...]:
        return ("own",)

    def model(self, model_id: str) -> str:
        return f"own {model_id}"

    def verify(self, request: TraceRequest) -> str:
        self.asked.append(request)
        return "own"

    def sweep(self, request: SweepRequest, tell: Any) -> str:
        tell(0.25)
        return "own"


@contextmanager
def shared(handle: Callable[[socket.socket, bytes], None], clock: Any = None) -> Iterator[tuple[Any, Stub]]:
    """A client of a stub."""
    stub = Stub(handle)
    try:
        yield RemoteEngine(stub.url, Local(), Reach(*([clock] if clock else []))), stub  # type: ignore[arg-type]
    finally:
        stub.close()


def sends(*answers: bytes) -> Callable[[socket.socket, bytes], None]:
    """Each connection gets the next answer; later ones the last."""
    left = list(answers)
    return lambda connection, _: connection.sendall(left.pop(0) if len(left) > 1 else left[0])


def drips(connection: socket.socket, _: bytes) -> None:
    """One byte after the other, without end; the wait is the reader's, not this test's."""
    gap = threading.Event()
    while not gap.wait(0.02):
        connection.sendall(b"X")


def drips_frames(connection: socket.socket, _: bytes) -> None:
    connection.sendall(HEAD)
    gap = threading.Event()
    while not gap.wait(0.02):
        connection.sendall(say(0.0))


def is_silent(connection: socket.socket, _: bytes) -> None:
    connection.recv(1)
    connection.recv(1)


FAILS = b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"
HOSTILE: dict[str, Callable[[socket.socket, bytes], None]] = {
    "closes": lambda connection, _: None,
    "silent": is_silent,
    "drips": drips,
    "never done": drips_frames,
    "error": sends(FAILS),
    "elsewhere": sends(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"),
    "no http": sends(b"220 mail.example ESMTP\r\n"),
    "half": sends(answer(CHECK)[:-9]),
    "empty": sends(HEAD),
    "huge": sends(HEAD + wire.FRAME.pack(wire.ANSWER, 2**40)),
    "unknown frame": sends(HEAD + door.frame(b"z", b"abcdefgh")),
    "odd progress": sends(HEAD + door.frame(wire.PROGRESS, b"abc")),
    "another answer": sends(answer(CopyEffect((1.0,), (2.0,)))),
    "pickle": sends(HEAD + door.frame(wire.ANSWER, pickle.dumps(CHECK))),
    "odd mistake": sends(HEAD + door.frame(wire.MISTAKE, b"[1]")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_server_that_does_not_answer_is_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SILENCE_SECONDS", 0.3)
    monkeypatch.setitem(DOORS, "verify", replace(DOORS["verify"], seconds=0.6))
    with shared(HOSTILE[name]) as (client, _), ThreadPoolExecutor(1) as pool:
        assert pool.submit(client.verify, ASKED).result(WAIT) == "own"
        assert client.reach.away
        assert client.local.asked == [ASKED]


def test_a_server_that_is_not_there_is_replaced() -> None:
    with shared(is_silent) as (client, stub):
        stub.close()
        assert client.verify(ASKED) == "own"
        assert client.models() == ("own",)
        assert client.model("x") == "own x"


def test_only_bundled_models_are_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared(HOSTILE["error"]) as (client, _):
        assert client.verify(replace(ASKED, model=MINILM + "~untrained")) == "own"
        with pytest.raises(UserError) as told:
            client.verify(replace(ASKED, model="my-own-model"))
        assert "does not answer" in told.value.wrong
        assert "my-own-model" in told.value.wrong
        assert MINILM in told.value.allowed
        assert len(client.local.asked) == 1


def test_what_visitors_are_told_while_the_engine_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(reach, "default_reach", Reach(lambda: now[0]))
    stub = Stub(sends(FAILS, answer(CHECK)))
    client: Any = RemoteEngine(stub.url, Local())  # type: ignore[arg-type]
    assert reach.notice() == ""
    assert client.verify(ASKED) == "own"
    assert reach.notice() == reach.AWAY
    assert max(len(sentence.split()) for sentence in reach.AWAY.split(". ")) <= 25
    now[0] = reach.TRY_AGAIN
    assert client.verify(ASKED) == CHECK
    assert reach.notice() == ""
    stub.close()


def test_after_a_while_one_tries_again() -> None:
    now = [100.0]
    with shared(sends(FAILS, answer(CHECK)), lambda: now[0]) as (client, stub):
        assert client.verify(ASKED) == "own"
        now[0] += reach.TRY_AGAIN - 0.1
        assert client.verify(ASKED) == "own"
        assert len(stub.questions) == 1
        now[0] += 0.1
        assert client.reach.may_try()  # somebody else is trying already
        assert client.verify(ASKED) == "own"
        now[0] += reach.TRY_AGAIN
        assert client.verify(ASKED) == CHECK
        assert not client.reach.away


def test_a_connection_that_breaks_once_is_begun_anew() -> None:
    with shared(sends(answer(CHECK)[:-9], answer(CHECK))) as (client, stub):
        assert client.verify(ASKED) == CHECK
        assert len(stub.questions) == 2
        assert not client.reach.away


def test_a_mistake_crosses_unchanged_and_is_not_kept() -> None:
    error = UserError("The text is <b>empty</b>.", "One word.", "Type it.")
    mistaken = HEAD + door.frame(wire.MISTAKE, wire.mistake_to_bytes(error))
    with shared(sends(mistaken, answer(CHECK))) as (client, _):
        with pytest.raises(UserError) as told:
            client.verify(ASKED)
        assert vars(told.value) == vars(error)
        assert not client.reach.away
        assert client.verify(ASKED) == CHECK


def test_one_question_that_fails_there_is_answered_here() -> None:
    with shared(sends(HEAD + door.frame(wire.FAULT, b""), answer(CHECK))) as (client, _):
        assert client.verify(ASKED) == "own"
        assert not client.reach.away
        assert client.verify(ASKED) == CHECK


def test_a_text_far_too_long_never_leaves() -> None:
    with shared(sends(answer(CHECK))) as (client, stub):
        assert client.verify(replace(ASKED, text="x" * wire.QUESTION_BYTES)) == "own"
        assert not client.reach.away
        assert stub.questions == []


def test_thirty_equal_questions_are_sent_once() -> None:
    release = threading.Event()

    def late(connection: socket.socket, _: bytes) -> None:
        assert release.wait(WAIT)
        connection.sendall(answer(CHECK))

    with shared(late) as (client, stub), ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(client.verify, ASKED) for _ in range(30)]
        release.set()
        assert {id(one.result(WAIT)) for one in waiting} == {id(client.verify(ASKED))}
        assert len(stub.questions) == 1
        client.verify(replace(ASKED, text="Another."))
        assert len(stub.questions) == 2


def test_progress_comes_across_and_leaving_cuts_the_connection() -> None:
    cut = threading.Event()

    def works(connection: socket.socket, _: bytes) -> None:
        connection.sendall(HEAD + say(0.0, 0.5, 7.0, -1.0))
        gap = threading.Event()
        try:
            while not gap.wait(0.02):
                connection.sendall(say(0.5))
        except OSError:
            cut.set()

    seen: list[float] = []
    with shared(works) as (client, _):

        def tell(share: float) -> None:
            seen.append(share)
            if len(seen) == 4:
                raise AbandonedError

        with pytest.raises(AbandonedError):
            client.sweep(SweepRequest(MINILM, (None,)), tell)
        assert seen == [0.0, 0.5, 1.0, 0.0]
        assert cut.wait(WAIT)
        assert not client.reach.away

        with client.sweep_job(SweepRequest(MINILM, (None,))) as job:
            while job.share < 0.5:
                assert not job.done.wait(0.01)
        assert job.done.wait(WAIT)
        assert isinstance(job.error, AbandonedError)


def test_a_job_goes_on_here_when_the_server_goes() -> None:
    with shared(sends(HEAD + say(0.9))) as (client, _), client.sweep_job(SweepRequest(MINILM, (None,))) as job:
        assert job.done.wait(WAIT)
        assert (job.result, job.error, job.share) == ("own", None, 0.25)


# --- the setting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "address"),
    [
        ("", ""),
        (" http://127.0.0.1:8600/ ", "http://127.0.0.1:8600"),
        ("https://engine.example:443", "https://engine.example:443"),
        ("http://[::1]:8600", "http://[::1]:8600"),
    ],
)
def test_the_setting_takes_an_address(word: str, address: str) -> None:
    assert settings_from({"HEADSCOPE_ENGINE": word}).engine == address


@pytest.mark.parametrize(
    "word",
    [
        "127.0.0.1:8600",
        "http://127.0.0.1",
        "http://a:b@c:80",
        "http://a:80/x",
        "file:///x",
        "http://a:99999",
        "ftp://a:1",
    ],
)
def test_anything_else_is_told_at_the_start(word: str) -> None:
    with pytest.raises(UserError, match=r"such as http://127\.0\.0\.1:8600"):
        settings_from({"HEADSCOPE_ENGINE": word})


def test_the_setting_chooses_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, kind in (("", Engine), ("http://127.0.0.1:1", RemoteEngine)):
        monkeypatch.setattr(engine, "_default", [])
        monkeypatch.setattr(engine, "settings", lambda address=address: Settings(engine=address))
        assert type(engine.default_engine()) is kind
        assert engine.default_engine() is engine.default_engine()


# --- the server's door -----------------------------------------------------------------------------

Items = AsyncGenerator[tuple[bytes, Any]]


class LostError(Exception):
    """A worker that died."""


async def here() -> bool:
    return False


async def all_frames(answers: Answers, name: str = "verify", body: bytes = b"?") -> list[bytes]:
    return [one async for one in answers.frames(name, body, here)]


def test_equal_questions_are_computed_once_and_kept() -> None:
    began: list[bytes] = []

    async def ask(name: str, body: bytes) -> Items:
        began.append(body)
        await asyncio.sleep(0)
        yield wire.ANSWER, [b"an", np.frombuffer(b"swer", np.uint8)]

    async def main() -> None:
        answers = Answers(ask, keep_bytes=40)
        together = await asyncio.gather(*(all_frames(answers) for _ in range(20)), all_frames(answers, "trace"))
        assert together == [[door.frame(wire.ANSWER, b"answer")]] * 21
        assert began == [b"?", b"?"]
        assert answers.counts == {"asked": 21, "computed": 2, "asked_again": 0, "abandoned": 0}
        await all_frames(answers)
        assert len(began) == 2
        for body in (b"1", b"2", b"3"):
            await all_frames(answers, body=body)
        await all_frames(answers)  # pushed out: 15 bytes each, 40 are kept
        assert len(began) == 6
        assert answers.running == 0

    asyncio.run(main())


def test_a_lost_worker_is_replaced_by_another_up_to_a_limit() -> None:
    failures = [2]

    async def ask(name: str, body: bytes) -> Items:
        yield wire.PROGRESS, 0.5
        if failures[0]:
            failures[0] -= 1
            raise LostError
        yield wire.ANSWER, [b"answer"]

    async def main() -> None:
        answers = Answers(ask, (LostError,))
        assert (await all_frames(answers))[-1] == door.frame(wire.ANSWER, b"answer")
        assert answers.counts["asked_again"] == 2
        failures[0] = door.TRIES
        assert (await all_frames(answers, body=b"other"))[-1] == door.frame(wire.FAULT, b"")

    asyncio.run(main())


def test_work_ends_when_the_last_one_leaves_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HEARTBEAT", 0.01)
    ended: list[str] = []

    async def main() -> None:
        never = asyncio.Event()

        async def ask(name: str, body: bytes) -> Items:
            try:
                yield wire.PROGRESS, 0.5
                await never.wait()
                yield wire.ANSWER, [b"answer"]
            finally:
                ended.append("ended")

        answers = Answers(ask)
        gone = [False, False]
        said: list[list[bytes]] = [[], []]

        async def watch(number: int) -> None:
            async def left() -> bool:
                return gone[number]

            async for one in answers.frames("sweep", b"?", left):
                said[number].append(one)

        both = [asyncio.create_task(watch(number)) for number in (0, 1)]
        while not all(door.frame(wire.PROGRESS, wire.SHARE.pack(0.5)) in one for one in said):
            await asyncio.sleep(0.01)
        gone[0] = True
        await both[0]
        assert ended == []
        assert answers.running == 1
        gone[1] = True
        await both[1]
        while not ended:
            await asyncio.sleep(0.01)
        assert answers.running == 0
        assert answers.counts["abandoned"] == 1

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_too_many_different_questions_are_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_RUNNING", 2)

    async def main() -> None:
        release = asyncio.Event()

        async def ask(name: str, body: bytes) -> Items:
            await release.wait()
            yield wire.ANSWER, [b"answer"]

        answers = Answers(ask)
        first = [asyncio.create_task(all_frames(answers, body=body)) for body in (b"1", b"2")]
        while answers.running < 2:
            await asyncio.sleep(0)
        (told,) = await all_frames(answers, body=b"3")
        assert str(wire.mistake_from_bytes(told[wire.FRAME.size :])) == str(door.BUSY)
        joined = asyncio.create_task(all_frames(answers, body=b"2"))  # no more work: it is being done
        await asyncio.sleep(0)
        release.set()
        assert [(await one)[-1] for one in (*first, joined)] == [door.frame(wire.ANSWER, b"answer")] * 3

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_the_door_over_http(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[tuple[str, int]] = []

    async def ask(name: str, body: bytes) -> Items:
        asked.append((name, len(body)))
        if b"xylophone" in body:
            raise ValueError(body)
        yield wire.ANSWER, [b"answer"]

    with TestClient(door_app(Answers(ask))) as client, caplog.at_level(logging.DEBUG):
        whole = b"x" * wire.QUESTION_BYTES
        assert client.post("/v1/trace", content=whole).content == door.frame(wire.ANSWER, b"answer")
        assert client.post("/v1/trace", content=whole + b"x").status_code == 413
        assert client.post("/v1/trace", content=iter([whole, b"x"])).status_code == 413
        assert asked == [("trace", len(whole))]
        assert client.get("/v1/trace").status_code == 405
        assert client.post("/v1/a/b").status_code == 404
        assert client.get("/health").text == "ok"
        assert client.get("/v1/state").json()["computed"] == 1
        assert client.post("/v1/trace", content=b"my xylophone").content == door.frame(wire.FAULT, b"")
    words = " ".join(record.getMessage() for record in caplog.records if record.name == "headscope")
    assert "ValueError" in words
    assert "xylophone" not in words + "".join(str(record.exc_text) for record in caplog.records)


# --- a replica and its groups ----------------------------------------------------------------------


def items_of(one: replica.Replica, name: str, body: bytes) -> list[replica.Item]:
    async def main() -> list[replica.Item]:
        return [item async for item in one.answer(name, body)]

    return asyncio.run(main())


def test_a_replica_answers_refuses_and_fails_without_words(
    minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replica, "keep_to_this_machine", lambda: None)
    one = replica.Replica((MINILM,))
    ((kind, parts),) = [item for item in items_of(one, "trace", wire.to_bytes(ASKED)) if item[0] != wire.PROGRESS]
    assert kind == wire.ANSWER
    came = wire.decode(AttentionTrace, b"".join(parts))
    np.testing.assert_allclose(came.weights, trace(minilm, ASKED.text).weights, atol=1e-5, rtol=0)

    strange = (wire.MISTAKE, wire.mistake_to_bytes(replica.STRANGE))
    for name, body in [("trace", b"junk"), ("__class__", b""), ("verify", wire.to_bytes(MuteRequest(MINILM, "Hi")))]:
        assert items_of(one, name, body) == [strange]
    long = wire.to_bytes(replace(ASKED, text="xylophone " * 2_001))
    ((kind, told),) = items_of(one, "trace", long)
    assert kind == wire.MISTAKE
    assert wire.mistake_from_bytes(told).wrong == "The text has 20,010 characters."

    def broken(*_: Any) -> Any:
        raise RuntimeError("xylophone")

    monkeypatch.setitem(DOORS, "link", replace(DOORS["link"], ask=broken))
    with caplog.at_level(logging.DEBUG):
        assert items_of(one, "link", wire.to_bytes(LinkRequest(ASKED, 0, 1))) == [(wire.FAULT, b"")]
    assert "RuntimeError" in caplog.text
    assert "xylophone" not in caplog.text


def test_a_replica_says_how_far_it_is_and_stops_when_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "keep_to_this_machine", lambda: None)
    monkeypatch.setattr(replica, "LOOK_SECONDS", 0.01)
    stopped = threading.Event()

    def works(_: Any, __: Any, tell: Any) -> Any:
        from attention.jobs import stop_if_left

        gap = threading.Event()
        try:
            while not gap.wait(0.01):
                tell(0.5)
                stop_if_left()
        except AbandonedError:
            stopped.set()
            raise

    monkeypatch.setitem(DOORS, "sweep", replace(DOORS["sweep"], ask=works))

    async def main() -> None:
        items = replica.Replica().answer("sweep", wire.to_bytes(SweepRequest(MINILM, (None,))))
        async for item in items:
            assert item == (wire.PROGRESS, 0.5)
            break
        await items.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert stopped.wait(WAIT)


def test_traces_that_wait_together_run_together_and_stay_what_they_are(
    minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = batching.Batches()
    wanted = [TraceRequest(MINILM, f"{number} dogs chased the cat round the house.") for number in range(8)]
    other = [
        TraceRequest(MINILM, "word " * 60),  # longer
        replace(wanted[0], what_if=(MuteHeads(((0, 1),)),)),  # changed
        replace(wanted[0], pair="Why?"),
    ]
    with ThreadPoolExecutor(len(wanted) + len(other)) as pool:
        with batches._turn:  # nobody runs before all wait
            waiting = [pool.submit(batches.trace, minilm, one) for one in (*wanted, *other)]
            while len(batches._waiting) < len(waiting):
                assert not any(one.done() for one in waiting)
        traces = [one.result(WAIT) for one in waiting]
    assert batches.sizes == {8: 1, 1: 3}
    for request, found in zip((*wanted, *other), traces, strict=True):
        alone = trace(minilm, request.text, pair=request.pair, what_if=request.what_if)
        assert found.tokens == alone.tokens
        assert found.request == alone.request
        np.testing.assert_allclose(found.weights, alone.weights, atol=1e-5, rtol=0)
        np.testing.assert_allclose(found.outputs.hidden, alone.outputs.hidden, atol=1e-4, rtol=0)


def test_a_group_ends_where_there_is_nothing_left_to_gain() -> None:
    batches = batching.Batches()
    model: Any = object()
    lengths = [100, 110, 124, 126, 90, 100, 30, None, 30, None]  # None: nobody waited beside it
    batches._waiting = [batching.Waiting(model, ASKED, n_tokens) for n_tokens in lengths]
    groups = []
    while batches._waiting:
        groups.append([one.n_tokens for one in batches._next()])
    assert groups == [[100, 110, 124, 100], [126], [90], [30, 30], [None], [None]]


def test_a_mistake_in_one_text_costs_the_others_nothing(minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = batching.Batches()
    original = batching._together

    def picky(group: list[batching.Waiting]) -> Any:
        if any("bad" in one.request.text for one in group):
            raise UserError("bad")
        return original(group)

    monkeypatch.setattr(batching, "_together", picky)
    texts = ["a good cat", "a bad cat", "a fine cat"]
    with ThreadPoolExecutor(3) as pool:
        with batches._turn:
            waiting = [pool.submit(batches.trace, minilm, TraceRequest(MINILM, text)) for text in texts]
            while len(batches._waiting) < 3:
                assert not any(one.done() for one in waiting)
        good, bad, fine = waiting
        assert good.result(WAIT).text == texts[0]
        assert fine.result(WAIT).text == texts[2]
        with pytest.raises(UserError, match="bad"):
            bad.result(WAIT)
    with pytest.raises(UserError, match="empty"):
        batches.trace(minilm, TraceRequest(MINILM, ""))
    assert batches.trace(minilm, TraceRequest(MINILM, texts[0])).text == texts[0]
    assert batches._waiting == []


# --- the requirements ------------------------------------------------------------------------------


def test_the_engines_requirements_are_pinned_locked_and_installed() -> None:
    from importlib.metadata import version

    root = Path(__file__).parents[1]
    pins = [
        line
        for line in (root / "requirements-engine.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    lock = (root / "requirements.lock").read_text().splitlines()
    assert pins
    assert [pin for pin in pins if pin not in lock] == []
    assert [f"{pin.split('==')[0]}=={version(pin.split('==')[0])}" for pin in pins] == pins
    # With these at hand Streamlit and uvicorn would leave asyncio's own event loop.
    assert not [pin for pin in lock if pin.startswith(("uvloop", "httptools"))]


def test_a_visitor_is_told_while_the_shared_engine_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Reach()
    monkeypatch.setattr(reach, "default_reach", away)
    app = AppTest.from_file(str(ROOT / "pages" / "entry.py"), default_timeout=120).switch_page("compute/shapes.py")
    assert [box.value for box in app.run().info] == []
    away.failed()
    assert [box.value for box in app.run().info] == [reach.AWAY]
    away.answered()
    assert [box.value for box in app.run().info] == []
