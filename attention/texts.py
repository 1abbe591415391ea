"""The texts quality is measured on, and those that calibrate or train a what-if: each with licence and SHA-256."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from attention.errors import UserError

FOLDER = Path(__file__).resolve().parents[1] / "assets" / "texts"
Role = Literal["evaluation", "calibration", "training"]


@dataclass(frozen=True)
class BundledText:
    """One text and where it comes from. No passage of an evaluation text stands in another text."""

    id: str
    role: Role
    title: str
    author: str
    licence: str
    source: str
    sha256: str
    text: str


@cache
def bundled_texts() -> tuple[BundledText, ...]:
    """Every bundled text. Raises UserError when a file is not the one that results were measured on."""
    listed = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))["texts"]
    return tuple(_read(fact) for fact in listed)


def bundled_text(id: str) -> BundledText:
    """The text of this id. Raises UserError for an unknown one."""
    found = next((one for one in bundled_texts() if one.id == id), None)
    if found is None:
        names = ", ".join(one.id for one in bundled_texts())
        raise UserError(f"There is no text {id!r}.", f"The texts are {names}.", "Choose one of these.")
    return found


def evaluation_texts() -> tuple[BundledText, ...]:
    """The texts that nothing was calibrated or trained on."""
    return tuple(one for one in bundled_texts() if one.role == "evaluation")


def _read(fact: dict[str, str]) -> BundledText:
    raw = (FOLDER / fact["file"]).read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != fact["sha256"]:
        raise UserError(
            f"The text {fact['file']} was changed (SHA-256 starts {found[:12]}).",
            f"Results were measured on the one that starts {fact['sha256'][:12]}.",
            "Restore the file from the repository.",
        )
    named = {key: value for key, value in fact.items() if key not in ("file", "role")}
    return BundledText(**named, role=fact["role"], text=raw.decode("utf-8"))  # type: ignore[arg-type]
