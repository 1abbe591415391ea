"""The tabs that set models beside each other: cache against length, and where the cache outgrows the weights."""

from __future__ import annotations

import numpy as np
import streamlit as st

from attention.known_models import find_gpu, find_model
from attention.kv_budget import tokens_to_outgrow
from attention.kv_cache import KVCache
from attention.kv_working import readable
from attention.plots.cache_charts import Crossing, Curve, Level, context_curves, crossing_lines
from pages.cost.cache_inputs import BOUND, Choice, listed_names, model_label
from pages.cost.cache_parts import draw, small, theme
from pages.shared.errors import plain
from pages.shared.tables import table

BESIDE = ("Llama 2 7B", "Mistral 7B v0.1", "Gemma 3 27B", "DeepSeek-V3", "Qwen2.5 72B")
MOST_BESIDE = 5
CLASSICS = ("Llama 2 7B", "Llama 3 8B", "Llama 2 70B")
POINTS, SHORTEST, LONGEST = 200, 256, 1_048_576
GPU_LINES = ("NVIDIA GeForce RTX 4090", "NVIDIA H100 80 GB SXM", "AMD Instinct MI300X")


def inputs() -> list[str]:
    """The models to set beside the chosen one."""
    return st.multiselect(
        "Compared with (up to five)",
        listed_names(),
        default=list(BESIDE),
        format_func=model_label,
        max_selections=MOST_BESIDE,
        key="c_with",
        placeholder="Choose models",
        **BOUND,
    )


def show(choice: Choice, others: list[str]) -> None:
    """Cached bytes against length, both logarithmic, with GPU memories as lines."""
    caches = [(choice.subject.name, choice.cache)]
    caches += [(name, find_model(name).cache) for name in others if name != choice.subject.name]
    silent = [name for name, cache in caches if not cache.elements_per_token]
    chart = context_curves(
        [_curve(name, cache, choice) for name, cache in caches if cache.elements_per_token], _levels(choice), theme()
    )
    draw(chart, "cache-compare", f"Cached bytes for {choice.users:,} users, {choice.dtype}")
    small(
        f"For {choice.users:,} user{'s' if choice.users > 1 else ''} at {choice.dtype}. A line that flattens has "
        "windows: its layers forget what lies further back. Dotted: longer than the model was trained for."
    )
    for name in silent:
        small(f"{name} keeps no keys and values, so it has no line.")


def _curve(name: str, cache: KVCache, choice: Choice) -> Curve:
    longest = max(LONGEST, choice.tokens)
    tokens = np.unique(np.geomspace(SHORTEST, longest, POINTS).round().astype(np.int64))
    return Curve(name, tokens, cache.bytes(tokens, choice.users, choice.dtype_for(cache)), cache.trained_context)


def _levels(choice: Choice) -> list[Level]:
    gpus = {find_gpu(name).memory_bytes: find_gpu(name) for name in GPU_LINES}
    gpus[choice.gpu.memory_bytes] = choice.gpu
    return [Level(f"{gpu.name}: {readable(gpu.memory_bytes)}", gpu.memory_bytes) for gpu in gpus.values()]


def show_crossing(choice: Choice) -> None:
    """When the cache outgrows the weights, for the chosen model and three well-known ones."""
    crossings = _crossings(choice)
    if crossings:
        first = crossings[0]
        st.markdown(
            f"**{plain(first.name)}: from {first.tokens:,} tokens in flight on, the cache is larger than the "
            f"weights** ({choice.weight_bits}-bit weights, cache at {choice.dtype}). In flight: the tokens of all "
            f"users together; {choice.users:,} × {choice.tokens:,} are {choice.users * choice.tokens:,}."
        )
        draw(
            crossing_lines(crossings, theme(), choice.users * choice.tokens),
            "cache-crossing",
            "Where the cache outgrows the weights",
        )
    elif choice.subject.params is None:
        st.info("The number of weights is not known, so nothing can be said about when the cache outgrows them.")
    else:
        st.info(plain(choice.cache.reason or "This model keeps no keys and values."))
    _classics(choice)
    _memory_and_training(choice)


def _crossings(choice: Choice) -> list[Crossing]:
    known = [(name, find_model(name)) for name in CLASSICS if name != choice.subject.name]
    asked = [(choice.subject.name, choice.cache, choice.subject.params, choice.tokens)]
    asked += [(name, model.cache, model.params, 1) for name, model in known]
    found = []
    for name, cache, params, seq_len in asked:
        weights = (params or 0) * choice.weight_bits // 8
        tokens = tokens_to_outgrow(cache, weights, choice.dtype_for(cache), seq_len) if weights else None
        if tokens is None and name == choice.subject.name:
            return []
        if tokens is not None:
            found.append(Crossing(name, cache.bytes(seq_len, 1, choice.dtype_for(cache)) / seq_len, weights, tokens))
    return found


def _classics(choice: Choice) -> None:
    small, large = find_model("Llama 2 7B"), find_model("Llama 2 70B")
    dtype = choice.dtype_for(small.cache)
    st.markdown(
        f"**A larger model may store less.** {large.name} ({large.rung}) adds "
        f"{readable(large.cache.bytes_per_token(dtype))} for each token, {small.name} ({small.rung}) "
        f"{readable(small.cache.bytes_per_token(dtype))}: ten times the weights, fewer K/V heads."
    )
    rows = []
    for name in CLASSICS:
        model = find_model(name)
        weights = model.weights_bytes(choice.weight_bits)
        tokens = tokens_to_outgrow(model.cache, weights, dtype)
        per_token = readable(model.cache.bytes_per_token(dtype))
        rows.append((name, model.rung, readable(weights), per_token, f"{tokens:,}", f"{model.max_context:,}"))
    table(
        f"Weights at {choice.weight_bits} bit, cache at {dtype}; larger from that many tokens in flight on",
        ("model", "sharing", "weights", "a token", "cache larger from", "trained on up to"),
        rows,
    )


def _memory_and_training(choice: Choice) -> None:
    fit, limit = choice.fit(), choice.cache.trained_context
    if limit and fit.max_context is not None and fit.max_context > limit:
        st.markdown(
            f"**Memory is not the only limit.** On this GPU {choice.users:,} users could each have "
            f"{fit.max_context:,} tokens of {plain(choice.subject.name)}, {fit.max_context / limit:.1f} times what it "
            f"was trained on ({limit:,}): the bytes would fit, the answers would not be what it learned."
        )
