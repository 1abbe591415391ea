"""Peer: the page one would write first. Run by ``streamlit run``; the model's folder is in BENCH_MODEL.

A text box, a layer slider, and one Plotly figure of twelve heatmaps with every label, over transformers' eager
attention behind ``st.cache_data``.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st
import torch
from plotly.subplots import make_subplots
from transformers import AutoModel, AutoTokenizer

st.set_page_config(page_title="Attention", layout="wide")


@st.cache_resource
def load() -> tuple[Any, Any]:
    folder = os.environ["BENCH_MODEL"]
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    return AutoTokenizer.from_pretrained(folder), model.eval()


@st.cache_data(max_entries=32)
def attention(text: str) -> tuple[list[str], np.ndarray]:
    tokenizer, model = load()
    ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=512)
    with torch.inference_mode():
        layers = model(**ids, output_attentions=True).attentions
    return tokenizer.convert_ids_to_tokens(ids["input_ids"][0]), torch.cat(layers).numpy()


text = st.text_input("Sentence", "Alice fed the cats because they were hungry.")
layer = st.slider("Layer", 0, 5, 0)
tokens, weights = attention(text)
figure = make_subplots(3, 4, subplot_titles=[f"Layer {layer}, head {head}" for head in range(12)])
places = list(range(len(tokens)))
for head in range(12):
    where = {"row": head // 4 + 1, "col": head % 4 + 1}
    figure.add_trace(go.Heatmap(z=weights[layer, head], zmin=0, zmax=1, showscale=False), **where)
    figure.update_xaxes(tickvals=places, ticktext=tokens, **where)
    figure.update_yaxes(tickvals=places, ticktext=tokens, autorange="reversed", **where)
figure.update_layout(height=1200)
st.plotly_chart(figure, key="heads")
