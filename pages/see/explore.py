"""The Heads page once the models are there: the viewer with the sentence's heads, and the details of the locked one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from attention.engine import default_engine
from attention.errors import UserError
from attention.model_facts import UNTRAINED
from attention.patterns import swap_of
from attention.plots.heatmaps import heatmap
from attention.plots.numbers import percent
from attention.plots.scenes import heads_scene
from attention.plots.viewer import viewer_bytes, viewer_html
from attention.tracing import AttentionTrace, TraceRequest
from attention.views import Opened, averages, cell_from, pair_blocks, still_asked, word_view
from attention.working import explain_cell
from pages.shared.bar import Choice, second_text
from pages.shared.errors import plain, show_error
from pages.shared.exports import head_downloads
from pages.shared.link_values import link_binding
from pages.shared.tables import table
from pages.shared.viewer import head_viewer

VIEWER = "viewer"
PLAIN_CHART = {"displayModeBar": False}  # on a phone it covers the title
TABS = ("Exact weights", "Why this number?", "Averages", "Two sentences", "Words", "Checks", "Download")


def explore(choice: Choice) -> None:
    """Viewer and details for what the bar says."""
    try:
        traced = default_engine().trace(TraceRequest(choice.model, choice.text, start=choice.start))
    except UserError as error:
        show_error(error)
    else:
        _explore(traced.request, st.session_state["twin"], second_text())


@st.fragment
def _explore(request: TraceRequest, twin: bool, compare: str) -> None:
    """Viewer and detail. Locking a head reruns only this fragment; asking for another trace reruns the page."""
    engine = default_engine()
    try:
        traced = engine.trace(request)
        checks = (*traced.checks, engine.verify(request))
        other = engine.trace(replace(request, model=request.model + UNTRAINED)) if twin else None
    except UserError as error:
        show_error(error)
        return
    second = None if twin else _compared(request, compare)
    wanted = st.session_state.get(VIEWER, {}).get("layer")
    asked_text, nearest = st.session_state.get("wanted_head", (None, None))
    scene = heads_scene(
        traced,
        checks=checks,
        twin=other,
        compare=second,
        hints=True,
        nearest=nearest if asked_text == request.text else None,
        full_layers=None if wanted is None else (int(wanted),),
    )
    result = head_viewer(viewer_bytes(scene), key=VIEWER, on_ask=answer)
    if st.session_state.pop("asked_for_page", False):
        st.rerun(scope="app")
    assert scene.start is not None
    now = Opened(traced.model.id, len(traced.tokens), scene.start)
    asked = still_asked(st.query_params.to_dict(), st.session_state.get("opened_on"), now)
    st.session_state["opened_on"] = now
    cell = cell_from(traced, result.lock, asked, scene.start)
    _details(traced, cell, scene, checks)


def _compared(request: TraceRequest, text: str) -> AttentionTrace | None:
    """The second sentence's trace; none for a text that cannot be traced, about which its own tab says why."""
    if not text.strip():
        return None
    try:
        return default_engine().trace(replace(request, text=text))
    except UserError:
        return None


def answer() -> None:
    """A button in the viewer was pressed: change the setting it stands for."""
    ask = dict(st.session_state[VIEWER].get("ask") or {})
    if ask.get("action") == "swap":
        swap = swap_of(st.session_state.get("text", ""))
        if swap:
            st.session_state["text"] = swap.text
    elif ask.get("action") == "twin":
        st.session_state["twin"] = not st.session_state.get("twin", False)
    elif ask.get("action") == "head":
        nearest = (int(ask["layer"]), int(ask["head"]))
        st.session_state["wanted_head"] = (st.session_state.get("text"), nearest)
    elif ask.get("action") == "why":
        st.session_state["detail"] = TABS[1]
    st.session_state["asked_for_page"] = ask.get("action") in ("swap", "twin")


def _details(traced: AttentionTrace, cell: tuple[int, int, int, int], scene: Any, checks: tuple[Any, ...]) -> None:
    layer, head, query, key = cell
    tabs = st.tabs(TABS, key="detail", on_change="rerun", bind="query-params")
    parts = (
        lambda: _exact(traced, layer, head),
        lambda: _why(traced, layer, head, query, key),
        lambda: _averages(traced, layer, head),
        lambda: _two_sentences(traced, layer, head),
        lambda: _words(traced, layer, head),
        lambda: _checks(traced, checks),
        lambda: _download(traced, layer, head, scene),
    )
    with tabs[TABS.index("Two sentences")]:
        _second_box()
    for tab, part in zip(tabs, parts, strict=True):
        if tab.open:
            with tab:
                try:
                    part()
                except UserError as error:
                    show_error(error)


def _exact(traced: AttentionTrace, layer: int, head: int) -> None:
    labels = _labels(traced)
    figure = heatmap(
        traced.weights[layer, head],
        labels,
        labels,
        title=f"Layer {layer}, head {head} (numbered from 0)",
        theme=_theme(),
        visible=traced.visible(layer),
    )
    alt = f"Heatmap of layer {layer}, head {head}: each row is a word that looks, each column a word looked at."
    st.plotly_chart(figure, key="exact", alt=alt, config=PLAIN_CHART)
    if traced.layout.q_per_kv > 1:
        kv = traced.layout.kv_head_of(head)
        members = traced.layout.query_heads_of(kv)
        st.caption(f"Query head {head} reads K/V head {kv}, shared by query heads {members[0]} to {members[-1]}.")


def _why(traced: AttentionTrace, layer: int, head: int, query: int, key: int) -> None:
    kept = default_engine().trace(replace(traced.request, keep=("q", "k"), layer=layer))
    work = explain_cell(kept, head, query, key)
    st.markdown(
        f"**Why does {plain(work.query_label)} give {plain(work.key.label)} {percent(work.recorded)}?** "
        f"Query and key are {work.d_head} numbers each. Multiply them pair by pair and add up: "
        f"q·k = {work.key.dot:.3f}. Times {work.scaling:.4f} (one over the square root of {work.d_head}): "
        f"score {work.key.score:.3f}. Every word gets e to its score; divide by the sum of all, {work.total:.3f} "
        f"(each score first lowered by the largest, which changes no share): "
        f"{work.key.exponential:.3f} / {work.total:.3f} = **{work.key.weight:.3f}**."
        if work.softcap is None and abs(work.scaling - work.d_head**-0.5) < 1e-6
        else f"**{plain(work.query_label)} → {plain(work.key.label)}**: this model scales q·k by {work.scaling:.4f}"
        + (f" and caps scores at {work.softcap}." if work.softcap is not None else ".")
    )
    rows = [
        (row.label, f"{row.dot:.3f}", f"{row.score:.3f}", f"{row.exponential:.3f}", f"{row.weight:.3f}")
        for row in work.keys
    ]
    chosen = next(index for index, row in enumerate(work.keys) if row.index == key)
    table(
        f"Every word {work.query_label} may look at, largest share first",
        ("key", "q·k", "score", "e^(score − largest)", "weight"),
        rows,
        chosen,
    )


def _averages(traced: AttentionTrace, layer: int, head: int) -> None:
    labels = _labels(traced)
    views = averages(traced, layer, head)
    names = [view.name for view in views]
    name = st.segmented_control(
        "Average over", names, default=names[0], required=True, key="average", help="Which heads to average."
    )
    view = next(view for view in views if view.name == name)
    figure = heatmap(view.weights, labels, labels, title=view.title, theme=_theme())
    st.plotly_chart(figure, key="average-map", alt=f"Heatmap: {view.title}.", config=PLAIN_CHART)
    st.caption("An average hides what single heads do: compare it with any head above.")


def _second_box() -> None:
    """Drawn also while its tab is closed: a box that is not drawn loses its place in the link."""
    st.text_input(
        "Second sentence",
        key="compare",
        bind=link_binding("compare"),
        persist_state="session",
        help="The same head on another sentence, side by side in the viewer above.",
        placeholder="Type a second sentence and press Enter",
        on_change=_compare_changed,
    )


def _two_sentences(traced: AttentionTrace, layer: int, head: int) -> None:
    second = st.session_state.get("compare", "").strip()
    if not second:
        return
    default_engine().trace(replace(traced.request, text=second))  # says what is wrong with a text nobody can read
    if traced.model.kind == "encoder":
        pair = default_engine().trace(replace(traced.request, pair=second))
        st.caption("Read as one pair, the two sentences look at each other: four blocks.")
        table(
            f"Share of attention, layer {layer}, head {head}",
            ("from", "to the first", "to the second", "to special tokens"),
            [(name, *(percent(share) for share in shares)) for name, shares in pair_blocks(pair, layer, head)],
        )
        labels = _labels(pair)
        figure = heatmap(pair.weights[layer, head], labels, labels, title="Both sentences as a pair", theme=_theme())
        st.plotly_chart(figure, key="pair-map", alt="Heatmap of both sentences read as a pair.", config=PLAIN_CHART)


def _compare_changed() -> None:
    st.session_state["asked_for_page"] = True


def _words(traced: AttentionTrace, layer: int, head: int) -> None:
    words, weights = word_view(traced, layer, head)
    st.caption(
        f"{len(traced.tokens)} tokens make {len(words)} words. Shares of a word's pieces are added when it is "
        "looked at, and averaged when it looks."
    )
    figure = heatmap(weights, words, words, title=f"Layer {layer}, head {head}, word by word", theme=_theme())
    st.plotly_chart(figure, key="word-map", alt="Heatmap between whole words.", config=PLAIN_CHART)


def _checks(traced: AttentionTrace, checks: tuple[Any, ...]) -> None:
    table(
        f"Numbers from this very trace ({traced.seconds * 1000:.0f} ms on this machine)",
        ("check", "result", "holds", "what it says"),
        [(c.name, c.text, {True: "yes", False: "no", None: "–"}[c.ok], c.meaning) for c in checks],
    )
    if traced.outputs.next_tokens:
        st.markdown("**What the model would write next**")
        rows = [(f"“{token}”", percent(share)) for token, share in traced.outputs.next_tokens[:5]]
        start = traced.request.start or "no start token"
        table(f"After {start} and your sentence", ("next token", "probability"), rows)


def _download(traced: AttentionTrace, layer: int, head: int, scene: Any) -> None:
    head_downloads(traced, layer, head)
    st.download_button(
        "This picture as a web page",
        lambda: viewer_html(scene),
        "headscope.html",
        "text/html",
        key="html",
        on_click="ignore",
        help="One file that opens without internet, with everything you can do above.",
    )


def _labels(traced: AttentionTrace) -> list[str]:
    raw = st.session_state.get("raw", False)
    return [token.raw if raw else token.label for token in traced.tokens]


def _theme() -> str:
    return str(st.context.theme.type or "light")
