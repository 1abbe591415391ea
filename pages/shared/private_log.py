"""What the server's log may say: which code failed, never what a visitor typed.

Exceptions carry values in their messages, and access logs carry the text in a page's address. Both are cut
here, for every logger of the process, where a record is made.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

_SERVER = "uvicorn"


def keep_private() -> None:
    """From now on no record of this process holds an exception's message or an address's query. Once is enough."""
    made_before = logging.getLogRecordFactory()
    if getattr(made_before, "private", False):
        return

    def private(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = made_before(*args, **kwargs)
        if isinstance(record.msg, BaseException):
            record.msg = type(record.msg).__name__
        if isinstance(record.args, tuple):
            of_server = record.name.partition(".")[0] == _SERVER
            record.args = tuple(_without_words(value, of_server) for value in record.args)
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            # A formatter writes the text that is there, and makes its own, with the message, only where there is none.
            record.exc_text = where(record.exc_info[1])
        return record

    private.private = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(private)


def where(error: BaseException) -> str:
    """The way into an exception and those it came from: types, files, lines and code, without any message."""
    told: list[str] = []
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        frames = "".join(traceback.format_tb(now.__traceback__))
        inner = "".join(f"\n{where(one)}" for one in getattr(now, "exceptions", ()))
        told.append(f"{frames}{type(now).__module__}.{type(now).__qualname__} (message left out){inner}")
        now = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
    return "\ncaused by:\n".join(told)


def _without_words(value: object, of_server: bool) -> object:
    if isinstance(value, BaseException):
        return type(value).__name__
    return value.partition("?")[0] if of_server and isinstance(value, str) and value.startswith("/") else value
