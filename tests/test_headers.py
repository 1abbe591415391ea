"""The guard in front of the app: headers, what one visitor may send, and a log without anybody's words."""

from __future__ import annotations

import asyncio
import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attention import UserError
from pages.shared import guard
from pages.shared.guard import MOST_BODY_BYTES, MOST_MESSAGE_BYTES, Bucket, Guard, content_security_policy
from pages.shared.private_log import keep_private, where

SECRET = "a sentence nobody else may read"


async def page_app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body or every message, then answers."""
    if scope["type"] == "websocket":
        heard: list[str] = scope["heard"]
        message = await receive()
        while message["type"] != "websocket.disconnect":
            heard.append(message["type"])
            message = await receive()
        return
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"X-Frame-Options", b"DENY")]})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})


def ask(
    guarded: Guard, messages: list[dict[str, Any]], kind: str = "http", headers: Any = ()
) -> tuple[list[dict[str, Any]], list[str]]:
    """What comes back, and what the app behind the guard heard."""
    sent: list[dict[str, Any]] = []
    heard: list[str] = []
    left = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(left)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(guarded({"type": kind, "headers": list(headers), "heard": heard}, receive, send))
    return sent, heard


def body(*parts: bytes) -> list[dict[str, Any]]:
    last = len(parts) - 1
    return [{"type": "http.request", "body": part, "more_body": at < last} for at, part in enumerate(parts)]


def test_every_answer_carries_the_headers() -> None:
    sent, _ = ask(Guard(page_app), body(b"x"))
    headers = dict(sent[0]["headers"])
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"referrer-policy"] == b"no-referrer"
    assert b"camera=()" in headers[b"permissions-policy"]
    assert headers[b"content-security-policy"] == content_security_policy().encode()
    assert sent[1]["body"] == b"1"


def test_a_header_the_app_sets_itself_stays_as_it_is() -> None:
    sent, _ = ask(Guard(page_app), body(b""))
    assert [value for name, value in sent[0]["headers"] if name.lower() == b"x-frame-options"] == [b"DENY"]


def test_the_policy_lets_no_foreign_script_run() -> None:
    rules = dict(rule.split(" ", 1) for rule in content_security_policy().split("; "))
    sources = rules["script-src"].split()
    assert sources[:2] == ["'self'", "blob:"]
    assert all(source.startswith("'sha256-") for source in sources[2:])
    assert [name for name, value in rules.items() if "unsafe" in value] == ["style-src"]
    assert not any("http" in value or "*" in value for value in rules.values())
    assert (rules["default-src"], rules["object-src"], rules["base-uri"]) == ("'none'",) * 3
    assert rules["frame-ancestors"] == "'self'"


@pytest.mark.parametrize("length", [str(MOST_BODY_BYTES + 1), "9" * 5000, "-1", "ten"])
def test_a_body_that_says_it_is_too_long_is_refused_unread(length: str) -> None:
    sent, _ = ask(Guard(page_app), [], headers=[(b"content-length", length.encode())])
    assert sent[0]["status"] == 413
    assert sent[1]["body"].decode() == guard.TOO_LONG
    assert (b"referrer-policy", b"no-referrer") in sent[0]["headers"]


def test_a_body_that_does_not_say_so_is_cut() -> None:
    half = b"x" * (MOST_BODY_BYTES // 2)
    assert ask(Guard(page_app), body(half, half))[0][1]["body"] == str(MOST_BODY_BYTES).encode()
    assert ask(Guard(page_app), body(half, half, b"x"))[0] == []


def test_a_message_that_is_too_long_ends_the_connection() -> None:
    fits = {"type": "websocket.receive", "bytes": b"x" * MOST_MESSAGE_BYTES}
    too_long = {"type": "websocket.receive", "bytes": b"x" * (MOST_MESSAGE_BYTES + 1)}
    sent, heard = ask(Guard(page_app), [{"type": "websocket.connect"}, fits, too_long], kind="websocket")
    assert heard == ["websocket.connect", "websocket.receive"]
    assert [(message["type"], message["code"]) for message in sent] == [("websocket.close", 1009)]


def test_who_sends_as_a_page_does_never_waits() -> None:
    bucket = Bucket()
    assert {bucket.pause(at / 10) for at in range(1000)} == {0.0}  # a slider dragged for 100 seconds


def test_who_sends_without_end_is_slowed_to_the_rate() -> None:
    bucket, now = Bucket(), 0.0
    for _ in range(1060):
        now += bucket.pause(now)
    assert now == pytest.approx(1000 / guard.PER_SECOND, rel=0.01)


def test_a_flood_waits_before_the_app_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def noted(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(guard.asyncio, "sleep", noted)
    flood = [{"type": "websocket.receive", "bytes": b"x"}] * 80
    _, heard = ask(Guard(page_app), [*flood, {"type": "websocket.disconnect"}], kind="websocket")
    assert len(heard) == 80
    assert len(pauses) == len(flood) - guard.BURST  # the first ones wait for nothing
    assert min(pauses) > 0
    assert pauses[-1] > 0.5


def test_a_full_server_says_so_and_has_room_again_when_somebody_leaves() -> None:
    guarded = Guard(page_app, most_visitors=1)
    page = [(b"accept", b"text/html,*/*")]

    async def while_somebody_is_there() -> tuple[list[Any], list[Any], list[Any]]:
        left = asyncio.Event()
        refused: list[Any] = []
        answer: list[Any] = []
        script: list[Any] = []

        async def stays() -> dict[str, Any]:
            await left.wait()
            return {"type": "websocket.disconnect"}

        async def into(box: list[Any], message: Any) -> None:
            box.append(message)

        async def one(message: dict[str, Any]) -> dict[str, Any]:
            return message

        there = asyncio.create_task(guarded({"type": "websocket", "headers": [], "heard": []}, stays, None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        connect = {"type": "websocket.connect"}
        await guarded({"type": "websocket", "headers": []}, lambda: one(connect), lambda m: into(refused, m))
        request = body(b"")[0]
        await guarded({"type": "http", "headers": page}, lambda: one(request), lambda m: into(answer, m))
        await guarded({"type": "http", "headers": []}, lambda: one(request), lambda m: into(script, m))
        left.set()
        await there
        return refused, answer, script

    refused, answer, script = asyncio.run(while_somebody_is_there())
    assert [message["type"] for message in refused] == ["websocket.close"]
    assert (answer[0]["status"], answer[1]["body"].decode()) == (503, guard.FULL)
    assert script[0]["status"] == 200, "who is there already can still load a script"
    assert ask(guarded, body(b""), headers=page)[0][0]["status"] == 200


HOST = (b"host", b"school.example:8501")
OWN = [b"http://school.example:8501", b"https://school.example:8501", b""]
STRANGERS = [
    b"https://evil.example",
    b"http://school.example",
    b"http://school.example:8501.evil.example",
    b"null",
    b"x",
]
STRANGERS += [b"http://", b"://", b"http://localhost:3000", b"http://127.0.0.1", b"\xff"]


@pytest.mark.parametrize("origin", OWN)
def test_a_page_of_this_server_may_connect(origin: bytes) -> None:
    end = [{"type": "websocket.disconnect"}]
    sent, heard = ask(Guard(page_app), [{"type": "websocket.connect"}, *end], "websocket", [HOST, (b"origin", origin)])
    assert (sent, heard) == ([], ["websocket.connect"])


@pytest.mark.parametrize("origin", STRANGERS)
def test_a_strangers_page_may_not_and_streamlit_is_not_even_asked(origin: bytes) -> None:
    sent, heard = ask(Guard(page_app), [{"type": "websocket.connect"}], "websocket", [HOST, (b"origin", origin)])
    assert heard == []
    assert [(one["type"], one["code"]) for one in sent] == [("websocket.close", 1008)]


@pytest.mark.parametrize(("origin", "passed_on"), [(OWN[0], True), (STRANGERS[0], False)])
def test_a_strangers_origin_never_reaches_streamlit(origin: bytes, passed_on: bool) -> None:
    heard: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        heard.extend(scope["headers"])

    ask(Guard(app), [], headers=[HOST, (b"origin", origin)])
    assert heard == [HOST, (b"origin", origin)][: 1 + passed_on]


def test_an_owner_may_name_other_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = dict([HOST, (b"origin", b"https://course.example")])
    assert not guard.is_own(headers)
    options = {"server.enableCORS": True, "server.corsAllowedOrigins": ["https://course.example"]}
    monkeypatch.setattr(guard.st, "get_option", lambda name: options[name])
    assert guard.is_own(headers)
    options = {"server.enableCORS": True, "server.corsAllowedOrigins": [], "browser.serverAddress": "course.example"}
    assert not guard.is_own(headers)
    monkeypatch.setattr(guard, "is_manually_set", lambda name: True)
    assert guard.is_own(headers)


def test_the_server_is_told_to_keep_strangers_pages_out() -> None:
    server = tomllib.loads((Path(guard.__file__).parents[2] / ".streamlit" / "config.toml").read_text())["server"]
    assert (server["enableXsrfProtection"], server["enableCORS"], server["enableAgentApi"]) == (True, True, False)
    assert server["maxUploadSize"] == 1


# ---- the log


@pytest.fixture
def private() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    keep_private()
    keep_private()
    yield
    logging.setLogRecordFactory(before)


def failing(text: str) -> None:
    try:
        raise KeyError(text)
    except KeyError as error:
        raise ValueError(f"cannot read {text}") from error


def test_a_traceback_says_where_but_not_what(private: None, caplog: pytest.LogCaptureFixture) -> None:
    try:
        failing(SECRET)
    except ValueError as error:
        logging.getLogger("headscope").error("script error", exc_info=error)
        logging.getLogger("streamlit.runtime").warning(error)
        logging.getLogger("streamlit.runtime").warning("no good: %s", error)
    said = caplog.text
    assert SECRET not in said
    assert "test_headers.py" in said
    assert "in failing" in said
    assert "builtins.ValueError (message left out)" in said
    assert "builtins.KeyError (message left out)" in said
    assert said.count("script error") == 1


def test_an_exception_that_comes_from_itself_is_told_once() -> None:
    one = UserError(SECRET, "a", "b")
    other = ExceptionGroup(SECRET, [ValueError(SECRET)])
    one.__cause__, other.__cause__ = other, one
    told = where(one)
    assert SECRET not in told
    assert told.count("UserError") == 1
    assert "builtins.ValueError" in told


def test_the_access_log_has_no_query(private: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("uvicorn.access").info(
            '%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", f"/cache?text={SECRET}", "1.1", 200
        )
        logging.getLogger("uvicorn.error").info('%s - "WebSocket %s" [accepted]', ("1.2.3.4", 5), f"/s?t={SECRET}")
        logging.getLogger("headscope").info("took %s", "/not/an/address?")
    assert SECRET not in caplog.text
    assert '"GET /cache HTTP/1.1" 200' in caplog.text
    assert "/not/an/address?" in caplog.text
