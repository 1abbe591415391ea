"""Quick check: a paper of questions from a number in the link, answered here, and the plan of a class."""

from __future__ import annotations

import streamlit as st

from pages.learn import quiz_bar, quiz_plan, quiz_question, quiz_result, quiz_sitting
from pages.learn.quiz_parts import STYLE
from pages.shared.site import next_link

TABS = ("Questions", "Class plan")


def page() -> None:
    """The bar that says which paper, then the questions one at a time, and the class plan in a tab of its own."""
    st.html(f"{STYLE}<h1 class='hs-only-spoken'>Quick check</h1>")
    asked = quiz_bar.bar()
    questions, plan = st.tabs(TABS, key="q_tab", on_change="rerun", bind="query-params")
    if questions.open:
        with questions:
            _questions(asked)
    if plan.open:
        with plan:
            quiz_plan.show()
    next_link("quiz")


def _questions(asked: quiz_bar.Asked) -> None:
    sitting = quiz_sitting.current(asked.seed, asked.length)
    if sitting is None:
        quiz_bar.start_screen(asked)
    elif sitting.at is None:
        quiz_result.show(sitting)
    else:
        quiz_question.show(sitting)


page()
