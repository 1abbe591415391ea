"""Peer: the shapes page one would write first. Run by ``streamlit run``.

The same attention on the same sizes, and one Plotly figure of twelve heatmaps with every label: Q, K and V after
each of the first three steps, the weights, the heads' output and the result.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import streamlit as st
from plotly.subplots import make_subplots

D_MODEL, N_HEADS = 64, 8
D_HEAD = D_MODEL // N_HEADS

st.set_page_config(page_title="Shapes", layout="wide")
seq_len = st.slider("seq_len", 1, 16, 4)
rng = np.random.default_rng(0)
x = rng.standard_normal((seq_len, D_MODEL))
W_q, W_k, W_v, W_o = (rng.standard_normal((D_MODEL, D_MODEL)) for _ in range(4))

tensors: dict[str, np.ndarray] = {}
heads = []
for name, W in (("Q", W_q), ("K", W_k), ("V", W_v)):
    flat = x @ W
    split = flat.reshape(seq_len, N_HEADS, D_HEAD)
    heads.append(split.transpose(1, 0, 2))
    tensors |= {
        f"1 {name} {flat.shape}": flat,
        f"2 {name} {split.shape}": split,
        f"3 {name} {heads[-1].shape}": heads[-1],
    }
Q, K, V = heads
scores = Q @ K.transpose(0, 2, 1) / D_HEAD**0.5
powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
weights = powers / powers.sum(axis=-1, keepdims=True)
heads_out = weights @ V
output = heads_out.transpose(1, 0, 2).reshape(seq_len, D_MODEL) @ W_o
tensors |= {f"4 weights {weights.shape}": weights, f"5 heads_out {heads_out.shape}": heads_out}
tensors[f"7 output {output.shape}"] = output

figure = make_subplots(3, 4, subplot_titles=list(tensors))
for place, values in enumerate(tensors.values()):
    where = {"row": place // 4 + 1, "col": place % 4 + 1}
    table = values.reshape(-1, values.shape[-1])
    figure.add_trace(go.Heatmap(z=table, showscale=False), **where)
    figure.update_xaxes(tickvals=list(range(table.shape[1])), **where)
    figure.update_yaxes(tickvals=list(range(table.shape[0])), autorange="reversed", **where)
figure.update_layout(height=1200)
st.plotly_chart(figure, key="shapes")
