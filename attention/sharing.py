"""What-ifs: share K/V heads, cache a latent instead, mute heads. Plain values; the kernel carries them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attention.errors import UserError
from attention.layout import HeadLayout, divisors


@dataclass(frozen=True)
class ShareKV:
    """Let more query heads share each K/V head: groups of K/V heads are pooled into one.

    ``how="mean"`` averages the members of a group, ``"first"`` keeps the first one
    (GQA paper, arXiv 2305.13245, section 2.1 and figure 4). ``layers=None`` means all layers.
    """

    n_kv_heads: int
    how: Literal["mean", "first"] = "mean"
    layers: tuple[int, ...] | None = None

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
        _one_of("how", self.how, ("mean", "first"))
        _check_layers(self.layers, n_layers)


@dataclass(frozen=True)
class LatentKV:
    """Cache ``rank`` numbers per token and layer instead of K and V (an MLA-like latent).

    ``split=(rank_k, rank_v)`` gives K and V a latent each; ``None`` gives them a joint one.
    """

    rank: int
    split: tuple[int, int] | None = None
    whiten: bool = True
    layers: tuple[int, ...] | None = None

    def check(self, layout: HeadLayout, n_layers: int) -> None:
        """Raise UserError: this what-if is described here but no kernel carries it out yet."""
        raise UserError(
            "A latent K/V cache cannot be computed by this version.",
            "ShareKV and MuteHeads can.",
            "Choose one of these.",
        )


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


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{name} is {value!r}.", f"It may be {' or '.join(allowed)}.", "Choose one of these.")


def _check_layers(layers: tuple[int, ...] | None, n_layers: int) -> None:
    for layer in layers or ():
        if not 0 <= layer < n_layers:
            raise UserError(
                f"There is no layer {layer}.", f"Layers are numbered 0 to {n_layers - 1}.", "Choose one of these."
            )
