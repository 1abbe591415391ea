"""What a link may put into a page's boxes: values that no box can read are taken out before any box is drawn.

A box that holds a whole number fails on ``inf``, a box of choices on an empty value. A link may say either.
"""

from __future__ import annotations

import math

import streamlit as st
from streamlit.runtime.state import get_session_state

from pages.shared.errors import plain

# Texts, and choices of which none may be chosen: these may be empty, long, or spell a number.
FREE = frozenset({"text", "compare", "w_prompt", "l_say", "c_config", "c_log", "c_with", "f_mute", "f_labels"})
MOST_LETTERS = 200
LARGEST = 1e15
_MENDED = "link_mended"


def mend_link() -> None:
    """Take what cannot be read out of the link, aloud; once for each visitor, before the first box is drawn."""
    if st.session_state.get(_MENDED):
        return
    st.session_state[_MENDED] = True
    wrong = unreadable({name: st.query_params.get_all(name) for name in st.query_params})
    if wrong:
        with get_session_state().query_params() as link:
            for name in wrong:
                del link[name]
            link.set_initial_query_params_from_current()  # the boxes read what a visit began with, not what is left
    for name, value in wrong.items():
        said = f"“{value[:20]}”" if value else "an empty value"
        st.toast(plain(f"This link gives {name[:20]} {said}, which cannot be read. The usual value is shown."))


def unreadable(asked: dict[str, list[str]]) -> dict[str, str]:
    """The names of a link that hold a value no box can read, with the first such value."""
    found: dict[str, str] = {}
    for name, values in asked.items():
        wrong = [value for value in values if not _readable(value)]
        if wrong and name not in FREE and not name.startswith("embed"):
            found[name] = wrong[0]
    return found


def _readable(value: str) -> bool:
    if not value.strip() or len(value) > MOST_LETTERS:
        return False
    try:
        number = float(value)
    except ValueError:
        return True
    return math.isfinite(number) and abs(number) <= LARGEST
