"""Turning heads towards each other: what a turn keeps, what it commutes with, and that it finds a planted one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention import alignment

T, D = 200, 8


def orthogonal(seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0]


def heads(seed: int, n_heads: int) -> np.ndarray:
    """(head, token, D) with energy falling along the width, so that directions can be told apart."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n_heads, T, D)) * np.linspace(2, 0.5, D)


def blocks_of(y: np.ndarray) -> np.ndarray:
    flat = y.transpose(1, 0, 2).reshape(y.shape[1], -1)
    return alignment.head_blocks(flat.T @ flat / len(flat), len(y))


def rope(y: np.ndarray) -> np.ndarray:
    """Llama's RoPE written out: plane (i, i + D/2) turned by position * 10000^(-2i/D)."""
    half = D // 2
    angles = np.arange(y.shape[-2])[:, None] * 10_000.0 ** (-2 * np.arange(half) / D)
    low, high = y[..., :half], y[..., half:]
    return np.concatenate(
        [low * np.cos(angles) - high * np.sin(angles), high * np.cos(angles) + low * np.sin(angles)], axis=-1
    )


def spread(y: np.ndarray) -> float:
    return float(((y - y.mean(axis=0)) ** 2).sum())


def test_blocks_are_the_moments_of_each_pair_of_heads() -> None:
    y = heads(0, 3)
    np.testing.assert_allclose(blocks_of(y)[1, 2], y[1].T @ y[2] / T)


@pytest.mark.parametrize("turn", [alignment.orthogonal_turns, alignment.plane_turns])
@given(seed=st.integers(0, 1000), n_heads=st.integers(1, 4))
def test_turns_are_orthogonal_and_bring_heads_no_further_apart(turn, seed: int, n_heads: int) -> None:  # type: ignore[no-untyped-def]
    y = heads(seed, n_heads)
    turns = turn(blocks_of(y))
    np.testing.assert_allclose(turns @ turns.transpose(0, 2, 1), np.stack([np.eye(D)] * n_heads), atol=1e-9)
    assert spread(y @ turns) <= spread(y) + 1e-6


@given(seed=st.integers(0, 1000))
def test_plane_turns_commute_with_rope_and_others_do_not(seed: int) -> None:
    y = heads(seed, 3)
    turns = alignment.plane_turns(blocks_of(y))
    np.testing.assert_allclose(rope(y) @ turns, rope(y @ turns), atol=1e-9)
    free = alignment.orthogonal_turns(blocks_of(y))
    assert np.abs(rope(y[1]) @ free[1] - rope(y[1] @ free[1])).max() > 0.1


@given(seed=st.integers(0, 1000))
def test_a_planted_turn_is_found(seed: int) -> None:
    first = heads(seed, 1)[0]
    hidden = orthogonal(seed)
    turned = np.stack([first, first @ hidden, first @ hidden @ hidden])
    found = alignment.orthogonal_turns(blocks_of(turned))
    assert spread(turned @ found) < 1e-12 * spread(turned)


@given(seed=st.integers(0, 1000))
def test_a_planted_turn_of_planes_is_found(seed: int) -> None:
    first = heads(seed, 1)[0]
    angles = np.random.default_rng(seed).uniform(-np.pi, np.pi, (2, D // 2))
    half = D // 2
    planted = [first]
    for row in angles:
        z = (first[:, :half] + 1j * first[:, half:]) * np.exp(1j * row)
        planted.append(np.concatenate([z.real, z.imag], axis=1))
    y = np.stack(planted)
    assert spread(y @ alignment.plane_turns(blocks_of(y))) < 1e-12 * spread(y)


def test_likeness_is_one_for_equal_heads_and_sees_a_turn_only_when_aligned() -> None:
    first, other = heads(1, 2)
    turned = first @ orthogonal(3)
    blocks = blocks_of(np.stack([first, first, turned, other]))
    raw = alignment.likeness(blocks, aligned=False, planes=False)
    aligned = alignment.likeness(blocks, aligned=True, planes=False)
    assert raw[0, 1] == pytest.approx(1)
    assert raw[0, 2] < 0.9
    assert aligned[0, 2] == pytest.approx(1)
    assert aligned[0, 3] < 0.5
    np.testing.assert_array_equal(aligned, aligned.T)


@pytest.mark.parametrize("n_groups", [2, 3, 6])
def test_alike_heads_are_put_together(n_groups: int) -> None:
    truth = np.random.default_rng(n_groups).permutation(np.repeat(np.arange(n_groups), 12 // n_groups))
    alike = (truth[:, None] == truth[None, :]) * 0.9 + 0.05
    found = np.array(alignment.alike_groups(alike, n_groups))
    np.testing.assert_array_equal(found[:, None] == found[None, :], truth[:, None] == truth[None, :])
    assert list(dict.fromkeys(found.tolist())) == list(range(n_groups))


def test_groups_are_equal_when_everyone_is_alike() -> None:
    assert alignment.alike_groups(np.ones((6, 6)), 3) == (0, 0, 1, 1, 2, 2)


@given(seed=st.integers(0, 1000), rank=st.integers(1, D))
def test_the_principal_basis_loses_the_least(seed: int, rank: int) -> None:
    y = heads(seed, 1)[0]
    basis = alignment.principal_basis(y.T @ y, rank)
    np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-9)
    kept = ((y @ basis) ** 2).sum()
    best = (np.linalg.svd(y, compute_uv=False)[:rank] ** 2).sum()
    assert kept == pytest.approx(best)
