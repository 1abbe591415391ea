"""Quality that papers measured for ways of sharing keys and values, from assets/published.json with its sources.

Nothing here is computed or guessed: where no paper measured a way of sharing near a
model's size, ``nearest_published`` says None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from attention.known_models import ASSETS
from attention.layout import Rung

FURTHEST = 2.0


@dataclass(frozen=True)
class PublishedRow:
    """One trained model of a table: how it shares, its size in parameters, and the scores by name.

    ``n_kv_heads`` is None where the paper does not say it (MHA of an unnamed width, MLA).
    """

    label: str
    rung: Rung
    n_kv_heads: int | None
    params: int
    scores: Mapping[str, float]


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper. ``metric`` names the score to quote; ``setup`` says what was held fixed."""

    id: str
    paper: str
    short: str
    source: str
    setup: str
    metric: str
    rows: tuple[PublishedRow, ...]


@dataclass(frozen=True)
class Quote:
    """A published number to stand beside a model: the row and the table it is from."""

    row: PublishedRow
    table: PublishedTable

    @property
    def text(self) -> str:
        """The number with what it is, the size of the model it was measured on, and where it is printed."""
        score = self.row.scores[self.table.metric]
        return f"{self.table.metric} {score:g} at {self.row.params / 1e9:g}B ({self.table.short})"


@lru_cache(maxsize=1)
def published_tables() -> tuple[PublishedTable, ...]:
    """Every table, in the order of the file."""
    loaded = json.loads((ASSETS / "published.json").read_text(encoding="utf-8"))
    return tuple(
        PublishedTable(
            entry["id"],
            entry["paper"],
            entry["short"],
            entry["source"],
            entry["setup"],
            entry["metric"],
            tuple(
                PublishedRow(row["label"], row["rung"], row["n_kv_heads"], round(row["size_b"] * 1e9), row["scores"])
                for row in entry["rows"]
            ),
        )
        for entry in loaded["tables"]
    )


def nearest_published(rung: Rung, n_kv_heads: int | None, params: int | None) -> Quote | None:
    """The measured model nearest in size that shares the same way, or None.

    GQA must have the same number of K/V heads. Sizes may differ by a factor of ``FURTHEST``
    at most: a number from a far larger or smaller model would say little.
    """
    if not params:
        return None
    near = [
        (abs(math.log(row.params / params)), Quote(row, table))
        for table in published_tables()
        for row in table.rows
        if row.rung == rung and (rung != "GQA" or row.n_kv_heads == n_kv_heads)
    ]
    near = [pair for pair in near if pair[0] <= math.log(FURTHEST)]
    return min(near, key=lambda pair: pair[0])[1] if near else None
