"""The ASGI app: start-up preload and routes. Run with `streamlit run app.py` or `uvicorn app:app`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st

from attention import preload

log = logging.getLogger("headscope")
SORRY = "Something went wrong on our side. Your text is kept; change it or reload the page."


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Start the preload beside the server, which answers at once."""
    preload.start()
    yield


def on_script_error(error: Exception) -> bool:
    """Log the fault for us, show one sentence to the visitor: no traceback reaches a screen."""
    log.error("script error", exc_info=error)
    st.error(SORRY)
    return True


app = st.App("pages/entry.py", lifespan=lifespan, on_script_error=on_script_error)
