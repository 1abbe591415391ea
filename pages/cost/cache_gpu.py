"""The tab “One GPU”: weights, overhead and cache stacked against the number of users, and how far memory goes."""

from __future__ import annotations

import numpy as np
import streamlit as st

from attention.kv_working import readable
from attention.plots.cache_charts import Ints, memory_stack
from pages.cost.cache_inputs import Choice
from pages.cost.cache_parts import draw, small, theme
from pages.shared.errors import plain

MOST_BARS = 12


def show(choice: Choice) -> None:
    """The stack, and how far this memory goes."""
    fit = choice.fit()
    where = f"{choice.n_gpus} × {choice.gpu.name}" if choice.n_gpus > 1 else f"one {choice.gpu.name}"
    longest = "any length" if fit.max_context is None else f"up to **{fit.max_context:,} tokens**"
    most = "any number of users" if fit.max_batch is None else f"up to **{fit.max_batch:,} users**"
    st.markdown(
        f"On {plain(where)}: {choice.users:,} users may have {longest} each; or, at {choice.tokens:,} tokens, {most}."
    )
    users = _users(choice.users, fit.max_batch)
    growing = choice.cache.bytes([choice.tokens], users, choice.dtype, tensor_parallel=choice.n_gpus)
    fixed = fit.state // choice.users * users  # every user has a state of the same size
    chart = memory_stack(users, growing + fixed, fit.weights, fit.overhead, fit.capacity, theme(), choice.users)
    draw(chart, "cache-stack", f"Memory at {choice.tokens:,} tokens each")
    small(
        f"Weights {readable(fit.weights)} at {choice.weight_bits} bit; {choice.overhead_percent} % of a GPU kept free. "
        "Bold: the number of users chosen above."
    )
    for note in fit.notes:
        small(note)


def _users(now: int, most: int | None) -> Ints:
    """Numbers of users worth a bar: powers of two around the chosen number, the chosen one and the most that fit."""
    top = max(4, 2 * now, 2 * (most or 0) if (most or 0) <= 64 * now else 0)
    doubling = [2**step for step in range(top.bit_length() + 1) if 2**step <= top]
    special = {now, *([most] if most and most <= top else [])}
    return np.array(sorted({*doubling[-(MOST_BARS - len(special)) :], *special}), dtype=np.int64)
