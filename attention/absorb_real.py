"""Whether a real layer's latent can be absorbed into its query: its own weights, explicit beside absorbed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention.absorb import AbsorbCheck, absorb_scores, decoupled_scores
from attention.models import LoadedModel
from attention.plans import kv_plan
from attention.real_layer import real_layer
from attention.sharing import LatentKV

D_ROPE = 32
SEED = 0


@dataclass(frozen=True)
class RealAbsorb:
    """The checks of one head of one layer on a text. ``rope``: whether this model turns queries and keys.

    ``own`` is the model as it is, turned by its own angles; ``without_rope`` the same numbers with no turning;
    ``decoupled`` the same content with ``D_ROPE`` turned numbers a token beside it, drawn from a seed, for the model
    has none of its own.
    """

    layer: int
    head: int
    rank: int
    seq_len: int
    rope: bool
    own: AbsorbCheck
    without_rope: AbsorbCheck
    decoupled: AbsorbCheck


def real_absorb(loaded: LoadedModel, text: str, layer: int, head: int, rank: int) -> RealAbsorb:
    """One head's scores on its own latent, explicit and absorbed. Raises UserError as ``real_layer`` and ``LatentKV``.

    The latent is the whitened one of the ladder. K's bias is left out on both sides: it stays outside the latent and
    adds the same to every key of a row, which softmax does not see.
    """
    rebuild = kv_plan(loaded, (LatentKV(rank),)).rebuilds[layer]
    taken = real_layer(loaded, text, layer)
    layout = loaded.layout
    width, kv_head = layout.d_head, layout.kv_head_of(head)
    columns = slice(head * width, (head + 1) * width)
    query = np.asarray(taken.x @ taken.weights["W_q"][:, columns], dtype=float)
    if "b_q" in taken.weights:
        query = query + taken.weights["b_q"][columns]
    latent = np.asarray(taken.x @ rebuild.down.numpy().T, dtype=float)
    up = rebuild.up.numpy()[kv_head * width : (kv_head + 1) * width].astype(float)
    rng = np.random.default_rng(SEED)
    turned = [float(query.std()) * rng.standard_normal((len(query), D_ROPE)) for _ in range(2)]
    rope = taken.rope is not None
    return RealAbsorb(
        layer,
        head,
        rank,
        len(query),
        rope,
        absorb_scores(query, latent, up, rope=rope, tables=taken.rope),
        absorb_scores(query, latent, up, rope=False),
        decoupled_scores(query, turned[0], latent, turned[1], up),
    )
