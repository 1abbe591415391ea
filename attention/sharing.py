"""What-ifs: share K/V heads, cache a latent instead, mute heads. Plain values; the kernel carries them out."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from attention.errors import UserError
from attention.layout import HeadLayout, divisors

How = Literal["mean", "first", "random", "aligned", "healed"]
Groups = Literal["adjacent", "by-similarity"]
HOWS: tuple[How, ...] = ("mean", "first", "random", "aligned", "healed")
GROUPINGS: tuple[Groups, ...] = ("adjacent", "by-similarity")


@dataclass(frozen=True)
class ShareKV:
    """Let more query heads share each K/V head: groups of K/V heads become one.

    ``how="mean"`` averages the members of a group, ``"first"`` keeps the first one, ``"random"`` draws a
    new projection (GQA paper, arXiv 2305.13245, section 2.1 and figure 4). ``"aligned"`` turns each head
    into a frame common to its group before averaging, and back afterwards; the turns could be folded into
    W_q and W_o, so the cache is as small as with "mean". ``"healed"`` is the aligned one after some
    training, shipped for a few settings. ``groups`` says who shares: neighbours, or the most alike.
    ``layers=None`` means all layers.
    """

    n_kv_heads: int
    how: How = "mean"
    layers: tuple[int, ...] | None = None
    groups: Groups = "adjacent"

    def check(self, layout: HeadLayout, n_layers: int) -> None:
        """Raise UserError unless the model's K/V heads fall into equal groups."""
        if layout.rung == "MLA":
            raise UserError(
                "This model caches a latent (MLA), so it has no K/V heads to share.",
                "ShareKV works on MHA, GQA and MQA models.",
                "Choose another model.",
            )
        if self.n_kv_heads not in divisors(layout.n_kv_heads):
            raise UserError(
                f"{layout.n_kv_heads} K/V heads cannot be pooled evenly into {self.n_kv_heads!r}.",
                f"The number of K/V heads may be {', '.join(map(str, divisors(layout.n_kv_heads)))}.",
                "Choose one of these.",
            )
        _one_of("how", self.how, HOWS)
        _one_of("groups", self.groups, GROUPINGS)
        _check_layers(self.layers, n_layers)


@dataclass(frozen=True)
class LatentKV:
    """Cache ``rank`` numbers per token and layer instead of K and V (an MLA-like latent, before RoPE).

    The latent is the part of [K; V] with the most energy: on the calibration text (``whiten=True``), or
    among the weights alone. ``split=(rank_k, rank_v)`` gives K and V a latent each; ``None`` a joint one.
    K and V are rebuilt from it at each read and K is then rotated. ``healed``: after some training,
    shipped for a few settings. Compare DeepSeek-V2, arXiv 2405.04434, section 2.1, whose decoupled RoPE
    makes absorbing the rebuilding possible; ours cannot be absorbed where RoPE comes between.
    """

    rank: int
    split: tuple[int, int] | None = None
    whiten: bool = True
    layers: tuple[int, ...] | None = None
    healed: bool = False

    def check(self, layout: HeadLayout, n_layers: int) -> None:
        """Raise UserError for a rank or split the model's K and V cannot have."""
        if layout.rung == "MLA":
            raise UserError(
                "This model caches a latent (MLA) already.", "LatentKV works on MHA, GQA and MQA models.", "Choose one."
            )
        k_width, v_width = layout.n_kv_heads * layout.d_head, layout.n_kv_heads * layout.d_head_v
        _check_rank("rank", self.rank, k_width + v_width)
        if self.split is not None:
            rank_k, rank_v = self.split
            _check_rank("the rank of K", rank_k, k_width)
            _check_rank("the rank of V", rank_v, v_width)
            if rank_k + rank_v != self.rank:
                raise UserError(
                    f"A split of {rank_k} + {rank_v} numbers is not a latent of {self.rank}.",
                    "The two ranks must add up to the rank.",
                    "Change one of the three.",
                )
        _check_layers(self.layers, n_layers)


@dataclass(frozen=True)
class MuteHeads:
    """Silence heads: each ``(layer, head)``'s output becomes zero, or its mean over the text's rows.

    In a causal model the mean includes later rows: it is a constant, not a prediction.
    """

    heads: tuple[tuple[int, int], ...]
    how: Literal["zero", "mean"] = "zero"

    def check(self, layout: HeadLayout, n_layers: int) -> None:
        """Raise UserError when a head is not in the model."""
        for layer, head in self.heads:
            if not (0 <= layer < n_layers and 0 <= head < layout.n_heads):
                raise UserError(
                    f"There is no layer {layer}, head {head}.",
                    f"Layers are numbered 0 to {n_layers - 1}, heads 0 to {layout.n_heads - 1}.",
                    "Choose one of these.",
                )
        _one_of("how", self.how, ("zero", "mean"))


WhatIf = ShareKV | LatentKV | MuteHeads


def as_what_ifs(what_if: WhatIf | tuple[WhatIf, ...] | None) -> tuple[WhatIf, ...]:
    """One what-if, several or none, as a tuple. Raises UserError on anything else."""
    combined = () if what_if is None else what_if if isinstance(what_if, tuple) else (what_if,)
    for one in combined:
        if not isinstance(one, WhatIf):
            raise UserError(
                f"{one!r} is not a what-if.", "ShareKV, LatentKV and MuteHeads are.", "Pass one of these, or a tuple."
            )
    return combined


def numbers_cached(layout: HeadLayout, what_if: WhatIf | None = None) -> int:
    """Numbers cached per token in each layer a what-if changes: 2 · K/V heads · width, or the latent's rank.

    For an encoder: what would be cached if it wrote.
    """
    if isinstance(what_if, LatentKV):
        return what_if.rank
    if layout.d_latent is not None:
        return layout.d_latent + (layout.d_rope or 0)
    n_kv_heads = what_if.n_kv_heads if isinstance(what_if, ShareKV) else layout.n_kv_heads
    return n_kv_heads * (layout.d_head + layout.d_head_v)


def bytes_per_token(layout: HeadLayout, n_layers: int, what_if: WhatIf | None = None, bytes_per_number: int = 2) -> int:
    """Bytes cached per token over all layers, of which a what-if may change some. 2 bytes a number: fp16."""
    changed = n_layers
    if isinstance(what_if, ShareKV | LatentKV) and what_if.layers is not None:
        changed = len(what_if.layers)
    numbers = changed * numbers_cached(layout, what_if) + (n_layers - changed) * numbers_cached(layout)
    return numbers * bytes_per_number


def named_values(value: Any) -> Any:
    """Dataclasses as JSON-able values with their class names, so that two of equal fields are told apart."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__} | {f.name: named_values(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [named_values(item) for item in value]
    return value


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{name} is {value!r}.", f"It may be {' or '.join(allowed)}.", "Choose one of these.")


def _check_rank(name: str, rank: int, most: int) -> None:
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= most:
        raise UserError(f"{name} is {rank!r}.", f"It may be 1 to {most}.", "Choose a whole number within that.")


def _check_layers(layers: tuple[int, ...] | None, n_layers: int) -> None:
    for layer in layers or ():
        if not 0 <= layer < n_layers:
            raise UserError(
                f"There is no layer {layer}.", f"Layers are numbered 0 to {n_layers - 1}.", "Choose one of these."
            )
