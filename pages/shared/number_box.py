"""A box that offers only the numbers that fit, and says so when it has to replace one."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.shared.errors import plain


def number_box(label: str, key: str, options: Sequence[int], usual: int, help: str, width: int = 120) -> int:
    """One of ``options``, kept in the link under ``key``.

    ``usual`` is the first choice, or the largest option below it. A value that fits no longer, or a link's
    that never did, is replaced aloud.
    """
    fits = _nearest(usual, options)
    kept = st.session_state.get(key)
    asked = st.query_params.get(key) if kept is None else None
    allowed = ", ".join(map(str, options))
    if kept is not None and kept not in options:
        st.session_state[key] = fits = _nearest(kept, options)
        st.toast(f"{label} is now {fits}: {kept} no longer fits. It may be {allowed}.")
    elif asked is not None and asked not in map(str, options):
        st.toast(plain(f"This link asks for {label} {asked[:20]}. It may be {allowed}; showing {fits}."))
    return int(
        st.selectbox(
            label,
            options,
            index=options.index(fits),
            key=key,
            bind="query-params",
            persist_state="session",
            help=help,
            width=width,
        )
    )


def _nearest(wanted: int, options: Sequence[int]) -> int:
    return max((option for option in options if option <= wanted), default=options[0])
