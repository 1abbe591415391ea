"""Shapes: the seven steps of attention walked, broken and checked, on sizes of one's choice or a real layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from attention.errors import UserError
from attention.layout import HeadLayout, divisors
from attention.mistakes import MISTAKES, MistakeReport, run_mistake
from attention.model_facts import BUNDLED, title_of
from attention.multihead import (
    Sizes,
    StepTrace,
    compare_with_mha,
    d_head_guidance,
    multi_head_attention,
    random_inputs,
    score_rank,
)
from attention.plots.shape_track import track_bytes, track_css, track_js
from pages.shared.bar import DEFAULT_TEXT, fits_link
from pages.shared.errors import plain, show_error
from pages.shared.site import next_link
from pages.shared.tables import table

RANDOM = "random"
TABS = ("Break it", "Head width and rank", "Cost: MHA against GQA")
MOST_SEQ_LEN = 16
MOST_HEADS = 16
D_MODELS = (4, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128)
SEEDS = range(10)
FEW = 150  # pixels: a box for a number

_track = st.components.v2.component("headscope_shapes", css=track_css(), js=track_js())


@dataclass(frozen=True)
class Given:
    """What the steps run on: the arguments of ``multi_head_attention``, and where they come from."""

    x: Any
    weights: Any
    layout: HeadLayout
    causal: bool
    rope: Any
    source: str
    seed: int = 0
    tokens: tuple[str, ...] = ()
    expected: Any = None


def page() -> None:
    """The page from top to bottom."""
    st.html("<h1 class='hs-only-spoken'>Shapes: multi-head attention in seven steps</h1>")
    try:
        given = _settings()
        trace = multi_head_attention(given.x, given.weights, given.layout, given.causal, rope=given.rope)
        message = track_bytes(
            trace, source=given.source, seed=given.seed, tokens=given.tokens, sent=_checked(given, trace)
        )
    except UserError as error:
        show_error(error)
    else:
        _track(key="s_track", data=message, on_ask_change=_answer)
        with st.container(key="s_more"):
            _more(given, trace)
    next_link("shapes")


def _answer() -> None:
    """A button in the track was pressed: open the part of the page it stands for."""
    ask = dict(st.session_state["s_track"].get("ask") or {})
    if ask.get("action") == "break":
        st.session_state["s_tab"] = TABS[0]


# ---- settings


def _settings() -> Given:
    models = [bundled.id for bundled in BUNDLED]
    with st.container(horizontal=True, vertical_alignment="bottom", key="s_bar"):
        source = st.selectbox(
            "Numbers",
            (RANDOM, *models),
            format_func=lambda option: (
                "Random numbers" if option == RANDOM else f"{title_of(option).split(':')[0]}, real"
            ),
            key="s_source",
            bind="query-params",
            persist_state="session",
            help="Random numbers of any size, or a real model's layer reading your sentence.",
            width=190,
        )
        return _random() if source == RANDOM else _real(source)


def _random() -> Given:
    seq_len = st.slider(
        "seq_len", 1, MOST_SEQ_LEN, 4, key="s_seq", bind="query-params", persist_state="session", width=170
    )
    d_model = _number("d_model", "s_width", D_MODELS, 8, "How many numbers describe one token.")
    heads = tuple(number for number in divisors(d_model) if number <= MOST_HEADS)
    n_heads = _number(
        "n_heads", "s_heads", heads, 2, f"The divisors of d_model {d_model}: each head gets an equal share."
    )
    n_kv_heads = _number(
        "n_kv_heads",
        "s_kv",
        divisors(n_heads),
        n_heads,
        f"The divisors of n_heads {n_heads}: fewer K/V heads are shared.",
    )
    seed = _number("seed", "s_seed", tuple(SEEDS), 0, "Other random numbers of the same sizes.")
    causal = st.toggle(
        "causal",
        key="s_causal",
        bind="query-params",
        persist_state="session",
        help="A token looks only at itself and at what came before.",
    )
    layout = HeadLayout(d_model, n_heads, n_kv_heads)
    x, weights = random_inputs(layout, seq_len, seed)
    return Given(x, weights, layout, causal, None, f"random numbers, seed {seed}", seed)


def _number(label: str, key: str, options: Sequence[int], usual: int, help: str) -> int:
    """A box that offers only what fits. A value that fits no longer, or a link's that never did, is replaced aloud."""
    fits = max((option for option in options if option <= usual), default=options[0])
    kept = st.session_state.get(key)
    asked = st.query_params.get(key) if kept is None else None
    if kept is not None and kept not in options:
        st.session_state[key] = fits = _nearest(kept, options)
        st.toast(f"{label} is now {fits}: {kept} no longer fits. It may be {', '.join(map(str, options))}.")
    elif asked is not None and asked not in map(str, options):
        st.toast(
            plain(f"This link asks for {label} {asked[:20]}. It may be {', '.join(map(str, options))}; showing {fits}.")
        )
    return int(
        st.selectbox(
            label,
            options,
            index=options.index(fits),
            key=key,
            bind="query-params",
            persist_state="session",
            help=help,
            width=FEW,
        )
    )


def _nearest(wanted: int, options: Sequence[int]) -> int:
    return max((option for option in options if option <= wanted), default=options[0])


def _real(model: str) -> Given:
    bundled = next(each for each in BUNDLED if each.id == model)
    loaded = _loaded(model)
    typed = st.session_state.get("text", DEFAULT_TEXT) or ""
    layer = st.slider(
        "layer",
        0,
        loaded.n_layers - 1,
        min(2, loaded.n_layers - 1),
        key=f"s_layer_{bundled.kind}",
        bind="query-params",
        persist_state="session",
        width=200,
    )
    text = st.text_input(
        "Sentence",
        DEFAULT_TEXT,
        key="text",
        bind="query-params" if fits_link(typed) else None,
        persist_state="session",
        help="The model reads it; the chosen layer's own numbers go through the steps.",
    )
    real = _layer(model, text or "", layer)
    name = title_of(model).split(":")[0]
    return Given(
        real.x,
        real.weights,
        real.layout,
        real.causal,
        real.rope,
        f"{name}, layer {layer} of 0 to {loaded.n_layers - 1}",
        tokens=real.tokens,
        expected=real.difference,
    )


def _loaded(model: str) -> Any:
    from attention.engine import default_engine

    return default_engine().model(model)


@st.cache_resource(max_entries=12, show_spinner="Reading the sentence…")
def _layer(model: str, text: str, layer: int) -> Any:
    """Shared by all sessions: its arrays are read-only."""
    from attention.real_layer import real_layer

    loaded = _loaded(model)
    return real_layer(loaded, text, layer, start=loaded.default_start)


def _checked(given: Given, trace: StepTrace) -> list[str]:
    if given.expected is None:
        return []
    return [
        "These steps against the model's own attention output: largest difference "
        f"{given.expected(trace.output):.1e} of its largest number. "
        "The program draws random numbers of the same shapes."
    ]


# ---- under the track


def _more(given: Given, trace: StepTrace) -> None:
    tabs = st.tabs(TABS, key="s_tab", on_change="rerun", bind="query-params")
    parts: tuple[Callable[[], None], ...] = (lambda: _broken(given), lambda: _rank(trace), lambda: _cost(trace))
    for tab, part in zip(tabs, parts, strict=True):
        if tab.open:
            with tab:
                try:
                    part()
                except UserError as error:
                    show_error(error)


def _broken(given: Given) -> None:
    titles = {mistake.key: mistake.title for mistake in MISTAKES}
    key = st.segmented_control(
        "Pick a mistake",
        tuple(titles),
        default=MISTAKES[0].key,
        format_func=lambda key: titles[key],
        required=True,
        key="s_mistake",
        bind="query-params",
        persist_state="session",
    )
    report = run_mistake(key, given.x, given.weights, given.layout, given.causal, rope=given.rope)
    st.write(report.sentence)


def _rank(trace: StepTrace) -> None:
    st.write(d_head_guidance(trace.layout.d_head).sentence)
    st.write(score_rank(trace.scores, trace.layout.d_head).sentence)


def _cost(trace: StepTrace) -> None:
    rows = compare_with_mha(trace.sizes)
    table(
        "Cost",
        ("step", "parameters", "MHA"),
        [(row.name, str(row.parameters), str(row.parameters_mha)) for row in rows],
    )


page()
