"""The result card: score, time and paper number, on the page and to take away. Nothing is sent or kept."""

from __future__ import annotations

import html
import io

import streamlit as st

from attention.plots.cache_charts import csv_text
from attention.quiz import wording
from pages.learn import quiz_sitting
from pages.learn.quiz_bar import other_paper
from pages.learn.quiz_parts import focus_on, link_html
from pages.learn.quiz_sitting import Sitting

WIDTH, HEIGHT, EDGE = 1200, 630, 70
PAPER, INK, QUIET, FILL, EMPTY = "#fdfdfc", "#1f2328", "#57606a", "#1d4ed8", "#e3e6ea"
WORDS = {True: "right", False: "wrong", None: "not answered"}


def show(sitting: Sitting) -> None:
    """The card, what to look at again, and the two files."""
    many, at = len(sitting.paper.questions), f"{sitting.paper.seed} result"
    st.html(
        f'<h2 class="hs-q-score" tabindex="-1" data-at="{at}">{sitting.n_right} of {many} right</h2>'
        f'<p class="hs-q-small">Paper {sitting.paper.seed}, {many} questions, in {minutes_text(sitting)}.</p>'
        f'<ul class="hs-q-small">{"".join(f"<li>{html.escape(line)}</li>" for line in _by_topic(sitting))}</ul>'
    )
    again = [place for place in range(many) if sitting.verdict(place) is not True]
    if again:
        questions = sitting.paper.questions
        st.html(
            '<p class="hs-q-small"><b>Worth another look</b> (links open in a new tab)</p><ul class="hs-q-small">'
            + "".join(
                f"<li>Question {place + 1}, {WORDS[sitting.verdict(place)]}: {html.escape(questions[place].text)} "
                f"{link_html(questions[place].link, note=False)}</li>"
                for place in again
            )
            + "</ul>"
        )
    _files(sitting)
    with st.container(horizontal=True):
        st.button("Look through the answers", key="q_review", on_click=quiz_sitting.go, args=(0,))
        st.button("Another paper", key="q_other", on_click=other_paper, icon=":material/casino:")
    focus_on(".hs-q-score", at)


def _by_topic(sitting: Sitting) -> list[str]:
    return [f"{title}: {right} of {many}" for title, right, many in topic_scores(sitting)]


def topic_scores(sitting: Sitting) -> list[tuple[str, int, int]]:
    """Topic, right answers, questions; only topics the paper has."""
    found = []
    for topic, title in wording()["topics"].items():
        places = [place for place, asked in enumerate(sitting.paper.questions) if asked.topic == topic]
        if places:
            found.append((str(title), sum(sitting.verdict(place) is True for place in places), len(places)))
    return found


def _files(sitting: Sitting) -> None:
    name = f"headscope-quick-check-{sitting.paper.seed}"
    with st.container(horizontal=True):
        st.download_button(
            "Result as CSV",
            lambda: result_csv(sitting),
            f"{name}.csv",
            "text/csv",
            key="q_csv",
            on_click="ignore",
            help="A table: score, time, paper number, and every question with your answer.",
        )
        st.download_button(
            "Result as picture",
            lambda: result_png(sitting),
            f"{name}.png",
            "image/png",
            key="q_png",
            on_click="ignore",
            help="A card with score, time and paper number.",
        )


def minutes_text(sitting: Sitting) -> str:
    """The time taken: ``3 min 07 s``."""
    minutes, seconds = divmod(round(sitting.seconds or 0), 60)
    return f"{minutes} min {seconds:02d} s"


def result_csv(sitting: Sitting) -> str:
    """The card's numbers, then a row for each question."""
    rows: list[tuple[str | int, ...]] = [
        ("paper", sitting.paper.seed, "", ""),
        ("questions", len(sitting.paper.questions), "", ""),
        ("right", sitting.n_right, "", ""),
        ("seconds", round(sitting.seconds or 0), "", ""),
    ]
    for place, asked in enumerate(sitting.paper.questions):
        given = sitting.given.get(place)
        said = "" if given is None else asked.words_of(given)
        rows.append((f"{place + 1}. {asked.text}", said, asked.right_words, WORDS[sitting.verdict(place)]))
    return csv_text(("item", "yours", "right answer", "result"), rows)


def result_png(sitting: Sitting) -> bytes:
    """The card as a picture of 1200 × 630, drawn here with Pillow's own font."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    pen = ImageDraw.Draw(image)
    many = len(sitting.paper.questions)
    pen.text((EDGE, 55), "Headscope quick check", QUIET, font=ImageFont.load_default(34))
    pen.text((EDGE, 115), f"{sitting.n_right} of {many} right", INK, font=ImageFont.load_default(92))
    told = f"Paper {sitting.paper.seed}, {many} questions, in {minutes_text(sitting)}"
    pen.text((EDGE, 240), told, INK, font=ImageFont.load_default(34))
    small = ImageFont.load_default(30)
    for row, (title, right, asked) in enumerate(topic_scores(sitting)):
        top = 325 + 66 * row
        pen.text((EDGE, top), title, INK, font=small)
        left, right_edge = 300, 980
        pen.rectangle((left, top + 4, right_edge, top + 34), EMPTY)
        if right:
            pen.rectangle((left, top + 4, left + (right_edge - left) * right // asked, top + 34), FILL)
        pen.text((1010, top), f"{right} of {asked}", INK, font=small)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
