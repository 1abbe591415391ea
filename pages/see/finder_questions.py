"""Questions to start from: two words of a sentence, and the head we checked answers them."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

ALICE = "Alice fed the cats because they were hungry."
MAT = "The cat sat on the mat that the dog chased."
NAMES = "Anna called Tom, and later Tom called Anna."
MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Question:
    """A link to ask about. ``query`` and ``key`` are labels as the page shows them: a repeated word has a number.

    ``layer`` and ``head`` are the head a test holds to be among the first five; ``note`` says what to look for.
    """

    id: str
    title: str
    model: str
    text: str
    query: str
    key: str
    layer: int
    head: int
    note: str


QUESTIONS = (
    Question(
        "they-cats",
        "they → cats",
        MINILM,
        ALICE,
        "they",
        "cats",
        1,
        3,
        "Layer 1, head 3 looks from pronouns to who is meant. Change “they were hungry” to “she was kind”.",
    ),
    Question(
        "she-alice",
        "she → Alice",
        MINILM,
        "Alice fed the cats because she was kind.",
        "she",
        "Alice",
        1,
        3,
        "The same head as for they → cats, now at the other noun. Layer 2, head 4 does it too, but not for “it”.",
    ),
    Question(
        "it-cat",
        "it → cat",
        MINILM,
        "The cat sat on the mat because it was tired.",
        "it",
        "cat",
        5,
        11,
        "One sentence is no proof: where only the meaning decides, see “Who is meant, by meaning alone” in the atlas.",
    ),
    Question(
        "object-verb",
        "object → verb",
        MINILM,
        ALICE,
        "cats",
        "fed",
        2,
        0,
        "Layer 2, head 0 looks from an object to its verb, near or far.",
    ),
    Question(
        "previous",
        "previous word",
        MINILM,
        ALICE,
        "because",
        "cats",
        0,
        2,
        "Nearly all of it is distance: this head looks one word back, whatever stands there.",
    ),
    Question(
        "repeated-name",
        "repeated name",
        SMOLLM,
        NAMES,
        "Tom²",
        "Tom¹",
        14,
        3,
        "These heads find an earlier copy of the same word.",
    ),
    Question(
        "that-mat",
        "that → mat, a trap",
        SMOLLM,
        MAT,
        "that",
        "mat",
        16,
        0,
        "“mat” stands right before “that”, so previous-word heads win here for the wrong reason. Rank by what is left.",
    ),
)


def questions() -> None:
    """One button a question. A press sets sentence, model and both words."""
    with st.container(horizontal=True, key="f-questions"):
        for question in QUESTIONS:
            st.button(question.title, key=f"f-ask-{question.id}", on_click=ask, args=(question,), help=question.text)


def ask(question: Question) -> None:
    """Put a question into the bar and the two rows of words (a callback: before they are drawn)."""
    st.session_state["text"] = question.text
    st.session_state["model"] = question.model
    st.session_state["f_asked"] = (question.text, question.query, question.key)


def question_of(model: str, text: str, query: str, key: str) -> Question | None:
    """The question that these very words ask, if it is one of ours."""
    asked = (model, text, query, key)
    return next((one for one in QUESTIONS if asked == (one.model, one.text, one.query, one.key)), None)


def first_question(model: str, text: str) -> Question | None:
    """The question to begin with on a sentence, if we have one."""
    return next((one for one in QUESTIONS if (one.model, one.text) == (model, text)), None)
