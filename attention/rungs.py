"""Rungs of the ladder as plain values: their names, the quality measured on them, and the points shipped. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from attention.errors import UserError
from attention.layout import HeadLayout, divisors
from attention.sharing import LatentKV, ShareKV, named_values, numbers_cached
from attention.texts import bundled_text, evaluation_texts

ASSETS = Path(__file__).resolve().parents[1] / "assets"

Badge = Literal["as shipped", "no training", "healed"]
Rung = ShareKV | LatentKV | None


@dataclass(frozen=True)
class Quality:
    """How close a changed model stays, on one text. ``pieces`` holds one value a piece of text or sentence.

    Decoders: ``pieces`` are mean losses in nats; ``value`` is the perplexity, exp of their mean; ``apart`` the KL
    divergence of the original's next-token distribution from the changed one's, in nats; ``agreement`` the share
    of places where both name the same likeliest token. Encoders: ``pieces`` are cosines between the sentence's
    embedding and the original's, ``value`` their mean, ``apart`` 1 - value; ``agreement`` is Spearman's rank
    correlation of the similarities of all sentence pairs. ``low`` and ``high``: the worst and best piece's own value.
    """

    text: str
    value: float
    low: float
    high: float
    apart: float
    agreement: float
    pieces: tuple[float, ...]


@dataclass(frozen=True)
class LadderPoint:
    """One rung measured. ``numbers`` cached per token and layer; ``bytes_per_token`` over all layers at fp16."""

    what_if: Rung
    badge: Badge
    numbers: int
    bytes_per_token: int
    quality: tuple[Quality, ...]

    def on(self, text: str) -> Quality:
        """The quality on one text. Raises UserError for a text that was not measured."""
        for one in self.quality:
            if one.text == text:
                return one
        raise UserError(
            f"Nothing was measured on {text!r}.", f"Texts: {', '.join(q.text for q in self.quality)}.", "Choose one."
        )


@dataclass(frozen=True)
class SweepRequest:
    """Everything a sweep depends on. ``key`` is the only thing any cache may use."""

    model: str
    rungs: tuple[Rung, ...]
    revision: str = ""

    @property
    def key(self) -> str:
        """Canonical JSON with class names, and the texts' hashes."""
        hashes = [text.sha256 for text in (*evaluation_texts(), bundled_text("calibration"))]
        return json.dumps([named_values(self), hashes], sort_keys=True, separators=(",", ":"))


def rungs_of(layout: HeadLayout) -> tuple[Rung, ...]:
    """Every setting the page offers for a layout: all divisors in five ways, latents by even steps, and splits."""
    shares = [n for n in reversed(divisors(layout.n_kv_heads)) if n != layout.n_kv_heads]
    full = numbers_cached(layout)
    ranks = sorted({round(full * step / 12) for step in (1, 2, 3, 4, 6, 8, 10, 12)}, reverse=True)
    half = full // 3
    rungs: list[Rung] = [None]
    rungs += [ShareKV(n, how) for how in ("mean", "aligned", "first", "random") for n in shares]
    rungs += [ShareKV(n, how, groups="by-similarity") for how in ("mean", "aligned") for n in shares if n != 1]
    rungs += [LatentKV(rank) for rank in ranks]
    rungs += [LatentKV(rank, whiten=False) for rank in ranks if rank != full]
    rungs += [LatentKV(half, split=(part, half - part)) for part in (half // 3, half // 2, half - half // 3)]
    return tuple(rungs)


def badge_of(rung: Rung) -> Badge:
    """What a person must know of a point before believing it."""
    if rung is None:
        return "as shipped"
    healed = rung.healed if isinstance(rung, LatentKV) else rung.how == "healed"
    return "healed" if healed else "no training"


@cache
def shipped_sweep(model_id: str) -> tuple[LadderPoint, ...]:
    """The points measured ahead for a bundled model; empty for any other."""
    file = ASSETS / "sweeps" / f"{model_id}.json"
    if not file.is_file():
        return ()
    return tuple(point_from(fact) for fact in json.loads(file.read_text(encoding="utf-8"))["points"])


def shipped_points(model_id: str, revision: str, rungs: Sequence[Rung]) -> tuple[LadderPoint, ...] | None:
    """The points of these rungs as shipped, or None when one of them was not measured on these weights."""
    points = {point.what_if: point for point in shipped_sweep(model_id)}
    if not points or sweep_facts(model_id)["revision"] != revision or any(rung not in points for rung in rungs):
        return None
    return tuple(points[rung] for rung in rungs)


@cache
def sweep_facts(model_id: str) -> dict[str, Any]:
    """How the shipped sweep was made: command, revision, hashes of code and texts, versions."""
    file = ASSETS / "sweeps" / f"{model_id}.json"
    return {key: value for key, value in json.loads(file.read_text(encoding="utf-8")).items() if key != "points"}


def rung_name(rung: Rung) -> str:
    """A stable short name: "as shipped", "share 1 mean", "latent 128", "latent 128 = 64 + 64 unwhitened"."""
    if rung is None:
        return "as shipped"
    if isinstance(rung, ShareKV):
        return f"share {rung.n_kv_heads} {rung.how}" + (" by similarity" if rung.groups == "by-similarity" else "")
    split = "" if rung.split is None else f" = {rung.split[0]} + {rung.split[1]}"
    return f"latent {rung.rank}{split}" + ("" if rung.whiten else " unwhitened") + (" healed" if rung.healed else "")


def to_fact(point: LadderPoint) -> dict[str, Any]:
    """A point as plain JSON-able values."""
    return {
        "what_if": to_fact_rung(point.what_if),
        "badge": point.badge,
        "numbers": point.numbers,
        "bytes_per_token": point.bytes_per_token,
        "quality": [asdict(one) for one in point.quality],
    }


def to_fact_rung(rung: Rung) -> dict[str, Any] | None:
    """A what-if with its class name, as JSON-able values."""
    return None if rung is None else {"class": type(rung).__name__} | asdict(rung)


def point_from(fact: dict[str, Any]) -> LadderPoint:
    """The reverse of ``to_fact``."""
    quality = tuple(Quality(**(one | {"pieces": tuple(one["pieces"])})) for one in fact["quality"])
    return LadderPoint(rung_from(fact["what_if"]), fact["badge"], fact["numbers"], fact["bytes_per_token"], quality)


def rung_from(fact: dict[str, Any] | None) -> Rung:
    """A what-if from its JSON form."""
    if fact is None:
        return None
    made = {"ShareKV": ShareKV, "LatentKV": LatentKV}[fact["class"]]
    given = {f.name: fact[f.name] for f in fields(made)}
    return made(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
