"""The three tabs of Head finder."""

from __future__ import annotations

import streamlit as st

from attention.engine import default_engine
from attention.errors import UserError
from pages.see.finder_atlas import look_up
from pages.see.finder_links import find
from pages.see.finder_mute import mute
from pages.see.finder_parts import style
from pages.see.finder_questions import questions
from pages.shared.bar import Choice
from pages.shared.errors import show_error


def tabs(choice: Choice, titles: tuple[str, str, str]) -> None:
    """Draw all three; a closed one only its settings."""
    st.html(style())
    try:
        default_engine().model(choice.model)
    except UserError as error:
        show_error(error)
        return
    finding, looking, muting = st.tabs(titles, key="f_tab", on_change="rerun", bind="query-params")
    with finding:
        if finding.open:
            questions()
        find(choice, bool(finding.open))
    with looking:
        look_up(choice.model, bool(looking.open))
    with muting:
        mute(choice, bool(muting.open))
