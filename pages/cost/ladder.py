"""The ladder: a real model's quality, heads and answers beside the numbers it caches, rung by rung.

Opens on what was measured ahead; the model is loaded only for another sentence, head or model.
"""

from __future__ import annotations

import streamlit as st

from attention.errors import UserError
from attention.model_facts import title_of
from attention.plots.ladder_board import Measure, board_bytes, board_css, board_js
from attention.published import published_tables
from attention.rung_views import LadderView
from attention.rungs import LadderPoint
from pages.cost import ladder_live, ladder_tabs
from pages.cost.ladder_inputs import Asked, bar, model_box, text_title
from pages.shared.errors import show_error
from pages.shared.site import next_link

_board = st.components.v2.component("headscope_ladder", css=board_css(), js=board_js())

_STYLE = """<style>
.hs-l-answer { font-size: clamp(1.4rem, 2.4vw, 2rem); line-height: 1.2; margin: 0; padding: 0; font-weight: 700; }
.hs-l-said { font-size: clamp(1.02rem, 1.5vw, 1.2rem); line-height: 1.35; margin: 0.2rem 0 0; }
.hs-l-badge { display: inline-block; padding: 0 0.6rem; margin-left: 0.3rem; border: 1px solid #8886;
  border-radius: 1rem; font-size: 0.85rem; }
.st-key-l-bar { gap: 0.6rem; }
.st-key-l-bar > [data-testid="stElementContainer"]:has([data-testid="stTextInput"]) { flex: 1 1 16rem; }
@media (max-width: 700px) {
  .st-key-l-bar > [data-testid="stElementContainer"]:has([data-testid="stTextInput"]) { flex-basis: 100%; }
  .st-key-l-bar > [data-testid="stElementContainer"]:has([data-testid="stSelectbox"]) { flex: 1 1 5rem; min-width: 0; }
}
</style>"""


def page() -> None:
    """The headline, the bar, the board that holds every rung, and what stands behind it."""
    st.html(f"{_STYLE}<h1 class='hs-only-spoken'>The ladder: quality against cache, on a real model</h1>")
    st.html(_headline())
    with st.container(horizontal=True, vertical_alignment="bottom", key="l-bar"):
        model = model_box()
        try:
            shown = ladder_live.shown(model)
        except UserError as error:
            show_error(error)
            next_link("ladder")
            return
        asked = bar(shown.n_layers, shown.n_heads, shown.texts, model)
    shown = ladder_live.shown_for(asked, shown)
    waiting = st.container(key="l-waiting")
    ladder_live.say(shown, asked, waiting)
    if shown.view is not None:
        _board(key="l_board", data=_message(shown.view, shown.points, asked))
        ladder_tabs.show(shown.view, shown.points, asked)
    next_link("ladder")
    ladder_live.work(shown, asked, waiting)


def _headline() -> str:
    return (
        "<h2 class='hs-l-answer'>Averaging the heads of a finished model breaks it.</h2>"
        f"<p class='hs-l-said'>Trained on after sharing, T5-XXL lost little: {_from_mha_to_mqa('gqa-1')}. "
        f"Trained from scratch, a 7B model lost more: {_from_mha_to_mqa('deepseek-v2-8')}. "
        "<span class='hs-l-badge'>published</span></p>"
    )


def _from_mha_to_mqa(table_id: str) -> str:
    table = next(one for one in published_tables() if one.id == table_id)
    mha, mqa = (next(row for row in table.rows if row.rung == rung) for rung in ("MHA", "MQA"))
    before, after = (f"{row.scores[table.metric]:g}" for row in (mha, mqa))
    return f"{table.metric} {before} → {after} ({table.short})"


def _message(view: LadderView, points: tuple[LadderPoint, ...], asked: Asked) -> bytes:
    measure = Measure(asked.on, "", "")
    if points:
        many = len(points[0].on(asked.on).pieces)
        encoder = view.kind == "encoder"
        pieces = f"{many} sentences" if encoder else f"{many} pieces of 512 tokens"
        title = text_title(asked.on)
        measure = Measure(asked.on, f"{many} of {title}" if encoder else f"“{title}”", pieces)
    return board_bytes(view, points, measure, title=title_of(view.request.model))


page()
