"""Which K/V heads are alike, and how to turn them so that averaging loses less. NumPy only.

A turn Q_g of head g changes nothing by itself: q·k stays when q and k turn alike, and V's turn is undone in W_o.
So heads may be turned towards each other before they are pooled. Under RoPE only turns inside each plane
(i, i + D/2) commute with the rotation by position; without RoPE, and for V, any orthogonal matrix may be used.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

ROUNDS = 30


def head_blocks(energy: np.ndarray, n_heads: int) -> np.ndarray:
    """(G*D, G*D) moments as blocks (G, G, D, D): block [g, h] is the mean of y_g y_h^T."""
    width = energy.shape[0] // n_heads
    return energy.reshape(n_heads, width, n_heads, width).transpose(0, 2, 1, 3)


def orthogonal_turns(blocks: np.ndarray) -> np.ndarray:
    """Orthogonal matrices (G, D, D) that bring heads y_g @ turn_g as close together as they come.

    ``blocks`` (G, G, D, D) of one group. Generalised Procrustes (Gower, Psychometrika 40, 1975), by alternation:
    each head is turned towards the sum of the others; the first is left as it is.
    """
    n_heads, width = blocks.shape[0], blocks.shape[-1]
    turns = np.stack([np.eye(width)] * n_heads)
    for g in range(1, n_heads):
        turns[g] = _towards(blocks[g, 0])
    for _ in range(ROUNDS if n_heads > 2 else 0):
        for g in range(n_heads):
            others = sum(blocks[g, h] @ turns[h] for h in range(n_heads) if h != g)
            turns[g] = _towards(np.asarray(others))
    return turns


def plane_turns(blocks: np.ndarray) -> np.ndarray:
    """As ``orthogonal_turns``, but only rotations of each plane (i, i + D/2): these commute with Llama's RoPE."""
    n_heads, width = blocks.shape[0], blocks.shape[-1]
    half = width // 2
    # Plane i of a head as a complex number z = y_i + 1j y_(i+D/2): cross[g, h, i] is the mean of z_g conj(z_h).
    parts = {
        (a, b): np.einsum("ghii->ghi", blocks[:, :, a : a + half, b : b + half]) for a in (0, half) for b in (0, half)
    }
    cross = parts[0, 0] + parts[half, half] + 1j * (parts[half, 0] - parts[0, half])
    phases = np.ones((n_heads, half), dtype=complex)
    for g in range(1, n_heads):
        phases[g] = _phase(cross[0, g])
    for _ in range(ROUNDS if n_heads > 2 else 0):
        for g in range(n_heads):
            phases[g] = _phase(sum(cross[h, g] * phases[h] for h in range(n_heads) if h != g))
    return np.stack([_rotation(row) for row in phases])


def likeness(blocks: np.ndarray, aligned: bool, planes: bool) -> np.ndarray:
    """How much of two heads' energy survives averaging, for each pair: (G, G), 1 on the diagonal.

    2 <y_g, y_h> / (|y_g|^2 + |y_h|^2), after the best turn when ``aligned``.
    """
    n_heads = blocks.shape[0]
    own = np.einsum("ggii->g", blocks)
    found = np.eye(n_heads)
    for g, h in combinations(range(n_heads), 2):
        pair = blocks[np.ix_([g, h], [g, h])]
        if aligned:
            turns = plane_turns(pair) if planes else orthogonal_turns(pair)
            inner = float(np.trace(turns[0].T @ pair[0, 1] @ turns[1]))
        else:
            inner = float(np.trace(pair[0, 1]))
        found[g, h] = found[h, g] = 2 * inner / (own[g] + own[h])
    return found


def alike_groups(alike: np.ndarray, n_groups: int) -> tuple[int, ...]:
    """The group of each head: equal groups, most alike together. From neighbours, by swaps that raise the total.

    Deterministic; a local optimum. Groups are numbered by their first head.
    """
    n_heads = len(alike)
    groups = np.repeat(np.arange(n_groups), n_heads // n_groups)

    def total(of: np.ndarray) -> float:
        return float(alike[of[:, None] == of[None, :]].sum())

    best = total(groups)
    while True:
        gains = []
        for g, h in combinations(range(n_heads), 2):
            if groups[g] != groups[h]:
                swapped = groups.copy()
                swapped[[g, h]] = groups[[h, g]]
                gains.append((total(swapped), g, h))
        top = max(gains, default=(best, 0, 0), key=lambda gain: gain[0])
        if top[0] <= best + 1e-9:
            break
        best = top[0]
        groups[[top[1], top[2]]] = groups[[top[2], top[1]]]
    first = {group: number for number, group in enumerate(dict.fromkeys(groups.tolist()))}
    return tuple(first[group] for group in groups.tolist())


def principal_basis(energy: np.ndarray, rank: int) -> np.ndarray:
    """Columns (width, rank), orthonormal: the ``rank`` directions with the most energy."""
    _, vectors = np.linalg.eigh(energy)
    return np.ascontiguousarray(vectors[:, ::-1][:, :rank])


def _towards(cross: np.ndarray) -> np.ndarray:
    """The orthogonal T that maximises <y T, target>, cross = mean of y target^T."""
    left, _, right = np.linalg.svd(cross)
    return np.asarray(left @ right)


def _phase(value: np.ndarray) -> np.ndarray:
    size = np.abs(value)
    return np.where(size > 0, value / np.where(size > 0, size, 1), 1)


def _rotation(phases: np.ndarray) -> np.ndarray:
    """The (D, D) matrix R for which y @ R multiplies plane i by ``phases[i]``."""
    cosine, sine = np.diag(phases.real), np.diag(phases.imag)
    return np.block([[cosine, sine], [-sine, cosine]])
