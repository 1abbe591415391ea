"""The shared engine's door on the network: questions over HTTP, equal ones computed once, lost ones asked again.

Knows neither Ray nor torch: ``ask(name, body)`` gives an answer's items from wherever it is computed. Nothing that
was asked is logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from attention import wire
from attention.errors import UserError

log = logging.getLogger("headscope")
BODY_SECONDS = 10.0
KEEP_BYTES = 64 * 2**20
HEARTBEAT = 0.5  # seconds; whoever waits hears that often how far it is
MOST_RUNNING = 64
TRIES = 3
LONGEST = 3600.0

BUSY = UserError(
    f"The shared engine is busy: {MOST_RUNNING} questions are being worked on.",
    "Each takes its turn.",
    "Wait a moment and try again.",
)
Ask = Callable[[str, bytes], AsyncGenerator[tuple[bytes, Any]]]


@dataclass(eq=False)
class Run:
    """One question being answered for everyone who asked it: the ``share`` done, and how many still wait."""

    share: float = 0.0
    watchers: int = 0
    task: asyncio.Task[bytes] | None = None


class Answers:
    """Answers as bytes of one frame, by the question's bytes: kept up to ``keep_bytes``, computed once.

    ``lost`` are the errors that mean a worker died under the question; it is then asked again, up to ``TRIES`` times.
    """

    def __init__(self, ask: Ask, lost: tuple[type[BaseException], ...] = (), keep_bytes: int = KEEP_BYTES) -> None:
        self._ask = ask
        self._lost = lost
        self._keep_bytes = keep_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._running: dict[str, Run] = {}
        self.counts = {"asked": 0, "computed": 0, "asked_again": 0, "abandoned": 0}

    @property
    def running(self) -> int:
        """How many distinct questions are being worked on."""
        return len(self._running)

    async def frames(self, name: str, body: bytes, gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
        """Frames for one who asks: how far it is, each ``HEARTBEAT``, then the answer. Ends when ``gone()`` is true."""
        self.counts["asked"] += 1
        key = hashlib.sha256(name.encode() + b"\0" + body).hexdigest()
        if key in self._kept:
            self._kept.move_to_end(key)
            yield self._kept[key]
            return
        if key not in self._running and self.running >= MOST_RUNNING:
            yield frame(wire.MISTAKE, wire.mistake_to_bytes(BUSY))
            return
        run = self._running.get(key) or self._begin(key, name, body)
        assert run.task is not None
        run.watchers += 1
        try:
            while not (await asyncio.wait({run.task}, timeout=HEARTBEAT))[0]:
                if await gone():
                    return
                yield frame(wire.PROGRESS, wire.SHARE.pack(run.share))
            yield run.task.result()
        finally:
            run.watchers -= 1
            if run.watchers == 0 and not run.task.done():
                self.counts["abandoned"] += 1
                run.task.cancel()
                self._forget(key, run)

    def _begin(self, key: str, name: str, body: bytes) -> Run:
        run = self._running[key] = Run()
        # In a context of its own: the first asker may leave, and others still wait for the answer.
        run.task = asyncio.get_running_loop().create_task(self._computed(key, run, name, body), context=Context())
        run.task.add_done_callback(lambda _: self._forget(key, run))
        return run

    def _forget(self, key: str, run: Run) -> None:
        if self._running.get(key) is run:
            del self._running[key]

    async def _computed(self, key: str, run: Run, name: str, body: bytes) -> bytes:
        self.counts["computed"] += 1
        try:
            async with asyncio.timeout(LONGEST):
                kind, parts = await self._persistent(run, name, body)
        except Exception as error:  # a fault is told without its words, which may quote the text
            log.error("%s failed: %s", name, type(error).__name__)  # noqa: TRY400
            return frame(wire.FAULT, b"")
        answer = frame(kind, b"".join(parts) if isinstance(parts, list) else parts)
        if kind == wire.ANSWER:
            self._keep(key, answer)
        return answer

    async def _persistent(self, run: Run, name: str, body: bytes) -> tuple[bytes, Any]:
        """The last item of an answer, asked for anew where a worker is lost."""
        for attempt in range(1, TRIES + 1):
            try:
                return await self._once(run, name, body)
            except self._lost:
                self.counts["asked_again"] += 1
                if attempt == TRIES:
                    raise
        raise AssertionError

    async def _once(self, run: Run, name: str, body: bytes) -> tuple[bytes, Any]:
        async with aclosing(self._ask(name, body)) as items:
            async for kind, content in items:
                if kind != wire.PROGRESS:
                    return kind, content
                run.share = content
        raise RuntimeError("an answer without an end")

    def _keep(self, key: str, answer: bytes) -> None:
        if len(answer) > self._keep_bytes:
            return
        self._kept[key] = answer
        while sum(map(len, self._kept.values())) > self._keep_bytes:
            self._kept.popitem(last=False)


def frame(kind: bytes, payload: bytes) -> bytes:
    """One frame: its letter, its length, its payload."""
    return wire.FRAME.pack(kind, len(payload)) + payload


def door_app(answers: Answers) -> Starlette:
    """``POST /v1/<name>`` asks; ``GET /v1/state`` counts; ``GET /health`` says that it is there."""

    async def ask(request: Request) -> Response:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body(request)
        except (TimeoutError, ClientDisconnect):
            return PlainTextResponse("The question did not arrive.", 408)
        if body is None:
            return PlainTextResponse(f"A question has at most {wire.QUESTION_BYTES} bytes.", 413)
        frames = answers.frames(request.path_params["name"], body, request.is_disconnected)
        return StreamingResponse(frames, media_type="application/octet-stream")

    async def state(_: Request) -> Response:
        return JSONResponse(answers.counts | {"running": answers.running})

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok")

    return Starlette(
        routes=[
            Route("/v1/state", state),
            Route("/v1/{name:str}", ask, methods=["POST"]),
            Route("/health", health),
        ]
    )


async def _body(request: Request) -> bytes | None:
    """What was posted; None as soon as it is too much."""
    received = bytearray()
    async for part in request.stream():
        received += part
        if len(received) > wire.QUESTION_BYTES:
            return None
    return bytes(received)
