"""What the browser runs and wears: files of ``assets/``, joined into a component's one script and its one style."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_ASSETS = Path(__file__).resolve().parents[2] / "assets"
# In front of a component's own files: elements alone, or also what a picture drawn from one message needs.
ELEMENTS = ("elements.js",)
CANVAS = (*ELEMENTS, "canvas.js")


# Comments at the margin are for who reads the files: they are not sent.
_COMMENT = re.compile(r"^(//[^\n]*|/\*.*?\*/)\n", re.MULTILINE | re.DOTALL)


@cache
def script(*names: str) -> str:
    """One ES module of these files, in this order; what they declare at the top shares one scope."""
    return _joined(names)


@cache
def style(*names: str) -> str:
    """One style of these files, in this order."""
    return _joined(names)


def _joined(names: tuple[str, ...]) -> str:
    return "\n".join(_COMMENT.sub("", (_ASSETS / name).read_text(encoding="utf-8")) for name in names)
