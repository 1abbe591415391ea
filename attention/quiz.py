"""The quick check: a paper of questions from a seed, graded here, each wrong answer with its reason and a link.

Wording, reasons and links stand in ``assets/quiz.json``; fresh values and every answer come from the engine
(``quiz_numbers``, ``quiz_heads``). The same seed and length give the same paper in every process.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal
from urllib.parse import quote, urlencode

from attention.errors import UserError
from attention.quiz_heads import HEADS
from attention.quiz_maps import HeadMap
from attention.quiz_numbers import NUMBERS, Made, Maker

FILE = Path(__file__).resolve().parents[1] / "assets" / "quiz.json"
Kind = Literal["choose", "number", "shape", "order", "head", "bug", "heat"]
Form = Literal["choose", "number", "shape", "order", "head"]
Answer = float | tuple[int, ...]
Given = Answer | str
MAKERS: dict[str, Maker] = NUMBERS | HEADS
SEEDS = range(1, 10_000)
SHORT = 12
HALF = 24
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Link:
    """One exact state of a page: its path, the URL parameters that make it, and words to press."""

    path: str
    state: tuple[tuple[str, str], ...]
    words: str

    @property
    def address(self) -> str:
        """The link from the app's own root, ``/shapes?s_seq=5``."""
        asked = urlencode(self.state, quote_via=quote, safe="")
        return f"/{self.path}?{asked}" if asked else f"/{self.path}"


@dataclass(frozen=True, eq=False)
class Question:
    """One question of a paper.

    ``kind`` is what a visitor is told it is, ``form`` how it is answered: a choice's place in ``choices`` or
    ``maps``, a number in ``unit`` (right within ``tolerance``, as ``allowed`` says), a shape as text, or the places
    of all choices in order. ``picture`` and ``code`` are there to read, ``mark`` names a row and a column of
    ``maps``. ``answer`` has the form of what is given, a shape as a tuple.
    """

    id: str
    kind: Kind
    form: Form
    topic: str
    text: str
    reason: str
    link: Link
    answer: Answer
    choices: tuple[str, ...] = ()
    maps: tuple[HeadMap, ...] = ()
    picture: HeadMap | None = None
    code: tuple[str, ...] = ()
    mark: tuple[int, int] | None = None
    unit: str = ""
    tolerance: float = 0.0
    allowed: str = ""

    @property
    def right_words(self) -> str:
        """The right answer as a person reads it."""
        return self.words_of(self.answer)

    def words_of(self, given: Given) -> str:
        """An answer as a person reads it."""
        if isinstance(given, str):
            return given
        if isinstance(given, tuple):
            return str(given) if self.form == "shape" else ", then ".join(self.choices[place] for place in given)
        if self.form == "number":
            return f"{_plain(given)} {self.unit}".strip()
        if self.form == "head":
            one = self.maps[int(given)]
            return f"map {letter(int(given))}: layer {one.layer}, head {one.head}"
        return self.choices[int(given)]


@dataclass(frozen=True)
class Slide:
    """One stop of the class plan: minutes, the link, and the question to ask there."""

    title: str
    minutes: int
    ask: str
    link: Link


@dataclass(frozen=True, eq=False)
class Paper:
    """The questions of a seed, in the lesson's order."""

    seed: int
    questions: tuple[Question, ...]


def lengths() -> tuple[int, ...]:
    """How many questions a paper may have; the last is every question there is."""
    return (SHORT, HALF, len(wording()["questions"]))


def paper(seed: int, length: int = SHORT) -> Paper:
    """The paper of a seed: every kind of question at least once, topics evenly, in the lesson's order.

    Raises UserError for a seed outside 1 to 9,999 or a length that is not one of ``lengths``.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or seed not in SEEDS:
        raise UserError(f"There is no paper {seed!r}.", f"Papers are numbered 1 to {SEEDS[-1]:,}.", "Choose one.")
    if length not in lengths():
        raise UserError(
            f"A paper of {length!r} questions is not on offer.",
            f"It may have {', '.join(map(str, lengths()))}.",
            "Choose one of these.",
        )
    chosen = _chosen(Random(f"{seed}"), length)
    topics = list(wording()["topics"])
    entries = sorted(chosen, key=lambda entry: topics.index(entry["topic"]))
    return Paper(seed, tuple(question(entry["id"], seed) for entry in entries))


def question(name: str, seed: int) -> Question:
    """One question by its id, with this seed's values. Raises UserError for an id there is not."""
    entries = {entry["id"]: entry for entry in wording()["questions"]}
    if name not in entries:
        raise UserError(f"There is no question {name!r}.", f"There are {', '.join(entries)}.", "Choose one of these.")
    entry = entries[name]
    draw = Random(f"{seed} {name}")
    made = MAKERS[name](draw) if name in MAKERS else Made({})
    return _asked(entry, made, draw)


def grade(asked: Question, given: Given) -> bool:
    """Whether an answer is right. Raises UserError for one that cannot be read."""
    if asked.form == "shape":
        return read_shape(str(given)) == asked.answer
    if asked.form == "order" and isinstance(given, tuple) and len(given) != len(asked.choices):
        raise UserError(
            f"{len(given)} of {len(asked.choices)} have a place.", "Each of them needs one.", "Press the others too."
        )
    if asked.form == "number" and isinstance(given, int | float) and isinstance(asked.answer, int | float):
        return math.isfinite(given) and abs(given - asked.answer) <= asked.tolerance + _ROUNDING
    return given == asked.answer


def letter(place: int) -> str:
    """What a map is called before its head is told: A, B, C …"""
    return "ABCDEFGHIJ"[place]


def read_shape(text: str) -> tuple[int, ...]:
    """A shape as people write it: ``(4, 8, 2)``, ``4 8 2`` or ``4x8x2``. Raises UserError without whole numbers."""
    parts = [part for part in re.split(r"[\s()\[\],;x×*·]+", text.strip(), flags=re.IGNORECASE) if part]
    if not parts or not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        raise UserError(
            f"“{text.strip()[:40]}” is not a shape.", "A shape is whole numbers, like (5, 4, 8).", "Write it like that."
        )
    return tuple(map(int, parts))


@cache
def wording() -> Mapping[str, Any]:
    """``assets/quiz.json``: every word of the quick check."""
    words: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return words


@cache
def class_plan() -> tuple[Slide, ...]:
    """The stops of a 45-minute class, in order."""
    return tuple(
        Slide(entry["title"], entry["minutes"], entry["ask"], _link(entry["link"], {})) for entry in wording()["plan"]
    )


def _chosen(draw: Random, length: int) -> list[dict[str, Any]]:
    """Which questions: one of every kind, then always one more of the topic that has fewest."""
    bank = list(wording()["questions"])
    draw.shuffle(bank)
    kinds = dict.fromkeys(entry["kind"] for entry in bank)
    chosen = [next(entry for entry in bank if entry["kind"] == kind) for kind in kinds]
    while len(chosen) < length:
        left = [entry for entry in bank if entry not in chosen]
        many = Counter(entry["topic"] for entry in chosen)
        chosen.append(min(left, key=lambda entry: many[entry["topic"]]))
    return chosen


def _asked(entry: Mapping[str, Any], made: Made, draw: Random) -> Question:
    choices = made.choices or tuple(_filled(words, made.values) for words in entry.get("choices", ()))
    places = list(range(len(made.maps or choices)))
    if made.shuffled:
        draw.shuffle(places)
    kind: Kind = entry["kind"]
    form = _form(kind, choices)
    answer = _answer(form, made, places)
    values, tolerance = dict(made.values), 0.0
    if form == "number" and not isinstance(answer, tuple):
        tolerance = max(entry.get("near", 0.0), entry.get("within", 0.0) * abs(answer))
        values["answer"] = _plain(answer)
    elif form == "shape":
        values["answer"] = str(answer)
    return Question(
        id=entry["id"],
        kind=kind,
        form=form,
        topic=entry["topic"],
        text=_filled(entry["text"], values),
        reason=_filled(entry["reason"], values),
        link=_link(entry["link"], values),
        answer=answer,
        choices=_in_order(choices, places),
        maps=_in_order(made.maps, places),
        picture=made.picture,
        code=made.code,
        mark=made.mark,
        unit=entry.get("unit", ""),
        tolerance=tolerance,
        allowed=entry.get("allowed", ""),
    )


def _answer(form: Form, made: Made, places: list[int]) -> Answer:
    """The right answer, where the choices have been put."""
    if form == "order":
        return tuple(places.index(place) for place in range(len(places)))
    if form in ("choose", "head") and made.shuffled and not isinstance(made.answer, tuple):
        return places.index(int(made.answer))
    return made.answer


def _form(kind: Kind, choices: Sequence[str]) -> Form:
    if kind == "bug" or (kind == "heat" and choices):
        return "choose"
    return "number" if kind == "heat" else kind


def _in_order(items: tuple[Any, ...], places: Sequence[int]) -> tuple[Any, ...]:
    return tuple(items[place] for place in places) if items else ()


def _link(entry: Mapping[str, Any], values: Mapping[str, Any]) -> Link:
    state = tuple((name, _filled(value, values)) for name, value in entry["state"].items())
    return Link(entry["path"], state, _filled(entry["words"], values))


def _filled(words: str, values: Mapping[str, Any]) -> str:
    return words.format(**values)


def _plain(number: float) -> str:
    """A number for a reader: whole where it is whole, else two decimals, below 1 three significant digits."""
    if abs(number - round(number)) < _ROUNDING:
        return f"{round(number):,}"
    return f"{number:.3g}" if abs(number) < 1 else f"{number:,.2f}".rstrip("0").rstrip(".")
