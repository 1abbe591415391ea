"""How numbers are written, on every page and in every figure."""

from __future__ import annotations


def percent(share: float) -> str:
    """A share of one in whole percent: ``54 %``; a small positive share is ``< 1 %``, never ``0 %``."""
    if 0.0 < share < 0.005:
        return "< 1 %"
    return f"{share * 100:.0f} %"
