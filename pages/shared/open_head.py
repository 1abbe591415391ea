"""A link that opens one head on the Heads page; sentence and model stay as they are."""

from __future__ import annotations

import streamlit as st


def open_head(layer: int, head: int, *, query: int | None = None) -> None:
    """Place the link. ``query`` is the position of the token whose row to open, where the sentence stays the same.

    Only the viewer's own parameters are named: Streamlit carries what is bound to widgets over by itself.
    """
    asked = {"v.layer": str(layer), "v.head": str(head)}
    if query is not None:
        asked["v.query"] = str(query)
    st.page_link("see/heads.py", label=f"Open L{layer} H{head} in Heads", query_params=asked, width="content")
