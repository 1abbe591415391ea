"""The ASGI app: start-up preload and routes. Run with `streamlit run app.py` or `uvicorn app:app`."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st

log = logging.getLogger("headscope")
SORRY = "Something went wrong on our side. Your text is kept; change it or reload the page."


def preload() -> None:
    """Load the bundled models before anyone asks, so that no visitor waits for the first import."""
    from attention.engine import default_engine
    from attention.errors import UserError

    for model_id in default_engine().models():
        try:
            default_engine().model(model_id)
        except UserError as error:
            log.warning("preload: %s", error)


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Start the preload beside the server, which answers at once."""
    threading.Thread(target=preload, name="preload", daemon=True).start()
    yield


def on_script_error(error: Exception) -> bool:
    """Log the fault for us, show one sentence to the visitor: no traceback reaches a screen."""
    log.error("script error", exc_info=error)
    st.error(SORRY)
    return True


app = st.App("pages/entry.py", lifespan=lifespan, on_script_error=on_script_error)
