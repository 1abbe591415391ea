"""Two things measured in turn, their ratio, and the table: every figure stands beside a peer from the same run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

Sample = TypeVar("Sample")
COLUMNS = ("measure", "ours", "peer", "ratio", "target", "met")


@dataclass(frozen=True)
class Effort:
    """At most ``pairs`` pairs, fewer once ``seconds`` are spent, never below ``least``."""

    pairs: int
    seconds: float
    least: int = 3


@dataclass(frozen=True)
class Target:
    """What a ratio must reach. "cost": ours / peer at most ``limit``. "gain": peer / ours at least ``limit``.
    "most": no ratio; ours itself at most ``limit``."""

    limit: float
    kind: Literal["cost", "gain", "most"] = "cost"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``ours`` and ``peer`` hold one number per run, in ``unit``, run for run in the same order; ``peer`` is empty
    where there is none. ``note`` says what stands behind the numbers. ``details`` (plain JSON) only goes to the file.
    """

    measure: str
    unit: str
    ours: tuple[float, ...]
    peer: tuple[float, ...] = ()
    target: Target | None = None
    peer_name: str = ""
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Per pair of runs: peer / ours for a gain, else ours / peer. Empty without a peer."""
        if not self.peer:
            return ()
        pairs = zip(self.ours, self.peer, strict=True)
        if self.target and self.target.kind == "gain":
            return tuple(_divided(peer, ours) for ours, peer in pairs)
        return tuple(_divided(ours, peer) for ours, peer in pairs)

    @property
    def ratio(self) -> float | None:
        """The median over pairs: both runs of a pair had the same machine around them."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.target is None:
            return None
        if self.target.kind == "most":
            return statistics.median(self.ours) <= self.target.limit
        if self.ratio is None:
            return None
        return self.ratio >= self.target.limit if self.target.kind == "gain" else self.ratio <= self.target.limit


def interleaved(
    ours: Callable[[], Sample], peer: Callable[[], Sample], effort: Effort, warm_up: int = 0
) -> list[tuple[Sample, Sample]]:
    """Run both in turn (A B, B A, A B, …), so that a busy machine slows both; one (ours, peer) per pair.

    The first ``warm_up`` pairs are thrown away.
    """
    pairs: list[tuple[Sample, Sample]] = []
    began = time.monotonic()
    for turn in range(warm_up + effort.pairs):
        enough = len(pairs) >= effort.least and time.monotonic() - began > effort.seconds
        if enough:
            break
        if turn % 2:
            theirs = peer()
            mine = ours()
        else:
            mine = ours()
            theirs = peer()
        if turn >= warm_up:
            pairs.append((mine, theirs))
    return pairs


def in_ms(run: Callable[[], object]) -> Callable[[], float]:
    """``run`` as something that returns the milliseconds it took."""

    def timed() -> float:
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) * 1e3

    return timed


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, the ends included in what they describe; the value itself, twice, when it is alone."""
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def table(rows: Sequence[Row]) -> str:
    """The rows as text: medians, in brackets the middle half of the runs, notes below."""
    notes = [row.note for row in rows if row.note]
    unique = list(dict.fromkeys(notes))
    cells = [COLUMNS, *(_cells(row, unique) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    lines = [" | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join([*lines, "", *(f"[{number}] {note}" for number, note in enumerate(unique, 1))]).rstrip()


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows with every run, their ratio and whether the target is met."""
    return [asdict(row) | {"ratios": row.ratios, "ratio": row.ratio, "met": row.met} for row in rows]


def _divided(one: float, other: float) -> float:
    return one / other if other else math.inf


def _cells(row: Row, notes: list[str]) -> tuple[str, ...]:
    peer = f"{_spread(row.peer, row.unit)} {row.peer_name}".strip() if row.peer else "–"
    met = {True: "yes", False: "NO", None: "report"}[row.met]
    number = f" [{notes.index(row.note) + 1}]" if row.note else ""
    return (row.measure + number, _spread(row.ours, row.unit), peer, _ratio(row), _target(row), met)


def _spread(values: Sequence[float], unit: str) -> str:
    middle = _number(statistics.median(values))
    if len(values) == 1:
        return f"{middle} {unit}"
    first, third = quartiles(values)
    return f"{middle} ({_number(first)}–{_number(third)}) {unit}"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return "–"
    word = " less" if row.target and row.target.kind == "gain" else ""
    if len(row.ratios) == 1:
        return f"{_number(row.ratio)}×{word}"
    first, third = quartiles(row.ratios)
    return f"{_number(row.ratio)}× ({_number(first)}–{_number(third)}){word}"


def _target(row: Row) -> str:
    if row.target is None:
        return "–"
    if row.target.kind == "most":
        return f"≤ {row.target.limit:g} {row.unit}"
    return f"≥ {row.target.limit:g}× less" if row.target.kind == "gain" else f"≤ {row.target.limit:g}×"


def _number(value: float) -> str:
    """Three digits that count: 0.981, 12.3, 1,234."""
    if not math.isfinite(value):
        return "∞"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"
