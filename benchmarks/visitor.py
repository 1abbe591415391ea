"""A visitor without a browser: fetches the page's files and speaks Streamlit's websocket as Chromium does.

One asyncio loop drives a hundred of them. It keeps what a browser keeps, and nothing more: the widgets on the page
with their values, the parameters of the link, the messages it was told to cache. A test compares what it sends with
what Chromium sends.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import streamlit
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

STATIC = Path(streamlit.__file__).parent / "static"
# What Chromium fetches for the Heads page beyond what the start page names: parts it loads when it meets them.
LATER = (
    *("js/PlotlyChart", "js/serialization", "js/recordbatch", "js/useSyncComboBoxEnterTargetFocus", "js/purify"),
    *("js/useMenuTrigger", "js/BidiComponent", "js/Checkbox", "js/Selectbox", "js/TextInput", "js/PageLink", "js/Html"),
    *("media/SourceSansVF-Italic", "media/MaterialSymbols-Rounded"),
)
NAMED = re.compile(r'(?:src|href)="\./(static/[^"]+)"')
GET = "GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: gzip\r\nConnection: close\r\nCookie: {cookies}\r\n\r\n"
# How a browser first tells each widget's value: the field of WidgetState, from the element.
Value = tuple[str, Any]


class AppError(Exception):
    """The page showed an error, or the script failed."""


@dataclass
class Widget:
    """One control of the page: its value, where it lies (the hash of its script), and its name in the link."""

    kind: str
    value: Value | None
    default: Value | None
    script: str
    fragment: str
    parameter: str
    sent: bool  # a form's controls, and those switched off, are not told before somebody presses a button


@dataclass
class Visitor:
    """One browser tab. ``url`` has no slash at the end; ``path`` is the page it opens.

    ``bytes_in`` counts what came over the websocket, ``file_bytes`` what the page's files took on the wire.
    """

    url: str
    path: str = ""
    query: str = ""
    patience: float = 60.0
    cookies: dict[str, str] = field(default_factory=dict)
    widgets: dict[str, Widget] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    bytes_in: int = 0
    file_bytes: int = 0
    reconnects: int = 0

    def __post_init__(self) -> None:
        self._stream: ClientConnection | None = None
        self._cached: dict[str, ForwardMsg] = {}
        self._script = self._session = ""

    async def fetch_files(self) -> int:
        """The start page and its files, six at a time as browsers do; how many. Sets the cookies."""
        page = await self._get("/")
        names = [*NAMED.findall(page.decode()), *later_files()]
        gate = asyncio.Semaphore(6)

        async def one(name: str) -> None:
            async with gate:
                await self._get(f"/{name}")

        await asyncio.gather(*(one(name) for name in dict.fromkeys(names)))
        await self._get("/_stcore/host-config")
        return len(names) + 1

    async def connect(self) -> None:
        """The page's websocket, after the question whether the server is well, which also hands out cookies."""
        await self._get("/_stcore/health")
        parts = urlsplit(self.url)
        words = ["streamlit", self.cookies.get("_streamlit_xsrf", "PLACEHOLDER_AUTH_TOKEN"), self._session]
        self._stream = await connect(
            f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}/_stcore/stream",
            subprotocols=[Subprotocol(word) for word in words if word],
            additional_headers={"Cookie": self._cookie_header(), "Origin": self.url},
            compression=None,
            max_size=None,
            proxy=None,
            open_timeout=self.patience,
        )
        response = self._stream.response
        if response is not None:
            self._keep_cookies(response.headers.get_all("Set-Cookie"))

    async def open(self) -> None:
        """Connect and run the page for the first time."""
        await self.connect()
        await self.rerun(first=True)

    async def close(self) -> None:
        """Close the tab."""
        if self._stream is not None:
            await self._stream.close()
            self._stream = None

    async def turn(self, key: str, value: Any) -> None:
        """Give the widget whose key is ``key`` a value, as a person would, and wait for the rerun."""
        await self.rerun(changed={key: value})

    async def go(self, path: str) -> None:
        """Follow the navigation to another page. The controls of the page left are forgotten."""
        self.widgets = {name: widget for name, widget in self.widgets.items() if widget.script == self._entry()}
        self.own.clear()
        self.path = path
        await self.rerun(page=self.pages[path])

    async def rerun(self, changed: dict[str, Any] | None = None, page: str = "", first: bool = False) -> None:
        """Send one BackMsg and read until the script has ended. Reconnects, as the page does, when the server is gone.

        Raises AppError when the page shows an error, TimeoutError after ``patience`` seconds.
        """
        fragment = self._change(changed or {})
        async with asyncio.timeout(self.patience):
            while True:
                try:
                    await self._send(self.message(page, fragment, first))
                    await self._read()
                    return
                except (WebSocketException, OSError):
                    await self._reconnect()
                    first, fragment = not self.pages, ""

    def message(self, page: str = "", fragment: str = "", first: bool = False) -> BackMsg:
        """What the browser tells the server: parameters of the link, values of the widgets, page, fragment."""
        message = BackMsg()
        run = message.rerun_script
        run.query_string = self.query if first else self.link()
        run.context_info.timezone, run.context_info.timezone_offset, run.context_info.locale = "UTC", 0, "en-US"
        run.context_info.url, run.context_info.is_embedded = f"{self.url}/{self.path}", False
        run.context_info.color_scheme = "light"
        run.widget_states.SetInParent()
        if first:
            run.page_name = self.path
            return message
        run.page_script_hash, run.fragment_id = page or self._script, fragment
        run.cached_message_hashes.extend(self._cached)
        for name, widget in self.widgets.items():
            if widget.sent and widget.value is not None:
                run.widget_states.widgets.append(_state(name, widget.value))
        return message

    def link(self) -> str:
        """The query string: every bound widget that is not at its default, and what the browser's own parts write."""
        bound = {
            widget.parameter: widget.value[1]
            for widget in self.widgets.values()
            if widget.parameter and widget.value is not None and widget.value != widget.default
        }
        pairs = [
            (name, _written(item))
            for name, value in bound.items()
            for item in (value if isinstance(value, list) else [value])
        ]
        return urlencode([*pairs, *self.own.items()], quote_via=quote_plus)

    def widget(self, key: str) -> Widget:
        """The widget with this key. Raises AppError when the page has none."""
        for name, widget in self.widgets.items():
            if name.endswith(f"-{key}"):
                return widget
        raise AppError(f"Page {self.path!r} has no control {key!r}.")

    def _change(self, changed: dict[str, Any]) -> str:
        fragment = ""
        for key, value in changed.items():
            widget = self.widget(key)
            widget.value = (_field(widget), value)
            widget.sent = True
            fragment = widget.fragment
        return fragment

    def _entry(self) -> str:
        return next((widget.script for name, widget in self.widgets.items() if name.endswith("-present")), "")

    async def _send(self, message: BackMsg) -> None:
        if self._stream is None:
            await self.connect()
        assert self._stream is not None
        await self._stream.send(message.SerializeToString())

    async def _reconnect(self) -> None:
        """As the page does: try again, a little later each time, and tell the server which session it was."""
        self.reconnects += 1
        pause = 0.1
        while True:
            try:
                await self.close()
                await self.connect()
            except (WebSocketException, OSError, EOFError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 2.0)
            else:
                return

    async def _read(self) -> None:
        seen: set[str] = set()
        whole = True
        assert self._stream is not None
        while True:
            payload = await self._stream.recv(decode=False)
            self.bytes_in += len(payload)
            message = ForwardMsg.FromString(payload)
            kind = message.WhichOneof("type")
            if kind == "ref_hash":
                known = self._cached[message.ref_hash]
                known.metadata.CopyFrom(message.metadata)
                message, kind = known, known.WhichOneof("type")
            elif message.metadata.cacheable and message.hash:
                self._cached[message.hash] = message
            if kind == "delta":
                self._look_at(message, seen)
            elif kind == "new_session":
                self._session = message.new_session.initialize.session_id
                whole = not message.metadata.run.fragment_ids
                self._script = message.new_session.page_script_hash or self._script
                self.drawn = []
            elif kind == "navigation":
                self._script = message.navigation.page_script_hash or self._script
                self.pages = {page.url_pathname: page.page_script_hash for page in message.navigation.app_pages}
            elif kind == "script_finished":
                if whole:
                    self.widgets = {name: widget for name, widget in self.widgets.items() if name in seen}
                if message.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                    return

    def _look_at(self, message: ForwardMsg, seen: set[str]) -> None:
        if message.delta.WhichOneof("type") != "new_element":
            return
        element = message.delta.new_element
        kind = element.WhichOneof("type")
        self.drawn.append(str(kind))
        if kind == "exception":
            raise AppError(element.exception.message)
        if kind == "alert" and element.alert.body.startswith("Something went wrong"):
            raise AppError(element.alert.body)
        if kind not in DEFAULTS:
            return
        proto = getattr(element, kind)
        seen.add(proto.id)
        default = DEFAULTS[kind](proto)
        value = _given(kind, proto) if getattr(proto, "set_value", False) else default
        old = self.widgets.get(proto.id)
        if old is not None and not getattr(proto, "set_value", False):
            value = old.value
        sent = kind != "bidi_component" and not getattr(proto, "form_id", "") and not getattr(proto, "disabled", False)
        self.widgets[proto.id] = Widget(
            kind,
            value,
            default,
            message.metadata.active_script_hash,
            message.delta.fragment_id,
            getattr(proto, "query_param_key", ""),
            sent or (old is not None and old.sent),
        )

    async def _get(self, path: str) -> bytes:
        """One GET on a connection of its own; the body as it came. Raises OSError when the answer is no 200."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(GET.format(path=path, host=parts.netloc, cookies=self._cookie_header()).encode())
            answer = await reader.read()
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        if " 200 " not in f"{lines[0]} ":
            raise OSError(f"{path}: {lines[0] or 'the connection was closed'}")
        self._keep_cookies(line.partition(": ")[2] for line in lines if line.lower().startswith("set-cookie:"))
        self.file_bytes += len(answer)
        return body

    def _cookie_header(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def _keep_cookies(self, lines: Iterable[str]) -> None:
        for line in lines:
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value


async def timed(action: Callable[[], Any]) -> float:
    """Seconds that awaiting ``action()`` took."""
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


def later_files() -> list[str]:
    """The files of LATER as the installed Streamlit calls them, below the site's root."""
    return [f"static/{path.relative_to(STATIC / 'static').as_posix()}" for path in _later_paths()]


def _later_paths() -> list[Path]:
    found = []
    for start in LATER:
        folder, _, name = start.partition("/")
        found += sorted((STATIC / "static" / folder).glob(f"{name}.*"))
    return found


def _option(proto: Any, at: int) -> str:
    option = proto.options[at]
    return str(getattr(option, "content", option))


def _one_of(proto: Any) -> Value | None:
    return ("string_value", _option(proto, proto.default)) if proto.HasField("default") else None


def _some_of(proto: Any) -> Value:
    return ("string_array_value", [_option(proto, at) for at in proto.default])


def _text(proto: Any) -> Value | None:
    return ("string_value", proto.default) if proto.HasField("default") else None


def _number_field(proto: Any) -> str:
    return "int_value" if proto.data_type == proto.INT else "double_value"


def _number(proto: Any) -> Value | None:
    return (_number_field(proto), proto.default) if proto.HasField("default") else None


def _slider(proto: Any) -> Value:
    if proto.options:
        return ("string_array_value", [proto.options[int(at)] for at in proto.default])
    return ("double_array_value", list(proto.default))


# Element type -> the value it has when nobody has touched it.
DEFAULTS: dict[str, Callable[[Any], Value | None]] = {
    "checkbox": lambda proto: ("bool_value", proto.default),
    "text_input": _text,
    "text_area": _text,
    "selectbox": _one_of,
    "radio": _one_of,
    "multiselect": _some_of,
    "button_group": _some_of,
    "slider": _slider,
    "number_input": _number,
    "bidi_component": lambda _: None,
}


def _given(kind: str, proto: Any) -> Value | None:
    """The value the server itself set."""
    if kind in ("multiselect", "button_group"):
        return ("string_array_value", list(proto.raw_values))
    if kind in ("selectbox", "radio"):
        return ("string_value", proto.raw_value) if proto.HasField("raw_value") else None
    if kind == "slider":
        return (
            ("string_array_value", list(proto.raw_value))
            if proto.options
            else ("double_array_value", list(proto.value))
        )
    if kind == "number_input":
        return (_number_field(proto), proto.value)
    return ("bool_value" if kind == "checkbox" else "string_value", proto.value)


def _field(widget: Widget) -> str:
    if widget.kind == "bidi_component":
        return "json_value"
    known = widget.value or widget.default
    return known[0] if known else "string_value"


def _state(name: str, value: Value) -> WidgetState:
    state = WidgetState(id=name)
    where, what = value
    if isinstance(what, list):
        array = getattr(state, where)
        array.SetInParent()
        array.data.extend(what)
    else:
        setattr(state, where, int(what) if where == "int_value" else what)
    return state


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
