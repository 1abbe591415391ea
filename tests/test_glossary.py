"""The glossary: each term once, in short sentences, on pages that there are and that really use the word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from pages.shared.glossary import Term, _listed, terms
from pages.shared.site import PAGES
from tests.test_lesson_page import ROOT

FOLDERS = {page.path: Path(page.file).stem for page in PAGES}


def test_each_term_is_explained_once_in_the_order_of_the_alphabet() -> None:
    names = [term.term.lower() for term in terms()]
    assert names == sorted(set(names))
    assert len(names) >= 30


@pytest.mark.parametrize("term", terms(), ids=lambda term: term.term)
def test_a_term_is_short_and_belongs_to_pages_that_there_are(term: Term) -> None:
    sentences = re.split(r"(?<=[.:;])\s", term.means)
    assert all(len(sentence.split()) <= 25 for sentence in sentences)
    assert term.means.endswith(".")
    assert "understand" not in term.means
    assert term.pages
    assert set(term.pages) <= set(FOLDERS)


def test_terms_are_text() -> None:
    written = _listed("here", [Term("<b>", "Less < more.", ("",))])
    assert "<dt>&lt;b&gt;</dt><dd>Less &lt; more.</dd>" in written


def test_every_page_has_terms_of_its_own_but_the_paper_which_asks_for_them() -> None:
    for page in PAGES:
        mine = [term for term in terms() if page.path in term.pages]
        assert (len(mine) >= 4) is (page.path != "quiz"), page.title


def test_a_closed_glossary_sends_no_terms() -> None:
    app = AppTest.from_file(str(ROOT / "pages" / "entry.py"), default_timeout=120).run()
    assert not app.exception
    assert not any("hs-glossary" in block.proto.body for block in app.get("html"))
