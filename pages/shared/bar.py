"""The settings bar: sentence, model, start token, examples, share. Every setting lives in the URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamlit as st

from attention.errors import UserError
from attention.model_facts import BUNDLED, list_models, readiness, title_of
from attention.patterns import caption_of, sentences
from attention.settings import settings
from pages.shared.errors import plain
from pages.shared.link_values import fits_link, link_binding
from pages.shared.share import share_button

if TYPE_CHECKING:
    from attention.models import LoadedModel

DEFAULT_TEXT = "Alice fed the cats because they were hungry."
NO_START = "none"
# Pixels: the longest choice of each box, with its arrow.
MODEL_WIDTH = 250
START_WIDTH = 250
_PAGES = ("", "finder")
_CHOSEN = "_bar"


@dataclass(frozen=True)
class Choice:
    """What the bar says: the text as typed, a model id, and the start token (None: none)."""

    text: str
    model: str
    start: str | None


def second_text() -> str:
    """The sentence to compare with; a link's until its box, which lies in a tab, has been drawn once."""
    return str(st.session_state.get("compare", st.query_params.get("compare", "")) or "")


def has_bar(path: str) -> bool:
    """Whether the page at this path stands under the bar."""
    return path in _PAGES


def draw_bar() -> None:
    """Draw the bar above the page that follows, which asks for the choice with ``settings_bar``.

    The bar belongs to the entry, not to a page: Streamlit drops from the address what is bound to a widget of the page
    one leaves, and with it the sentence of a link, of the browser's Back button and of a room.
    """
    try:
        st.session_state[_CHOSEN] = _draw()
    except UserError as error:  # a model that cannot be loaded
        st.session_state[_CHOSEN] = error


def settings_bar() -> Choice:
    """What the bar above this page says. Raises UserError for a model that cannot be loaded."""
    chosen: Choice | UserError = st.session_state[_CHOSEN]
    if isinstance(chosen, UserError):
        raise chosen
    return chosen


def _draw() -> Choice:
    _greet_unknown_model()
    with st.container(horizontal=True, vertical_alignment="bottom", key="bar"):
        text = _text_box()
        model = _model_box()
        start = _start_box(model)
        _examples()
        share_button(disabled=not fits_link(text + second_text()))
    caption = caption_of(text)
    slot = st.empty()  # always there: what follows keeps its place, so the viewer below is not built anew
    if caption and text != DEFAULT_TEXT:
        slot.caption(plain(caption))
    return Choice(text, model, None if start == NO_START else start)


def _text_box() -> str:
    text = st.text_input(
        "Sentence",
        DEFAULT_TEXT,
        key="text",
        bind=link_binding("text", DEFAULT_TEXT),
        persist_state="session",
        help="Type any sentence and press Enter: it goes through the real model.",
        label_visibility="collapsed",
        placeholder="Type a sentence and press Enter",
    )
    return text or ""


def use_example(text: str, model: str) -> None:
    """Put a sentence and a model into the bar (a callback: before the bar is drawn)."""
    st.session_state["text"] = text
    st.session_state["model"] = model


def _model_box() -> str:
    return st.selectbox(
        "Model",
        list_models(),
        format_func=title_of,
        key="model",
        bind="query-params",
        persist_state="session",
        help="MiniLM reads the whole sentence at once. SmolLM2 reads left to right and writes on.",
        label_visibility="collapsed",
        accept_new_options=settings().allow_hub,
        width=MODEL_WIDTH,
    )


def _start_box(model: str) -> str:
    """A decoder's start token changes every number, so it is a visible control; an encoder has none."""
    if any(bundled.id == model and bundled.kind == "encoder" for bundled in BUNDLED):
        return NO_START
    loaded = _loaded(model)
    if not loaded.start_choices:
        return NO_START
    options = (NO_START, *loaded.start_choices)
    return st.selectbox(
        "Start token",
        options,
        index=options.index(loaded.default_start) if loaded.default_start else 0,
        format_func=lambda token: "Starts with nothing" if token == NO_START else f"Starts with {token}",
        key="start",
        bind="query-params",
        persist_state="session",
        help="What the model reads before your sentence. Its training texts began with <|endoftext|>. "
        "Another start changes every answer.",
        label_visibility="collapsed",
        width=START_WIDTH,
    )


def _loaded(model: str) -> LoadedModel:
    from attention.engine import default_engine

    if readiness(model).is_set():
        return default_engine().model(model)
    with st.spinner(f"Loading {title_of(model)}…"):
        return default_engine().model(model)


def _examples() -> None:
    with st.popover("Examples", help="Sentences to start from, each with something to see."):
        for example in sentences()["examples"]:
            st.button(
                example["text"],
                key=f"example-{example['id']}",
                help=example["caption"],
                type="tertiary",
                on_click=use_example,
                args=(example["text"], example["model"]),
            )


def _greet_unknown_model() -> None:
    """A link may name a model by its id, which is understood, or one that is not here: say so, and show the default."""
    slot = st.empty()
    asked: Any = st.query_params.get("model")
    if asked is None or "model" in st.session_state:
        return
    if asked in list_models():
        st.session_state["model"] = asked
    elif asked not in {title_of(model) for model in list_models()} and not settings().allow_hub:
        slot.info(f"This link asks for a model that is not here. Showing {title_of(list_models()[0])}.")
