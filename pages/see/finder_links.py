"""Head finder, first tab: choose two words of the sentence and see which heads look from the one to the other."""

from __future__ import annotations

import html
from collections import Counter
from typing import Any

import streamlit as st

from attention.atlas import AtlasRow
from attention.engine import default_engine
from attention.errors import UserError
from attention.links import HeadLink, OffsetProfile, Word, word_weights, words_in
from attention.models import LoadedModel
from attention.patterns import PRONOUNS, word_rows
from attention.plots.colours import KEY, QUERY
from attention.plots.head_grid import link_grid
from attention.plots.head_maps import link_map
from attention.plots.numbers import percent
from attention.probes import offset_profile
from attention.tokens import named
from attention.tracing import AttentionTrace, TraceRequest
from pages.see.finder_parts import (
    BOUND,
    answer,
    atlas_at_hand,
    choose,
    picked,
    said,
    short_name,
    small,
    theme,
    written_by,
)
from pages.see.finder_questions import first_question, question_of
from pages.shared.bar import Choice
from pages.shared.errors import plain, show_error
from pages.shared.head_grid import head_grid
from pages.shared.open_head import open_head

SHOWN = 5
CARD_WIDTH = 155  # pixels: two beside each other on a phone
# More words than this would fill the screen with buttons: two boxes that can be typed into instead.
MOST_BUTTONS = 40
RANKS = ("weight", "weight beyond distance")
# A head that gives any word at this distance at least half of what it gives here is told apart.
TRAP_SHARE = 0.5
DIGITS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@st.fragment
def find(choice: Choice, is_open: bool) -> None:
    """The two rows of words, drawn also while the tab is closed so that the link keeps them, and the answer."""
    engine = default_engine()
    try:
        traced = engine.trace(TraceRequest(choice.model, choice.text, start=choice.start))
        words = _at_least_two(words_in(traced))
    except UserError as error:
        if is_open:
            show_error(error)
        return
    model = engine.model(choice.model)
    profile = offset_profile(model)
    labels = word_labels(words)
    looking, looked_at, ranking = st.columns([1, 1, 0.55], gap="medium")
    query, key = _pick(traced, labels, profile, looking, looked_at)
    with ranking:
        rank = st.segmented_control(
            "Rank heads by",
            RANKS,
            default=RANKS[0],
            required=True,
            key="f_rank",
            help="Beyond distance: the weight minus what the same head gives any word at this distance, on average.",
            **BOUND,
        )
    if is_open:
        _show(traced, model, labels, (query, key), rank == RANKS[1], profile)


def _at_least_two(words: tuple[Word, ...]) -> tuple[Word, ...]:
    if len(words) < 2:
        many = "one word" if words else "no words"
        raise UserError(f"The sentence has {many}.", "A link joins two words.", "Write at least two.")
    return words


def word_labels(words: tuple[Word, ...]) -> list[str]:
    """A label for every word, no two alike: a word that comes again is numbered, ``the¹ … the²``."""
    texts = [named(word.text) for word in words]
    many = Counter(texts)
    so_far: Counter[str] = Counter()
    labels: list[str] = []
    for word, text in zip(words, texts, strict=True):
        so_far[text] += 1
        label = text if many[text] == 1 else f"{text}{str(so_far[text]).translate(DIGITS)}"
        taken = label in labels or (label != text and label in many)
        labels.append(f"{label} (word {word.index})" if taken else label)
    return labels


def _pick(
    traced: AttentionTrace,
    labels: list[str],
    profile: OffsetProfile,
    looking: st.delta_generator.DeltaGenerator,
    looked_at: st.delta_generator.DeltaGenerator,
) -> tuple[int, int]:
    """The two words, by number. Words that cannot be chosen together are not offered."""
    state = st.session_state
    now = (traced.model.id, traced.text)
    asked = state.pop("f_asked", None)
    moved = state.get("f_words_of") not in (None, now)
    state["f_words_of"] = now
    if asked is not None and asked[0] == traced.text:
        state["f_query"], state["f_key"] = asked[1:]
    elif moved and not {state.get("f_query"), state.get("f_key")} <= set(labels):
        state["f_query"] = state["f_key"] = None
    queries = labels[1:] if traced.causal else labels
    preset = first_question(traced.model.id, traced.text)
    usual = preset.query if preset and preset.query in queries else _telling(queries)
    with looking:
        query = labels.index(_words("Which word looks? (query)", "f_query", queries, usual))
    keys = labels[:query] if traced.causal else labels[:query] + labels[query + 1 :]
    usual = preset.key if preset and labels[query] == preset.query else labels[_best_key(traced, query, profile)]
    with looked_at:
        return query, labels.index(_words("At which word? (key)", "f_key", keys, usual))


def _words(label: str, key: str, options: list[str], usual: str) -> str:
    """One row of words; what was chosen before and is not offered any more gives way to ``usual``."""
    if st.session_state.get(key, usual) not in options:
        st.session_state[key] = usual
    common: dict[str, Any] = {"key": key, "format_func": plain, **BOUND}
    if len(options) > MOST_BUTTONS:
        return st.selectbox(label, options, index=options.index(usual), **common)
    return st.pills(label, options, default=usual, required=True, wrap=True, **common)


def _telling(labels: list[str]) -> str:
    """A word worth asking about: the last pronoun, else the last word with letters."""
    pronouns = [label for label in labels if label.casefold() in PRONOUNS]
    lettered = [label for label in labels if any(sign.isalpha() for sign in label)]
    return (pronouns or lettered or labels)[-1]


def _best_key(traced: AttentionTrace, query: int, profile: OffsetProfile) -> int:
    """The word some head looks at most beyond what its distance alone would give."""
    rows = word_weights(traced)[:, :, query]
    reach = range(query) if traced.causal else [place for place in range(rows.shape[-1]) if place != query]
    gains = {place: float((rows[..., place] - profile.at(place - query)).max()) for place in reach}
    return max(gains, key=lambda place: gains[place])


def _show(
    traced: AttentionTrace,
    model: LoadedModel,
    labels: list[str],
    link: tuple[int, int],
    beyond: bool,
    profile: OffsetProfile,
) -> None:
    query, key = link
    links = default_engine().link(traced.request, query, key)
    ranked = sorted(links, key=lambda one: -one.gain) if beyond else list(links)
    first = ranked[:SHOWN]
    distance = max(-profile.reach, min(profile.reach, key - query))
    n = int(profile.counts[profile.reach + distance])
    measured = _far(distance) if distance == key - query else f"{_far(distance)}, the farthest measured"
    _headline(first[0], labels[query], labels[key], measured, n)
    question = question_of(traced.model.id, traced.text, labels[query], labels[key])
    if question:
        small(question.note)
    chosen = picked(model) or (first[0].layer, first[0].head)
    left, right = st.columns([1, 1.75], gap="large")
    with left:
        grid = link_grid(
            links,
            model.n_layers,
            model.layout,
            (labels[query], labels[key]),
            [(one.layer, one.head) for one in first],
            chosen,
            theme(),
        )
        head_grid(grid, key="f-link-grid", on_pick=choose)
        open_head(*chosen, query=_token(traced, query))
    with right:
        _first_five(traced, first, labels, link)
        small(
            "Weights are between whole words: added over the key's pieces, averaged over the query's (Clark et al. "
            f"2019, arXiv 1906.04341, section 4.1). Distance alone: the head's own mean at {measured}, over "
            f"{n:,} pairs of words in our plain sentences. They are by {written_by()}."
        )


def _headline(first: HeadLink, query: str, key: str, measured: str, n: int) -> None:
    q_ink, k_ink = QUERY.on(theme()), KEY.on(theme())
    answer(
        f'<b style="color:{q_ink}"><bdi>{html.escape(query)}</bdi></b> looks at '
        f'<b style="color:{k_ink}"><bdi>{html.escape(key)}</bdi></b>: <b>{percent(first.weight)}</b> in layer '
        f"{first.layer}, head {first.head}"
    )
    usual = f"Distance alone would give {percent(first.positional)}: its mean for a word {measured} (n = {n:,})."
    if is_trap(first):
        usual = f'<span class="hs-f-trap">A trap.</span> {usual} It hardly needs to know the word.'
    said(usual)


def is_trap(link: HeadLink) -> bool:
    """Whether distance alone explains at least half of a head's weight on the link."""
    return link.positional >= TRAP_SHARE * link.weight


def _far(distance: int) -> str:
    steps = abs(distance)
    return f"{steps} {'word' if steps == 1 else 'words'} {'back' if distance < 0 else 'ahead'}"


def _first_five(traced: AttentionTrace, first: list[HeadLink], labels: list[str], link: tuple[int, int]) -> None:
    found = atlas_at_hand(default_engine().model(traced.model.id))
    with st.container(horizontal=True, key="f-five"):
        for place, one in enumerate(first, 1):
            with st.container(width=CARD_WIDTH, gap="small", key=f"f-card-{place}"):
                row = found.row(one.layer, one.head) if found else None
                _one_of_five(traced, place, one, labels, link, row)


def _one_of_five(
    traced: AttentionTrace,
    place: int,
    one: HeadLink,
    labels: list[str],
    link: tuple[int, int],
    row: AtlasRow | None,
) -> None:
    query, key = link
    name = short_name(one.layer, one.head)
    st.html(f'<p class="hs-f-lines"><b>{place}. {name}: {percent(one.weight)}</b></p>')
    rows = word_rows(traced, one.layer, one.head)
    picture = link_map(rows, labels, query, key, (one.layer, one.head), theme(), traced.causal)
    st.plotly_chart(picture.figure, key=f"f-map-{place}", alt=picture.alt, config={"displayModeBar": False})
    seen = query + 1 if traced.causal else len(labels)
    shared = f"<br>K/V head {one.kv_head}" if traced.layout.q_per_kv > 1 else ""
    trap = '<br><span class="hs-f-trap">Mostly distance</span>' if is_trap(one) else ""
    label = f"<br>{html.escape(row.title)}" if row else ""
    st.html(
        f'<p class="hs-f-lines">distance alone {percent(one.positional)}<br>'
        f"place {one.rank} of {seen} in its row{shared}{trap}{label}</p>"
    )
    open_head(one.layer, one.head, query=_token(traced, query))


def _token(traced: AttentionTrace, word: int) -> int:
    """Where a word's first piece stands among the tokens."""
    return words_in(traced)[word].tokens[0]
