"""Mounts the head grid: every head of a model as one button, layers down, heads across."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from attention.plots.head_grid import HeadGrid, grid_css, grid_js

_component = st.components.v2.component("headscope_grid", css=grid_css(), js=grid_js())


def head_grid(grid: HeadGrid, *, key: str, on_pick: Callable[[int, int], None]) -> None:
    """Draw a grid. ``on_pick`` gets the layer and head that were pressed, before the page runs again."""

    def picked() -> None:
        pick: Any = st.session_state[key].get("pick")
        if pick:
            on_pick(int(pick["layer"]), int(pick["head"]))

    _component(key=key, data=grid.data(), on_pick_change=picked)
