"""The tab “Cost, too”: what a latent saves in bytes and costs in arithmetic, and when the rebuilding can be skipped."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import streamlit as st

from attention.absorb import reading_cost
from attention.kv_working import readable
from attention.layout import HeadLayout
from attention.model_facts import BUNDLED
from attention.plots.ladder_board import layout_of
from attention.plots.numbers import percent
from attention.rung_views import LadderView
from attention.sharing import LatentKV
from pages.cost.cache_parts import listed, small, working_popover
from pages.cost.ladder_inputs import BOUND, default_text, first_view
from pages.shared.tables import table

if TYPE_CHECKING:
    from attention.absorb_real import RealAbsorb

LENGTHS = (128, 1024, 8192, 32768)


def inputs() -> int:
    """How many tokens are cached."""
    length = st.segmented_control(
        "Tokens cached",
        LENGTHS,
        default=1024,
        format_func=lambda count: f"{count:,}",
        required=True,
        key="l_tokens",
        **BOUND,
    )
    return int(length)


def show(view: LadderView, tokens: int) -> None:
    """A row a latent, the working, then the check on this model's own layer."""
    layout = layout_of(view)
    st.markdown(
        "**The pre-RoPE latent is rebuilt and rotated at each read: bytes saved, FLOPs spent, not absorbable. "
        "DeepSeek's decoupled RoPE makes absorption possible.**"
    )
    if view.kind == "encoder":
        small("An encoder has no decode cache: it reads the whole sentence at once. Bytes say what it would cache.")
    ranks = [one.rung.rank for one in view.rungs if isinstance(one.rung, LatentKV) and not one.rung.healed]
    if not ranks:
        small("This model computes Q, K and V in one piece, so no latent is made of its K and V.")
        return
    rows = [_row(layout, rank, tokens) for rank in ranks]
    table(
        f"One layer reads {tokens:,} cached tokens for one new token, at 16 bit",
        ("latent", "would be cached", "saved", "to attend", "to rebuild K and V", "together", "attend on the latent"),
        rows,
    )
    with working_popover():
        _working(layout, ranks[len(ranks) // 2], tokens)
    _check(view)


def _row(layout: HeadLayout, rank: int, tokens: int) -> tuple[str, ...]:
    cost = reading_cost(layout, rank, tokens)
    return (
        f"{rank} numbers",
        readable(cost.bytes_latent),
        readable(cost.bytes_full - cost.bytes_latent),
        flops(cost.flops_scores),
        flops(cost.flops_rebuild),
        f"{(cost.flops_rebuild + cost.flops_scores) / cost.flops_scores:,.0f} times",
        flops(cost.flops_absorbed),
    )


def _working(layout: HeadLayout, rank: int, tokens: int) -> None:
    cost = reading_cost(layout, rank, tokens)
    full, heads = layout.n_kv_heads * (layout.d_head + layout.d_head_v), layout.n_heads
    width = layout.d_head + layout.d_head_v
    st.markdown(f"**A latent of {rank} numbers, one layer.** One multiplication and one addition are 2 FLOPs.")
    listed(
        [
            f"Cached in full: {tokens:,} tokens × {full} numbers × 2 bytes = {cost.bytes_full:,} bytes",
            f"Latent: {tokens:,} tokens × {rank} numbers × 2 bytes = {cost.bytes_latent:,} bytes",
            f"Attend: 2 × {heads} query heads × {tokens:,} tokens × {width} numbers = {cost.flops_scores:,} FLOPs",
            f"Rebuild: 2 × {tokens:,} tokens × {rank} × {full} numbers = {cost.flops_rebuild:,} FLOPs",
            f"On the latent: 2 × {heads} × {tokens:,} × 2 × {rank}, and 2 × {heads} × {rank} × {width} "
            f"to map query and output = {cost.flops_absorbed:,} FLOPs",
        ]
    )


def _check(view: LadderView) -> None:
    st.markdown("#### Can the rebuilding be skipped?")
    st.markdown(
        "A key is k = U·c, rebuilt from the latent c. A score is q·k = q·(U·c) = (Uᵀ·q)·c. "
        "So U can move into the query, and no key is ever built: the *absorbed* form. "
        "RoPE turns k by its place after U. That turn differs for every distance, so no fixed matrix can absorb it. "
        "Decoupled RoPE turns a few extra numbers, shared by all heads, and leaves the latent's part alone."
    )
    model = view.request.model
    if not any(one.id == model for one in BUNDLED):
        small("The check on real weights is made for the two models that come with Headscope.")
        return
    first = first_view(model)
    assert first is not None
    rank = view.rungs[0].numbers // 2 if view.kind == "encoder" else view.rungs[0].numbers // 3
    with st.spinner("Taking the layer out of the model…"):
        found = _checked(model, first.request.layer, first.request.head, rank)
    where = f"layer {found.layer}, head {found.head}, latent of {rank} numbers, {found.seq_len} tokens"
    own = (
        "This model turns q and k (RoPE): absorbing leaves the turn out"
        if found.rope
        else "This model does not turn q and k: absorbing is exact"
    )
    table(
        f"Largest difference between explicit and absorbed scores, as a share of the largest score: {where}",
        ("on this layer's own weights", "difference", "so absorbing is"),
        [
            (own, _share(found.own.difference), _verdict(found.own.difference)),
            *(
                [("The same, without the turn", _share(found.without_rope.difference), "exact, to rounding")]
                if found.rope
                else []
            ),
            (
                "With decoupled RoPE beside it (32 turned numbers a token, drawn at random)",
                _share(found.decoupled.difference),
                _verdict(found.decoupled.difference),
            ),
        ],
    )
    small(
        f"Text: “{default_text(model)}”, in float64. RoPE: RoFormer, arXiv 2104.09864. "
        "The layer's q and k turn by the model's own angles, the drawn numbers with base 10,000. "
        "Absorption and decoupled RoPE: DeepSeek-V2, arXiv 2405.04434, section 2.1."
    )


@lru_cache(maxsize=8)
def _checked(model: str, layer: int, head: int, rank: int) -> RealAbsorb:
    from attention.absorb_real import real_absorb
    from attention.engine import default_engine

    return real_absorb(default_engine().model(model), default_text(model), layer, head, rank)


def _verdict(difference: float) -> str:
    return "exact, to rounding" if difference < 1e-9 else "wrong"


def _share(difference: float) -> str:
    return percent(difference) if difference > 0.005 else f"{difference:.1e}"


def flops(count: int) -> str:
    """Multiplications and additions, in thousands or millions."""
    for unit, size in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count} FLOP"
