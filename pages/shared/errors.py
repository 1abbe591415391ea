"""How a mistake is shown: one sentence, the typed text kept, no traceback."""

from __future__ import annotations

import logging
import re

import streamlit as st

from attention.errors import UserError

log = logging.getLogger("headscope")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~:$&])")
# Bare addresses become links whatever is escaped in them; an invisible joiner keeps them words.
_ADDRESS = re.compile(r"(?<=www)(?=\.)|(?=://)|(?=@)", re.IGNORECASE)
_JOINER = "\u2060"


def plain(text: str) -> str:
    """Text as Streamlit's markdown shows it literally: emphasis, links, emoji codes and HTML stay plain."""
    return _MARKDOWN.sub(r"\\\1", _ADDRESS.sub(_JOINER, text)).replace("\n", " ")


def show_error(error: UserError) -> None:
    """What is wrong, what is allowed, what to do next."""
    st.error(plain(str(error)), icon=":material/info:")
