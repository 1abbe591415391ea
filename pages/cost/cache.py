"""KV cache: what a model's keys and values weigh, as the model is and as if it shared otherwise; what fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from attention.errors import UserError
from pages.cost import cache_compare, cache_config, cache_engine, cache_gpu, cache_lesson, cache_sharing
from pages.cost.cache_answer import first_screen
from pages.cost.cache_inputs import (
    Choice,
    own_inputs,
)
from pages.cost.cache_parts import small, style
from pages.shared.errors import show_error
from pages.shared.site import next_link

TABS = (
    "Compare",
    "One GPU",
    "Choose n_kv",
    "When the cache dominates",
    "Agree with an engine",
    "Paste a config",
    "4x",
)


def page() -> None:
    """The answer first; the tabs below it explain, compare and check."""
    st.html(style())
    st.html("<h1 class='hs-only-spoken'>What a KV cache costs</h1>")
    top = st.container(key="cache-top")
    compare, gpu, sharing, crossing, engine, config, lesson = tabs = st.tabs(
        TABS, key="c_tab", on_change="rerun", bind="query-params"
    )
    # Drawn also while their tabs are closed: a box that is not drawn loses its place in the link.
    with compare:
        others = cache_compare.inputs()
    with sharing:
        held = cache_sharing.inputs()
    with engine:
        given = cache_engine.inputs()
    with config:
        own = own_inputs()
    with top:
        choice = first_screen(own)
    contents: dict[object, Callable[[Any], None]] = {
        compare: lambda choice: cache_compare.show(choice, others),
        gpu: cache_gpu.show,
        sharing: lambda choice: cache_sharing.show(choice, held),
        crossing: cache_compare.show_crossing,
        engine: lambda choice: cache_engine.show(choice, given),
        config: lambda choice: cache_config.show(own, "" if choice else st.session_state["c_model"]),
        lesson: cache_lesson.show,
    }
    for tab in tabs:
        if tab.open:
            with tab:
                _content(contents[tab], choice, needs_choice=tab is not config)
    next_link("cache")


def _content(show: Callable[[Any], None], choice: Choice | None, needs_choice: bool) -> None:
    if needs_choice and choice is None:
        small("This appears once there is a model to count.")
        return
    try:
        show(choice)
    except UserError as error:
        show_error(error)


page()
