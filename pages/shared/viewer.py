"""Mounts the head viewer: one canvas component, one binary message, selection kept in the browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from attention.plots.viewer import viewer_css, viewer_js

_component = st.components.v2.component("headscope_viewer", css=viewer_css(), js=viewer_js())


def head_viewer(message: bytes, *, key: str, on_ask: Callable[[], None]) -> Any:
    """Draw a viewer message. Returns the component's state: ``.lock`` {layer, head, query, key}, ``.layer``, ``.ask``.

    ``on_ask`` runs when a button inside asks for something only Python can do.
    """
    return _component(
        key=key,
        data=message,
        default={"lock": None, "layer": None},
        on_lock_change=_nothing,
        on_layer_change=_nothing,
        on_ask_change=on_ask,
    )


def _nothing() -> None:
    """The rerun itself is the answer: the new state is read where the viewer is placed."""
