"""The lesson: the whole argument in nine short parts, each with a figure that answers it and can be played with."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from attention.errors import UserError
from pages.learn import lesson_cache, lesson_frame, lesson_heads, lesson_ladder, lesson_steps
from pages.learn.lesson_text import Part, parts
from pages.shared.errors import show_error
from pages.shared.site import next_link

# By the part's id in the file of words. Only the part in view is run: most load no model.
SHOWN: dict[str, Callable[[Part], None]] = {
    "question": lesson_heads.question,
    "steps": lesson_steps.steps,
    "lenses": lesson_heads.lenses,
    "widths": lesson_steps.widths,
    "cache": lesson_cache.grows,
    "sharing": lesson_cache.sharing,
    "ladder": lesson_ladder.ladder,
    "pytorch": lesson_steps.pytorch,
    "breath": lesson_ladder.breath,
}


def page() -> None:
    """Where one is, then one part: its words beside its figure."""
    st.html(f"{lesson_frame.STYLE}<h1 class='hs-only-spoken'>Lesson</h1>")
    part = lesson_frame.bar()
    lesson_frame.title(part)
    try:
        SHOWN[part.id](part)
    except UserError as error:
        show_error(error)
    lesson_frame.foot(part)
    if part is parts()[-1]:
        next_link("lesson")


page()
