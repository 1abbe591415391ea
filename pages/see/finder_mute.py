"""Head finder, third tab: silence heads and watch what the model loses; let them speak again and nothing is left."""

from __future__ import annotations

import html
import random
import re
from dataclasses import dataclass, replace
from statistics import median

import streamlit as st

from attention.atlas import HeadAtlas
from attention.engine import Engine, default_engine
from attention.errors import UserError
from attention.models import LoadedModel
from attention.muting import CopyRequest, How, MutedEffect, MuteRequest
from attention.patterns import JOBS, sentences
from attention.plots.head_grid import mute_grid
from attention.plots.head_maps import change_bars
from attention.plots.numbers import percent
from pages.see.finder_parts import (
    BOUND,
    FIVE_INDUCTION,
    Head,
    answer,
    atlas_at_hand,
    said,
    short_name,
    small,
    theme,
    written_by,
)
from pages.shared.bar import Choice
from pages.shared.errors import show_error
from pages.shared.head_grid import head_grid
from pages.shared.tables import table

HOWS: dict[str, How] = {"zeros": "zero", "their mean over the text": "mean"}
NAME = re.compile(r"L(\d+) H(\d+)")
DRAWS = 3
TOO_FEW = "More than half of all heads are muted: as many others are not left to compare with."


@dataclass(frozen=True)
class Board:
    """What the board's controls say. ``start`` is the token before the text said twice."""

    muted: tuple[Head, ...]
    how: How
    beside: bool
    start: str | None


@st.fragment
def mute(choice: Choice, is_open: bool) -> None:
    """Which heads are silent, drawn also while the tab is closed; their effect only when it is open."""
    model = default_engine().model(choice.model)
    place = st.container()
    atlas = atlas_at_hand(model)
    board = _controls(model, atlas, choice.start, is_open)
    if not is_open:
        return
    request = MuteRequest(choice.model, choice.text, board.muted, board.how, choice.start, _others(model))
    left, right = st.columns([1, 1.3], gap="large")
    with left:
        grid = mute_grid(model.n_layers, model.layout, frozenset(board.muted), atlas, theme())
        head_grid(grid, key="f-mute-grid", on_pick=_toggle)
    try:
        effect = default_engine().muted(request)
        with right:
            _bars(effect, model)
            _measured_before(atlas)
        with place:
            _headline(effect, model, request, board)
    except UserError as error:
        show_error(error)


def heads_of(names: list[str]) -> tuple[Head, ...]:
    """Heads by their names, ``L17 H3``, in order."""
    found = (NAME.fullmatch(name) for name in names)
    return tuple(sorted({(int(one[1]), int(one[2])) for one in found if one}))


def first_muted(model: LoadedModel) -> tuple[Head, ...]:
    """What is silent at first: heads whose loss is worth seeing."""
    if model.id in JOBS:
        named = tuple((job.layer, job.head) for job in JOBS[model.id])
        return FIVE_INDUCTION if model.kind == "decoder" else tuple(sorted(named))
    middle = model.n_layers // 2
    return tuple((middle, head) for head in model.layout.query_heads_of(0))


def _controls(model: LoadedModel, atlas: HeadAtlas | None, start: str | None, is_open: bool) -> Board:
    every = [short_name(layer, head) for layer in range(model.n_layers) for head in range(model.layout.n_heads)]
    usual = [short_name(*head) for head in first_muted(model)]
    state = st.session_state
    if state.get("f_muted_of") not in (None, model.id):
        state["f_mute"] = usual
    state["f_muted_of"] = model.id
    names = st.multiselect(
        "Muted heads", every, default=usual, key="f_mute", placeholder="No head is muted", select_all=False,
        help="Press heads in the grid, choose them here, or add a whole label or K/V group.", **BOUND,
    )  # fmt: skip
    muted = heads_of(names)
    with st.container(horizontal=True, vertical_alignment="bottom", key="f-mute-more"):
        how = st.segmented_control(
            "In a muted head's place", list(HOWS), default=next(iter(HOWS)), required=True, key="f_how",
            help="Zeros take a head's output away; its mean takes away only what differs from word to word.", **BOUND,
        )  # fmt: skip
        if is_open:
            groups = _groups(model, atlas)
            st.selectbox(
                "Add a group", list(groups), index=None, key="f-group", placeholder="A label, a K/V group, a layer",
                on_change=_add, args=(groups,), width=290,
            )  # fmt: skip
            st.button("Unmute all", key="f-unmute", on_click=_unmute, disabled=not muted, icon=":material/volume_up:")
        beside = st.toggle(
            "Beside as many at random", key="f_random",
            help="Mute as many other heads too, drawn by chance: is it these heads, or any?", **BOUND,
        )  # fmt: skip
        begun = start is not None and st.toggle(
            "Start token before the text said twice", key="f_begun",
            help=f"The usual test has no start token. With {start} in front, the same heads give other numbers.",
            **BOUND,
        )  # fmt: skip
    return Board(muted, HOWS[how], beside, start if begun else None)


def _groups(model: LoadedModel, atlas: HeadAtlas | None) -> dict[str, tuple[Head, ...]]:
    """Heads that can be muted together, by what they have in common."""
    groups: dict[str, tuple[Head, ...]] = {}
    for row in atlas.rows if atlas else ():
        name = f"Label: {row.title}"
        groups[name] = (*groups.get(name, ()), (row.layer, row.head))
    for layer in range(model.n_layers):
        if model.layout.q_per_kv > 1:
            for kv_head in range(model.layout.n_kv_heads):
                members = tuple((layer, head) for head in model.layout.query_heads_of(kv_head))
                groups[f"K/V group: layer {layer}, K/V head {kv_head}"] = members
        groups[f"Layer {layer}"] = tuple((layer, head) for head in range(model.layout.n_heads))
    return {f"{name} ({len(heads)})": heads for name, heads in groups.items()}


def _add(groups: dict[str, tuple[Head, ...]]) -> None:
    chosen = st.session_state.get("f-group")
    if chosen in groups:
        names = {*st.session_state.get("f_mute", ()), *(short_name(*head) for head in groups[chosen])}
        st.session_state["f_mute"] = [short_name(*head) for head in heads_of(list(names))]
    st.session_state["f-group"] = None


def _toggle(layer: int, head: int) -> None:
    name, names = short_name(layer, head), list(st.session_state.get("f_mute", ()))
    left = [one for one in names if one != name] if name in names else [*names, name]
    st.session_state["f_mute"] = [short_name(*one) for one in heads_of(left)]


def drawn_instead(model: LoadedModel, muted: tuple[Head, ...]) -> list[tuple[Head, ...]]:
    """Seeded draws of as many other heads: what muting any heads would do. None where fewer are left."""
    every = [(layer, head) for layer in range(model.n_layers) for head in range(model.layout.n_heads)]
    others = [head for head in every if head not in muted]
    if len(others) < len(muted):
        return []
    return [tuple(sorted(random.Random(seed).sample(others, len(muted)))) for seed in range(DRAWS)]


def _unmute() -> None:
    st.session_state["f_mute"] = []


def _others(model: LoadedModel) -> tuple[str, ...]:
    """For an encoder: one sentence of ours of each topic, to compare the user's with."""
    if model.kind == "decoder":
        return ()
    first: dict[str, str] = {}
    for item in sentences()["similarity"]:
        first.setdefault(item["topic"], item["text"])
    return tuple(first.values())


def _bars(effect: MutedEffect, model: LoadedModel) -> None:
    config = {"displayModeBar": False}
    if model.kind == "decoder":
        picture = change_bars(effect.next_tokens[:10], "probability of the next token", theme(), quoted=True)
        st.plotly_chart(picture.figure, key="f-next", alt=picture.alt, config=config)
        small("The ten likeliest next tokens of the whole model after your sentence, and what muting makes of them.")
        return
    picture = change_bars(effect.similarities, "likeness (cosine) of your sentence to", theme(), quoted=False)
    st.plotly_chart(picture.figure, key="f-similar", alt=picture.alt, config=config)
    small(f"One sentence of each of our topics ({written_by()}); all are read with the same heads muted.")


def _headline(effect: MutedEffect, model: LoadedModel, request: MuteRequest, board: Board) -> None:
    if not request.heads:
        answer("<b>No head is muted.</b> Press one in the grid and watch what the model loses")
        said(_again(effect, request))
        return
    if model.kind == "encoder":
        _embedding(effect, model, request, board)
    else:
        _copy(effect, model, request, board)


def _who(heads: tuple[Head, ...]) -> str:
    return f"With <b>{len(heads)} {'head' if len(heads) == 1 else 'heads'} muted</b>"


def _embedding(effect: MutedEffect, model: LoadedModel, request: MuteRequest, board: Board) -> None:
    assert effect.similarity is not None
    answer(f"{_who(request.heads)}, your sentence's embedding is <b>{effect.similarity:.3f}</b> similar to itself")
    said(f"1 is no change. {_moved(effect)}")
    draws = [replace(request, heads=heads) for heads in drawn_instead(model, request.heads)]
    if board.beside and not draws:
        said(TOO_FEW)
    elif board.beside:
        found = [default_engine().muted(draw).similarity or 0.0 for draw in draws]
        said(f"As many other heads at random: <b>{median(found):.3f}</b> (median of {len(found)} seeded draws).")


def _copy(effect: MutedEffect, model: LoadedModel, request: MuteRequest, board: Board) -> None:
    place = st.empty()
    answer(f"{_who(request.heads)}, the next token changes as below", place)
    said(_next_word(effect))
    asked = CopyRequest(model.id, request.heads, request.how, board.start)
    with st.spinner("Measuring the loss on a text said twice…"):
        copied = default_engine().copied(asked)
    answer(
        f"{_who(request.heads)}, the loss on a text said twice goes from <b>{copied.mean_before:.1f}</b> to "
        f"<b>{copied.mean_after:.1f}</b> nats",
        place,
    )
    draws = [replace(asked, heads=heads) for heads in drawn_instead(model, request.heads)]
    if board.beside and not draws:
        said(TOO_FEW)
    elif board.beside:
        with st.spinner("The same with other heads, drawn at random…"):
            found = [default_engine().copied(draw).mean_after for draw in draws]
        said(f"As many other heads at random: <b>{median(found):.1f}</b> nats (median of {len(found)} seeded draws).")
    begins = f"start token {board.start}" if board.start else "no start token"
    every = "It rises in every one." if copied.raises else "It does not rise in every one."
    small(
        f"Said twice: {len(copied.before)} texts of 50 random tokens, each followed by the same 50 (seed 0, {begins}). "
        f"The loss counts the second copy. {every}"
    )


def _next_word(effect: MutedEffect) -> str:
    first = effect.next_tokens[0]
    after = max(effect.next_tokens, key=lambda change: change.after)
    words = (
        f"Next token: “{html.escape(first.text)}” {percent(first.before)} before, {percent(first.after)} after"
        if after.text == first.text
        else f"Next token: “{html.escape(first.text)}” {percent(first.before)} before, "
        f"“{html.escape(after.text)}” {percent(after.after)} after"
    )
    if effect.loss is None:
        return f"{words}."
    return f"{words}. Loss on your own sentence: {effect.loss.before:.2f} → {effect.loss.after:.2f} nats."


def _moved(effect: MutedEffect) -> str:
    most = max(effect.similarities, key=lambda change: abs(change.after - change.before))
    return f"It moves most against “{html.escape(most.text)}”: {most.before:.2f} before, {most.after:.2f} after."


def _again(effect: MutedEffect, request: MuteRequest) -> str:
    """The model run once more without anything kept: whether muting before has left a trace."""
    fresh = Engine().muted(request)
    kept, again = ([*one.next_tokens, *one.similarities] for one in (effect, fresh))
    same = all(one.before == other.before == other.after for one, other in zip(kept, again, strict=True))
    verdict = "identical to before, bit for bit" if same else "different: please report this"
    return f"Run again just now, from nothing kept: {len(again)} numbers, {verdict}. Muting leaves no trace."


def _measured_before(atlas: HeadAtlas | None) -> None:
    """What other groups of heads do, as measured with the atlas: the baseline of any muting."""
    if atlas is None or not atlas.groups:
        return
    with st.expander("Is it these heads, or any? Groups measured beforehand"):
        rows = [
            (
                group.title,
                "zeros" if group.how == "zero" else "their mean",
                group.start or "none",
                f"{group.before:.2f}",
                f"{group.after:.2f}",
                str(group.n),
            )
            for group in atlas.groups
        ]
        table(
            "Loss on the second copy of random tokens, nats",
            ("muted", "in their place", "start token", "before", "after", "n texts"),
            rows,
        )
        if atlas.model.layout.q_per_kv > 1 and {(17, 3), (17, 4), (17, 5)} <= set(atlas.groups[0].heads):
            small("Layer 17, heads 3, 4 and 5 read the same K/V head 1: one key serves three of the five.")
