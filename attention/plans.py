"""A what-if and a model -> the plan by which the kernel carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attention import alignment, kernel
from attention.calibration import Moments, moments_of, require_projections
from attention.errors import UserError
from attention.healed import healed_arrays
from attention.models import LoadedModel
from attention.sharing import LatentKV, ShareKV, WhatIf
from attention.single_flight import SingleFlight

RANDOM_SEED = 0


def kv_plan(loaded: LoadedModel, what_ifs: tuple[WhatIf, ...]) -> kernel.KVPlan:
    """The plan of some what-ifs together. Raises UserError where the mathematics of one does not fit the model."""
    plans = [_one(loaded, one) for one in what_ifs if isinstance(one, ShareKV | LatentKV)]
    _require_apart([plan.rebuilds for plan in plans], "rebuild K and V")
    _require_apart([pools for plan in plans for pools in plan.pools], "share the K/V heads")
    rebuilds = {layer: rebuild for plan in plans for layer, rebuild in plan.rebuilds.items()}
    return kernel.KVPlan(rebuilds, tuple(pools for plan in plans for pools in plan.pools))


def _require_apart(changes: Sequence[Mapping[int, Any]], does: str) -> None:
    seen: set[int] = set()
    for layers in changes:
        if seen & layers.keys():
            raise UserError(
                f"Two what-ifs {does} of layer {min(seen & layers.keys())}.",
                "One of them can, in each layer.",
                "Leave one out, or give them different layers.",
            )
        seen |= layers.keys()


def _one(loaded: LoadedModel, what_if: ShareKV | LatentKV) -> kernel.KVPlan:
    what_if.check(loaded.layout, loaded.n_layers)
    key = f"{loaded.id} {loaded.revision} {what_if!r}"
    return _kept.get(key, lambda: _made(loaded, what_if))


def _made(loaded: LoadedModel, what_if: ShareKV | LatentKV) -> kernel.KVPlan:
    layers = range(loaded.n_layers) if what_if.layers is None else what_if.layers
    if what_if.healed if isinstance(what_if, LatentKV) else what_if.how == "healed":
        return kernel.KVPlan(_healed(loaded, what_if, layers))
    if isinstance(what_if, LatentKV):
        return kernel.KVPlan(_latents(loaded, what_if, layers))
    if what_if.how == "random":
        return kernel.KVPlan({layer: _random(loaded, what_if, layer) for layer in layers})
    return kernel.KVPlan(pools=({layer: _pool(loaded, what_if, layer) for layer in layers},))


def _latents(loaded: LoadedModel, what_if: LatentKV, layers: range | tuple[int, ...]) -> dict[int, kernel.Rebuild]:
    require_projections(loaded)
    moments = moments_of(loaded) if what_if.whiten else None
    return {layer: _latent(loaded, what_if, layer, moments) for layer in layers}


def _latent(loaded: LoadedModel, what_if: LatentKV, layer: int, moments: Moments | None) -> kernel.Rebuild:
    """down = U^T [W_K; W_V], up = U: the projection of [k; v] on its strongest directions. Biases stay outside it."""
    weight, bias = projection_of(loaded, layer)
    k_width = loaded.kv_projections[layer][0].out_features
    if what_if.split is None:
        parts = [(slice(None), what_if.rank)]
    else:
        parts = [(slice(None, k_width), what_if.split[0]), (slice(k_width, None), what_if.split[1])]
    up = torch.zeros(len(weight), what_if.rank)
    first = 0
    for rows, rank in parts:
        up[rows, first : first + rank] = _directions(loaded, layer, rows, moments)[:, :rank]
        first += rank
    return kernel.Rebuild(down=up.T @ weight, up=up, up_bias=bias, k_width=k_width)


def _directions(loaded: LoadedModel, layer: int, rows: slice, moments: Moments | None) -> torch.Tensor:
    """Every direction of some rows of [k; v], the one with the most energy first: found once for all ranks."""

    def found() -> torch.Tensor:
        weight = projection_of(loaded, layer)[0][rows]
        energy = (weight @ weight.T).double().numpy() if moments is None else moments.energy[layer][rows, rows]
        return torch.from_numpy(alignment.principal_basis(energy, len(energy))).float()

    of = "weights" if moments is None else moments.text_sha256
    basis: torch.Tensor = _bases.get(f"{loaded.id} {loaded.revision} {layer} {rows} {of}", found)
    return basis


def projection_of(loaded: LoadedModel, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[W_K; W_V] (G*D + G*V, d_model) and its bias, zero where the model has none."""
    weights = [projection.weight.detach() for projection in loaded.kv_projections[layer]]
    biases = [
        torch.zeros(projection.out_features) if projection.bias is None else projection.bias.detach()
        for projection in loaded.kv_projections[layer]
    ]
    return torch.cat(weights), torch.cat(biases)


def _healed(
    loaded: LoadedModel, what_if: ShareKV | LatentKV, layers: range | tuple[int, ...]
) -> dict[int, kernel.Rebuild]:
    require_projections(loaded)
    arrays = healed_arrays(loaded.id, loaded.revision, what_if)
    made = {}
    for layer in layers:
        down, bias, up = (torch.from_numpy(arrays[f"{layer}.{name}"]) for name in ("down", "bias", "up"))
        zero = torch.zeros(len(up))
        own = projection_of(loaded, layer)[1] if isinstance(what_if, LatentKV) else zero
        made[layer] = kernel.Rebuild(down, up, own, loaded.kv_projections[layer][0].out_features, bias)
    return made


def pooled_rebuild(loaded: LoadedModel, what_if: ShareKV, layer: int) -> kernel.Rebuild:
    """Aligned and averaged heads as one projection down to the shared heads and one way back up to each head.

    The same K and V as ``ShareKV(how="aligned")``, written so that the shared heads can be trained.
    """
    weight, bias = projection_of(loaded, layer)
    groups = head_groups(loaded, what_if, layer)
    turns = head_turns(loaded, groups, layer)
    k_width = loaded.kv_projections[layer][0].out_features
    downs, biases = [], []
    for part, turn in ((slice(None, k_width), turns[0]), (slice(k_width, None), turns[1])):
        heads = weight[part].unflatten(0, (len(groups), -1))  # (G, width, d_model)
        turned = turn.transpose(1, 2) @ heads
        turned_bias = (turn.transpose(1, 2) @ bias[part].view(len(groups), -1, 1)).squeeze(-1)
        for group in range(what_if.n_kv_heads):
            members = [head for head, of in enumerate(groups) if of == group]
            downs.append(turned[members].mean(dim=0))
            biases.append(turned_bias[members].mean(dim=0))
    up = torch.block_diag(*(given_back(groups, turn.shape[-1], turn) for turn in turns))
    return kernel.Rebuild(torch.cat(downs), up, torch.zeros_like(bias), k_width, torch.cat(biases))


def _random(loaded: LoadedModel, what_if: ShareKV, layer: int) -> kernel.Rebuild:
    """K and V of ``n_kv_heads`` heads drawn anew, as large as the model's own weights; seeded by layer."""
    require_projections(loaded)
    weight, bias = projection_of(loaded, layer)
    generator = torch.Generator().manual_seed(RANDOM_SEED * 1_000 + layer)
    layout, groups = loaded.layout, head_groups(loaded, what_if, layer)
    drawn = []
    ups = []
    for projection, width in zip(loaded.kv_projections[layer], (layout.d_head, layout.d_head_v), strict=True):
        spread = float(projection.weight.detach().std())
        drawn.append(spread * torch.randn(what_if.n_kv_heads * width, weight.shape[1], generator=generator))
        ups.append(given_back(groups, width))
    up = torch.block_diag(*ups)
    return kernel.Rebuild(torch.cat(drawn), up, torch.zeros_like(bias), layout.n_kv_heads * layout.d_head)


def given_back(groups: tuple[int, ...], width: int, turns: torch.Tensor | None = None) -> torch.Tensor:
    """The (G*width, groups*width) matrix that hands each head its group's shared head, turned back if turned."""
    up = torch.zeros(len(groups) * width, (max(groups) + 1) * width)
    for head, group in enumerate(groups):
        block = torch.eye(width) if turns is None else turns[head]
        up[head * width : (head + 1) * width, group * width : (group + 1) * width] = block
    return up


def _pool(loaded: LoadedModel, what_if: ShareKV, layer: int) -> kernel.Pool:
    groups = head_groups(loaded, what_if, layer)
    turns = head_turns(loaded, groups, layer) if what_if.how == "aligned" else None
    return kernel.Pool(torch.tensor(groups), what_if.how == "first", turns)


def head_groups(loaded: LoadedModel, what_if: ShareKV, layer: int) -> tuple[int, ...]:
    """The group each of the layer's K/V heads joins."""
    n_heads = loaded.layout.n_kv_heads
    if what_if.groups == "adjacent" or what_if.n_kv_heads in (1, n_heads):
        return tuple(head // (n_heads // what_if.n_kv_heads) for head in range(n_heads))
    aligned = what_if.how in ("aligned", "healed")
    k_blocks, v_blocks = _blocks(loaded, layer)
    planes = aligned and turning(loaded) == "planes"
    alike = alignment.likeness(k_blocks, aligned, planes) + alignment.likeness(v_blocks, aligned, False)
    return alignment.alike_groups(alike, what_if.n_kv_heads)


def head_turns(loaded: LoadedModel, groups: tuple[int, ...], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Turns of K (G, D, D) and of V (G, V, V) that bring the members of each group together."""
    k_blocks, v_blocks = _blocks(loaded, layer)
    turn_k = alignment.plane_turns if turning(loaded) == "planes" else alignment.orthogonal_turns
    turns = [np.zeros(blocks.shape[1:]) for blocks in (k_blocks, v_blocks)]
    for group in range(max(groups) + 1):
        members = [head for head, of in enumerate(groups) if of == group]
        within = np.ix_(members, members)
        turns[0][members] = turn_k(k_blocks[within])
        turns[1][members] = alignment.orthogonal_turns(v_blocks[within])
    return torch.from_numpy(turns[0]).float(), torch.from_numpy(turns[1]).float()


def _blocks(loaded: LoadedModel, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Moments of the heads' k and v with their biases, as blocks (G, G, width, width)."""
    moments = moments_of(loaded)
    bias = projection_of(loaded, layer)[1].double().numpy()
    crossed = np.outer(moments.mean[layer], bias)
    energy = moments.energy[layer] + crossed + crossed.T + np.outer(bias, bias)
    k_width = loaded.kv_projections[layer][0].out_features
    n_heads = loaded.layout.n_kv_heads
    return (
        alignment.head_blocks(energy[:k_width, :k_width], n_heads),
        alignment.head_blocks(energy[k_width:, k_width:], n_heads),
    )


def turning(loaded: LoadedModel) -> str:
    """ "free" where K reaches the kernel as projected, "planes" where Llama's RoPE turned it.

    Seen on the tensors, not read from a config: a few tokens run through the model, and K before and after
    are compared. Raises UserError for anything else (QK-norm, other pairings, partial rotation), where turning
    a head would change its scores.
    """
    require_projections(loaded)
    kinds = _turning.get(f"{loaded.id} {loaded.revision}", lambda: _seen_turning(loaded))
    if kinds == "other":
        raise UserError(
            f"{loaded.title.split(':')[0]} changes K between its projection and the scores in a way heads cannot be "
            "turned through.",
            "Heads can be aligned where K is used as projected (BERT) or turned by Llama's RoPE.",
            "Choose mean or first.",
        )
    return str(kinds)


def _seen_turning(loaded: LoadedModel) -> str:
    """One probe of five tokens; every layer must be of one kind."""
    layout = loaded.layout
    kinds = set()
    for layer in range(loaded.n_layers):
        recorder = kernel.Recorder(keep=("k", "v"), keep_layer=layer, as_projected={})
        with kernel.forward_slot, torch.inference_mode(), kernel.recording(recorder):
            loaded.model(input_ids=torch.tensor([[3, 4, 5, 6, 7]]))
        assert recorder.as_projected is not None
        before = {
            name: tensor.view(1, 5, layout.n_kv_heads, -1).transpose(1, 2).float()
            for name, tensor in recorder.as_projected.items()
        }
        same_value = torch.allclose(before["v"], recorder.kept["v"], atol=1e-5, rtol=1e-4)
        kinds.add(_kind(before["k"], recorder.kept["k"]) if same_value else "other")
    return kinds.pop() if len(kinds) == 1 else "other"


def _kind(before: torch.Tensor, after: torch.Tensor) -> str:
    """K (1, G, T, D) before and after: equal, or each plane (i, i + D/2) turned by one angle a position."""
    if torch.allclose(before, after, atol=1e-5, rtol=1e-4):
        return "free"
    half = before.shape[-1] // 2
    was, became = (torch.complex(t[..., :half], t[..., half : 2 * half]) for t in (before, after))
    angle = (became * was.conj()).sum(dim=1, keepdim=True)
    turned = was * angle / angle.abs().clamp(min=1e-12)
    return "planes" if torch.allclose(turned, became, atol=1e-4, rtol=1e-3) else "other"


def _nbytes(plan: kernel.KVPlan) -> int:
    tensors = [t for rebuild in plan.rebuilds.values() for t in (rebuild.down, rebuild.up, rebuild.up_bias)]
    tensors += [t for pools in plan.pools for pool in pools.values() for t in pool.turns or ()]
    return sum(t.nbytes for t in tensors) + 1024


# The tensors of one plan are shared by every request that asks for the same what-if.
_kept = SingleFlight(192 * 2**20, _nbytes)
_bases = SingleFlight(128 * 2**20, lambda basis: basis.nbytes)
_turning = SingleFlight(4096, len)
