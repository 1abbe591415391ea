"""What can be absorbed and what cannot, and the cost of reading a latent cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from attention import HeadLayout
from attention.absorb import absorb_scores, decoupled_scores, reading_cost, turned

T, D, RANK, ROPE = 7, 8, 5, 4


def parts(seed: int) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(seed)
    return tuple(generator.normal(size=size) for size in ((T, D), (T, RANK), (D, RANK), (T, ROPE), (T, ROPE)))


@given(st.integers(0, 10_000))
def test_without_rope_absorbing_changes_nothing(seed: int) -> None:
    query, latent, up, _, _ = parts(seed)
    check = absorb_scores(query, latent, up, rope=False)
    assert check.difference < 1e-12
    np.testing.assert_allclose(check.explicit, np.einsum("qd,dr,kr->qk", query, up, latent))


@given(st.integers(0, 10_000))
def test_rope_between_forbids_it_and_decoupled_rope_allows_it(seed: int) -> None:
    query, latent, up, query_rope, key_rope = parts(seed)
    assert absorb_scores(query, latent, up, rope=True).difference > 0.05
    check = decoupled_scores(query, query_rope, latent, key_rope, up)
    assert check.difference < 1e-12
    content = query @ up @ latent.T
    np.testing.assert_allclose(np.diag(check.explicit - content), (query_rope * key_rope).sum(1))


def test_turning_is_that_of_transformers_llama() -> None:
    y = np.random.default_rng(0).normal(size=(T, D))
    angles = torch.outer(torch.arange(T).double(), 10_000.0 ** (-2 * torch.arange(D // 2).double() / D))
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1)[None] for f in (torch.cos, torch.sin))
    expected, _ = apply_rotary_pos_emb(torch.from_numpy(y)[None, None], torch.from_numpy(y)[None, None], cos, sin)
    np.testing.assert_allclose(turned(y), expected[0, 0].numpy())


def test_the_cost_of_one_step_counted_by_hand() -> None:
    """SmolLM2's layer: 9 query heads, 3 K/V heads of 64; a latent of 128; 1,000 tokens cached."""
    cost = reading_cost(HeadLayout(576, 9, 3), 128, 1000)
    assert cost.bytes_full == 1000 * 384 * 2
    assert cost.bytes_latent == 1000 * 128 * 2
    assert cost.flops_scores == 2 * 9 * 1000 * 128
    assert cost.flops_rebuild == 2 * 1000 * 128 * 384
    assert cost.flops_absorbed == 2 * 9 * 1000 * 256 + 2 * 9 * 128 * 128


def test_two_latents_are_each_rebuilt_into_their_own_half() -> None:
    """128 = 48 + 80: K's 192 numbers from 48, V's 192 from 80; scores on 48, outputs on 80."""
    cost = reading_cost(HeadLayout(576, 9, 3), 128, 1000, split=(48, 80))
    assert cost.bytes_latent == 1000 * 128 * 2
    assert cost.flops_rebuild == 2 * 1000 * (48 * 192 + 80 * 192)
    assert cost.flops_absorbed == 2 * 9 * 1000 * 128 + 2 * 9 * (48 * 64 + 80 * 64)


@pytest.mark.parametrize("name", ["flops_rebuild", "bytes_latent"])
def test_cost_grows_with_rank(name: str) -> None:
    layout = HeadLayout(576, 9, 3)
    assert getattr(reading_cost(layout, 256, 100), name) == 2 * getattr(reading_cost(layout, 128, 100), name)
