"""The lesson's words, all from ``assets/lesson.json``: a translation is another such file."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attention.quiz import Link

FILE = Path(__file__).resolve().parents[2] / "assets" / "lesson.json"
_STRONG = re.compile(r"\*(.+?)\*")


@dataclass(frozen=True)
class Part:
    """One part of the lesson: its paragraphs and links, still with the names of the numbers in them."""

    id: str
    title: str
    minutes: int
    paragraphs: tuple[str, ...]
    links: tuple[Link, ...]

    def told(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """The paragraphs with their numbers, as plain words."""
        return tuple(_STRONG.sub(r"\1", one).format(**values) for one in self.paragraphs)

    def told_html(self, values: Mapping[str, Any]) -> str:
        """The same as HTML; what stands between stars is bold, everything else literal."""
        safe = {name: html.escape(str(value)) for name, value in values.items()}
        lines = (_STRONG.sub(r"<b>\1</b>", html.escape(one, quote=False)).format(**safe) for one in self.paragraphs)
        return "".join(f"<p>{line}</p>" for line in lines)

    def onward(self, values: Mapping[str, Any]) -> tuple[Link, ...]:
        """The links with their numbers."""
        return tuple(
            Link(
                one.path,
                tuple((name, value.format(**values)) for name, value in one.state),
                one.words.format(**values),
            )
            for one in self.links
        )


@cache
def parts() -> tuple[Part, ...]:
    """The parts in the lesson's order."""
    return tuple(
        Part(
            fact["id"],
            fact["title"],
            fact["minutes"],
            tuple(fact["text"]),
            tuple(Link(one["path"], tuple(one["state"].items()), one["words"]) for one in fact["links"]),
        )
        for fact in _facts()["parts"]
    )


def words(name: str, **values: Any) -> str:
    """A short text of the page: a label, a caption."""
    text: str = _facts()["frame"][name]
    return text.format(**values) if values else text


def choices(name: str) -> tuple[str, ...]:
    """Several short texts that belong together."""
    return tuple(_facts()["frame"][name])


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return facts
