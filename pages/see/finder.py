"""Head finder: point at two words and get the heads, look up what every head does, mute heads and see what is lost."""

from __future__ import annotations

import streamlit as st

from attention.errors import UserError
from pages.shared.bar import settings_bar
from pages.shared.errors import show_error
from pages.shared.site import next_link

TABS = ("Find by two words", "All heads", "Mute heads")
NUMBERING = "Heads are numbered from 0; the papers by Clark, Voita and Michel count from 1."


def page() -> None:
    """The bar, then one tab of three; the other two keep their settings in the link and cost nothing else."""
    # The Heads page compares a link with what it last opened on; a link from here is always meant.
    st.session_state.pop("opened_on", None)
    st.html("<h1 class='hs-only-spoken'>Find, look up and mute attention heads</h1>")
    try:
        choice = settings_bar()
    except UserError as error:  # a model that cannot be loaded
        show_error(error)
    else:
        with st.spinner("Loading the model…"):
            from pages.see import finder_tabs

        finder_tabs.tabs(choice, TABS)
    st.caption(NUMBERING)
    next_link("finder")


page()
