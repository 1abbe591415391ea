"""Heads: one sentence through a real model, every head's weights, one word changed and an arrow moves.

Imports nothing heavy: on a cold server the first picture shows while torch and the models load.
"""

from __future__ import annotations

import streamlit as st

from attention.errors import UserError
from attention.model_facts import list_models, readiness
from pages.see.first_picture import first_picture, is_first
from pages.shared.bar import Choice, settings_bar
from pages.shared.errors import show_error
from pages.shared.site import next_link


def page() -> None:
    """The page from top to bottom."""
    st.html("<h1 class='hs-only-spoken'>Attention heads of a real model</h1>")
    _expert_settings()
    try:
        _picture(settings_bar())
    except UserError as error:  # the bar raises it for a model that cannot be loaded
        show_error(error)
    next_link("")


def _picture(choice: Choice) -> None:
    if is_first(choice) and not readiness(list_models()[0]).is_set():
        first_picture()
        return
    from pages.see.explore import explore

    explore(choice)


def _expert_settings() -> None:
    with st.sidebar:
        st.toggle(
            "Untrained twin",
            key="twin",
            bind="query-params",
            persist_state="session",
            help="Show the same architecture with random weights beside it: what attention is before any learning.",
        )
        st.toggle(
            "Raw tokens",
            key="raw",
            bind="query-params",
            persist_state="session",
            help="Show the tokenizer's own pieces, with marks such as ## and Ġ, in the exact map.",
        )


page()
