"""How numbers are written, on every page and in every figure."""

from __future__ import annotations

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def percent(share: float) -> str:
    """A share of one in whole percent: ``54 %``; a small positive share is ``< 1 %``, never ``0 %``."""
    if 0.0 < share < 0.005:
        return "< 1 %"
    return f"{share * 100:.0f} %"


def bytes_text(count: float) -> str:
    """Bytes in the largest binary unit that leaves a number of at least 1: ``22.5 KiB``, ``16 GiB``."""
    for unit, size in _UNITS:
        if count >= size:
            amount = count / size
            return f"{amount:,.0f} {unit}" if amount >= 1000 else f"{amount:.4g} {unit}"
    return f"{count:.0f} B"
