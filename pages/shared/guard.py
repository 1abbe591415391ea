"""What stands between the network and the app: security headers, and limits on what one visitor may send.

An ASGI middleware, so that it holds with and without a proxy, under ``streamlit run`` and under uvicorn.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st
from streamlit.config import is_manually_set

from attention.settings import settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

# Nothing in this app is uploaded; the rooms' requests are the longest and end at 8 KiB by themselves.
MOST_BODY_BYTES = 64 * 2**10
# One message of a page: a pasted config may have a million characters, of up to four bytes each.
MOST_MESSAGE_BYTES = 8 * 2**20
# A slider that is dragged sends some ten messages a second. Who sends more is not refused but slowed down.
BURST, PER_SECOND = 60, 20.0
FULL = "This server has as many visitors as it takes. Try again in a few minutes."
FOREIGN = "Only this app's own pages may connect."
TOO_LONG = "This request is longer than any this app sends."

_INLINE = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


@dataclass
class Bucket:
    """How often one connection may send: ``burst`` at once, ``per_second`` in the long run."""

    burst: float = BURST
    per_second: float = PER_SECOND
    left: float = BURST
    at: float = 0.0

    def pause(self, now: float) -> float:
        """Take one; the seconds to wait before it is granted. ``now`` in seconds, never going back."""
        self.left = min(self.burst, self.left + (now - self.at) * self.per_second)
        self.at = now
        self.left -= 1
        return max(0.0, -self.left / self.per_second)


class Guard:
    """The middleware. ``most_visitors`` connections may be open at once; None takes the setting."""

    def __init__(self, app: App, most_visitors: int | None = None) -> None:
        self._app = app
        self._most = settings().max_visitors if most_visitors is None else most_visitors
        self._headers = [(name.encode(), value.encode()) for name, value in security_headers().items()]
        self.visitors = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, guarded."""
        if scope["type"] == "http":
            await self._http(scope, receive, self._with_headers(send))
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if self.visitors >= self._most and b"text/html" in headers.get(b"accept", b""):
            await _refuse(send, 503, FULL)
        elif not headers.get(b"content-length", b"0").isdigit() or _length(headers) > MOST_BODY_BYTES:
            await _refuse(send, 413, TOO_LONG)
        else:
            await self._app(_without_foreign_origin(scope), _counted(receive), send)

    async def _websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        own = is_own(dict(scope["headers"]))
        if self.visitors >= self._most or not own:
            await receive()
            await send({"type": "websocket.close", "code": 1013 if own else 1008, "reason": FULL if own else FOREIGN})
            return
        self.visitors += 1
        try:
            await self._app(scope, _paced(receive, send), send)
        finally:
            self.visitors -= 1

    def _with_headers(self, send: Send) -> Send:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message.get("headers", [])}
                added = [header for header in self._headers if header[0] not in given]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        return guarded


def is_own(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request comes from a page of this server, from one its owner named, or from no page at all.

    Streamlit would decide it too. But for a page it does not know it first asks a service outside for this
    machine's address, while everybody waits: no stranger may make the server do that.
    """
    origin = headers.get(b"origin", b"").decode("latin-1")
    if not origin or not st.get_option("server.enableCORS"):
        return True
    host = urlsplit(origin).netloc if "://" in origin else ""
    named = {str(one).strip() for one in st.get_option("server.corsAllowedOrigins") or ()}
    if is_manually_set("browser.serverAddress"):
        named.add(str(st.get_option("browser.serverAddress")))
    return origin in named or host in {headers.get(b"host", b"").decode("latin-1"), *named} - {""}


def security_headers() -> dict[str, str]:
    """The headers of every response, by their names in small letters."""
    return {
        "content-security-policy": content_security_policy(),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "x-frame-options": "SAMEORIGIN",  # for browsers that do not know frame-ancestors
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=(), display-capture=()",
    }


def content_security_policy() -> str:
    """What a page may load and run (W3C, Content Security Policy Level 3). Everything else is refused.

    ``blob:`` in script-src: Streamlit loads the scripts of components from there. The hash is of the one line
    of script inside Streamlit's own start page. ``'unsafe-inline'`` is for styles only: Streamlit and Plotly write
    style elements and attributes; styles run nothing.
    """
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", "blob:", *inline_hashes()]),
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "connect-src": "'self'",
        "worker-src": "'self' blob:",
        "manifest-src": "'self'",
        "frame-src": "'none'",
        "object-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'self'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def inline_hashes() -> list[str]:
    """CSP hashes of the scripts written into the start page of the Streamlit that is installed."""
    page = Path(st.__file__).parent / "static" / "index.html"
    found = _INLINE.findall(page.read_bytes()) if page.is_file() else []
    return [f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in found]


def _without_foreign_origin(scope: Message) -> Message:
    if is_own(dict(scope["headers"])):
        return scope
    return {**scope, "headers": [(name, value) for name, value in scope["headers"] if name != b"origin"]}


def _length(headers: dict[bytes, bytes]) -> int:
    return int(headers.get(b"content-length", b"0")[:12])


def _counted(receive: Receive) -> Receive:
    """A body that was sent without its length ends where it becomes too long, as if the sender had left."""
    so_far = 0

    async def counted() -> Message:
        nonlocal so_far
        message = await receive()
        so_far += len(message.get("body", b""))
        return message if so_far <= MOST_BODY_BYTES else {"type": "http.disconnect"}

    return counted


def _paced(receive: Receive, send: Send) -> Receive:
    """A connection's messages, no faster than a page sends them; one that is far too long ends the connection."""
    bucket = Bucket(at=time.monotonic())

    async def paced() -> Message:
        message = await receive()
        if message["type"] != "websocket.receive":
            return message
        if len(message.get("bytes") or message.get("text") or b"") > MOST_MESSAGE_BYTES:
            await send({"type": "websocket.close", "code": 1009, "reason": TOO_LONG})
            return {"type": "websocket.disconnect", "code": 1009}
        pause = bucket.pause(time.monotonic())
        if pause:
            await asyncio.sleep(pause)
        return message

    return paced


async def _refuse(send: Send, status: int, sentence: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    if status == 503:
        headers.append((b"retry-after", b"60"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode()})
