"""The first screen of the KV cache page: the answer in one sentence, the inputs, the bars and the verdict."""

from __future__ import annotations

import html

import streamlit as st

from attention.errors import UserError
from attention.kv_budget import LadderStep, ladder
from attention.kv_working import readable
from attention.plots.cache_charts import Bar, Level, sharing_bars
from attention.plots.colours import BROKEN, CACHE, VALUE
from pages.cost.cache_inputs import (
    LATENT_ONLY,
    Choice,
    OwnModel,
    Subject,
    dtypes_for,
    model_picker,
    overhead_input,
    subject_of,
    use_inputs,
)
from pages.cost.cache_parts import draw, listed, seconds, show_working, small, theme, working_popover
from pages.shared.errors import plain, show_error
from pages.shared.link_values import fits_link
from pages.shared.share import share_button


def first_screen(own: OwnModel) -> Choice | None:
    """Answer, inputs, bars and verdict; None when there is nothing to count."""
    answer = st.container()
    left, middle, right = st.columns([1.1, 1.75, 1.15], gap="large")
    with left:
        name = model_picker()
        subject, wrong = _subject(name, own)
        choice = _choice(subject)
        if subject:
            _about(subject)
    if choice is None:
        with answer:
            show_error(wrong or UserError("This model cannot be counted."))
        return None
    try:
        steps = _shown_steps(choice)
        with answer:
            _answer(choice, steps)
        with middle:
            _bars(choice, steps)
    except UserError as error:
        with answer:
            show_error(error)
        return None
    with right:
        try:
            _fit(choice, steps)
        except UserError as error:  # heads that these GPUs cannot share: the answer stands all the same
            show_error(error)
    return choice


def _subject(name: str, own: OwnModel) -> tuple[Subject | None, UserError | None]:
    try:
        return subject_of(name, own), None
    except UserError as error:
        return None, error


def _choice(subject: Subject | None) -> Choice | None:
    """The inputs are drawn whatever the model is; without a model there is no choice."""
    tokens, users, dtype, bits, gpu, n_gpus = use_inputs(dtypes_for(subject))
    overhead = overhead_input()
    return Choice(subject, tokens, users, dtype, bits, gpu, n_gpus, overhead) if subject else None


def _shown_steps(choice: Choice) -> tuple[LadderStep, ...]:
    """MHA, one GQA (the model's own, else 8 heads or near it), MQA and MLA; empty when nothing is cached."""
    steps = ladder(choice.cache)
    grouped = [step for step in steps if step.rung == "GQA"]
    own = [step for step in grouped if step.is_own]
    chosen = own or sorted(grouped, key=lambda step: abs((step.n_kv_heads or 0) - 8))[:1]
    return tuple(step for step in steps if step.rung != "GQA" or step in chosen)


def _answer(choice: Choice, steps: tuple[LadderStep, ...]) -> None:
    size = choice.bytes()
    ink = CACHE.on(theme())
    users = "1 user" if choice.users == 1 else f"{choice.users:,} users"
    tokens = "1 token" if choice.tokens == 1 else f"{choice.tokens:,} tokens"
    other = _other_step(choice, steps)
    beside = f" As {other.label}: {readable(choice.bytes(other.cache))}." if other else ""
    reason = f" {html.escape(choice.cache.reason)}" if choice.cache.reason else ""
    with st.container(horizontal=True, vertical_alignment="center", key="cache-answer"):
        st.html(
            f'<h2 class="hs-answer"><b>{html.escape(choice.subject.name)}, {tokens}, {users}: '
            f'<span style="color:{ink}">{readable(size)}.</span></b>{beside}{reason}</h2>'
        )
        share_button(disabled=not fits_link(st.session_state.get("c_config", "") or ""))
    with st.container(horizontal=True, vertical_alignment="center"):
        with working_popover():
            show_working(choice.cache.working(choice.tokens, choice.users, choice.dtype))
            state = choice.cache.state_bytes_for(choice.users, choice.dtype)
            if state:
                st.markdown(f"Beside it, a state that never grows: **{state:,} bytes = {readable(state)}**.")
            crossed = choice.cache.cross_bytes_for(choice.cache.source_len or 0, choice.users, choice.dtype)
            if crossed:
                st.markdown(
                    f"Beside it, the cross-cache of a source of {choice.cache.source_len:,} tokens: "
                    f"**{readable(crossed)}**, fixed once the source is read."
                )
        with st.popover("In Python", type="tertiary", icon=":material/code:"):
            st.code(snippet(choice), wrap_lines=True)
            small("The same number, from this app's own engine.")
        opened = choice.bytes(choice.cache.without_windows())
        if opened > size:
            small(f"Its windows keep this small: with every layer keeping every token it would be {readable(opened)}.")
        for warning in choice.cache.warnings(choice.tokens):
            small(warning)


def snippet(choice: Choice) -> str:
    """One line of Python that prints the number of bytes in the headline."""
    needs = {
        "find_model": "from attention.known_models import find_model",
        "KVCache": "from attention.kv_cache import KVCache",
        "json.": "import json",
    }
    lines = [line for word, line in needs.items() if word in choice.subject.code]
    call = f'print({choice.subject.code}.bytes({choice.tokens}, {choice.users}, "{choice.dtype}"))'
    return "; ".join([*lines, call])


def _other_step(choice: Choice, steps: tuple[LadderStep, ...]) -> LadderStep | None:
    """What the headline sets beside the model: MHA, or GQA for a model that is MHA already."""
    own = next((step for step in steps if step.is_own), None)
    wanted = "GQA" if own is not None and own.rung == "MHA" else "MHA"
    return next((step for step in steps if step.rung == wanted and not step.is_own), None)


def _about(subject: Subject) -> None:
    known = subject.known
    if known is None:
        small("Described by you, in the tab “Paste a config”.")
        return
    words = [
        f"{known.n_layers} layers, {known.n_heads} query heads, {known.n_kv_heads} K/V heads of width {known.d_head}."
    ]
    if known.rung == "MLA":
        words = [f"{known.n_layers} layers, {known.n_heads} query heads, one latent for all of them."]
    if known.unverified_fields:
        words.append(f"Not verified: {', '.join(map(_field_words, known.unverified_fields))}.")
    small(" ".join(words))
    with st.popover("Where these facts are from", type="tertiary"):
        listed([*known.sources, *([f"Note: {known.notes}"] if known.notes else [])])


def _field_words(field: str) -> str:
    words = {"params_b": "number of weights", "max_context": "trained length", "license": "licence"}
    return words.get(field, field.replace("_", " "))


def _bars(choice: Choice, steps: tuple[LadderStep, ...]) -> None:
    if not steps:
        st.info(plain(choice.cache.reason or "This model keeps no keys and values."))
        return
    bars = [Bar(_step_name(step), choice.bytes(step.cache), step.is_own) for step in steps]
    room = _room(choice)

    def work() -> None:
        for step in steps:
            st.markdown(f"**{plain(_step_name(step))}{'' if step.is_own else ', as if'}**")
            listed(step.cache.working(choice.tokens, choice.users, choice.dtype_for(step.cache)).text.split("\n"))

    draw(sharing_bars(bars, theme(), room), "cache-bars", "Bytes under each way of sharing", work)
    small(
        "Solid: the model as it is. Outlined: as if it shared otherwise, with layers, query heads, widths and windows "
        "held fixed. Only the projections of K and V would differ; nobody trained these."
        + (" They are counted at fp8." if choice.dtype == LATENT_ONLY else "")
    )


def _room(choice: Choice) -> Level | None:
    try:
        fit = choice.fit()
    except UserError:  # said beside, where the verdict would stand
        return None
    return Level("room beside the weights", fit.left + fit.cache)


def _step_name(step: LadderStep) -> str:
    if step.rung == "GQA":
        return f"GQA, {step.n_kv_heads} K/V"
    layer = next(layer for layer in step.cache.layers if layer.caches_tokens)
    if step.rung == "MLA":
        return f"MLA, {layer.d_latent} + {layer.d_rope}"
    return f"{step.rung}, {step.n_kv_heads} K/V"


def _fit(choice: Choice, steps: tuple[LadderStep, ...]) -> None:
    fit = choice.fit()
    colour = (VALUE if fit.fits else BROKEN).on(theme())
    where = f"{choice.n_gpus} × {choice.gpu.name}" if choice.n_gpus > 1 else choice.gpu.name
    verdict = f"✓ Fits, {readable(fit.left)} left" if fit.fits else f"✗ Does not fit: {readable(-fit.left)} missing"
    facts = [f"On {html.escape(where)}, with the weights at {choice.weight_bits} bit."]
    other = _other_step(choice, steps)
    if other:
        other_fit = choice.fit(other.cache)
        words = (
            f"fits, {readable(other_fit.left)} left"
            if other_fit.fits
            else f"does not fit, {readable(-other_fit.left)} missing"
        )
        facts.append(f"As {other.label}: {words}.")
    if fit.weights > fit.capacity - fit.overhead:
        usable = readable(max(0, fit.capacity - fit.overhead))
        facts.append(f"The weights alone need <b>{readable(fit.weights)}</b>; there are {usable} for them.")
    elif choice.cache.elements_per_token:
        longest = "of any length" if fit.max_context is None else f"{fit.max_context:,} tokens"
        facts.append(f"Longest text for these users: <b>{longest}</b>{_trained(choice)}.")
        facts.append(f"Most users at this length: <b>{_count(fit.max_batch)}</b>.")
    floor = _floor(choice, steps)
    facts.append(floor)
    items = "".join(f"<li>{fact}</li>" for fact in facts)
    st.html(f'<p class="hs-verdict" style="color:{colour}">{verdict}</p><ul class="hs-facts">{items}</ul>')
    if choice.subject.params is None:
        small("The weights are not counted: their number is not known.")
    with working_popover():
        lines = [
            f"memory: {choice.n_gpus} × {readable(choice.gpu.memory_bytes)} = {readable(fit.capacity)}",
            f"− kept free: {choice.overhead_percent} % of each GPU = {readable(fit.overhead)}",
            f"− weights: {choice.subject.params or 0:,} × {choice.weight_bits} / 8 bytes = {readable(fit.weights)}",
            f"− keys and values: {readable(fit.cache)}",
        ]
        if fit.state:
            lines.append(f"− state that never grows: {readable(fit.state)}")
        lines.append(f"= left: {readable(fit.left)}")
        listed(lines)
        st.markdown("**The floor of one step**")
        listed(
            [
                f"(weights + users × tokens × bytes) / bandwidth = ({fit.weights:,} + {fit.cache + fit.state:,}) / "
                f"({choice.n_gpus} × {choice.gpu.bandwidth / 1e12:g} TB/s)",
                "Each new token reads every weight and every cached number once: a memory floor, not a benchmark.",
                "A mixture of experts reads only the experts it chose, so its floor lies lower.",
                f"Memory and bandwidth: {choice.gpu.source}",
            ]
        )
        for note in fit.notes:
            small(note)


def _floor(choice: Choice, steps: tuple[LadderStep, ...]) -> str:
    other = _other_step(choice, steps)
    beside = f" ({other.label}: {seconds(choice.floor(other.cache))})" if other else ""
    return f"One step takes at least <b>{seconds(choice.floor())}</b>{beside}: memory floor, not a benchmark."


def _trained(choice: Choice) -> str:
    limit = choice.cache.trained_context
    return f" (trained on up to {limit:,})" if limit else ""


def _count(number: int | None) -> str:
    return "no limit" if number is None else f"{number:,}"
