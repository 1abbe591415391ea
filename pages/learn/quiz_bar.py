"""Which paper: its number and length, both in the link, so that a whole class gets the same one."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import streamlit as st

from attention.quiz import SEEDS, lengths
from pages.learn import quiz_sitting
from pages.shared.errors import plain
from pages.shared.share import share_button

FIRST = 1
MINUTES_EACH = 0.75


@dataclass(frozen=True)
class Asked:
    """The paper's number and how many questions."""

    seed: int
    length: int


def bar() -> Asked:
    """Draw the boxes and read them. They rest while a paper is being answered."""
    busy = quiz_sitting.running()
    _greet()
    with st.container(horizontal=True, vertical_alignment="bottom", key="q-bar"):
        seed = st.number_input(
            "Paper number",
            SEEDS[0],
            SEEDS[-1],
            FIRST,
            key="q_seed",
            bind="query-params",
            persist_state="session",
            disabled=busy,
            help="The same number gives the same questions to everybody.",
            width=150,
        )
        length = st.selectbox(
            "Questions",
            lengths(),
            key="q_many",
            bind="query-params",
            persist_state="session",
            disabled=busy,
            help="The longest paper holds every question there is.",
            width=110,
        )
        share_button(disabled=False)
        if quiz_sitting.current(seed or FIRST, length) is not None:
            st.button("Start again", key="q_leave", on_click=quiz_sitting.leave, icon=":material/restart_alt:")
    return Asked(int(seed or FIRST), int(length))


def start_screen(asked: Asked) -> None:
    """What will happen, and the button that begins."""
    minutes = round(asked.length * MINUTES_EACH)
    st.html(
        f"<h2 class='hs-q-text'>Paper {asked.seed}: {asked.length} questions, about {minutes} minutes</h2>"
        "<p class='hs-q-small'>One question at a time. A wrong answer gets the reason, and a link to the page that "
        "shows it.<br>Everybody who opens this link gets the same paper. You may look at the other pages meanwhile."
        "<br>Your answers stay in this tab only: no name is asked, and reloading the page starts again.</p>"
    )
    with st.container(horizontal=True):
        st.button(
            "Start",
            key="q_start",
            type="primary",
            icon=":material/play_arrow:",
            on_click=quiz_sitting.begin,
            args=(asked.seed, asked.length),
        )
        st.button("Another paper", key="q_other", on_click=other_paper, icon=":material/casino:")


def other_paper() -> None:
    """Draw another number (a callback: before the box is drawn)."""
    quiz_sitting.leave()
    st.session_state["q_seed"] = SEEDS[0] + secrets.randbelow(len(SEEDS))


def _greet() -> None:
    """A link may ask for a paper there is not: say so."""
    asked = st.query_params.get("q_seed")
    if asked is None or "q_seed" in st.session_state:
        return
    if asked not in map(str, SEEDS):
        st.info(
            plain(f"This link asks for paper {asked[:20]}. Papers are numbered 1 to {SEEDS[-1]:,}. Showing {FIRST}.")
        )
