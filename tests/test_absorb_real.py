"""Absorbing on a real layer: the explicit scores are the model's own, and only a turn between forbids it."""

from __future__ import annotations

import numpy as np

from attention import trace
from attention.absorb_real import real_absorb
from attention.models import LoadedModel
from attention.real_layer import real_layer

ALICE = "Alice fed the cats because they were hungry."


def test_without_rope_absorbing_gives_the_models_own_weights(minilm: LoadedModel) -> None:
    found = real_absorb(minilm, ALICE, 1, 3, 384)  # as wide as the model: nothing of K is lost
    scores = found.own.absorbed / np.sqrt(32)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = trace(minilm, ALICE).weights[1, 3]
    np.testing.assert_allclose(powers / powers.sum(axis=1, keepdims=True), weights, atol=2e-6)
    assert not found.rope
    assert max(found.own.difference, found.decoupled.difference) < 1e-12


def test_with_rope_it_does_not(smollm: LoadedModel) -> None:
    found = real_absorb(smollm, "The capital of Germany is", 16, 4, 128)
    assert found.rope
    assert found.own.difference > 0.05
    assert max(found.without_rope.difference, found.decoupled.difference) < 1e-12


def test_the_rebuilt_key_is_that_of_the_heads_own_group(smollm: LoadedModel) -> None:
    text = "The capital of Germany is"
    found = real_absorb(smollm, text, 16, 4, 384)  # the full latent: nothing of K is lost
    layer = real_layer(smollm, text, 16)
    query, key = layer.x @ layer.weights["W_q"][:, 256:320], layer.x @ layer.weights["W_k"][:, 64:128]  # K/V head 1
    np.testing.assert_allclose(found.without_rope.explicit, query @ key.T, rtol=1e-4, atol=1e-3)


def test_the_turn_is_the_models_own(smollm: LoadedModel) -> None:
    """SmolLM2 turns with base 100,000: with the full latent the explicit scores are those the model used."""
    text = "The capital of Germany is a large city on a river, and many people live there."
    scores = real_absorb(smollm, text, 16, 4, 384).own.explicit / np.sqrt(64)
    scores[np.triu_indices(len(scores), k=1)] = -np.inf
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = trace(smollm, text).weights[16, 4]
    np.testing.assert_allclose(powers / powers.sum(axis=1, keepdims=True), weights, atol=1e-4)
