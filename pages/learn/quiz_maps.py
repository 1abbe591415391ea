"""Mounts the small maps to choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from attention.plots.quiz_maps import quiz_maps_css, quiz_maps_js

_component = st.components.v2.component("headscope_quiz_maps", css=quiz_maps_css(), js=quiz_maps_js())


def head_maps(data: dict[str, Any], *, key: str, on_pick: Callable[[int], None]) -> None:
    """Draw the maps. ``on_pick`` gets the place of the one pressed, before the page runs again."""

    def picked() -> None:
        pick: Any = st.session_state[key].get("pick")
        if pick:
            on_pick(int(pick["place"]))

    _component(key=key, data=data, on_pick_change=picked)
