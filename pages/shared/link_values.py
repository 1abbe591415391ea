"""What travels in a link: of a box for words what is short enough, into a box nothing that it cannot read.

A box that holds a whole number fails on ``inf``, a box of choices on an empty value. A link may say either, so both
are taken out before any box is drawn.
"""

from __future__ import annotations

import math
from typing import Literal
from urllib.parse import quote

import streamlit as st
from streamlit.runtime.state import get_session_state

from pages.shared.errors import plain

# Texts, and choices of which none may be chosen: these may be empty, long, or spell a number.
FREE = frozenset({"text", "compare", "w_prompt", "l_say", "c_config", "c_log", "c_with", "f_mute", "f_labels"})
MOST_LETTERS = 200
# Browsers and proxies begin to refuse longer links; a text box itself has no limit.
MOST_LINK_BYTES = 4_000
LARGEST = 1e15
_MENDED = "link_mended"


def fits_link(text: str) -> bool:
    """Whether the text may travel in a link."""
    return len(quote(text)) <= MOST_LINK_BYTES


def link_binding(key: str, usual: str = "") -> Literal["query-params"] | None:
    """The ``bind=`` of a box for words, asked just before it is drawn: the address holds the text while it fits."""
    typed = str(st.session_state.get(key, usual) or "")
    fits, left_out = fits_link(typed), f"{key}_left_out"
    if fits and st.session_state.get(left_out):
        st.session_state[key] = typed  # said anew: only then does the address take it up again
    st.session_state[left_out] = not fits
    return "query-params" if fits else None


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
