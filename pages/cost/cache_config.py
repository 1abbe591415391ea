"""The tab “Paste a config”: any config.json or plain sizes, counted as you type, and used above on request."""

from __future__ import annotations

import streamlit as st

from attention.errors import UserError
from attention.kv_working import readable
from pages.cost.cache_inputs import MY_CONFIG, MY_SIZES, OwnModel, choose_model, subject_of
from pages.cost.cache_parts import show_working, small, working_popover
from pages.shared.errors import plain, show_error

TOKENS = 8192


def show(own: OwnModel, told: str) -> None:
    """What the text and the sizes come to, each with its working, or one sentence saying why not.

    What is wrong with the model called ``told`` is said at the top of the page already.
    """
    left, right = st.columns(2, gap="large")
    with left:
        if own.text.strip():
            _counted(MY_CONFIG, own, told)
        else:
            small("Paste a config.json above and press Ctrl+Enter: its cache is counted here.")
    with right:
        _counted(MY_SIZES, own, told)


def _counted(name: str, own: OwnModel, told: str) -> None:
    try:
        subject = subject_of(name, own)
        working = subject.cache.working(TOKENS)
    except UserError as error:
        if name != told:
            show_error(error)
        return
    st.markdown(
        f"**{plain(subject.name)}: {readable(subject.cache.bytes_per_token())} for each token**, "
        f"{readable(working.total)} for {TOKENS:,} tokens of one user at 16 bit."
    )
    with working_popover():
        show_working(working)
    st.button("Use it everywhere on this page", key=f"use-{name}", on_click=choose_model, args=(name,))
