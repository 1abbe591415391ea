"""One visitor's way through a paper: what was answered, where they are, how long it took.

Kept in the browser session's state and nowhere else; it is gone when the session ends.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import streamlit as st

from attention.errors import UserError
from attention.quiz import Given, Paper, Question, grade, paper

KEY = "q_sitting"
REFUSED = "q_refused"
# What is chosen and not yet answered, where the widget does not keep it itself.
PENDING = "q_pending"


@dataclass
class Sitting:
    """Answers by the question's place in the paper. ``at`` is None on the result card."""

    paper: Paper
    began: float
    at: int | None = 0
    given: dict[int, Given] = field(default_factory=dict)
    seconds: float | None = None

    @property
    def finished(self) -> bool:
        """Whether the paper was handed in: nothing can be answered any more."""
        return self.seconds is not None

    def verdict(self, place: int) -> bool | None:
        """Right, wrong, or None while unanswered."""
        return None if place not in self.given else grade(self.paper.questions[place], self.given[place])

    @property
    def n_right(self) -> int:
        """How many answers are right."""
        return sum(self.verdict(place) is True for place in self.given)


def current(seed: int, length: int) -> Sitting | None:
    """The sitting of this paper; None before it was begun, or when the link asks for another."""
    sitting: Sitting | None = st.session_state.get(KEY)
    if sitting is None or (sitting.paper.seed, len(sitting.paper.questions)) != (seed, length):
        return None
    return sitting


def running() -> bool:
    """Whether a paper is being answered: its number must not change meanwhile."""
    sitting: Sitting | None = st.session_state.get(KEY)
    return sitting is not None and not sitting.finished


def begin(seed: int, length: int) -> None:
    """Open the paper at its first question (a callback)."""
    st.session_state[KEY] = Sitting(paper(seed, length), time.time())
    _forget()


def leave() -> None:
    """Back to the start; the answers are gone (a callback)."""
    st.session_state.pop(KEY, None)
    _forget()


def go(place: int | None) -> None:
    """To a question, or to the result card, which hands the paper in (a callback)."""
    sitting: Sitting = st.session_state[KEY]
    if place is None and sitting.seconds is None:
        sitting.seconds = time.time() - sitting.began
    sitting.at = place
    _forget()


def answer(asked: Question, given: Given | None) -> None:
    """Take an answer, once; one that is missing or cannot be read is refused with a sentence (a callback)."""
    sitting: Sitting = st.session_state[KEY]
    place = sitting.at
    if place is None or place in sitting.given or sitting.finished:
        return
    if given is None:
        st.session_state[REFUSED] = UserError(
            "There is no answer yet.", "", "Give one, or press Next and come back later."
        )
        return
    try:
        grade(asked, given)
    except UserError as error:
        st.session_state[REFUSED] = error
    else:
        sitting.given[place] = given
        _forget()


def pending() -> tuple[int, ...]:
    """What is pressed so far on the question in view."""
    return tuple(st.session_state.get(PENDING, ()))


def press(place: int) -> None:
    """Give a step the next place, or take it out again (a callback)."""
    now = pending()
    st.session_state[PENDING] = tuple(one for one in now if one != place) if place in now else (*now, place)


def point(place: int) -> None:
    """Choose one map (a callback)."""
    st.session_state[PENDING] = (place,)


def _forget() -> None:
    for name in (PENDING, REFUSED):
        st.session_state.pop(name, None)
