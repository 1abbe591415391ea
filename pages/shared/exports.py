"""Files to take away: one head as CSV or NPZ, the whole trace as NPZ."""

from __future__ import annotations

import streamlit as st

from attention.exports import head_csv, head_npz, trace_npz
from attention.tracing import AttentionTrace


def head_downloads(traced: AttentionTrace, layer: int, head: int) -> None:
    """Three buttons; a file is made only when its button is pressed."""
    name = f"headscope-L{layer}H{head}"
    with st.container(horizontal=True):
        st.download_button(
            "This head as CSV",
            lambda: head_csv(traced, layer, head),
            f"{name}.csv",
            "text/csv",
            key="csv",
            on_click="ignore",
            help="A table: one row a query word, one column a key word.",
        )
        st.download_button(
            "This head as NPZ",
            lambda: head_npz(traced, layer, head),
            f"{name}.npz",
            "application/octet-stream",
            key="npz-head",
            on_click="ignore",
            help="NumPy arrays: the float32 weights and the tokens.",
        )
        st.download_button(
            "All heads as NPZ",
            lambda: trace_npz(traced),
            "headscope-trace.npz",
            "application/octet-stream",
            key="npz-trace",
            on_click="ignore",
            help="NumPy arrays: every head's float32 weights, masks, tokens and facts about the model.",
        )
