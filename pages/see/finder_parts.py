"""What the tabs of Head finder share: styles, small print, the head in view, the atlas and how it is waited for."""

from __future__ import annotations

import html
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

import streamlit as st
from streamlit.runtime import Runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from attention.atlas import HeadAtlas, ScoresRequest, shipped_atlas
from attention.engine import default_engine
from attention.errors import UserError
from attention.jobs import AbandonedError, stoppable
from attention.models import LoadedModel
from attention.patterns import sentences
from attention.plots.colours import KEY, QUERY

Head = tuple[int, int]
BOUND: dict[str, Literal["query-params", "session"]] = {"bind": "query-params", "persist_state": "session"}
FIVE_INDUCTION = ((17, 3), (17, 4), (17, 5), (18, 6), (18, 7))
# Heads worth seeing first: who is meant, and the strongest induction head.
FIRST_HEAD: dict[str, Head] = {"all-MiniLM-L6-v2": (1, 3), "SmolLM2-135M-Instruct": (18, 6)}
POLL_SECONDS = 0.4

STYLE = """<style>
.hs-f-answer { font-size: clamp(1.3rem, 2.2vw, 2rem); line-height: 1.25; margin: 0; padding: 0; font-weight: 400;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.hs-f-answer b { font-weight: 700; }
.hs-f-said { font-size: 1.05rem; margin: 0; line-height: 1.4; font-variant-numeric: tabular-nums; }
.hs-f-small { font-size: 0.875rem; margin: 0; line-height: 1.45; opacity: 0.85; overflow-wrap: anywhere; }
.hs-f-card { font-size: 1.15rem; font-weight: 600; line-height: 1.3; margin: 0; padding: 0; }
.hs-f-lines { font-size: 0.95rem; line-height: 1.4; margin: 0; font-variant-numeric: tabular-nums; }
.hs-f-lines b { font-size: 1.15rem; }
.hs-f-trap { font-weight: 600; }
ul.hs-f-legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0.25rem 1.1rem; margin: 0 !important;
  padding: 0 !important; font-size: 0.95rem; font-variant-numeric: tabular-nums; }
.hs-f-legend li { margin: 0 !important; padding: 0 !important; }
.hs-f-letter { display: inline-block; width: 1.5rem; text-align: center; border-radius: 3px; font-weight: 700;
  border: 1px solid #8884; }
.st-key-f_query button[aria-checked="true"] { background: QUERY !important; border-color: QUERY !important; }
.st-key-f_key button[aria-checked="true"] { background: KEY !important; border-color: KEY !important; }
.st-key-f_query button[aria-checked="true"] *, .st-key-f_key button[aria-checked="true"] * { color: ON !important; }
.st-key-f_mute span[title], .st-key-f_mute span[title] ~ *, .st-key-f_labels span[title],
.st-key-f_labels span[title] ~ * { color: ON !important; }
.st-key-f-questions { gap: 0.4rem; }
[class*="st-key-f-card-"] a, .st-key-f-card a { padding-inline: 0; text-decoration: underline; }
.st-key-f-five { gap: 0.9rem; }
ul.hs-f-examples { margin: 0 !important; padding-inline-start: 1.1rem !important; font-size: 0.95rem; }
.hs-f-examples li { margin: 0 0 0.3rem !important; }
</style>"""


def style() -> str:
    """The page's styles: the chosen query word in the query's colour, the key word in the key's."""
    ground = "#15171a" if theme() == "dark" else "#ffffff"
    coloured = STYLE.replace("QUERY", QUERY.on(theme())).replace("KEY", KEY.on(theme()))
    return coloured.replace("ON !important", f"{ground} !important")


def theme() -> str:
    """Whether the visitor's page is light or dark."""
    return str(st.context.theme.type or "light")


def small(text: str) -> None:
    """A smaller line of plain words, shown literally."""
    st.html(f'<p class="hs-f-small">{html.escape(text)}</p>')


def answer(markup: str, place: Any = st) -> None:
    """The tab's one big sentence; words from outside must have been escaped."""
    place.html(f'<h2 class="hs-f-answer">{markup}</h2>')


def said(markup: str, place: Any = st) -> None:
    """A line under the answer; words from outside must have been escaped."""
    place.html(f'<p class="hs-f-said">{markup}</p>')


def written_by() -> str:
    """Who wrote the sentences every figure rests on, and under which licence."""
    return f"{sentences()['author']}, {sentences()['licence']}"


def short_name(layer: int, head: int) -> str:
    """A head's name in lists and links: ``L1 H3``, numbered from 0."""
    return f"L{layer} H{head}"


def head_in_view(model: LoadedModel) -> Head:
    """The head whose card is open: the one last chosen, else one worth seeing first.

    Its two boxes lie in the atlas; a link's values hold until they have been drawn once.
    """
    usual = FIRST_HEAD.get(model.id, (0, 0))
    found = []
    for name, many, first in zip(("f_layer", "f_head"), (model.n_layers, model.layout.n_heads), usual, strict=True):
        asked = st.session_state.get(name, st.query_params.get(name, first))
        named = {str(number): number for number in range(many)}  # a link may say anything
        found.append(named.get(str(asked), first if first < many else 0))
    return found[0], found[1]


def picked(model: LoadedModel) -> Head | None:
    """The head somebody chose, by a press or by a link; None while nobody has."""
    named = st.session_state.get("f_picked") or "f_layer" in st.query_params or "f_head" in st.query_params
    return head_in_view(model) if named else None


def choose(layer: int, head: int) -> None:
    """Open a head's card (a callback: before its boxes are drawn)."""
    st.session_state["f_layer"], st.session_state["f_head"] = layer, head
    st.session_state["f_picked"] = True


@dataclass
class Measuring:
    """A model's heads being measured in a thread of their own: a click on the page must not stop it.

    It stops when all who asked for it have closed the page: ``asked_by`` holds their sessions.
    """

    share: float = 0.0
    asked_by: set[str] = field(default_factory=set)
    done: Future[HeadAtlas] = field(default_factory=Future)

    def tell(self, share: float) -> None:
        """How far it is, 0 to 1."""
        self.share = share

    def ask(self) -> None:
        """Note who is waiting."""
        context = get_script_run_ctx(suppress_warning=True)
        if context is not None:
            self.asked_by.add(context.session_id)

    def is_left(self) -> bool:
        """Whether everybody who asked has gone; never where nobody can be asked, as in a test without a server."""
        if not self.asked_by or not Runtime.exists():
            return False
        return not any(Runtime.instance().is_active_session(session) for session in tuple(self.asked_by))


_running: dict[str, Measuring] = {}
_lock = threading.Lock()


def atlas_at_hand(model: LoadedModel) -> HeadAtlas | None:
    """The model's atlas where it is there without measuring: shipped, or measured in this process before."""
    if shipped_atlas(model.id, model.revision) is not None:
        return default_engine().scores(ScoresRequest(model.id))
    with _lock:
        running = _running.get(f"{model.id} {model.revision}")
    finished = running is not None and running.done.done() and running.done.exception() is None
    return running.done.result() if running is not None and finished else None


def measured(model: LoadedModel) -> HeadAtlas:
    """The model's atlas; measured now, with a bar that tells how far it is, where it is not at hand.

    Raises UserError for a model that cannot be measured.
    """
    found = atlas_at_hand(model)
    if found is not None:
        return found
    bar = st.progress(0.0, "Measuring every head on our sentences. You may look at the other tabs meanwhile.")
    while True:
        running = _start(model)
        running.ask()
        while not running.done.done():
            bar.progress(min(1.0, running.share), f"Measuring every head on our sentences: {running.share:.0%}.")
            _wait(running.done)
        if not isinstance(running.done.exception(), AbandonedError):  # else all others left just as this one came
            bar.empty()
            return running.done.result()


def _wait(done: Future[HeadAtlas]) -> None:
    event = threading.Event()
    done.add_done_callback(lambda _: event.set())
    event.wait(POLL_SECONDS)


def _start(model: LoadedModel) -> Measuring:
    name = f"{model.id} {model.revision}"
    with _lock:
        kept = _running.get(name)
        if kept is not None and not (kept.done.done() and kept.done.exception()):
            return kept
        running = _running[name] = Measuring()
    threading.Thread(target=_measure, args=(model.id, running), name="atlas", daemon=True).start()
    return running


def _measure(model_id: str, running: Measuring) -> None:
    try:
        with stoppable(running.is_left):
            running.done.set_result(default_engine().scores(ScoresRequest(model_id), running.tell))
    except AbandonedError as error:
        running.done.set_exception(error)
    except UserError as error:
        running.done.set_exception(error)
    except Exception as error:  # whoever waits on the page must hear of it, or would wait for ever
        running.done.set_exception(error)
        raise
