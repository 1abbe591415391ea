"""What the ladder page asks of its visitor: model, sentence, head, the text measured on. All of it in the link."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Literal

import streamlit as st

from attention.model_facts import BUNDLED, list_models, title_of
from attention.rung_views import LadderView, view_from_fact
from attention.rungs import ASSETS, LadderPoint, shipped_sweep, sweep_facts
from attention.texts import bundled_text
from pages.shared.bar import DEFAULT_TEXT
from pages.shared.link_values import fits_link, link_binding
from pages.shared.share import share_button

BOUND: dict[str, Literal["query-params", "session"]] = {"bind": "query-params", "persist_state": "session"}
DECODER = next(model.id for model in BUNDLED if model.kind == "decoder")
MODEL_WIDTH, TEXT_WIDTH, FEW = 250, 190, 100  # pixels
SENTENCES = "similarity"


@dataclass(frozen=True)
class Asked:
    """What the bar says. ``text`` is the model's own default while nothing is typed; ``on``: the text measured on."""

    model: str
    text: str
    layer: int
    head: int
    with_start: bool
    on: str


@cache
def first_view(model_id: str) -> LadderView | None:
    """What is shipped of one text on every rung, made with the weights installed now; None for other models."""
    file = ASSETS / f"first_ladder_{model_id}.json"
    if not file.is_file():
        return None
    view = view_from_fact(json.loads(file.read_text(encoding="utf-8")))
    return view if view.request.revision == _revision(model_id) else None


def shipped(model_id: str) -> tuple[LadderPoint, ...]:
    """The points measured ahead on the weights installed now; none for other models."""
    points = shipped_sweep(model_id)
    return points if points and sweep_facts(model_id)["revision"] == _revision(model_id) else ()


def bar(n_layers: int, n_heads: int, texts: tuple[str, ...], model: str) -> Asked:
    """Draw the boxes that depend on the model, and read them."""
    usual = _usual_head(model)
    said = st.text_input(
        "Your own sentence",
        key="l_say",
        bind=link_binding("l_say"),
        persist_state="session",
        placeholder=default_text(model),
        help="Type a sentence and press Enter: it goes through the model on every rung. At most 48 tokens.",
    )
    layer = _number("Layer", "l_layer", n_layers, usual[0])
    head = _number("Head", "l_head", n_heads, usual[1])
    on = texts[0] if texts else ""
    if len(texts) > 1:
        if st.session_state.get("l_on", on) not in texts:
            st.session_state["l_on"] = on
        on = st.selectbox(
            "Measured on",
            texts,
            format_func=text_title,
            key="l_on",
            width=TEXT_WIDTH,
            help="The text that the chart's quality was measured on. Nothing was trained or calibrated on it.",
            **BOUND,
        )
    with_start = False
    if model == DECODER:
        with_start = st.toggle(
            "Start token",
            key="l_start",
            help="Read <|endoftext|> before your sentence. Another start changes every answer.",
            **BOUND,
        )
    share_button(disabled=not fits_link(said or ""))
    text = (said or "").strip() or default_text(model)
    return Asked(model, text, layer, head, bool(with_start), str(on))


def model_box() -> str:
    """Which model; a decoder first, because it is decoders that cache."""
    options = (DECODER, *(model for model in list_models() if model != DECODER))
    return st.selectbox(
        "Model", options, format_func=title_of, key="l_model", width=MODEL_WIDTH, on_change=_other_model, **BOUND
    )


def _other_model() -> None:
    """Another model has other heads: begin at the one worth seeing first (a callback: before the boxes are drawn)."""
    st.session_state["l_layer"], st.session_state["l_head"] = _usual_head(st.session_state["l_model"])


def _usual_head(model: str) -> tuple[int, int]:
    first = first_view(model)
    return (first.request.layer, first.request.head) if first else (0, 0)


def default_text(model: str) -> str:
    """The sentence shown while nothing is typed."""
    first = first_view(model)
    return first.request.text if first else DEFAULT_TEXT


def text_title(text_id: str) -> str:
    """How a text that quality was measured on is called on the page."""
    return "our sentences" if text_id == SENTENCES else bundled_text(text_id).title


def _number(label: str, key: str, many: int, usual: int) -> int:
    """A layer or head, numbered from 0; another model may have fewer."""
    if st.session_state.get(key, 0) >= many:
        st.session_state[key] = usual
    return int(st.selectbox(label, range(many), index=usual, key=key, width=FEW, **BOUND))


def _revision(model_id: str) -> str | None:
    return next((model.sha256 for model in BUNDLED if model.id == model_id), None)
