"""The tab “4x”: what a lesson says about shared K/V heads, computed for the chosen model."""

from __future__ import annotations

import streamlit as st

from attention.known_models import find_model
from attention.kv_budget import fits
from attention.kv_cache import KVCache
from attention.kv_working import readable
from pages.cost.cache_inputs import DEFAULT_MODEL, Choice
from pages.cost.cache_parts import listed, small, working_popover
from pages.shared.errors import plain
from pages.shared.tables import table


def show(choice: Choice) -> None:
    """The sentence, then the same memory spent in three ways."""
    name, cache, weights = _model(choice)
    times = cache.n_heads // cache.n_kv_heads
    tokens, users, dtype = choice.tokens, choice.users, choice.dtype_for(cache)
    as_mha = cache.as_if("MHA")
    less = as_mha.bytes(tokens, users, dtype) / cache.bytes(tokens, users, dtype)
    st.markdown(
        f"### {plain(name)}: {cache.n_kv_heads} K/V heads instead of {cache.n_heads} → {less:.3g}x less cache → "
        f"{times}x the context, or {times}x the users, in the same memory."
    )
    spent = (
        ("as MHA", as_mha, tokens, users),
        (f"as it is: {less:.3g}x less", cache, tokens, users),
        (f"spent on {times}x the context", cache, times * tokens, users),
        (f"spent on {times}x the users", cache, tokens, times * users),
    )
    rows = [
        (words, f"{length:,}", f"{count:,}", readable(one.bytes(length, count, dtype)))
        for words, one, length, count in spent
    ]
    table(f"{name}, cache at {dtype}", ("the cache", "tokens each", "users", "keys and values"), rows, chosen=1)
    with working_popover():
        for words, one, length, count in spent:
            st.markdown(f"**{plain(words)}**")
            listed(one.working(length, count, dtype).text.split("\n"))
    _on_a_gpu(choice, name, cache, as_mha, weights)
    limit = cache.trained_context
    if limit and times * tokens > limit:
        small(
            f"Memory allows {times * tokens:,} tokens; {name} was trained on texts of up to {limit:,}. "
            "Shared heads make room for a longer text; they do not teach the model to use one."
        )


def _model(choice: Choice) -> tuple[str, KVCache, int]:
    """The chosen model where it shares heads, else the lesson's own."""
    if choice.cache.rung in ("GQA", "MQA"):
        return choice.subject.name, choice.cache, choice.weights
    model = find_model(DEFAULT_MODEL)
    small(f"{choice.subject.name} does not share K/V heads, so this is the lesson's own example.")
    return model.name, model.cache, model.weights_bytes(choice.weight_bits)


def _on_a_gpu(choice: Choice, name: str, cache: KVCache, as_mha: KVCache, weights: int) -> None:
    """Beside the weights the gain is more than the ratio says, because only the room that is left is shared out."""
    dtype = choice.dtype_for(cache)
    most = [
        fits(one, weights, choice.gpu, choice.tokens, 1, dtype, overhead_bytes=choice.overhead).max_batch
        for one in (as_mha, cache)
    ]
    if None not in most:
        st.markdown(
            f"On one {plain(choice.gpu.name)}, beside the weights: {most[0]:,} users as MHA, "
            f"**{most[1]:,}** as {plain(name)} is ({choice.tokens:,} tokens each)."
        )
