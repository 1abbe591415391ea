"""Reading a model's config.json: numbers, flags and lists, checked before anybody counts with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attention.errors import UserError

MAX_CONFIG_BYTES = 1_000_000
MAX_LAYERS = 2_000
MAX_HEADS = 16_384
MAX_WIDTH = 1_048_576
MAX_TOKENS = 1 << 40
_NEXT = "Paste the model's own config.json, complete and unchanged."


def shown(value: object, limit: int = 60) -> str:
    """A value as it may stand in a sentence: short, whatever a config held."""
    text = repr(value) if not isinstance(value, (dict, list)) else f"a {type(value).__name__} of {len(value)} entries"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def config_from_text(text: str) -> dict[str, Any]:
    """A pasted config.json as a dict.

    Raises UserError when it is longer than 1 MB, not JSON, nested too deeply, or not a JSON object.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise UserError(
            f"This text has {len(text):,} characters.",
            f"A config.json has a few thousand; up to {MAX_CONFIG_BYTES:,} are read.",
            "Paste only the model's config.json.",
        )
    try:
        config = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once_each)
    except UserError:
        raise
    except RecursionError:
        raise UserError(
            "This JSON is nested too deeply to be a model's config.", "A config has two or three levels.", _NEXT
        ) from None
    except ValueError as error:
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(
            f"This text is not JSON{where}.", "A config.json starts with { and ends with }.", _NEXT
        ) from None
    if not isinstance(config, dict):
        raise UserError(f"This JSON is {shown(config)}.", "A config is an object: names and values in braces.", _NEXT)
    return config


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ: JSON lets a name come twice, and which value counts is anybody's guess."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise UserError(f"This config says {shown(twice)} twice.", "Every name may stand once.", _NEXT)
    return found


def _no_constant(name: str) -> float:
    raise ValueError(name)


@dataclass(frozen=True)
class ConfigReader:
    """One level of a config, with the model_type it belongs to for the sentences.

    The first of several names that is present and not null wins. Every number is
    checked: a positive whole number within limits, else UserError.
    """

    values: Mapping[str, Any]
    model_type: str

    def has(self, *names: str) -> bool:
        """Whether one of the names is present and not null."""
        return any(self.values.get(name) is not None for name in names)

    def number(self, *names: str, default: int | None = None, most: int = MAX_WIDTH, least: int = 1) -> int:
        """The first present name's whole number, ``least`` to ``most``; ``default`` if none is present.

        Raises UserError when no name is present and there is no default, or the value is no such number.
        """
        for name in names:
            if self.values.get(name) is not None:
                return self._checked(name, self.values[name], least, most)
        if default is not None:
            return default
        raise UserError(
            f"The config of this {self.model_type} model does not say {names[0]}.",
            f"It needs {' or '.join(names)}.",
            _NEXT,
        )

    def optional(self, *names: str, most: int = MAX_TOKENS, least: int = 1) -> int | None:
        """Like ``number``, or None when no name is present."""
        return self.number(*names, most=most, least=least) if self.has(*names) else None

    def flag(self, name: str, default: bool) -> bool:
        """A true/false value. Raises UserError when it is anything else."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise UserError(f"{name} is {shown(value)} in this config.", "It must be true or false.", _NEXT)
        return value

    def names(self, *names: str) -> tuple[str, ...] | None:
        """The first present name's list of words (layer types), or None."""
        found = self._list(*names)
        if found is None:
            return None
        for word in found[1]:
            if not isinstance(word, str):
                raise UserError(f"{found[0]} holds {shown(word)}.", "It must be a list of words.", _NEXT)
        return tuple(found[1])

    def numbers(self, *names: str, most: int = MAX_TOKENS) -> tuple[int, ...] | None:
        """The first present name's list of whole numbers from 0 up, or None."""
        found = self._list(*names)
        if found is None:
            return None
        return tuple(self._checked(found[0], number, 0, most) for number in found[1])

    def inner(self, name: str) -> ConfigReader | None:
        """The object stored under ``name``, or None when there is none."""
        value = self.values.get(name)
        return ConfigReader(value, self.model_type) if isinstance(value, Mapping) else None

    def _list(self, *names: str) -> tuple[str, list[Any]] | None:
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, (list, tuple)):
                raise UserError(f"{name} is {shown(value)} in this config.", "It must be a list.", _NEXT)
            if len(value) > MAX_LAYERS:
                raise UserError(
                    f"{name} has {len(value):,} entries.", f"A model has at most {MAX_LAYERS:,} layers.", _NEXT
                )
            return name, list(value)
        return None

    def _checked(self, name: str, value: object, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UserError(
                f"{name} is {shown(value)} in this config.",
                f"It must be a whole number from {least} to {most:,}.",
                _NEXT,
            )
        return value
