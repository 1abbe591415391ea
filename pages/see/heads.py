"""Heads: one sentence through a real model, every head's weights, one word changed and an arrow moves.

Imports nothing heavy: on a cold server the first picture shows while torch and the models load.
"""

from __future__ import annotations

import streamlit as st

from attention.model_facts import list_models, readiness
from pages.see.first_picture import first_picture, is_first
from pages.shared.bar import settings_bar
from pages.shared.site import next_link


def page() -> None:
    """The page from top to bottom."""
    st.html("<h1 class='hs-only-spoken'>Attention heads of a real model</h1>")
    _expert_settings()
    choice = settings_bar()
    if is_first(choice) and not readiness(list_models()[0]).is_set():
        first_picture()
    else:
        from pages.see.explore import explore

        explore(choice)
    next_link("")


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
