"""Peer: the ladder one would write first. Run by ``streamlit run``.

A slider over the ranks of a latent; each move measures that rung on the same sentences and draws the quality and one
head's map with Plotly. The arithmetic is our own engine's, so that only "computed now" against "held ready" differs.
"""

from __future__ import annotations

import plotly.graph_objects as go
import streamlit as st

from attention import LatentKV, load_model, trace
from attention.ladder import ladder_sweep

MODEL = "all-MiniLM-L6-v2"
TEXT = "Alice fed the cats because they were hungry."
RANKS = (768, 640, 512, 384, 256, 192, 128, 64)

st.set_page_config(page_title="Ladder", layout="wide")
place = st.slider("stop", 0, len(RANKS) - 1, 3)
rung = LatentKV(RANKS[place])
loaded = load_model(MODEL)
(point,) = ladder_sweep(loaded, (rung,))
seen = trace(loaded, TEXT, what_if=rung)
labels = [token.label for token in seen.tokens]
left, right = st.columns(2)
quality = go.Figure(go.Scatter(x=[point.numbers], y=[point.quality[0].value], mode="markers"))
quality.update_layout(title=f"latent {RANKS[place]}")
left.plotly_chart(quality, key="quality")
head = go.Figure(go.Heatmap(z=seen.weights[1, 3], zmin=0, zmax=1))
head.update_xaxes(tickvals=list(range(len(labels))), ticktext=labels)
head.update_yaxes(tickvals=list(range(len(labels))), ticktext=labels, autorange="reversed")
right.plotly_chart(head, key="head")
