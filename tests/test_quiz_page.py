"""The Quick check page run by Streamlit itself: whole papers, nothing told too early, files, links that exist."""

from __future__ import annotations

import csv
import html
import io
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from attention.model_facts import title_of
from attention.plots.ladder_board import board_js
from attention.plots.shape_track import track_js
from attention.plots.viewer import viewer_js
from attention.quiz import Link, Question, class_plan, paper, question, wording
from attention.quiz_heads import ON_SHAPES
from pages.learn import quiz_result
from pages.learn.quiz_parts import address
from pages.learn.quiz_sitting import PENDING
from pages.shared.site import PAGES

ROOT = Path(__file__).parents[1]
ENTRY = str(ROOT / "pages" / "entry.py")
FILES = {page.path: page.file for page in PAGES}
# Parameters a component in the browser owns, by what its script reads.
OWNERS = {"v": viewer_js(), "s": track_js(), "l": board_js()}


def opened(file: str = "learn/quiz.py", **asked: str) -> AppTest:
    app = AppTest.from_file(ENTRY, default_timeout=180)
    app.switch_page(file)
    for name, value in asked.items():
        app.query_params[name] = value
    app.run()
    assert [fault.value for fault in app.exception] == []
    return app


def begun(seed: int = 7, **asked: str) -> AppTest:
    app = opened(q_seed=str(seed), **asked)
    return press(app, "q_start")


def press(app: AppTest, key: str) -> AppTest:
    app.button(key=key).click().run()
    assert [fault.value for fault in app.exception] == []
    return app


def said(app: AppTest) -> str:
    """Everything on the page as plain words, styles left out; markup keeps its addresses."""
    parts = [part.value for part in (*app.get("html"), *app.markdown, *app.error, *app.info)]
    return html.unescape(" ".join(re.sub(r"<style>.*?</style>", " ", part, flags=re.S) for part in parts))


def give(app: AppTest, asked: Question, given: Any) -> AppTest:
    """Answer the question in view as a visitor does."""
    if asked.form == "choose":
        app.radio[0].set_value(given)
    elif asked.form == "number":
        app.number_input[-1].set_value(given)
    elif asked.form == "shape":
        app.text_input[-1].set_value(given)
    elif asked.form == "order":
        for place in given:
            press(app, next(one.key for one in app.button if one.key and one.key.endswith(f"{asked.id}-{place}")))
    else:
        app.session_state[PENDING] = (given,)  # what a press on a map sets; the maps themselves need a browser
    next(one for one in app.button if one.label == "Answer").click()
    app.run()
    assert [fault.value for fault in app.exception] == []
    return app


def wrong_for(asked: Question) -> Any:
    if asked.form == "order":
        return tuple(reversed(asked.answer))  # type: ignore[arg-type]
    if asked.form == "shape":
        return "(1, 1)"
    if asked.form == "number":
        return int(asked.answer) + 1000 if asked.tolerance == 0 else float(asked.answer) + 1000.0  # type: ignore[arg-type]
    return (int(asked.answer) + 1) % len(asked.maps or asked.choices)  # type: ignore[arg-type]


def right_for(asked: Question) -> Any:
    if asked.form == "shape":
        return str(asked.answer)
    return float(asked.answer) if asked.form == "number" and asked.tolerance else asked.answer  # type: ignore[arg-type]


def test_a_paper_answered_right_from_end_to_end_and_taken_away() -> None:
    app = begun(7)
    for place, asked in enumerate(paper(7).questions):
        assert asked.text in said(app)
        assert f"Question {place + 1} of 12" in said(app)
        give(app, asked, right_for(asked))
        assert "✓ Right." in said(app), asked.id
        assert app.button(key="q_next").label == ("Finish" if place == 11 else "Next")
        press(app, "q_next")
    assert "12 of 12 right" in said(app)
    assert "Worth another look" not in said(app)
    sitting = app.session_state["q_sitting"]
    rows = list(csv.reader(io.StringIO(quiz_result.result_csv(sitting))))
    assert rows[:4] == [
        ["item", "yours", "right answer", "result"],
        ["paper", "7", "", ""],
        ["questions", "12", "", ""],
        ["right", "12", "", ""],
    ]
    assert [row[3] for row in rows[5:]] == ["right"] * 12
    picture = Image.open(io.BytesIO(quiz_result.result_png(sitting)))
    assert (picture.format, picture.size) == ("PNG", (1200, 630))
    assert len(picture.convert("RGB").getcolors(1 << 20)) > 3


@pytest.mark.parametrize("seed", [3, 8])
def test_nothing_is_told_before_an_answer_and_a_wrong_one_gets_reason_and_link(seed: int) -> None:
    app = begun(seed)
    for place, asked in enumerate(paper(seed).questions):
        before = said(app)
        told = " ".join([before, *(one.label for one in app.button), *(one.label for one in app.radio)])
        reason = asked.reason.replace("`", "")
        assert reason not in before
        assert asked.link.words not in before
        assert "The answer" not in before
        if asked.form in ("shape", "head"):
            assert asked.right_words not in told
        give(app, asked, wrong_for(asked))
        after = said(app).replace("<code>", "").replace("</code>", "")
        assert "✗ Not right." in after, asked.id
        assert reason in after
        assert asked.right_words.rstrip(".") in after
        assert html.unescape(address(asked.link)) in after
        assert not [one for one in app.button if one.label == "Answer"]  # answered once
        if place < 11:
            press(app, "q_next")
    assert app.session_state["q_sitting"].n_right == 0


def test_back_next_skipping_and_handing_in() -> None:
    app = begun(7)
    asked = paper(7).questions
    assert app.button(key="q_back").disabled
    press(app, "q_next")
    press(app, "q_back")
    assert asked[0].text in said(app)
    give(app, asked[0], right_for(asked[0]))
    for _ in range(11):
        press(app, "q_next")
    assert "11 questions are still open." in said(app)
    press(app, "q_next")
    assert "1 of 12 right" in said(app)
    assert said(app).count("not answered") == 11
    press(app, "q_review")
    press(app, "q_next")
    assert "✗ Not answered." in said(app)
    assert asked[1].reason in said(app)
    press(app, "q_result")
    assert "1 of 12 right" in said(app)
    press(app, "q_leave")
    assert "Paper 7: 12 questions" in said(app)


@pytest.mark.parametrize("bad", ["five", "(4, n)", "💥", "1" * 5000 + "x"])
def test_an_answer_that_cannot_be_read_is_refused_and_may_be_given_again(bad: str) -> None:
    app = begun(7)
    place = next(place for place, asked in enumerate(paper(7).questions) if asked.form == "shape")
    for _ in range(place):
        press(app, "q_next")
    asked = paper(7).questions[place]
    give(app, asked, bad)
    assert "is not a shape" in re.sub(r"\\", "", app.error[0].value)
    assert place not in app.session_state["q_sitting"].given
    give(app, asked, str(asked.answer))
    assert "✓ Right." in said(app)
    assert len(app.error) == 0


def test_answer_without_an_answer_is_no_answer() -> None:
    app = begun(7)
    next(one for one in app.button if one.label == "Answer").click()
    app.run()
    assert "There is no answer yet" in app.error[0].value
    assert app.session_state["q_sitting"].given == {}


def test_the_number_in_the_link_is_the_paper_and_rests_while_it_is_answered() -> None:
    app = opened(q_seed="4321", q_many="24")
    assert "Paper 4321: 24 questions" in said(app)
    press(app, "q_start")
    assert paper(4321, 24).questions[0].text in said(app)
    assert app.number_input(key="q_seed").disabled
    assert app.selectbox(key="q_many").disabled
    assert app.session_state["q_sitting"].paper.seed == 4321


def test_another_paper_draws_another_number() -> None:
    app = opened(q_seed="7")
    seen = set()
    for _ in range(3):
        press(app, "q_other")
        seen.add(app.number_input(key="q_seed").value)
    assert len(seen) > 1
    assert seen <= set(range(1, 10_000))


@pytest.mark.parametrize("asked", ["0", "10000", "abc", "-3", "<b>"])
def test_a_link_to_a_paper_there_is_not_says_so(asked: str) -> None:
    app = opened(q_seed=asked)
    assert "Papers are numbered 1 to" in app.info[0].value
    assert "Paper 1: 12 questions" in said(app)


# ---- links


EVERY_LINK = [
    *(pytest.param(slide.link, id=f"plan {number}") for number, slide in enumerate(class_plan(), 1)),
    *(pytest.param(question(entry["id"], 3).link, id=entry["id"]) for entry in wording()["questions"]),
]


@pytest.mark.parametrize("link", EVERY_LINK)
def test_every_parameter_of_every_link_is_one_its_page_reads(link: Link) -> None:
    assert link.path in FILES
    pages = " ".join(file.read_text(encoding="utf-8") for file in (ROOT / "pages").rglob("*.py"))
    for name, value in link.state:
        owner, dot, own = name.partition(".")
        if dot:
            assert re.search(rf'\b(get|has|whole)\("{own}"', OWNERS[owner]), name
        else:
            assert f'"{name}"' in pages, name
        assert value != ""


def in_words(name: str, value: Any) -> str:
    """A bound widget's value as the link's state writes it."""
    if name == "model":
        return title_of(value)
    if name == "c_bits":
        return f"{value} bit"
    if name == "s_mistake":
        return ON_SHAPES[value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def opens_in_that_state(link: Link) -> None:
    asked = dict(parse_qsl(urlsplit(address(link)).query, strict_parsing=True)) if link.state else {}
    app = opened(FILES[link.path], **asked)
    assert [fault.value for fault in app.error] == []
    assert not [note.value for note in app.info if "This link asks" in note.value]
    for name, value in link.state:
        if "." not in name:
            assert in_words(name, app.session_state[name]) == value, name


LIGHT = [one for one in EVERY_LINK if one.values[0].path in ("shapes", "cache", "write", "ladder", "quiz")]


def test_links_to_pages_without_a_model_open_in_the_state_they_name() -> None:
    """One of each set of parameters: the others differ in numbers only."""
    kinds: dict[Any, Link] = {}
    for one in LIGHT:
        link: Link = one.values[0]
        tabs = tuple(value for name, value in link.state if name in ("s_tab", "c_tab", "s_mistake"))
        kinds.setdefault((link.path, tuple(name for name, _ in link.state), tabs), link)
    assert len(kinds) > 15
    for link in kinds.values():
        opens_in_that_state(link)


@pytest.mark.parametrize("name", ["plan 1", "plan 2", "evidence", "heat_rows", "head_even"])
def test_links_to_real_heads_open_in_the_state_they_name(name: str) -> None:
    opens_in_that_state(next(one.values[0] for one in EVERY_LINK if one.id == name))


def test_the_class_plan_shows_ten_links_in_new_tabs() -> None:
    app = opened(q_tab="Class plan")
    page = said(app)
    assert "A class of 45 minutes in 10 links" in page
    for slide in class_plan():
        assert slide.ask in page
        assert f'href="{html.unescape(address(slide.link))}" target="_blank"' in page
    assert "Start" not in [one.label for one in app.button]
