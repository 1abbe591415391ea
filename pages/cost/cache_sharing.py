"""The tab “Choose n_kv”: a row for every number of K/V heads that divides the query heads, and what papers measured."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from attention.errors import UserError
from attention.known_models import find_model, models_sharing
from attention.kv_budget import SharingChoice, choose_n_kv
from attention.kv_working import readable
from attention.plots.cache_charts import head_groups, latent_group
from attention.published import nearest_published, published_tables
from pages.cost.cache_inputs import BOUND, LATENT_ONLY, Choice
from pages.cost.cache_parts import csv_button, listed, seconds, small, working_popover
from pages.shared.errors import plain
from pages.shared.tables import table

EQUAL, SHRINK = "Equal total weights", "Only K and V change"
NOTHING = "no published number at this size"
HEADERS = (
    "K/V heads",
    "queries each",
    "a token",
    "longest text",
    "most users",
    "memory floor",
    "K/V weights",
    "GPUs without copies",
    "real models with this ratio",
    "nearest published quality",
)


def inputs() -> str:
    """What is held fixed from row to row."""
    held = st.segmented_control(
        "Held fixed",
        (EQUAL, SHRINK),
        default=EQUAL,
        required=True,
        key="c_hold",
        help="Equal total weights: what K and V save goes into other parts, as Llama 2's authors did. "
        "Only K and V change: fewer K/V heads also mean fewer weights.",
        **BOUND,
    )
    return str(held)


def show(choice: Choice, held: str) -> None:
    """The rows, the groups drawn, and the published quality."""
    dtype = "fp8" if choice.dtype == LATENT_ONLY else choice.dtype
    rows = choose_n_kv(
        choice.cache,
        choice.weights,
        choice.gpu,
        choice.subject.d_model or 1,
        choice.tokens,
        choice.users,
        dtype,
    )
    if not rows:
        st.info(plain(choice.cache.reason or "This model keeps no keys and values."))
        return
    own = next((place for place, row in enumerate(rows) if row.step.is_own), None)
    cells = [_cells(choice, row, held, rows) for row in rows]
    st.markdown(
        f"Layers, query heads, widths and windows are held fixed, and {_held_words(held)}. "
        f"{choice.users:,} users, {choice.tokens:,} tokens each, cache at {dtype}, on "
        f"{choice.n_gpus} × {plain(choice.gpu.name)}."
    )
    with st.container(key="cache-sharing-table"):
        table(f"{choice.subject.name}: a row for every way its heads could share", HEADERS, cells, own)
    with st.container(horizontal=True):
        with working_popover():
            _working(choice, rows, dtype)
        csv_button(HEADERS, cells, "cache-sharing")
    _drawing(choice)
    _published()


def _working(choice: Choice, rows: tuple[SharingChoice, ...], dtype: str) -> None:
    st.markdown("**A token of one user**")
    for row in rows:
        listed([f"{row.step.label}: {line.text}" for line in row.step.cache.working(1, 1, dtype).lines])
    if choice.subject.d_model:
        st.markdown("**K/V weights**: width of the model × numbers a token stores in all layers")
        width = choice.subject.d_model
        listed(
            [
                f"{row.step.label}: {width:,} × {row.step.cache.elements_per_token:,} = {row.kv_parameters:,}"
                for row in rows
            ]
        )


def _held_words(held: str) -> str:
    return "the total of all weights too" if held == EQUAL else "so are all weights but those that make K and V"


def _cells(choice: Choice, row: SharingChoice, held: str, rows: tuple[SharingChoice, ...]) -> tuple[str, ...]:
    n_kv = row.step.n_kv_heads or 1
    counted = _with_weights_of(choice, row, rows) if held == SHRINK else choice
    q_per_kv = choice.cache.n_heads // n_kv
    decoders = [model.name for model in models_sharing(q_per_kv, limit=50) if model.architecture == "decoder"]
    names = ", ".join(decoders[:3]) or "none in the list"
    quote = nearest_published(row.step.rung, n_kv, choice.subject.params)
    longest, most, floor = _room(counted, row)
    return (
        f"{n_kv} ({row.step.rung})",
        str(q_per_kv),
        readable(row.bytes_per_token),
        longest,
        most,
        floor,
        f"{row.kv_parameters / 1e6:,.0f} million" if choice.subject.d_model else "–",
        ", ".join(str(count) for count in row.gpu_counts),
        names,
        quote.text if quote else NOTHING,
    )


def _with_weights_of(choice: Choice, row: SharingChoice, rows: tuple[SharingChoice, ...]) -> Choice:
    """The choice with the weights the model would have if only its K and V projections changed."""
    own = next((other for other in rows if other.step.is_own), None)
    if own is None or choice.subject.params is None or choice.subject.d_model is None:
        return choice
    params = choice.subject.params + row.kv_parameters - own.kv_parameters
    return replace(choice, subject=replace(choice.subject, params=params))


def _room(choice: Choice, row: SharingChoice) -> tuple[str, str, str]:
    try:
        fit = choice.fit(row.step.cache)
        floor = choice.floor(row.step.cache)
    except UserError:  # these heads cannot be split over that many GPUs
        return "–", "–", "–"
    longest, most = ("any" if number is None else f"{number:,}" for number in (fit.max_context, fit.max_batch))
    return longest, most, seconds(floor)


def _drawing(choice: Choice) -> None:
    cache = choice.cache
    st.markdown("**Who shares whose keys and values**")
    layer = next(layer for layer in cache.layers if layer.caches_tokens)
    if cache.rung == "MLA":
        st.html(latent_group(cache.n_heads, layer.d_latent, layer.d_rope))
    else:
        st.html(head_groups(cache.n_heads, cache.n_kv_heads))


def _published() -> None:
    st.markdown("**What papers measured**")
    columns = st.columns(2, gap="large")
    for place, one in enumerate(published_tables()):
        names = list(dict.fromkeys(name for row in one.rows for name in row.scores))
        rows = [
            (
                row.label,
                f"{row.params / 1e9:g}B",
                *(f"{row.scores[name]:g}" if name in row.scores else "–" for name in names),
            )
            for row in one.rows
        ]
        with columns[place % 2]:
            table(f"{one.short} ({one.source}). {one.setup}", ("model", "weights", *names), rows)
    older, newer = find_model("DeepSeek LLM 67B").cache, find_model("DeepSeek-V2").cache
    mha = newer.as_if("MHA")
    equal = 1 - newer.elements_per_token / older.elements_per_token
    same = 1 - newer.elements_per_token / mha.elements_per_token
    six_bit = 1 - newer.elements_per_token * 6 / (older.elements_per_token * 16)
    small(
        f"DeepSeek-V2's paper says its cache is 93.3 % smaller. That is against DeepSeek 67B, which shares already, "
        f"and with about 6 bits a number ({six_bit:.1%}). At equal precision it is {equal:.2%}; against its own shape "
        f"with MHA {same:.2%}."
    )
