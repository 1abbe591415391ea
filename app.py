"""The ASGI app: start-up preload and routes. Run with `streamlit run app.py` or `uvicorn app:app`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st
from starlette.middleware import Middleware

from attention import preload
from pages.shared.guard import Guard
from pages.shared.private_log import keep_private
from pages.shared.room_routes import end_with_the_server, room_routes

log = logging.getLogger("headscope")
rooms = room_routes()
SORRY = "Something went wrong on our side. Your text is kept; change it or reload the page."


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Start the preload beside the server, which answers at once."""
    keep_private()
    preload.start()
    end_with_the_server(rooms.rooms)
    yield


def on_script_error(error: Exception) -> bool:
    """Log the fault for us, show one sentence to the visitor: no traceback reaches a screen."""
    log.error("script error", exc_info=error)
    st.error(SORRY)
    return True


app = st.App(
    "pages/entry.py",
    lifespan=lifespan,
    routes=rooms.routes,
    middleware=[Middleware(Guard)],
    on_script_error=on_script_error,
)
