"""Synthetic traces for the viewer's tests: softmaxed noise, planted heads, odd words. No model needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attention.layout import HeadLayout
from attention.plots.viewer import Average, Card, ViewedTrace, ViewerScene

ALICE = ("[CLS]", "Alice", "fed", "the", "cats", "because", "they", "were", "hungry", ".", "[SEP]")


@dataclass(frozen=True)
class FakeToken:
    text: str
    label: str
    raw: str
    special: bool
    word: int | None
    start: int
    end: int


@dataclass(frozen=True)
class FakeModel:
    id: str = "fake-mini"
    title: str = "Fake: reads both ways"
    kind: str = "encoder"


@dataclass(frozen=True)
class FakeTrace:
    tokens: tuple[FakeToken, ...]
    weights: npt.NDArray[np.float32]
    layout: HeadLayout
    causal: bool
    model: FakeModel
    text: str


def tokens_of(words: Sequence[str], special: Sequence[str] = ("[CLS]", "[SEP]")) -> tuple[FakeToken, ...]:
    tokens, at = [], 0
    for index, word in enumerate(words):
        tokens.append(FakeToken(word, word, word, word in special, index, at, at + len(word)))
        at += len(word) + 1
    return tuple(tokens)


def softmax_weights(
    shape: tuple[int, int, int, int], causal: bool = False, sharpness: float = 1.0, seed: int = 0
) -> npt.NDArray[np.float32]:
    scores = np.random.default_rng(seed).normal(0, sharpness, shape).astype(np.float32)
    if causal:
        scores = np.where(np.tri(shape[-1], dtype=bool), scores, -np.inf)
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def fake_trace(
    words: Sequence[str],
    n_layers: int = 6,
    n_heads: int = 12,
    n_kv_heads: int | None = None,
    causal: bool = False,
    seed: int = 0,
    model: FakeModel | None = None,
    plant: Callable[[npt.NDArray[np.float32]], None] | None = None,
) -> FakeTrace:
    weights = softmax_weights((n_layers, n_heads, len(words), len(words)), causal, 1.4, seed)
    if plant:
        plant(weights)
    layout = HeadLayout(n_heads * 4, n_heads, n_kv_heads or n_heads)
    return FakeTrace(tokens_of(words), weights, layout, causal, model or FakeModel(), " ".join(words))


def row_of(size: int, **shares: float) -> npt.NDArray[np.float32]:
    """A row with the named shares, ``k4=0.54`` for key 4; what is left is spread evenly over the others."""
    row = np.full(size, np.nan, np.float32)
    for name, share in shares.items():
        row[int(name[1:])] = share
    row[np.isnan(row)] = (1 - sum(shares.values())) / np.isnan(row).sum()
    return row


def plant_alice(weights: npt.NDArray[np.float32]) -> None:
    """Resting columns everywhere, and the three heads of the default sentence with their measured shares."""
    size = weights.shape[-1]
    rest = np.random.default_rng(5).uniform(0, 0.75, weights.shape[:2]).astype(np.float32)[..., None, None]
    weights *= 1 - rest
    weights[..., 0] += rest[..., 0] * 0.8
    weights[..., size - 1] += rest[..., 0] * 0.2
    previous = np.eye(size, k=-1, dtype=np.float32) * 0.995 + 0.005 / size
    previous[0] = row_of(size, k0=0.9)
    weights[0, 2] = previous / previous.sum(axis=-1, keepdims=True)
    weights[2, 0, 4] = row_of(size, k2=0.476, k0=0.2, k3=0.1)
    weights[2, 0, 6] = row_of(size, k5=0.42, k0=0.3)
    weights[1, 3, 6] = row_of(size, k4=0.541, k1=0.121, k0=0.084, k2=0.08, k10=0.05)


def alice_trace() -> FakeTrace:
    trace = fake_trace(ALICE, seed=3, plant=plant_alice)
    return FakeTrace(
        trace.tokens, trace.weights, trace.layout, False, trace.model, "Alice fed the cats because they were hungry."
    )


ALICE_CARDS = (
    Card("previous", "Previous word", 0, 2, 6, "mean .99 over 40 sentences; breaks past 110 tokens"),
    Card("verb", "Object → its verb", 2, 0, 4, "right in .77; best fixed offset .25"),
    Card("meant", "Who is meant", 1, 3, 6, "agrees in gender or number: .92; meaning only: .50"),
)

ALICE_CHECKS = (
    ("every row sums to 1", "largest gap 1.2e-07", True),
    ("no look into the future", "reads both ways: no mask", True),
    ("equal to the model's own attention", "difference 2.1e-06", True),
    ("no token cut", "11 of 512", True),
    ("time", "8 ms", True),
)


def alice_scene(**changes: object) -> ViewerScene:
    facts: dict[str, object] = {
        "traces": (ViewedTrace(alice_trace()),),
        "cards": ALICE_CARDS,
        "average": Average(((0, 2), (2, 0), (1, 3)), 6),
        "start": (1, 3, 6),
        "swap_label": "Change one word: they → she",
        "checks": ALICE_CHECKS,
    }
    return ViewerScene(**{**facts, **changes})  # type: ignore[arg-type]
