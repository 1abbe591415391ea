"""The working behind a number of bytes, as data that a page can print and a test can multiply."""

from __future__ import annotations

from dataclasses import dataclass

from attention.kv_layers import LayerSpec

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def unit_of(size: int) -> tuple[str, int]:
    """The largest unit of 1024s that a size has at least one of, and its bytes: ``("MiB", 2**20)``."""
    return next(((unit, step) for unit, step in _UNITS if abs(size) >= step), ("bytes", 1))


def readable(size: int) -> str:
    """Bytes for a reader, in units of 1024: ``16 GiB``, ``10.41 GiB``, ``45 KiB``, ``12 bytes``."""
    unit, step = unit_of(size)
    if step == 1:
        return f"{size:,} byte" if size == 1 else f"{size:,} bytes"
    return f"{size / step:,.2f}".rstrip("0").rstrip(".") + f" {unit}"


@dataclass(frozen=True)
class Factor:
    """One number of a product and what it counts."""

    name: str
    value: int

    def __str__(self) -> str:
        return f"{self.value:,} {self.name}"


@dataclass(frozen=True)
class WorkingLine:
    """Equal layers together: ``factors`` multiply to ``bytes`` (0 for layers that keep nothing that grows)."""

    spec: LayerSpec
    count: int
    what: str
    factors: tuple[Factor, ...]
    bytes: int

    @property
    def text(self) -> str:
        """The line as a sentence: the formula with this model's numbers."""
        layers = "1 layer" if self.count == 1 else f"{self.count:,} layers"
        if not self.spec.caches_tokens:
            verb = "each " if self.count > 1 else ""
            return f"{layers}: {verb}{self.what}, 0 bytes of keys and values"
        product = " × ".join(str(factor) for factor in self.factors[1:])
        return f"{layers} × {product} = {self.bytes:,} bytes"


@dataclass(frozen=True)
class Working:
    """Lines that add up to ``total`` bytes; ``reason`` when there is nothing to add."""

    lines: tuple[WorkingLine, ...]
    total: int
    reason: str = ""

    @property
    def text(self) -> str:
        """All lines and their sum, one per row."""
        rows = [line.text for line in self.lines]
        if self.reason:
            rows.append(self.reason)
        return "\n".join([*rows, f"Together {self.total:,} bytes = {readable(self.total)}"])
