"""Watch it write: a model writes token by token; its cache grows as it does, measured beside the formula.

Opens on a recording, so that a whole class sees it at once; "Run live" computes the same here. Loads torch only then.
"""

from __future__ import annotations

import datetime
import html
from contextlib import closing
from dataclasses import dataclass, replace

import streamlit as st

from attention.errors import UserError
from attention.model_facts import BUNDLED, list_models, title_of
from attention.plots.colours import CACHE, KEY, QUERY
from attention.plots.write_charts import (
    Share,
    follows_itself,
    growth_chart,
    looked_at,
    plain_text_html,
    shares_html,
    text_html,
    time_chart,
)
from attention.written import GenerationStep, Run, shipped_recording
from pages.cost import write_live
from pages.shared.errors import show_error
from pages.shared.link_values import fits_link, link_binding
from pages.shared.share import share_button
from pages.shared.site import next_link

RUN = "written_run"
ASKED, TIMING = "write_asked", "time_asked"
METHODS = ("Always the likeliest", "Draw by chance")
# Step 39 of the recording: a head that finds the word's last appearance and looks at what followed it.
FIRST_STEP, FIRST_LAYER, FIRST_HEAD = 39, 17, 4
NEW_TOKENS = (8, 16, 24, 32, 48, 64, 96)
FEW = 110  # pixels: a box for a number

_STYLE = """<style>
.hs-w-answer { font-size: clamp(1.3rem, 2.3vw, 2rem); line-height: 1.25; margin: 0; padding: 0; font-weight: 400;
  font-variant-numeric: tabular-nums; }
.hs-w-said { font-size: 1.15rem; margin: 0; line-height: 1.35; }
.hs-w-small { font-size: 0.875rem; margin: 0; opacity: 0.8; }
.hs-w-text { font-size: 1.12rem; line-height: 1.75; margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  min-height: 6.9rem; }
.hs-w-token { border-radius: 0.25rem; padding: 0.1rem 0; }
.hs-w-looks { outline: 2px solid; }
.hs-w-new { text-decoration: none; font-weight: 700; border-bottom: 3px solid currentColor; }
.hs-w-title { font-size: 0.95rem; font-weight: 600; margin: 0; padding: 0 0 0.3rem; }
ul.hs-w-shares { list-style: none; margin: 0 !important; padding: 0 !important;
  font-variant-numeric: tabular-nums; }
.hs-w-shares li { display: grid; grid-template-columns: 6.5rem 1fr max-content; gap: 0.6rem; align-items: center;
  margin: 0 !important; padding: 0.14rem 0 !important; font-size: 0.95rem; }
.hs-w-what { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.hs-w-bar { height: 0.55rem; border-radius: 0.3rem; background: #8883; overflow: hidden; }
.hs-w-bar i { display: block; height: 100%; }
.hs-w-shares li > :last-child { min-width: 2.9rem; text-align: end; }
ul.hs-w-noted li > :last-child { min-width: 6.4rem; }
.hs-w-chosen { font-weight: 700; }
.hs-w-special { opacity: 0.8; font-size: 0.85em; }
.hs-w-cost { font-size: 1.05rem; margin: 0; line-height: 1.35; font-variant-numeric: tabular-nums; }
.st-key-w-bar > [data-testid="stElementContainer"]:has([data-testid="stTextInput"]) { flex: 1 1 20rem; }
.st-key-w-steps > [data-testid="stElementContainer"]:has([data-testid="stSlider"]) { flex: 1 1 12rem; }
@media (max-width: 700px) {
  .st-key-w-bar > [data-testid="stElementContainer"]:has([data-testid="stTextInput"]) { flex-basis: 100%; }
}
</style>"""


@dataclass(frozen=True)
class Asked:
    """What the bar says: what to write on from, how, and how far."""

    model: str
    prompt: str
    temperature: float
    top_k: int | None
    seed: int
    max_new_tokens: int


def page() -> None:
    """The bar, then one step of the run it holds: the recording until something is written live."""
    st.html(f"{_STYLE}<h1 class='hs-only-spoken'>Watch a model write, and its cache grow</h1>")
    asked = _bar()
    place = st.empty()
    if st.session_state.pop(ASKED, False):
        _write(asked, place)
        st.rerun()  # in the same run Streamlit would leave what was drawn meanwhile at the page's end
    with place.container():
        _steps()
    next_link("write")


def _bar() -> Asked:
    recorded = shipped_recording()
    with st.container(horizontal=True, vertical_alignment="bottom", key="w-bar"):
        prompt = st.text_input(
            "Prompt",
            recorded.prompt,
            key="w_prompt",
            bind=link_binding("w_prompt", recorded.prompt),
            persist_state="session",
            label_visibility="collapsed",
            placeholder="Type the beginning of a text",
            help="The model writes on from here. Press Run live to see it.",
        )
        with st.popover("Settings", help="How the next token is chosen, and how many are written."):
            model, temperature, top_k, seed, many = _settings(recorded)
        st.button(
            "Run live",
            key="w_run",
            type="primary",
            on_click=_ask,
            help="Let the model write here and now, on this machine.",
        )
        if st.session_state.get(RUN) is not None:
            st.button("Back to the recording", key="w_back", on_click=_back)
        share_button(disabled=not fits_link(prompt or ""))
    return Asked(model, prompt or "", temperature, top_k, seed, many)


def _settings(recorded: Run) -> tuple[str, float, int | None, int, int]:
    writers = [model for model in list_models() if _may_write(model)]
    model = writers[0]
    if len(writers) > 1:
        model = st.selectbox(
            "Model", writers, format_func=title_of, key="w_model", bind="query-params", persist_state="session"
        )
    method = st.selectbox(
        "Next token",
        METHODS,
        key="w_method",
        bind="query-params",
        persist_state="session",
        help="Greedy decoding takes the likeliest token. Drawing takes each as often as its probability says.",
    )
    draws = method == METHODS[1]
    temperature = st.slider(
        "Temperature",
        0.1,
        2.0,
        1.0,
        0.1,
        key="w_temperature",
        bind="query-params",
        persist_state="session",
        disabled=not draws,
        help="Below 1 the likely become likelier; above 1 the unlikely get a chance.",
    )
    top_k = st.number_input(
        "Top-k",
        1,
        1000,
        50,
        key="w_top_k",
        bind="query-params",
        persist_state="session",
        disabled=not draws,
        help="Draw only among the k likeliest tokens.",
    )
    seed = st.number_input(
        "Seed",
        0,
        9999,
        0,
        key="w_seed",
        bind="query-params",
        persist_state="session",
        disabled=not draws,
        help="The same seed draws the same text again.",
    )
    many = st.selectbox(
        "New tokens",
        NEW_TOKENS,
        index=NEW_TOKENS.index(32),
        key="w_tokens",
        bind="query-params",
        persist_state="session",
        help="The model may end earlier.",
    )
    return model, float(temperature) if draws else 0.0, int(top_k) if draws else None, int(seed), int(many)


def _may_write(model: str) -> bool:
    return not any(bundled.id == model and bundled.kind == "encoder" for bundled in BUNDLED)


def _ask() -> None:
    st.session_state[ASKED] = True


def _back() -> None:
    st.session_state[RUN] = None
    st.session_state["w_step"] = FIRST_STEP


def _write(asked: Asked, place: st.delta_generator.DeltaGenerator) -> None:
    """Write live. Any click ends it at the next token: Streamlit stops this script, and what is written stays."""
    with place.container():
        answer, said, text = st.empty(), st.empty(), st.empty()
        st.button("Stop", key="w_stop", icon=":material/stop:", help="Keep what is written so far.")
        said.html(_small("Loading the model…"))
        growing = write_live.write(
            asked.model,
            asked.prompt,
            max_new_tokens=asked.max_new_tokens,
            temperature=asked.temperature,
            top_k=asked.top_k,
            seed=asked.seed,
        )
        try:
            with closing(growing):  # at once, also when Streamlit ends this script in the middle of a token
                for run, words in growing:
                    said.html(_small(words))
                    if run.steps:
                        st.session_state[RUN] = run
                        st.session_state["w_step"] = len(run.steps)
                        answer.html(_answer_html(run.steps[-1]))
                        text.html(plain_text_html(run.tokens))
        except UserError as error:
            st.session_state[RUN] = None
            st.session_state["write_error"] = error


@st.fragment
def _steps() -> None:
    """One step of the run: stepping and choosing a head rerun only this."""
    error = st.session_state.pop("write_error", None)
    if error is not None:
        show_error(error)
    run = st.session_state.get(RUN) or shipped_recording()
    answer = st.empty()
    st.html(_small(_where_from(run)))
    at = _stepper(run)
    step = run.steps[at]
    answer.html(_answer_html(step))
    left, right = st.columns([1.15, 1], gap="large")
    with left:
        _attention(run, at)
    with right:
        _costs(run, at)


def _answer_html(step: GenerationStep) -> str:
    ink = CACHE.on(_theme())
    tokens = "1 token" if step.n_cached == 1 else f"{step.n_cached:,} tokens"
    measured = f'<b style="color:{ink}">{_kib(step.cache_bytes)} measured</b>'
    per_token, left_over = divmod(step.formula_bytes, step.n_cached)
    equal = "=" if step.cache_bytes == step.formula_bytes else "against"
    formula = _kib(step.formula_bytes) if left_over else f"{step.n_cached:,} × {_kib(per_token)}"
    return (
        f'<h2 class="hs-w-answer"><b>{tokens} cached:</b> {measured} {equal} {formula} by formula. '
        f"At 16 bit: {_kib(step.formula_bytes_16bit)}.</h2>"
    )


def _where_from(run: Run) -> str:
    how = "the likeliest token each time" if run.temperature == 0 else f"drawn at temperature {run.temperature:g}"
    if run.temperature and run.top_k:
        how += f" among the {run.top_k} likeliest, seed {run.seed}"
    if run.recorded_on:
        begins, end = f"Recorded on {_day(run.recorded_on)}", " Run live computes it here."
    else:
        begins = "Computed just now"
        end = "" if run.finished else f" Stopped after {len(run.steps)} of {run.max_new_tokens} tokens."
    return f"{begins} with {run.title}, {how}. The machine: {run.machine}.{end}"


def _day(date: str) -> str:
    day = datetime.date.fromisoformat(date)
    return f"{day.day} {day:%B %Y}"


def _stepper(run: Run) -> int:
    most = len(run.steps)
    if most == 1:
        return 0
    asked = st.session_state.get("w_step")
    if asked is not None:
        st.session_state["w_step"] = min(max(int(asked), 1), most)
    with st.container(horizontal=True, vertical_alignment="bottom", key="w-steps"):
        st.button(
            "Back", key="w_less", icon=":material/chevron_left:", on_click=_move, args=(-1, most), help="One token back"
        )
        st.button(
            "Next", key="w_more", icon=":material/chevron_right:", on_click=_move, args=(1, most), help="One token on"
        )
        number = st.slider(
            "Token written",
            1,
            most,
            min(FIRST_STEP, most),
            key="w_step",
            bind="query-params",
            persist_state="session",
            help="Every step writes one token and caches one more.",
        )
    return int(number) - 1


def _move(by: int, most: int) -> None:
    st.session_state["w_step"] = min(max(st.session_state.get("w_step", most) + by, 1), most)


def _attention(run: Run, at: int) -> None:
    step = run.steps[at]
    sentence, text = st.empty(), st.empty()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        layer = _number("Layer", "w_layer", run.n_layers, FIRST_LAYER)
        head = _number("Head", "w_head", run.n_heads, FIRST_HEAD)
    row = step.row(layer, head)
    looks = run.labels[step.n_cached - 1]
    lines = looked_at(run, at, row)
    before = f", which followed “<bdi>{html.escape(looks)}</bdi>” before" if follows_itself(run, at, row) else ""
    q_ink, k_ink = QUERY.on(_theme()), KEY.on(_theme())
    sentence.html(
        f'<p class="hs-w-said"><b style="color:{q_ink}"><bdi>{html.escape(looks)}</bdi></b> looks at '
        f'<b style="color:{k_ink}"><bdi>{html.escape(lines[0].label)}</bdi></b>: {lines[0].share * 100:.0f} %{before}. '
        f"Then the model writes <b><bdi>{html.escape(step.label)}</bdi></b>.</p>"
    )
    text.html(text_html(run, at, row, _theme()))
    one, other = st.columns(2, gap="medium")
    one.html(shares_html(f"Where “{looks}” looks", lines, KEY, _theme()))
    title = "What could come next" if run.temperature == 0 else "What could come next → drawn how often"
    other.html(shares_html(title, _alternatives(run, step), QUERY, _theme()))


def _alternatives(run: Run, step: GenerationStep) -> list[Share]:
    def note(probability: float, chance: float) -> str:
        return "" if run.temperature == 0 or abs(probability - chance) < 0.005 else f" → {chance * 100:.0f} %"

    lines = [
        Share(one.text, one.probability, note(one.probability, one.chance), one.id == step.id)
        for one in step.alternatives
    ]
    if not any(line.chosen for line in lines):
        lines[-1] = Share(step.label, step.probability, note(step.probability, step.chance), chosen=True)
    return lines


def _number(label: str, key: str, many: int, usual: int) -> int:
    """A layer or head, numbered from 0; another model may have fewer."""
    if st.session_state.get(key, 0) >= many:
        st.session_state[key] = 0
    return int(
        st.selectbox(
            label,
            range(many),
            index=usual if usual < many else 0,
            key=key,
            bind="query-params",
            persist_state="session",
            width=FEW,
        )
    )


def _costs(run: Run, at: int) -> None:
    theme = _theme()
    step = run.steps[at]
    st.html(_layers_sentence(step))
    growth = growth_chart(run, at, theme)
    st.plotly_chart(growth.figure, key="w-growth", alt=growth.alt, config={"displayModeBar": False})
    if st.session_state.pop(TIMING, False):
        with st.spinner("Reading the text again without a cache…"):
            run = replace(run, recomputed=write_live.time_without_cache(run))
        st.session_state[RUN] = run
    st.html(_time_sentence(run))
    times = time_chart(run, at, theme)
    st.plotly_chart(times.figure, key="w-times", alt=times.alt, config={"displayModeBar": False})
    with st.container(horizontal=True, vertical_alignment="center"):
        with st.popover("Show working", type="tertiary", icon=":material/calculate:"):
            st.markdown("**One token by formula**")
            st.text(run.working)
            st.markdown("Measured: the bytes of the key and value tensors that the model really holds, added up.")
        if not run.recomputed:
            st.button(
                "Time it without the cache",
                key="w_time",
                on_click=_ask_timing,
                help="Reads this text again from its first token at up to 8 lengths, and measures how long that takes.",
            )


def _ask_timing() -> None:
    st.session_state[TIMING] = True


def _layers_sentence(step: GenerationStep) -> str:
    sizes = set(step.cache_bytes_per_layer)
    n_layers = len(step.cache_bytes_per_layer)
    held = f"<b>{_kib(min(sizes))}</b>"
    if len(sizes) > 1:
        held = f"between {held} and <b>{_kib(max(sizes))}</b>"
    return f'<p class="hs-w-cost">Each of the {n_layers} layers holds {held} of it.</p>'


def _time_sentence(run: Run) -> str:
    times = sorted(step.seconds_with_cache for step in run.steps[1:][-5:])
    if not times:
        words = "The first token reads the whole prompt; from the second on the cache spares that."
    elif not run.recomputed:
        words = f"The next token takes <b>{times[len(times) // 2] * 1000:,.0f} ms</b> with the cache."
    else:
        tokens, without = run.recomputed[-1]
        cached = times[len(times) // 2]
        words = (
            f"At {tokens} tokens the next one takes <b>{cached * 1000:,.0f} ms</b> with the cache, "
            f"<b>{without * 1000:,.0f} ms</b> without: {without / cached:.1f} times as long."
        )
    return f'<p class="hs-w-cost">{words}</p>'


def _small(words: str) -> str:
    """A quiet line that keeps the contrast a caption of Streamlit's lacks."""
    return f'<p class="hs-w-small" role="status">{html.escape(words)}</p>'


def _kib(count: float) -> str:
    """KiB, always: so that tokens × KiB a token can be checked by eye."""
    return f"{count / 2**10:,.4g} KiB" if count < 1000 * 2**10 else f"{count / 2**10:,.1f} KiB".replace(".0 ", " ")


def _theme() -> str:
    return str(st.context.theme.type or "light")


page()
