"""The pages in the lesson's order, in one table: the navigation and every "Next" link come from it."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st


@dataclass(frozen=True)
class SitePage:
    """A page: its section in the navigation, its file beside entry.py, its title, its path (``""``: the first)."""

    section: str
    file: str
    title: str
    path: str
    invites: str


PAGES = (
    SitePage("See", "see/heads.py", "Heads", "", "see what every head looks at"),
    SitePage("See", "see/finder.py", "Head finder", "finder", "find, look up and mute heads"),
    SitePage("Compute", "compute/shapes.py", "Shapes", "shapes", "walk through attention in seven steps"),
    SitePage(
        "Compute", "compute/pytorch.py", "In PyTorch", "pytorch", "compute the same attention four ways in PyTorch"
    ),
    SitePage("Cost", "cost/write.py", "Watch it write", "write", "watch a model write and its memory grow"),
    SitePage("Cost", "cost/cache.py", "KV cache", "cache", "see what the memory of attention costs"),
    SitePage("Cost", "cost/ladder.py", "The ladder", "ladder", "see what saving that memory does to a real model"),
    SitePage("Learn", "learn/lesson.py", "Lesson", "lesson", "follow the whole argument, in fifteen minutes"),
    SitePage("Learn", "learn/quiz.py", "Quick check", "quiz", "check what you remember, on a paper of fresh questions"),
)


def navigation() -> dict[str, list[st.Page]]:
    """The sections for ``st.navigation``."""
    sections: dict[str, list[st.Page]] = {}
    for page in PAGES:
        item = st.Page(page.file, title=page.title, url_path=page.path or None, default=not page.path)
        sections.setdefault(page.section, []).append(item)
    return sections


def base_path() -> str:
    """The path the whole app lies below (Streamlit's ``server.baseUrlPath``): ``""`` or, say, ``"/lessons"``."""
    base = str(st.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{base}" if base else ""


def next_link(path: str) -> None:
    """The link at the end of a page to the one after it; the last page has none."""
    here = next(index for index, page in enumerate(PAGES) if page.path == path)
    if here + 1 < len(PAGES):
        following = PAGES[here + 1]
        st.page_link(
            following.file,
            label=f"Next: {following.title}, {following.invites}",
            icon=":material/arrow_forward:",
            width="content",
        )
