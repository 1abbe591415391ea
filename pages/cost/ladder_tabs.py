"""Behind the board."""

from __future__ import annotations

from attention.rung_views import LadderView
from attention.rungs import LadderPoint
from pages.cost.ladder_inputs import Asked


def show(view: LadderView, points: tuple[LadderPoint, ...], asked: Asked) -> None:
    """Nothing yet."""
