"""The rooms' routes beside Streamlit's own: JSON in, JSON or a stream of server-sent events out.

Nothing a visitor sends is logged. Codes and tokens travel in bodies and headers, never in an address, which servers and
proxies write down. Every route takes JSON by POST only: a page of another site cannot send that without being asked
first, and is never allowed.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import segno
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pages.shared.rooms import Limiter, RefusedError, Rooms, Seat
from pages.shared.site import PAGES, base_path

HEARTBEAT = 2.0  # seconds; a closed tab is noticed at the next one
MOST_BODY_BYTES = 8_192
# A longer link makes a code too fine to scan from a seat.
MOST_QR_BYTES = 600
TOKEN_HEADER = "x-room-token"
_UNSTORED = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

Handler = Callable[[Request, dict[str, Any]], Awaitable[Response]]


class RoomRoutes:
    """The routes of one set of rooms, for ``st.App``."""

    def __init__(self, rooms: Rooms, base: str = "") -> None:
        self.rooms = rooms
        self._drawings = Limiter(30, 2)
        handlers: dict[str, Handler] = {
            "open": self._open,
            "lead": self._lead,
            "show": self._show,
            "close": self._close,
            "follow": self._follow,
            "qr": self._qr,
        }
        self.routes = [
            Route(f"{base}/room/{name}", _answering(handler), methods=["POST"]) for name, handler in handlers.items()
        ]

    async def _open(self, request: Request, _: dict[str, Any]) -> Response:
        code, token = self.rooms.open(_address(request))
        return _json({"code": code, "token": token})

    async def _show(self, request: Request, asked: dict[str, Any]) -> Response:
        whole = asked.get("whole") is not False
        self.rooms.show(asked.get("code"), request.headers.get(TOKEN_HEADER), asked.get("state"), whole)
        return _json({})

    async def _close(self, request: Request, asked: dict[str, Any]) -> Response:
        self.rooms.close(asked.get("code"), request.headers.get(TOKEN_HEADER))
        return _json({})

    async def _lead(self, request: Request, asked: dict[str, Any]) -> Response:
        wake = asyncio.Event()
        seat = self.rooms.lead(asked.get("code"), request.headers.get(TOKEN_HEADER), wake.set)
        return self._stream(request, str(asked["code"]), seat, wake)

    async def _follow(self, request: Request, asked: dict[str, Any]) -> Response:
        wake = asyncio.Event()
        seat = self.rooms.follow(asked.get("code"), _address(request), wake.set)
        return self._stream(request, str(asked["code"]), seat, wake)

    async def _qr(self, request: Request, asked: dict[str, Any]) -> Response:
        if not self._drawings.spend(_address(request)):
            raise RefusedError(429, "Too many codes were asked for. Wait a second.")
        link = asked.get("link")
        if not isinstance(link, str) or urlsplit(link).scheme not in {"http", "https"} or not link.isascii():
            raise RefusedError(400, "A QR code can only be drawn of a page of this app.")
        if len(link) > MOST_QR_BYTES:
            raise RefusedError(413, "This page's link is too long for a QR code. Open a room: its code is short.")
        return Response(await asyncio.to_thread(qr_svg, link), media_type="image/svg+xml", headers=_UNSTORED)

    def _stream(self, request: Request, code: str, seat: Seat, wake: asyncio.Event) -> Response:
        async def events() -> AsyncIterator[str]:
            try:
                while not await request.is_disconnected():
                    wake.clear()
                    for kind, facts in seat.take():
                        yield f"event: {kind}\ndata: {json.dumps(facts)}\n\n"
                        if kind == "ended":
                            return
                    try:
                        await asyncio.wait_for(wake.wait(), HEARTBEAT)
                    except TimeoutError:
                        self.rooms.tick(code)
                        yield ": here\n\n"
            finally:
                self.rooms.leave(code, seat)

        headers = {**_UNSTORED, "x-accel-buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def room_routes() -> RoomRoutes:
    """The routes over fresh rooms that may show every page of the app, below the path the app lies at."""
    return RoomRoutes(Rooms([f"/{page.path}" for page in PAGES]), base_path())


def end_with_the_server(rooms: Rooms) -> None:
    """End all streams when the server is asked to stop, which would otherwise wait for them without end.

    Call it in the running event loop. The handlers already there do their work as before; where signals are not
    Python's to handle, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if callable(before):
            signal.signal(number, _after(lambda: loop.call_soon_threadsafe(rooms.stop), before))


def qr_svg(link: str) -> bytes:
    """A QR code of the link, black on white with its quiet zone of four modules (ISO/IEC 18004)."""
    drawn = io.BytesIO()
    code = segno.make(link, micro=False, error="m", mode="byte")
    code.save(drawn, kind="svg", border=4, dark="#000", light="#fff", xmldecl=False, omitsize=True)
    return drawn.getvalue()


def _after(first: Callable[[], object], then: Callable[[int, FrameType | None], Any]) -> Callable[[int, Any], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        first()
        then(number, frame)

    return handle


def _answering(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request, await _asked(request))
        except RefusedError as refusal:
            return _json({"sentence": refusal.sentence}, refusal.status)

    return answer


async def _asked(request: Request) -> dict[str, Any]:
    """The request's JSON object; RefusedError when it comes from another site, is no object or is long."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin" or kind != "application/json":
        raise RefusedError(403, "Rooms are opened and followed from this app's own pages only.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY_BYTES:
            raise RefusedError(413, "This page's link is too long for a room. Shorten the sentence.")
    try:
        asked = json.loads(body)
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise RefusedError(400, "Rooms are opened and followed from this app's own pages only.")
    return asked


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _json(facts: dict[str, Any], status: int = 200) -> Response:
    return JSONResponse(facts, status, headers=_UNSTORED)
