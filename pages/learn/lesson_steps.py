"""Parts 2, 4 and 8: seven steps in miniature, how wide a head is, and the calls of PyTorch."""

from __future__ import annotations

import streamlit as st

from attention.layout import HeadLayout, divisors
from attention.multihead import d_head_guidance, multi_head_attention, random_inputs, score_rank
from attention.plots.lesson_charts import seven_steps, width_chart
from pages.compute.measuring import traps, wait_for_preload
from pages.cost.cache_parts import draw
from pages.learn import lesson_facts as facts
from pages.learn.lesson_frame import BOUND, paragraphs, said, theme
from pages.learn.lesson_text import Part, choices, words
from pages.shared.tables import table

D_MODEL, MOST_TOKENS = 24, 12
WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256)
RANK_TOKENS = 64


def steps(part: Part) -> None:
    """Every step with its line and its shape, for sizes of one's choice."""
    left, right = st.columns([1, 1.35], gap="large")
    with right:
        with st.container(horizontal=True):
            seq_len = st.slider(words("seq_len"), 2, MOST_TOKENS, 5, key="n_seq", width=260, **BOUND)
            n_heads = st.select_slider(words("n_heads"), divisors(D_MODEL), 4, key="n_heads", width=260, **BOUND)
        layout = HeadLayout(D_MODEL, n_heads, n_heads)
        trace = multi_head_attention(*random_inputs(layout, seq_len), layout)
        said(words("steps_drawn", n=seq_len, heads=n_heads))
        st.html(seven_steps(seq_len, n_heads, layout.d_head, theme()))
        rows = [(f"{step.number} {step.name}", step.symbol, str(step.shape), step.code) for step in trace.steps]
        table(words("steps_title", n=seq_len), ("step", "makes", "shape", "line"), rows)
    with left:
        paragraphs(part, facts.steps(seq_len, layout))


def widths(part: Part) -> None:
    """The catalogue's heads, and the rank of scores measured for a width of one's choice."""
    left, right = st.columns([1, 1.35], gap="large")
    with left:
        paragraphs(part, facts.widths())
    with right:
        d_head = st.select_slider(words("d_head"), WIDTHS, 16, key="n_width", **BOUND)
        draw(width_chart(facts.shapes(), d_head, theme()), "n-widths", words("widths_title"))
        layout = HeadLayout(d_head, 1, 1)
        x, weights = random_inputs(layout, RANK_TOKENS)
        said(f"{score_rank(multi_head_attention(x, weights, layout).scores, d_head).sentence}")
        said(d_head_guidance(d_head).sentence)


def pytorch(part: Part) -> None:
    """The wrapper's trap and the right ways, run on this server."""
    left, right = st.columns([1, 1.35], gap="large")
    with left:
        paragraphs(part, {})
    with right:
        names = choices("trap_names")
        which = st.segmented_control(words("code"), names, default=names[0], required=True, key="n_call", **BOUND)
        place = st.empty()
        wait_for_preload(lambda share, told: place.progress(share, f"{told}…"))
        place.empty()
        with st.container(key="n_slide_call"):
            _call(names.index(which))


def _call(which: int) -> None:
    first = traps()[0]
    if which == 0:
        st.code(first.code, language="python", wrap_lines=True)
        said(f"{words('happened')}: {first.happened}")
        said(first.lesson)
        return
    _, masked, fused = first.right
    form = masked if which == 1 else fused
    st.code(form.code, language="python", wrap_lines=True)
    said(f"{words('happened')}: {form.gave}")
