"""Parts 1 and 3: the recipes of three heads and their average; a layer's heads side by side, and a trap."""

from __future__ import annotations

import numpy as np
import streamlit as st

from attention.model_facts import UNTRAINED
from attention.plots.cache_charts import Chart
from attention.plots.heatmaps import heatmap
from attention.plots.lesson_charts import Floats, Recipe, lens_grid, recipe_bars, share_text
from attention.plots.numbers import percent
from pages.cost.cache_parts import draw
from pages.learn import lesson_facts as facts
from pages.learn.lesson_frame import BOUND, paragraphs, said, theme
from pages.learn.lesson_text import Part, words


def question(part: Part) -> None:
    """Three recipes and their average, for any word of the sentence, learned or at random."""
    left, right = st.columns([1, 1.35], gap="large")
    with left:
        paragraphs(part, facts.question())
    with right:
        picture, weights = facts.picture()
        labels = list(picture["labels"])
        names = (words("trained"), words("twin"))
        which = st.segmented_control(words("weights"), names, default=names[0], required=True, key="n_weights", **BOUND)
        word = st.select_slider(words("word"), labels, facts.ASKING, key="n_word", **BOUND)
        if which == names[1]:
            weights = _twin(picture["text"])
        _recipes(weights, labels, word, words("twin_said" if which == names[1] else "trained_said"))


def _recipes(weights: Floats, labels: list[str], word: str, told: str) -> None:
    at = labels.index(word)
    rows = [weights[layer, head, at] for layer, head in facts.named_heads()]
    recipes = [
        Recipe(f"layer {layer}, head {head}", row) for (layer, head), row in zip(facts.named_heads(), rows, strict=True)
    ]
    recipes.append(Recipe(words("average"), np.mean(rows, axis=0)))
    name = words("recipe_title", word=word)
    said(f"{name}. {told.format(share=share_text(float(max(row.max() for row in rows))))}")
    draw(recipe_bars(recipes, labels, theme()), "n-recipes", name)


def _twin(text: str) -> Floats:
    """The same sentence through the same architecture with random weights, traced now."""
    from attention.engine import default_engine
    from attention.tracing import TraceRequest

    with st.spinner(words("twin")):
        return default_engine().trace(TraceRequest(facts.MINILM + UNTRAINED, text)).weights


def lenses(part: Part) -> None:
    """The twelve heads of a layer, or the head that only seems to know grammar."""
    left, right = st.columns([1, 1.35], gap="large")
    values = facts.lenses()
    with left:
        paragraphs(part, values)
    with right:
        names = (words("lens"), words("trap"))
        which = st.segmented_control(words("shown"), names, default=names[0], required=True, key="n_lens", **BOUND)
        picture, weights = facts.picture()
        if which == names[1]:
            _trap()
        else:
            layer = st.slider(words("layer"), 0, len(weights) - 1, 1, key="n_layer", **BOUND)
            name = words("lens_said", layer=layer, text=picture["text"])
            said(name)
            draw(lens_grid(weights[layer], picture["labels"], theme()), "n-lenses", name)


def _trap() -> None:
    one, values = facts.trap(), facts.lenses()
    told = words("trap_said", layer=one.layer, head=one.head, share=values["trap_share"], before=values["trap_before"])
    said(told)
    figure = heatmap(one.weights, one.labels, one.labels, theme=theme(), visible=one.visible)
    rows = [
        (label, one.labels[int(row.argmax())], percent(float(row.max())))
        for label, row in zip(one.labels, one.weights, strict=True)
    ]
    draw(Chart(figure, told, ("word", "looks most at", "weight"), tuple(rows)), "n-trap", told)
