"""What a latent cache costs to read, and when rebuilding K can be skipped. NumPy only.

Explicit: every cached latent c becomes a key, k = U_k c, then q·k. Absorbed: q·(U_k c) = (U_k^T q)·c, so U_k moves
into the query's projection and no key is ever built (DeepSeek-V2, arXiv 2405.04434, section 2.1.2). RoPE stands
between U_k and the product: q^T R_(m-n) U_k c depends on the distance, so nothing fixed can absorb it. Decoupled
RoPE (section 2.1.3) turns a few extra numbers, shared by all heads, and leaves the rest unturned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention.layout import HeadLayout

ROPE_BASE = 10_000.0
Tables = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class ReadingCost:
    """Bytes and multiply-adds to read the cache for one new token in one layer, ``seq_len`` tokens being cached.

    ``flops_*`` count 2 per multiply-add. ``rebuild``: every latent back to K and V; ``scores``: q·k and weights·v of
    all query heads on explicit K and V; ``absorbed``: the same on the latents themselves, with the query and the
    output mapped instead.
    """

    seq_len: int
    bytes_full: int
    bytes_latent: int
    flops_scores: int
    flops_rebuild: int
    flops_absorbed: int


def reading_cost(
    layout: HeadLayout, rank: int, seq_len: int, bytes_per_number: int = 2, split: tuple[int, int] | None = None
) -> ReadingCost:
    """The cost of one decoding step in one layer, with the full cache, a rebuilt latent and an absorbed latent.

    ``split=(rank_k, rank_v)``: K and V have a latent each, and each is rebuilt from its own alone.
    """
    numbers = layout.n_kv_heads * (layout.d_head + layout.d_head_v)
    rank_k, rank_v = split or (rank, rank)
    mapped = rank_k * layout.d_head + rank_v * layout.d_head_v  # multiply-adds from latent to k and v, one head's
    return ReadingCost(
        seq_len,
        seq_len * numbers * bytes_per_number,
        seq_len * rank * bytes_per_number,
        2 * layout.n_heads * seq_len * (layout.d_head + layout.d_head_v),
        2 * seq_len * layout.n_kv_heads * mapped,
        2 * layout.n_heads * seq_len * (rank_k + rank_v) + 2 * layout.n_heads * mapped,
    )


@dataclass(frozen=True)
class AbsorbCheck:
    """Scores (query, key) computed explicitly and absorbed, and the largest difference relative to the largest."""

    explicit: np.ndarray
    absorbed: np.ndarray

    @property
    def difference(self) -> float:
        """Largest absolute difference over the largest explicit score."""
        return float(np.abs(self.explicit - self.absorbed).max() / np.abs(self.explicit).max())


def absorb_scores(
    query: np.ndarray, latent: np.ndarray, up: np.ndarray, *, rope: bool, tables: Tables | None = None
) -> AbsorbCheck:
    """One head's scores both ways. query (T, d_head), latent (T, rank), up (d_head, rank).

    With ``rope`` both queries and rebuilt keys are turned by position before the product, as Llama does, by the
    angles of ``tables`` where a model's own are given; the absorbed form, which cannot, leaves it out: the difference
    is what absorbing would cost.
    """
    keys = latent @ up.T
    explicit = turned(query, tables) @ turned(keys, tables).T if rope else query @ keys.T
    return AbsorbCheck(explicit, (query @ up) @ latent.T)


def decoupled_scores(
    query: np.ndarray, query_rope: np.ndarray, latent: np.ndarray, key_rope: np.ndarray, up: np.ndarray
) -> AbsorbCheck:
    """One head with decoupled RoPE both ways: the content part absorbs, the turned part is added.

    query (T, d_head), query_rope and key_rope (T, d_rope), latent (T, rank), up (d_head, rank). Both forms add
    turned(query_rope)·turned(key_rope); only d_rope extra numbers a token are cached, for all heads together.
    """
    positions = turned(query_rope) @ turned(key_rope).T
    return AbsorbCheck(query @ (latent @ up.T).T + positions, (query @ up) @ latent.T + positions)


def turned(y: np.ndarray, tables: Tables | None = None) -> np.ndarray:
    """Llama's RoPE on (T, width): plane (i, i + width/2) turned by position · 10,000^(-2i/width).

    RoFormer, arXiv 2104.09864, section 3.2.2, in the half-split pairing that Llama's checkpoints use. ``tables``: a
    model's own (cos, sin), each (T, width), in place of these angles.
    """
    half = y.shape[-1] // 2
    angles = np.arange(len(y))[:, None] * ROPE_BASE ** (-2 * np.arange(half) / y.shape[-1])
    cos, sin = (np.cos(angles), np.sin(angles)) if tables is None else (one[:, :half].astype(float) for one in tables)
    low, high = y[:, :half], y[:, half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1)
