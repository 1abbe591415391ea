"""The glossary in the corner of every page: each term of the field in a sentence, the page's own terms first."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

FILE = Path(__file__).resolve().parents[2] / "assets" / "glossary.json"
_STYLE = """<style>
.hs-glossary h2 { font-size: 1rem; margin: 0.75rem 0 0.25rem; padding: 0; }
.hs-glossary h2:first-of-type { margin-top: 0; }
.hs-glossary dl { margin: 0; padding: 0; font-size: 0.95rem; line-height: 1.4; max-width: 34rem; }
.hs-glossary dt { font-weight: 700; margin-top: 0.5rem; }
.hs-glossary :is(dt, dd) { margin-inline-start: 0; padding-inline-start: 0; }
.hs-glossary dd { margin: 0; }
</style>"""


@dataclass(frozen=True)
class Term:
    """A term, what it means, and the paths of the pages that speak of it."""

    term: str
    means: str
    pages: tuple[str, ...]


@lru_cache(maxsize=1)
def words() -> dict[str, str]:
    """The sentences around the terms."""
    return {name: text for name, text in _file().items() if isinstance(text, str)}


@lru_cache(maxsize=1)
def terms() -> tuple[Term, ...]:
    """Every term, in the order of the alphabet."""
    return tuple(Term(one["term"], one["means"], tuple(one["pages"])) for one in _file()["terms"])


def glossary(path: str) -> None:
    """The button and, once it is open, the terms: those of the page at ``path`` first."""
    with st.container(key="glossary"):
        _popover(path)


@st.fragment
def _popover(path: str) -> None:
    """A fragment, so that opening it reruns nothing else and a closed one sends no terms."""
    box = st.popover(words()["title"], key="glossary_open", on_change="rerun", help=words()["help"])
    if box.open:
        here = [term for term in terms() if path in term.pages]
        others = [term for term in terms() if path not in term.pages]
        with box:
            # A landmark that can be focused: the popover lies outside the page's own, and scrolls.
            frame = f"<div class='hs-glossary' role='region' tabindex='0' aria-label='{words()['title']}'>"
            st.html(f"{_STYLE}{frame}{_listed('here', here)}{_listed('others', others)}</div>")


def _listed(group: str, listed: Sequence[Term]) -> str:
    rows = "".join(f"<dt>{html.escape(one.term)}</dt><dd>{html.escape(one.means)}</dd>" for one in listed)
    return f"<h2>{words()[group]}</h2><dl>{rows}</dl>" if rows else ""


def _file() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return read
