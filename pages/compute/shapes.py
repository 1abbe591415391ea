"""Shapes: the seven steps of attention walked, broken and checked, on sizes of one's choice or a real layer."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

from attention.errors import UserError
from attention.layout import HeadLayout, divisors
from attention.mistakes import MISTAKES, Comparison, MistakeReport, run_mistake
from attention.model_facts import BUNDLED, title_of
from attention.multihead import (
    StepTrace,
    compare_with_mha,
    d_head_guidance,
    multi_head_attention,
    random_inputs,
    score_rank,
)
from attention.plots.broken import broken_maps
from attention.plots.colours import BROKEN
from attention.plots.numbers import percent
from attention.plots.shape_track import track_bytes, track_css, track_js
from attention.provenance import axis_word
from pages.shared.bar import DEFAULT_TEXT
from pages.shared.errors import plain, show_error
from pages.shared.link_values import link_binding
from pages.shared.site import next_link
from pages.shared.tables import table

RANDOM = "random"
# The first opens with the page and is redrawn with every slider move: it must be the cheap one.
TABS = ("Head width and rank", "Cost: MHA against GQA", "Break it")
BREAK_IT = TABS[2]
MOST_SEQ_LEN = 16
MOST_HEADS = 16
D_MODELS = (4, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128)
SEEDS = range(10)
FEW = 150  # pixels: a box for a number
MOST_MIXED = 12
_SAID, _MOVED, _HEADS_BEFORE = "s_said", "s_moved", "s_heads_before"
COUNTED = ("parameters", "parameters_mha", "flops", "flops_mha")
SHORT = {
    "skip_permute": "Skip the permute",
    "concat_without_permute": "Concat without permuting back",
    "no_scale": "Forget ÷ √d_head",
    "wrong_softmax_axis": "Softmax over the wrong axis",
    "tile_kv": "Tile K/V instead of repeating",
    "mask_after_softmax": "Mask after softmax",
    "drop_transpose": "No transpose at all",
}
# On a phone the boxes stand three in a row, so that the first block is on the first screen.
_BAR_STYLE = """<style>
@media (max-width: 700px) {
  .st-key-s-three-maps { overflow-x: auto; }
  .st-key-s-three-maps > * { min-width: 50rem; }
}
.st-key-s_bar { gap: 0.5rem 0.8rem; }
@media (max-width: 700px) {
  .st-key-s_bar > [data-testid="stElementContainer"] { flex: 1 1 28%; min-width: 0; width: auto !important; }
  .st-key-s_bar > [data-testid="stElementContainer"]:has([data-testid="stTextInput"]) { flex-basis: 100%; }
  .st-key-s_bar [data-testid="stWidgetLabel"] + * { min-width: 0; }
  .st-key-s_bar [data-testid="stTooltipIcon"] { display: none; }
}
</style>"""
# Diagonal stripes beside the red: colour is never alone.
_VERDICT_STYLE = f"""<style>
.hs-verdict {{ padding: 0.6rem 1rem 0.6rem 2.2rem; border-radius: 0.5rem; border: 1px solid #8886; font-size: 1.3rem; }}
.hs-verdict p {{ margin: 0; }}
.hs-broken {{ border-color: {BROKEN.light}; background:
  repeating-linear-gradient(45deg, {BROKEN.light} 0 5px, transparent 5px 10px) left / 1.2rem 100% no-repeat; }}
</style>"""

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
    difference: Callable[[Any], float] | None = None


def page() -> None:
    """The page from top to bottom."""
    st.html("<h1 class='hs-only-spoken'>Shapes: multi-head attention in seven steps</h1>")
    st.html(_BAR_STYLE)
    try:
        given = _settings()
        _said()
        trace = multi_head_attention(given.x, given.weights, given.layout, given.causal, rope=given.rope)
        message = track_bytes(
            trace,
            source=given.source,
            seed=given.seed,
            tokens=given.tokens,
            remarks=_checked(given, trace),
            code_note="" if given.difference is None else "The program draws random numbers of these shapes.",
        )
    except UserError as error:
        _said()
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
        st.session_state["s_tab"] = BREAK_IT


# ---- settings


def _settings() -> Given:
    options = (RANDOM, *(bundled.id for bundled in BUNDLED))
    _greet("numbers", "s_source", [_source_title(option) for option in options], _source_title(RANDOM))
    with st.container(horizontal=True, vertical_alignment="bottom", key="s_bar"):
        source = st.selectbox(
            "Numbers",
            options,
            format_func=_source_title,
            key="s_source",
            bind="query-params",
            persist_state="session",
            help="Random numbers of any size, or a real model's layer reading your sentence.",
            width=190,
        )
        return _random() if source == RANDOM else _real(source)


def _source_title(option: str) -> str:
    return "Random numbers" if option == RANDOM else f"{title_of(option).split(':')[0]}, real"


def _random() -> Given:
    _greet("seq_len", "s_seq", range(1, MOST_SEQ_LEN + 1), 4)
    seq_len = st.slider(
        "seq_len", 1, MOST_SEQ_LEN, 4, key="s_seq", bind="query-params", persist_state="session", width=170
    )
    d_model = _number("d_model", "s_width", D_MODELS, 8, "How many numbers describe one token.")
    heads = tuple(number for number in divisors(d_model) if number <= MOST_HEADS)
    why = f"The divisors of d_model {d_model}: each head gets an equal share."
    n_heads = _number("n_heads", "s_heads", heads, 2, why, on_change=_stay_mha)
    st.session_state[_HEADS_BEFORE] = n_heads
    why = f"The divisors of n_heads {n_heads}: fewer K/V heads are shared."
    n_kv_heads = _number("n_kv_heads", "s_kv", divisors(n_heads), n_heads, why)
    seed = _number("seed", "s_seed", tuple(SEEDS), 0, "Other random numbers of the same sizes.")
    _greet("causal", "s_causal", ("true", "false"), "false")
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


def _stay_mha() -> None:
    """While every query head has its own K/V head, changing their number changes both."""
    if st.session_state.get("s_kv") == st.session_state.get(_HEADS_BEFORE):
        st.session_state["s_kv"] = st.session_state["s_heads"]
        st.session_state[_MOVED] = "s_kv"


def _number(
    label: str, key: str, options: Sequence[int], usual: int, help: str, on_change: Callable[[], None] | None = None
) -> int:
    """A box that offers only what fits; a value that does not fit is replaced by the usual one, aloud."""
    shown = max((option for option in options if option <= usual), default=options[0])
    kept = st.session_state.get(key)
    if kept is not None and kept not in options:
        _say(f"{label} is now {shown}, because {kept} no longer fits. It may be {_listed(options)}.")
    _greet(label, key, options, shown)
    moved = st.session_state.get(_MOVED) == key
    if moved:
        del st.session_state[_MOVED]
    return int(
        st.selectbox(
            label,
            options,
            # A value set by the callback needs no other default, and Streamlit warns about two.
            index=0 if moved else options.index(shown),
            key=key,
            bind="query-params",
            persist_state="session",
            help=help,
            width=FEW,
            on_change=on_change or "rerun",
        )
    )


def _greet(label: str, key: str, allowed: Sequence[object], shown: object) -> None:
    """A link may ask for what is not there: say so once."""
    asked = st.query_params.get(key)
    if asked is not None and key not in st.session_state and asked not in map(str, allowed):
        _say(f"This link asks for {label} {asked[:40]}. It may be {_listed(allowed)}. Showing {shown}.")


def _listed(options: Sequence[object]) -> str:
    if isinstance(options, range):
        return f"{options[0]} to {options[-1]}"
    return ", ".join(map(str, options))


def _say(sentence: str) -> None:
    st.session_state.setdefault(_SAID, []).append(sentence)


def _said() -> None:
    """What the settings had to say in this run."""
    for sentence in st.session_state.pop(_SAID, []):
        st.info(plain(sentence))


def _real(model: str) -> Given:
    bundled = next(each for each in BUNDLED if each.id == model)
    loaded = _loaded(model)
    key, usual = f"s_layer_{bundled.kind}", min(2, loaded.n_layers - 1)
    _greet("layer", key, range(loaded.n_layers), usual)
    layer = st.slider(
        "layer",
        0,
        loaded.n_layers - 1,
        usual,
        key=key,
        bind="query-params",
        persist_state="session",
        width=200,
    )
    text = st.text_input(
        "Sentence",
        DEFAULT_TEXT,
        key="text",
        bind=link_binding("text", DEFAULT_TEXT),
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
        difference=real.difference,
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


def _checked(given: Given, trace: StepTrace) -> tuple[str, ...]:
    if given.difference is None:
        return ()
    far = given.difference(trace.output)
    return (f"Largest difference from the model's own attention output: {far:.1e} of its largest number.",)


# ---- under the track


def _more(given: Given, trace: StepTrace) -> None:
    tabs = st.tabs(TABS, key="s_tab", on_change="rerun", bind="query-params")
    parts: tuple[Callable[[], None], ...] = (lambda: _rank(trace), lambda: _cost(trace), lambda: _broken(given))
    for tab, part in zip(tabs, parts, strict=True):
        if tab.open:
            with tab:
                try:
                    part()
                except UserError as error:
                    show_error(error)


def _broken(given: Given) -> None:
    _greet("mistake", "s_mistake", tuple(SHORT.values()), SHORT[MISTAKES[0].key])
    _said()
    key = st.segmented_control(
        "Pick a mistake. One line is changed, everything else is done right.",
        tuple(SHORT),
        default=MISTAKES[0].key,
        format_func=SHORT.__getitem__,
        required=True,
        key="s_mistake",
        bind="query-params",
        persist_state="session",
    )
    report = run_mistake(key, given.x, given.weights, given.layout, given.causal, rope=given.rope)
    _verdict(report)
    _lines(report)
    with st.container(horizontal=True):
        compared = _which(report)
        head = _head_of(compared) if compared is not None and compared.correct.ndim == 3 else None
    if compared is not None:
        _maps(compared, head, given.tokens)
    if report.mixed:
        table(
            "What got mixed"
            + (f" (the first {MOST_MIXED} of {len(report.mixed)})" if len(report.mixed) > MOST_MIXED else ""),
            ("place", "should hold", "holds"),
            [(mix.row, mix.expected, mix.got) for mix in report.mixed[:MOST_MIXED]],
        )
    st.markdown(f"**How a test catches it.** {plain(report.mistake.caught_by)}")


def _verdict(report: MistakeReport) -> None:
    """Red and hatched where the step is broken; plain where nothing shows."""
    kind = "broken" if report.visible else "hidden"
    error = f"<p><code>ValueError: {html.escape(report.error)}</code></p>" if report.error else ""
    st.html(
        f"{_VERDICT_STYLE}<div class='hs-verdict hs-{kind}' role='status'>"
        f"<p><b>{html.escape(report.sentence)}</b></p>{error}</div>"
    )


def _lines(report: MistakeReport) -> None:
    wrong, right = st.columns(2)
    with wrong:
        st.caption("✗ The wrong line")
        st.code(report.wrong_line, language="python", wrap_lines=True)
    with right:
        st.caption("✓ The right line")
        st.code(report.right_line, language="python", wrap_lines=True)


def _which(report: MistakeReport) -> Comparison | None:
    """The tensor to look at: the first that goes wrong or the output."""
    if report.at_step is None or report.output is None:
        return report.output
    if not report.visible:
        return None
    first = f"{report.at_step.symbol}, where it happens"
    place = st.segmented_control(
        "Look at", (first, "the output"), default=first, required=True, key="s_look", label_visibility="collapsed"
    )
    return report.at_step if place == first else report.output


def _head_of(compared: Comparison) -> int:
    """Which head to show; the one that went furthest astray comes first."""
    far = np.where(np.isfinite(compared.difference), np.abs(compared.difference), 0).max(axis=(1, 2))
    return int(
        st.selectbox(
            "Which head",
            range(len(far)),
            index=int(far.argmax()),
            format_func=lambda at: f"{axis_word(compared.axes[0])} {at}",
            key=f"s_worst_{compared.symbol}",
            label_visibility="collapsed",
            width=FEW,
        )
    )


def _maps(compared: Comparison, head: int | None, tokens: tuple[str, ...]) -> None:
    at = () if head is None else (head,)
    correct, wrong, difference = compared.correct[at], compared.wrong[at], compared.difference[at]
    rows, columns = compared.axes[-2:]
    limit = compared.tolerance * max(1.0, float(np.abs(compared.correct).max()))
    bad = np.asarray(~(np.abs(difference) <= limit).all(axis=-1))
    words = tokens if len(tokens) == len(correct) else [f"{axis_word(rows)} {at}" for at in range(len(correct))]
    figure = broken_maps(correct, wrong, bad, words, columns, theme=str(st.context.theme.type or "light"))
    alt = f"{compared.symbol} correct, wrong and their difference: {int(bad.sum())} of {len(bad)} rows shown are wrong."
    with st.container(key="s-three-maps"):  # three side by side: on a phone they are wider than the screen
        st.plotly_chart(figure, key="s_maps", alt=alt, config={"displayModeBar": False})
    st.caption(
        f"{compared.symbol}: {compared.rows_wrong} of {compared.rows_total} rows are wrong, by up to "
        f"{compared.largest:.3g}. Correct and wrong share one scale; ✗ and a frame mark wrong rows."
    )


def _rank(trace: StepTrace) -> None:
    guidance = d_head_guidance(trace.layout.d_head)
    show = st.warning if guidance.level == "warning" else st.info
    show(plain(guidance.sentence), icon=":material/straighten:")
    measured = score_rank(trace.scores, trace.layout.d_head)
    st.markdown(plain(measured.sentence))
    table(
        f"Rank of each head's {trace.sizes.seq_len} × {trace.sizes.seq_len} scores, before mask and softmax",
        ("head", "rank", "at most"),
        [(f"head {head}", str(rank), str(measured.bound)) for head, rank in enumerate(measured.ranks)],
    )


def _cost(trace: StepTrace) -> None:
    rows = compare_with_mha(trace.sizes)
    totals = [sum(getattr(row, name) for row in rows) for name in COUNTED]
    own = trace.layout.rung
    if own == "MHA":
        st.markdown(
            "This is MHA: every query head has its own K and V. Choose fewer n\\_kv\\_heads to see what sharing saves."
        )
    else:
        saved = 1 - totals[0] / totals[1]
        st.markdown(
            f"**{own}**: {trace.layout.q_per_kv} query heads share each K/V head. Parameters: {totals[0]:,} instead of "
            f"{totals[1]:,}, {percent(saved)} fewer. The KV cache shrinks {trace.layout.q_per_kv} times."
        )
    headers = (
        "step",
        f"parameters, {own}",
        "parameters, MHA",
        f"FLOPs, {own}",
        "FLOPs, MHA",
        "parameters come from",
        "FLOPs come from",
    )
    cells = [
        (
            f"{row.number} {row.name}: {row.symbol}",
            *(f"{getattr(row, name):,}" for name in COUNTED),
            row.parameters_formula,
            row.flops_formula,
        )
        for row in rows
    ]
    table(
        "One FLOP is one multiplication or one addition",
        headers,
        [*cells, ("total", *(f"{total:,}" for total in totals), "", "")],
        chosen=len(cells),
    )


page()
