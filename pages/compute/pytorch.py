"""In PyTorch: the same attention four ways, compared and timed here and now, and the traps of PyTorch's calls."""

from __future__ import annotations

import html
from dataclasses import replace
from decimal import Decimal
from typing import Any

import streamlit as st

from attention.errors import UserError
from attention.kv_working import readable
from attention.layout import divisors
from attention.plots.timing_charts import Drawn, MemoryRow, WayBar, memory_lines, milliseconds, time_bars
from pages.compute.four_ways import setup_code, way_codes
from pages.compute.measuring import D_MODEL, SEQ_LENS, Measured, Request, bench, traps, wait_for_preload
from pages.compute.trap_code import NAMES, snippet
from pages.shared.errors import plain, show_error
from pages.shared.number_box import number_box
from pages.shared.share import share_button
from pages.shared.site import next_link
from pages.shared.tables import table

BATCHES = (1, 2, 4, 8)
HEADS = (1, 2, 4, 8, 16)
SAME = 1e-4  # float32 outputs near 1 differ by rounding only below this
EVEN = 1.1  # ratios below this are within the noise of a shared machine
NUMBERS = ("no", "One", "Two", "Three", "Four")
STYLE = """<style>
.hs-answer { font-size: 1.65rem; line-height: 1.25; font-weight: 400; padding: 0; margin: 0; }
@media (min-width: 701px) { .st-key-p_figures { min-height: 31rem; } }
.hs-part { font-size: 1.6rem; font-weight: 700; padding: 0; margin: 1.2rem 0 0; }
.hs-trap { font-size: 1.15rem; font-weight: 700; padding: 0; margin: 0; }
[data-testid="stElementContainer"]:has(> [data-testid="stHtml"] > .hs-only-spoken) { width: 1px !important; }
@media (max-width: 700px) { .hs-answer { font-size: 1.3rem; } }
</style>"""


def page() -> None:
    """The answer first, then why: figures, traps, code."""
    st.html(f"{STYLE}<h1 class='hs-only-spoken'>Attention in PyTorch</h1>")
    with st.container(key="p_answer"):
        answer = st.empty()
    request, pressed = _settings()
    figures, below = st.container(key="p_figures"), st.container(key="p_traps_part")
    _code(request)
    next_link("pytorch")
    # What may take seconds comes last: the rest is there to read meanwhile.
    with figures:
        place = st.empty()
    if pressed or bench().kept(request) is None:
        answer.html('<h2 class="hs-answer"><b>One attention, computed four ways.</b> Being measured here and now.</h2>')
    wait_for_preload(lambda share, words: place.progress(share, f"{words}…"))
    with below:
        _traps()
    _first_screen(request, pressed, answer, place, figures)


# ---- settings


def _settings() -> tuple[Request, bool]:
    with st.container(horizontal=True, vertical_alignment="bottom", key="p_bar"):
        batch = number_box("batch", "p_batch", BATCHES, 1, "How many sequences are computed at once.")
        seq_len = number_box("seq_len", "p_seq", SEQ_LENS, 512, "How many tokens each sequence has.")
        n_heads = number_box("n_heads", "p_heads", HEADS, 8, f"Heads share d_model {D_MODEL} equally.")
        n_kv_heads = number_box(
            "n_kv_heads", "p_kv", divisors(n_heads), n_heads, "Fewer K/V heads are shared by several query heads."
        )
        causal = st.toggle(
            "causal",
            True,
            key="p_causal",
            bind="query-params",
            persist_state="session",
            help="A token looks only at itself and at what came before.",
        )
        request = Request(batch, seq_len, n_heads, n_kv_heads, causal)
        kept = request.is_small or bench().kept(request) is not None
        pressed = st.button(
            "Measure again" if kept else "Measure",
            key="p_measure",
            type="secondary" if kept else "primary",
            icon=":material/timer:",
            help="Runs every way several times here, on the server. Leaving the page ends it.",
        )
        share_button(disabled=False)
    return request, pressed


# ---- the first screen


def _first_screen(request: Request, pressed: bool, answer: Any, place: Any, figures: Any) -> None:
    measured = None if pressed else bench().kept(request)
    if measured is None:
        measured = _asked(request, pressed, answer, place)
    shown = request
    if measured is None:
        shown = next(each for each in _smaller(request) if each.is_small)
        measured = bench().kept(shown) or _measure(shown, False, place)
        with figures:
            st.caption(plain(f"Below: {_size(shown)}, with the same heads."))
    else:
        with answer.container():
            _answer(request, measured)
    with figures:
        _figures(measured)


def _asked(request: Request, pressed: bool, answer: Any, place: Any) -> Measured | None:
    """What was asked for, measured now if it is small or Measure was pressed; else a sentence."""
    if not pressed and not request.is_small:
        answer.html(
            f'<h2 class="hs-answer"><b>{_size(request)}: not measured yet.</b> '
            "This takes some seconds: press Measure.</h2>"
        )
        return None
    try:
        measured = _measure(request, pressed, place)
    except UserError as error:
        with answer.container():
            show_error(error)
        return None
    if pressed:
        st.rerun()  # the button above now reads "Measure again"
    return measured


def _smaller(request: Request) -> list[Request]:
    """Shorter sequences first, then a smaller batch as well."""
    lengths = [length for length in reversed(SEQ_LENS) if length < request.seq_len]
    return [
        replace(request, seq_len=length, batch_size=batch)
        for batch in dict.fromkeys((request.batch_size, 1))
        for length in lengths
    ]


def _measure(request: Request, again: bool, place: Any) -> Measured:
    try:
        return bench().measure(request, lambda share, words: place.progress(share, f"{words}…"), again=again)
    finally:
        place.empty()


def _size(request: Request) -> str:
    sequences = "" if request.batch_size == 1 else f"{request.batch_size} × "
    return f"{sequences}{request.seq_len:,} tokens"


def _answer(request: Request, measured: Measured) -> None:
    timing = measured.timing
    count = NUMBERS[len(timing.ways)]
    gap = _decimal(timing.largest_difference)
    verdict = (
        f"{count} ways, one answer: largest difference {gap}."
        if timing.largest_difference <= SAME
        else f"{count} ways that should agree differ by {gap}."
    )
    st.html(f'<h2 class="hs-answer"><b>{verdict}</b> {_faster(measured)}</h2>')
    last = measured.memory[-1]
    st.caption(
        plain(
            f"{_size(request)}, {request.n_heads} query heads, {request.n_kv_heads} K/V heads, d_model {D_MODEL}. "
            f"Explicit attention writes out who looks at whom, which takes {readable(last.explicit_bytes)}; "
            f"the fused one goes block by block and takes {readable(last.fused_bytes)}."
        )
    )


def _faster(measured: Measured) -> str:
    if not measured.is_steady:
        return "The server is too busy to say which is faster: measure again."
    seconds = {way.key: way.median_seconds for way in measured.timing.ways}
    ratio = seconds["explicit"] / seconds["fused"]
    if ratio >= EVEN:
        return f"The fused one is {ratio:.1f}× faster than the explicit one here."
    if ratio <= 1 / EVEN:
        return f"The fused one is {1 / ratio:.1f}× slower than the explicit one here."
    return "The fused one takes about as long as the explicit one here."


def _decimal(value: float) -> str:
    """A small number without an exponent: 0.000002."""
    return f"{Decimal(f'{value:.0e}'):f}"


def _figures(measured: Measured) -> None:
    timing = measured.timing
    bars = [
        WayBar(way.title, _kernel(way.kernel), way.median_seconds, "_ATTENTION" in way.kernel) for way in timing.ways
    ]
    rows = [MemoryRow(at.seq_len, at.explicit_bytes, at.fused_bytes, at.score_bytes) for at in measured.memory]
    left, right = st.columns(2, gap="large")
    with left:
        _draw("**Time** of each way, and the kernel that did the softmax part", time_bars(bars, _theme()), "p_time")
    with right:
        _draw("**Memory** held at most, beyond weights and input", memory_lines(rows, _theme()), "p_memory")
    threads = "1 thread" if timing.threads == 1 else f"{timing.threads} threads"
    st.caption(
        plain(
            f"Measured on this server with PyTorch {timing.torch_version} on {threads}. Other visitors' work slows "
            "runs down: measure again when a figure looks odd. A kernel is the inner program that does the work."
        )
    )
    for note in timing.notes:
        st.caption(plain(note))
    with st.expander("All figures"):
        _all_figures(timing)


def _draw(title: str, drawn: Drawn, key: str) -> None:
    st.markdown(title)
    st.plotly_chart(drawn.figure, key=key, alt=drawn.alt, config={"displayModeBar": False})


def _kernel(full: str) -> str:
    name = full.split(" (", maxsplit=1)[0]
    return f"fused: {name}" if name.endswith("_ATTENTION") else name


def _all_figures(timing: Any) -> None:
    table(
        "One run of each way, after one to warm up",
        ("way", "median", "fastest", "runs", "kernel"),
        [
            (way.title, milliseconds(way.median_seconds), milliseconds(way.fastest_seconds), str(way.runs), way.kernel)
            for way in timing.ways
        ],
    )
    titles = {way.key: way.title for way in timing.ways}
    table(
        "Largest difference between the outputs of two ways",
        ("one", "other", "difference"),
        [(titles[one], titles[two], _decimal(gap)) for (one, two), gap in timing.differences.items()],
    )


# ---- traps


def _traps() -> None:
    st.html('<h2 class="hs-part">Traps</h2>')
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("Every snippet was run on this server, and what you read is what it did.", width="content")
        if st.button("Run them again", key="p_traps", type="tertiary", icon=":material/refresh:"):
            traps.clear()
    first, *others = traps()
    _first_trap(first)
    with st.expander("What x, mha, q, k and v are in these snippets"):
        st.code(NAMES, wrap_lines=True)
    columns = st.columns(2, gap="medium")
    for at, trap in enumerate(others):
        with columns[at % 2], st.container(border=True):
            _claim(trap)
            _happened(trap)
            _right(trap)


def _first_trap(trap: Any) -> None:
    with st.container(border=True):
        left, right = st.columns(2, gap="large")
        with left:
            st.caption("The snippet everyone copies")
            _claim(trap)
            _happened(trap)
        with right:
            _right(trap)
            if trap.holds:
                st.markdown(f"All {NUMBERS[len(trap.right)].lower()} give the same output.")


def _claim(trap: Any) -> None:
    st.html(f'<h3 class="hs-trap">{html.escape(trap.title)}</h3>')
    st.markdown(plain(trap.lesson))


def _happened(trap: Any) -> None:
    st.code(snippet(trap), wrap_lines=True)
    if not trap.holds:
        st.info("This PyTorch no longer does what the text says. What it did is below.")
    st.markdown("**What happened**")
    if trap.error is None:
        st.markdown(plain(trap.happened))
    else:
        st.code(f"RuntimeError: {trap.error}", language=None, wrap_lines=True)


def _right(trap: Any) -> None:
    st.markdown("**Right**" if len(trap.right) == 1 else f"**Right**, {NUMBERS[len(trap.right)].lower()} ways")
    for form in trap.right:
        st.code(form.code, wrap_lines=True)
        st.caption(plain(f"Gave: {form.gave}."))


# ---- code


def _code(request: Request) -> None:
    st.html('<h2 class="hs-part">The code, for these settings</h2>')
    st.markdown("Run the set-up first; then any of the four. Each ends in the same `out`.")
    st.code(setup_code(request), wrap_lines=True)
    titles = {
        "module": "nn.MultiheadAttention",
        "fused": "F.scaled_dot_product_attention",
        "explicit": "Explicit matmul",
        "ours": "Ours, in NumPy",
    }
    columns = st.columns(2, gap="medium")
    for at, (key, code) in enumerate(way_codes(request).items()):
        with columns[at % 2]:
            st.html(f'<h3 class="hs-trap">{html.escape(titles[key])}</h3>')
            st.code(code, wrap_lines=True)


def _theme() -> str:
    return str(st.context.theme.type or "light")


page()
