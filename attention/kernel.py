"""Attention in torch, registered with transformers, so that one function serves and records every model.

Shape letters: B batch, H query heads, G K/V heads, Q query rows, K key columns, D width of q and k, V width of v.
Query arrives (B, H, Q, D), key (B, G, K, D), value (B, G, K, V): projected, normalised, rotated
and cached, but not yet expanded to H heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from attention.settings import settings
from attention.sharing import MuteHeads
from attention.turns import Turns

NAME = "headscope"

# Two forwards of one thread each are faster on two cores than two forwards of two threads. In turns, because a
# model that writes asks again for every token and would take a plain semaphore's slot before anyone else woke up.
forward_slot = Turns(settings().forward_slots)


@dataclass(frozen=True, eq=False)
class Pool:
    """One layer's K/V heads becoming fewer: head g joins ``groups[g]``; each group's mean (or first) serves all in it.

    ``turns``, (G, D, D) for K and (G, V, V) for V, turn each head into its group's frame before the mean
    and back after it. The turns for K commute with the model's RoPE.
    """

    groups: torch.Tensor
    first: bool = False
    turns: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def n_groups(self) -> int:
        """How many K/V heads are left."""
        return int(self.groups.max()) + 1


@dataclass(frozen=True, eq=False)
class Rebuild:
    """One layer's K and V made from few numbers a token: [k; v] = up (down x + down_bias) + up_bias, before RoPE.

    ``down`` (r, d_model), ``up`` (G*D + G*V, r): r numbers are what a cache would hold. ``k_width`` is G*D.
    """

    down: torch.Tensor
    up: torch.Tensor
    up_bias: torch.Tensor
    k_width: int
    down_bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, d_model) -> (B, T, G*D + G*V)."""
        latent = torch.nn.functional.linear(x, self.down, self.down_bias)
        return torch.nn.functional.linear(latent, self.up, self.up_bias)


@dataclass(frozen=True, eq=False)
class KVPlan:
    """How a forward pass changes K and V, layer by layer: rebuilt where they are projected, then pooled, in order."""

    rebuilds: Mapping[int, Rebuild] = field(default_factory=dict)
    pools: tuple[Mapping[int, Pool], ...] = ()


@dataclass
class Recorder:
    """What one forward pass leaves behind. Lives in a contextvar, so each thread sees only its own.

    ``weights`` (layer, B, H, Q, K) is allocated up front when the sizes are known; softmax
    writes straight into it. ``keep`` names tensors of layer ``keep_layer`` to hold on to.
    ``attended`` (B, T) is 1 at the tokens of a padded batch and 0 at its padding; None without padding.
    ``last_rows``, given as a list, receives one (B, H, 1, K) a layer: only the last query's weights, for a
    cache that grows (K may differ between layers with and without a window). ``energy``, one square matrix a
    layer, gathers the sum of y y^T over tokens, y = [k; v] as projected, without biases; ``total`` the sum of y.
    ``as_projected``, given as a dict, receives k and v of ``keep_layer`` (B, T, heads * width) before RoPE.
    """

    n_layers: int | None = None
    plan: KVPlan = field(default_factory=KVPlan)
    mutes: tuple[MuteHeads, ...] = ()
    keep: tuple[str, ...] = ()
    keep_layer: int | None = None
    attended: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    calls: int = 0
    shapes: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    masks: list[torch.Tensor | None] = field(default_factory=list)
    masks_given: list[torch.Tensor | None] = field(default_factory=list)
    mask_of_layer: list[int] = field(default_factory=list)
    sinks: bool = False
    hidden: torch.Tensor | None = None
    last_rows: list[torch.Tensor] | None = None
    energy: list[torch.Tensor] | None = None
    total: list[torch.Tensor] | None = None
    projected: dict[int, torch.Tensor] = field(default_factory=dict)
    as_projected: dict[str, torch.Tensor] | None = None

    def buffer(self, layer: int, like: torch.Size) -> torch.Tensor | None:
        """The place softmax writes layer ``layer``'s weights to, or None while only probing."""
        if self.n_layers is None:
            return None
        if self.weights is None:
            self.weights = torch.empty((self.n_layers, *like), dtype=torch.float32)
        return self.weights[layer] if layer < self.n_layers and self.weights.shape[1:] == like else None

    def note_mask(self, given: torch.Tensor | None, used: torch.Tensor | None) -> None:
        """Remember which mask this layer was given and its additive form; layers of one kind share one."""
        for index, known in enumerate(self.masks_given):
            if _same_tensor(known, given):
                self.mask_of_layer.append(index)
                return
        self.masks_given.append(given)
        self.masks.append(used)
        self.mask_of_layer.append(len(self.masks) - 1)

    def hold(self, named: dict[str, torch.Tensor], scaling: float | None, softcap: float | None) -> None:
        """Copy the tensors asked for, with the two numbers that turn them into scores."""
        self.kept = {name: named[name].detach().float().clone() for name in self.keep}
        self.kept["scaling"] = named["q"].shape[-1] ** -0.5 if scaling is None else float(scaling)
        self.kept["softcap"] = softcap


_recorder: ContextVar[Recorder | None] = ContextVar("headscope_recorder", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Let the forward pass inside this block, in this thread, fill ``recorder``."""
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Explicit scaled dot-product attention with capture.

    Returns the output (B, Q, H, V), contiguous, and the weights (B, H, Q, K). ``scaling``
    defaults to 1/sqrt(D) (arXiv 1706.03762, eq. 1); ``softcap`` is Gemma 2's tanh cap
    (arXiv 2408.00118, section 2); ``s_aux`` holds a learned sink logit per head (gpt-oss),
    so rows may sum below 1. ``dropout`` is ignored: models here are always in eval mode.
    """
    recorder = _recorder.get()
    layer = recorder.calls if recorder else 0
    if recorder:
        recorder.shapes.append((tuple(query.shape), tuple(key.shape), tuple(value.shape)))
        for pools in recorder.plan.pools:
            if layer in pools:
                key, value = _pooled(key, pools[layer], 0), _pooled(value, pools[layer], 1)
    scores = grouped_scores(query, key).mul_(query.shape[-1] ** -0.5 if scaling is None else scaling)  # (B, H, Q, K)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if position_bias is not None:
        scores = scores + position_bias
    mask = _additive(attention_mask, scores)
    if mask is not None:
        scores = scores.add_(mask)
    out = recorder.buffer(layer, scores.shape) if recorder else None
    weights = _softmax(scores, s_aux, out)
    blank = _blank_rows(mask)
    if blank is not None:
        weights.masked_fill_(blank, 0.0)
    output = grouped_output(weights.to(value.dtype), value)  # (B, H, Q, V)
    if recorder:
        recorder.note_mask(attention_mask, mask)
        recorder.sinks |= s_aux is not None
        if recorder.last_rows is not None:
            recorder.last_rows.append(weights[:, :, -1:].clone())  # a view would keep the whole (Q, K) alive
        if layer == recorder.keep_layer:
            recorder.hold({"q": query, "k": key, "v": value}, scaling, softcap)
        output = _muted(output, recorder, layer)
        recorder.calls += 1
    return output.transpose(1, 2).contiguous(), weights


def grouped_scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """q k^T with query heads grouped under their K/V head, so K is never copied: (B, H, Q, K)."""
    batch, n_heads, rows, width = query.shape
    n_kv_heads, columns = key.shape[1], key.shape[2]
    grouped = query.reshape(batch, n_kv_heads, (n_heads // n_kv_heads) * rows, width)
    return torch.matmul(grouped, key.transpose(2, 3)).view(batch, n_heads, rows, columns)


def grouped_output(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """weights @ V with the same grouping: (B, H, Q, V)."""
    batch, n_heads, rows, columns = weights.shape
    n_kv_heads = value.shape[1]
    grouped = weights.view(batch, n_kv_heads, (n_heads // n_kv_heads) * rows, columns)
    return torch.matmul(grouped, value).view(batch, n_heads, rows, value.shape[-1])


def register() -> None:
    """Make ``attn_implementation="headscope"`` known to transformers, with its mask function.

    Without a mask function of the same name transformers passes no mask at all.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, eager_mask)


def keep_hidden(_: torch.nn.Module, __: Any, output: Any) -> None:
    """Forward hook of a model's trunk: leave its last hidden states (B, T, d_model) with the recorder."""
    recorder = _recorder.get()
    if recorder:
        recorder.hidden = output[0]


def on_key_projected(layer: int, projection: torch.nn.Linear, args: Any, output: torch.Tensor) -> torch.Tensor | None:
    """Forward hook of a layer's K projection: rebuild K, and V for ``on_value_projected``, where a plan says so."""
    recorder = _recorder.get()
    if recorder is None:
        return None
    if recorder.as_projected is not None and layer == recorder.keep_layer:
        recorder.as_projected["k"] = output
    if recorder.energy is not None:
        recorder.projected[layer] = _without_bias(output, projection)
    if layer not in recorder.plan.rebuilds:
        return None
    rebuild = recorder.plan.rebuilds[layer]
    both = rebuild(args[0])
    recorder.projected[layer] = both[..., rebuild.k_width :]
    return both[..., : rebuild.k_width]


def on_value_projected(layer: int, projection: torch.nn.Linear, _: Any, output: torch.Tensor) -> torch.Tensor | None:
    """Forward hook of a layer's V projection, which runs after that layer's K projection and on the same input."""
    recorder = _recorder.get()
    if recorder is None:
        return None
    if recorder.as_projected is not None and layer == recorder.keep_layer:
        recorder.as_projected["v"] = output
    if layer not in recorder.projected:
        return None
    beside = recorder.projected.pop(layer)
    if recorder.energy is None or recorder.total is None:
        return beside
    both = torch.cat([beside, _without_bias(output, projection)], dim=-1).flatten(0, -2).double()  # (B*T, G*D + G*V)
    recorder.energy[layer] += both.T @ both
    recorder.total[layer] += both.sum(dim=0)
    return None


def _without_bias(output: torch.Tensor, projection: torch.nn.Linear) -> torch.Tensor:
    return output if projection.bias is None else output - projection.bias


def _additive(mask: torch.Tensor | None, scores: torch.Tensor) -> torch.Tensor | None:
    if mask is None:
        return None
    mask = mask[..., : scores.shape[-1]]
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=scores.dtype).masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return mask


def visible_cells(mask: torch.Tensor) -> torch.Tensor:
    """Which cells an additive mask leaves visible, as booleans of the same shape."""
    return mask > torch.finfo(mask.dtype).min / 2


def _blank_rows(mask: torch.Tensor | None) -> torch.Tensor | None:
    if mask is None:
        return None
    blank = ~visible_cells(mask).any(dim=-1, keepdim=True)  # (B, 1, Q, 1)
    return blank if bool(blank.any()) else None


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None, out: torch.Tensor | None) -> torch.Tensor:
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1).to(scores.dtype)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1, dtype=torch.float32)[..., :-1]
        return out.copy_(weights) if out is not None else weights.contiguous()
    if out is not None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32, out=out)
    return torch.softmax(scores, dim=-1, dtype=torch.float32)


def _pooled(heads: torch.Tensor, pool: Pool, which: int) -> torch.Tensor:
    """(B, G, K, D) -> (B, groups, K, D); (B, G, K, D) again, with equal or turned members, where heads were reordered
    or turned."""
    if pool.turns is not None:
        heads = heads @ pool.turns[which]
    order = torch.argsort(pool.groups, stable=True)
    adjacent = bool((order == torch.arange(len(order))).all())
    members = (heads if adjacent else heads[:, order]).unflatten(1, (pool.n_groups, -1))
    shared = members[:, :, 0] if pool.first else members.mean(dim=2)
    if adjacent and pool.turns is None:
        return shared
    given_back = shared[:, pool.groups]
    return given_back if pool.turns is None else given_back @ pool.turns[which].transpose(1, 2)


def _muted(output: torch.Tensor, recorder: Recorder, layer: int) -> torch.Tensor:
    for one in recorder.mutes:
        for head in (head for where, head in one.heads if where == layer):
            output[:, head] = 0.0 if one.how == "zero" else _row_mean(output[:, head], recorder.attended)
    return output


def _row_mean(rows: torch.Tensor, attended: torch.Tensor | None) -> torch.Tensor:
    """Mean of (B, Q, V) over the rows that are text, so that padding cannot change it: (B, 1, V)."""
    if attended is None:
        return rows.mean(dim=1, keepdim=True)
    share = attended.to(rows.dtype) / attended.sum(dim=1, keepdim=True)
    return (rows * share.unsqueeze(-1)).sum(dim=1, keepdim=True)


def _same_tensor(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether both are the same numbers in memory: layers may slice one mask, each into a view of its own."""
    if one is None or other is None:
        return one is other
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
