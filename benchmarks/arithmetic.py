"""What a load measurement is made of: percentiles, the interactive law, and the slope of a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` percent of all are at most, drawn straight between two neighbours.

    Raises ValueError without values, or for a share outside 0 to 100.
    """
    if not values or not 0 <= share <= 100:
        raise ValueError(f"{share} % of {len(values)} values cannot be told.")
    ordered = sorted(values)
    at = (len(ordered) - 1) * share / 100
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def interactive_response(people: int, per_second: float, think: float) -> float:
    """Mean seconds one interaction takes when ``people`` in a closed loop make ``per_second`` of them: N/X − Z.

    The interactive response time law (Denning and Buzen, The Operational Analysis of Queueing Network Models,
    ACM Computing Surveys 10(3), 1978). ``think`` is the mean pause between two interactions of one person.
    """
    return people / per_second - think


@dataclass(frozen=True)
class Line:
    """A least-squares line: ``slope`` per unit of x, ``start`` at x = 0."""

    slope: float
    start: float


def fitted(points: Sequence[tuple[float, float]]) -> Line:
    """The line through ``points`` (x, y) with the least squared distance in y. Raises ValueError below two x."""
    mean_x = sum(x for x, _ in points) / max(1, len(points))
    mean_y = sum(y for _, y in points) / max(1, len(points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        raise ValueError("A line needs two different places.")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return Line(slope, mean_y - slope * mean_x)
