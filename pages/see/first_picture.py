"""The first picture of a cold server: the default sentence's heads as shipped bytes, while the models load.

``python -m pages.see.first_picture`` writes the bytes again; a test holds them against a live trace.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from attention.model_facts import list_models, readiness
from attention.preload import start
from pages.shared.bar import DEFAULT_TEXT, Choice
from pages.shared.viewer import head_viewer

WAITING = "This picture is real, traced earlier. The model is loading; then every control works."
FILE = Path(__file__).resolve().parents[2] / "assets" / "first_picture.bin"


def is_first(choice: Choice) -> bool:
    """Whether the page is asked for exactly what the shipped picture shows."""
    plain_link = not (st.session_state.get("twin") or st.query_params.get("compare") or st.query_params.get("detail"))
    return plain_link and choice == Choice(DEFAULT_TEXT, list_models()[0], None)


def first_picture() -> None:
    """Show the shipped picture; the live page replaces it as soon as the model has loaded."""
    start()
    with st.container():  # the live page's viewer lies in one too: at the same place it takes over, not beside
        head_viewer(FILE.read_bytes(), key="viewer", on_ask=_later)
        _wait()


def live_picture() -> bytes:
    """The same picture traced now."""
    from attention.engine import default_engine
    from attention.plots.scenes import heads_scene
    from attention.plots.viewer import viewer_bytes
    from attention.tracing import TraceRequest

    engine = default_engine()
    traced = engine.trace(TraceRequest(list_models()[0], DEFAULT_TEXT))
    checks = (*traced.checks, engine.verify(traced.request))
    return viewer_bytes(heads_scene(traced, checks=checks, hints=True))


def _wait() -> None:
    """Sleep until the model is there, then run the page again.

    No fragment on a timer: Streamlit collects garbage after every run, which many visitors' timers together would
    make the loading thread wait for. The caption is written again so that a closed tab or a new wish ends the wait.
    """
    ready = readiness(list_models()[0])
    slot = st.empty()
    slot.caption(WAITING)
    while not ready.wait(1.0):
        slot.caption(WAITING)
    st.rerun()


def _later() -> None:
    """A button was pressed before the model is there: the caption below says what is happening."""


if __name__ == "__main__":
    FILE.write_bytes(live_picture())
