"""Parts 5 and 6: the cache as it grows word by word, and what sharing keys and values saves."""

from __future__ import annotations

import streamlit as st

from attention.known_models import find_model
from attention.kv_working import readable
from attention.layout import divisors
from attention.plots.cache_charts import Chart, head_groups
from attention.plots.lesson_charts import group_rows
from attention.plots.write_charts import growth_chart, text_html
from attention.written import shipped_recording
from pages.cost.cache_parts import draw
from pages.learn import lesson_facts as facts
from pages.learn.lesson_frame import BOUND, paragraphs, said, theme
from pages.learn.lesson_text import Part, words

LAYER, HEAD = facts.GROUPS_LAYER, 0
HEADERS = ("tokens cached", "bytes measured", "bytes by formula", "bytes at 16 bit")


def grows(part: Part) -> None:
    """The recording word by word, its cache measured."""
    left, right = st.columns([1, 1.35], gap="large")
    with left:
        paragraphs(part, facts.cache_grows())
    with right:
        run = shipped_recording()
        at = st.slider(words("tokens"), 1, len(run.steps), facts.FIRST_TOKENS, key="n_tokens", **BOUND) - 1
        step = run.steps[at]
        with st.container(key="n_slide_text"):
            st.html(text_html(run, at, step.row(LAYER, HEAD), theme()))
            said(words("word_said", layer=LAYER, head=HEAD))
        name = words("growth_title", bytes=readable(step.cache_bytes), tokens=step.n_cached)
        said(name)
        picture = growth_chart(run, at, theme())
        rows = [(one.n_cached, one.cache_bytes, one.formula_bytes, one.formula_bytes_16bit) for one in run.steps]
        draw(Chart(picture.figure, picture.alt, HEADERS, tuple(rows)), "n-growth", name)


def sharing(part: Part) -> None:
    """The cache for any number of K/V heads, and the real heads of a model that shares them."""
    left, right = st.columns([1, 1.35], gap="large")
    with left:
        paragraphs(part, facts.sharing())
    with right:
        _groups()
        _real_heads()


def _groups() -> None:
    model = find_model(facts.SHARED_MODEL)
    options = [str(count) for count in reversed(divisors(model.n_heads))]
    n_kv = int(
        st.segmented_control(words("n_kv"), options, default=str(model.n_kv_heads), required=True, key="n_kv", **BOUND)
    )
    st.html(head_groups(model.n_heads, n_kv, most_groups=8, most_queries=8))
    mha = model.cache.as_if("MHA").bytes(facts.TOKENS)
    own = model.cache.as_if("GQA", n_kv).bytes(facts.TOKENS)
    said(
        words(
            "groups_said" if own < mha else "groups_same",
            model=model.name,
            n_kv=n_kv,
            bytes=readable(own),
            tokens=f"{facts.TOKENS:,}",
            times=f"{mha / own:.3g}",
            mha=readable(mha),
        )
    )


def _real_heads() -> None:
    run = shipped_recording()
    layer = st.slider(words("layer"), 0, run.n_layers - 1, LAYER, key="n_kvlayer", **BOUND)
    step = run.steps[facts.FIRST_TOKENS - 1]
    rows = [step.row(layer, head) for head in range(run.n_heads)]
    labels = run.labels[: step.n_cached]
    name = words("rows_said", layer=layer, word=labels[-1])
    said(name)
    draw(group_rows(facts.stacked(rows), labels, run.n_kv_heads, theme()), "n-rows", name)
