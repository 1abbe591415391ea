"""One question in view: its text, the way to answer it, and after that the verdict with reason and link."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import streamlit as st

from attention.model_facts import title_of
from attention.plots.heatmaps import heatmap
from attention.plots.numbers import percent
from attention.plots.quiz_maps import in_words, maps_data
from attention.quiz import Given, Question, letter, wording
from attention.quiz_maps import HeadMap
from pages.learn import quiz_sitting
from pages.learn.quiz_maps import head_maps
from pages.learn.quiz_parts import focus_on, link_html, theme
from pages.learn.quiz_sitting import Sitting
from pages.shared.errors import plain, show_error
from pages.shared.tables import table

FIELD = 260  # pixels
MARKS = {True: "✓", False: "✗"}
SAID = {True: "right", False: "wrong", None: "open"}


def show(sitting: Sitting) -> None:
    """The question the sitting is at."""
    assert sitting.at is not None
    place, asked = sitting.at, sitting.paper.questions[sitting.at]
    closed = place in sitting.given or sitting.finished
    at = f"{sitting.paper.seed} {place} {'closed' if closed else 'open'}"
    st.html(_head(sitting, place, asked, at))
    if asked.picture is None and not asked.code:
        _body(sitting, place, asked, closed, at)
    else:
        left, right = st.columns([1.15, 1], gap="medium")
        with left:
            _to_read(asked)
        with right:
            _body(sitting, place, asked, closed, at)
    _steps(sitting, place, closed)
    focus_on(".hs-q-verdict" if closed else ".hs-q-text", at)


def _head(sitting: Sitting, place: int, asked: Question, at: str) -> str:
    dots = []
    for other in range(len(sitting.paper.questions)):
        verdict = sitting.verdict(other)
        now = ' aria-current="step"' if other == place else ""
        said = f"Question {other + 1}: {SAID[verdict]}"
        mark = MARKS[verdict] if verdict is not None else str(other + 1)
        dots.append(f'<li{now} aria-label="{said}" title="{said}">{mark}</li>')
    kind, topic = wording()["kinds"][asked.kind], wording()["topics"][asked.topic]
    return (
        f'<ol class="hs-q-dots" aria-label="Progress">{"".join(dots)}</ol>'
        f'<p class="hs-q-kind">Question {place + 1} of {len(sitting.paper.questions)} · {html.escape(topic)} · '
        f"{html.escape(kind)}</p>"
        f'<h2 class="hs-q-text" tabindex="-1" data-at="{at}">{html.escape(asked.text)}</h2>'
    )


def _body(sitting: Sitting, place: int, asked: Question, closed: bool, at: str) -> None:
    given = sitting.given.get(place)
    key = f"q-{sitting.paper.seed}-{place}-{asked.id}"
    if asked.form == "head":
        _head_choice(asked, given, closed, key)
    elif not closed:
        _FORMS[asked.form](asked, key)
    elif asked.form == "choose" and not asked.code:
        st.html(_told(asked, given))
    error = st.session_state.get(quiz_sitting.REFUSED)
    if error is not None and not closed:
        show_error(error)
    if closed:
        st.html(_verdict(asked, given, sitting.verdict(place), at))


def _told(asked: Question, given: Given | None) -> str:
    """The choices once they are answered: the right one and a wrong one that was taken are marked."""
    lines = []
    for place, choice in enumerate(asked.choices):
        right = place == asked.answer
        mark = MARKS[right] if right or place == given else ""
        words = html.escape(choice)
        lines.append(f"<li><span>{mark}</span>{f'<b>{words}</b>' if right else words}</li>")
    return f'<ul class="hs-q-told">{"".join(lines)}</ul>'


def _verdict(asked: Question, given: Given | None, right: bool | None, at: str) -> str:
    lines = [{True: "✓ Right.", False: "✗ Not right.", None: "✗ Not answered."}[right]]
    if right is False and given is not None:
        lines.append(f"You said: {asked.words_of(given).rstrip('.')}.")
    lines.append(f"The answer: {asked.right_words.rstrip('.')}.")
    lines.append(asked.reason)
    said = "".join(f"<p>{_with_code(line)}</p>" for line in lines)
    kind = "yes" if right else "no"
    return (
        f'<div class="hs-q-verdict hs-q-{kind}" role="status" tabindex="-1" data-at="{at}">{said}'
        f"<p>{link_html(asked.link)}</p></div>"
    )


def _with_code(line: str) -> str:
    """Plain words as HTML; what stands between backticks is code."""
    return re.sub("`(.+?)`", r"<code>\1</code>", html.escape(line))


# ---- the ways to answer


def _choose(asked: Question, key: str) -> None:
    with st.form(key, border=False):
        st.radio(
            asked.text,
            range(len(asked.choices)),
            index=None,
            format_func=lambda place: plain(asked.choices[place]),
            key=f"{key}-radio",
            horizontal=bool(asked.code),
            label_visibility="collapsed",
        )
        _submit(asked, lambda: st.session_state[f"{key}-radio"])


def _number(asked: Question, key: str) -> None:
    numbers: dict[str, Any] = {"step": 1} if asked.tolerance == 0 else {"step": 0.01, "format": "%0.2f"}
    with st.form(key, border=False):
        st.number_input(
            f"Your answer, in {asked.unit}" if asked.unit else "Your answer",
            value=None,
            key=f"{key}-number",
            placeholder="a number",
            width=FIELD,
            **numbers,
        )
        _small(asked.allowed)
        _submit(asked, lambda: st.session_state[f"{key}-number"])


def _shape(asked: Question, key: str) -> None:
    with st.form(key, border=False):
        st.text_input(
            "Your answer, a shape", key=f"{key}-shape", placeholder="like (5, 4, 8)", autocomplete="off", width=FIELD
        )
        _submit(asked, lambda: st.session_state[f"{key}-shape"].strip() or None)


def _order(asked: Question, key: str) -> None:
    order = quiz_sitting.pending()
    _small("Press them in order. Press one again to take it out.")
    with st.container(key="q-steps"):
        for place, choice in enumerate(asked.choices):
            rank = order.index(place) + 1 if place in order else None
            st.button(
                f"{rank}. {plain(choice)}" if rank else plain(choice),
                key=f"{key}-{place}",
                type="primary" if rank else "secondary",
                on_click=quiz_sitting.press,
                args=(place,),
                width=420,
            )
    st.button("Answer", key=f"{key}-answer", type="primary", on_click=_take, args=(asked, quiz_sitting.pending))


def _head_choice(asked: Question, given: Given | None, closed: bool, key: str) -> None:
    first = asked.maps[0]
    st.html(
        f'<p class="hs-q-sentence">{html.escape(title_of(first.model).split(":")[0])} reads: '
        f"<b dir='auto'>{html.escape(first.text)}</b></p>"
    )
    chosen = int(given) if isinstance(given, int) else next(iter(quiz_sitting.pending()), None)
    names = [
        f"Map {letter(place)}" + (f": layer {one.layer}, head {one.head}" if closed else "")
        for place, one in enumerate(asked.maps)
    ]
    data = maps_data(
        asked.maps,
        names,
        theme(),
        label="Maps of six heads",
        mark=asked.mark,
        chosen=chosen,
        right=int(asked.answer) if closed and not isinstance(asked.answer, tuple) else None,
    )
    head_maps(data, key=f"{key}-maps", on_pick=quiz_sitting.point)
    if not closed:
        st.button(
            "Answer",
            key=f"{key}-answer",
            type="primary",
            on_click=_take,
            args=(asked, lambda: next(iter(quiz_sitting.pending()), None)),
        )


_FORMS: dict[str, Callable[[Question, str], None]] = {
    "choose": _choose,
    "number": _number,
    "shape": _shape,
    "order": _order,
}


def _submit(asked: Question, read: Callable[[], Given | None]) -> None:
    st.form_submit_button("Answer", type="primary", on_click=_take, args=(asked, read))


def _take(asked: Question, read: Callable[[], Given | None]) -> None:
    quiz_sitting.answer(asked, read())


# ---- what there is to read


def _to_read(asked: Question) -> None:
    if asked.picture is not None:
        _picture(asked.picture)
    if asked.code:
        st.code("\n".join(asked.code), language="python", line_numbers=True, wrap_lines=True)


def _picture(one: HeadMap) -> None:
    title = f"{title_of(one.model).split(':')[0]}, layer {one.layer}, head {one.head}"
    figure = heatmap(one.weights, one.labels, one.labels, title=title, theme=theme(), visible=one.visible)
    st.plotly_chart(figure, key="q-map", alt=f"Map of {title}. {in_words(one)}", config={"displayModeBar": False})
    with st.expander("The same map as a table"):
        table(
            "Rows look, columns are looked at",
            ("", *one.labels),
            [
                (label, *(percent(float(weight)) for weight in row))
                for label, row in zip(one.labels, one.weights, strict=True)
            ],
        )


def _small(words: str) -> None:
    st.html(f'<p class="hs-q-small">{html.escape(words)}</p>')


# ---- back and next


def _steps(sitting: Sitting, place: int, closed: bool) -> None:
    last = len(sitting.paper.questions) - 1
    missing = len(sitting.paper.questions) - len(sitting.given)
    if place == last and missing and not sitting.finished:
        many = "1 question is" if missing == 1 else f"{missing} questions are"
        _small(f"{many} still open. Finish counts what is open as not answered.")
    with st.container(horizontal=True, key="q-go"):
        st.button(
            "Back",
            key="q_back",
            icon=":material/chevron_left:",
            disabled=place == 0,
            on_click=quiz_sitting.go,
            args=(place - 1,),
        )
        st.button(
            "Finish" if place == last else "Next",
            key="q_next",
            type="primary" if closed else "secondary",
            icon=":material/flag:" if place == last else ":material/chevron_right:",
            icon_position="right",
            on_click=quiz_sitting.go,
            args=(None if place == last else place + 1,),
        )
        if sitting.finished and place != last:
            st.button("Result", key="q_result", icon=":material/flag:", on_click=quiz_sitting.go, args=(None,))
