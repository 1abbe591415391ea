"""Head finder, second tab: every head by its label, with the evidence; filters, a card, a table, a file."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from attention.atlas import UNCLEAR, AtlasRow, HeadAtlas, PruningCurve
from attention.engine import default_engine
from attention.errors import UserError
from attention.models import LoadedModel
from attention.plots.cache_charts import csv_text
from attention.plots.head_grid import atlas_grid, legend_html
from attention.plots.head_maps import pruning_chart
from attention.plots.numbers import percent
from pages.see.finder_card import all_scores, card
from pages.see.finder_parts import (
    BOUND,
    Head,
    answer,
    atlas_at_hand,
    choose,
    head_in_view,
    measured,
    said,
    short_name,
    small,
    theme,
    written_by,
)
from pages.shared.errors import show_error
from pages.shared.head_grid import head_grid
from pages.shared.tables import table

ALL = "all"
FEW = 130  # pixels: a box for a number
COLUMNS = (
    ("previous", "previous token"),
    ("next", "next token"),
    ("current", "itself"),
    ("sink", "resting place"),
    ("induction", "induction"),
    ("duplicate", "same token"),
    ("entropy", "entropy (nats)"),
    ("broadness", "broadness"),
    ("importance", "importance (nats)"),
)


@st.fragment
def look_up(model_id: str, is_open: bool) -> None:
    """The head's two boxes and the filters, drawn also while the tab is closed; the atlas only when it is open."""
    model = default_engine().model(model_id)
    atlas = atlas_at_hand(model)
    place = st.container()
    if is_open and atlas is None:
        with place:
            try:
                atlas = measured(model)
            except UserError as error:
                show_error(error)
    with st.container(horizontal=True, vertical_alignment="bottom", key="f-filters"):
        layer, head = _head_boxes(model)
        filters = _filters(model, atlas)
    if not is_open or atlas is None:
        return
    with place:
        _headline(atlas)
    rows = [row for row in atlas.rows if _passes(row, filters)]
    left, right = st.columns([1, 1.45], gap="large")
    with left:
        st.html(legend_html(atlas.labels, theme()))
        grid = atlas_grid(atlas, {(row.layer, row.head) for row in rows}, (layer, head), theme())
        head_grid(grid, key="f-atlas-grid", on_pick=choose)
    with right:
        card(atlas, layer, head)
    all_scores(atlas, layer, head)
    _table(atlas, rows)
    _tried(atlas)
    _pruning(atlas)
    made = atlas.made
    small(
        f"Sentences: {written_by()}; heads are chosen on one half and judged on the other. Measured with "
        f"{made['command']} (torch {made['torch']}, transformers {made['transformers']}) on weights "
        f"{made['weights_sha256'][:12]}."
    )


def _head_boxes(model: LoadedModel) -> Head:
    first = head_in_view(model)
    found = []
    for label, key, many, usual in (
        ("Layer", "f_layer", model.n_layers, first[0]),
        ("Head", "f_head", model.layout.n_heads, first[1]),
    ):
        if st.session_state.get(key, 0) >= many:
            st.session_state[key] = usual
        found.append(st.selectbox(label, range(many), index=usual, key=key, width=FEW, **BOUND))
    return int(found[0]), int(found[1])


def _filters(model: LoadedModel, atlas: HeadAtlas | None) -> dict[str, Sequence[str]]:
    """What to show: labels, one layer, one K/V group. Everything until something is chosen."""
    chosen: dict[str, Sequence[str]] = {}
    if atlas is not None:
        titles = {row.label: row.title for row in atlas.rows}
        chosen["label"] = st.multiselect(
            "Labels shown", [titles[label] for label in atlas.labels], key="f_labels", placeholder="All labels",
            help="Heads with other labels stay in the grid without colour.", **BOUND,
        )  # fmt: skip
    boxes = [("Layer shown", "f_only_layer", model.n_layers)]
    if model.layout.q_per_kv > 1:
        boxes.append(("K/V head shown", "f_only_kv", model.layout.n_kv_heads))
    for label, key, many in boxes:
        options = (ALL, *map(str, range(many)))
        if st.session_state.get(key, ALL) not in options:
            st.session_state[key] = ALL
        chosen[key] = (st.selectbox(label, options, key=key, width=FEW, **BOUND),)
    return chosen


def _passes(row: AtlasRow, filters: dict[str, Sequence[str]]) -> bool:
    labels = filters.get("label")
    if labels and row.title not in labels:
        return False
    asked = {"f_only_layer": str(row.layer), "f_only_kv": str(row.kv_head)}
    return all(filters.get(name, (ALL,))[0] in (ALL, own) for name, own in asked.items())


def _headline(atlas: HeadAtlas) -> None:
    counts, every = atlas.labels, len(atlas.rows)
    unclear, resting = counts.get(UNCLEAR, 0), counts.get("rest", 0)
    answer(
        f"<b>{every - unclear - resting} of {every} heads</b> have a job that holds up; {resting} only rest on a first "
        f"or special token; {unclear} stay unclear"
    )
    said(
        "A label needs ten points above the best rule without words, on sentences not used to find the head. "
        "Unclear is a result too."
    )


def table_of(atlas: HeadAtlas, rows: Sequence[AtlasRow]) -> tuple[tuple[str, ...], list[tuple[str | int | float, ...]]]:
    """Heads as a table: column names, and one line a head."""
    names = [(name, title) for name, title in COLUMNS if name in atlas.scores.names]
    headers = (
        "layer", "head", "K/V head", "label", "job tried", "held-out", "best rule", "above it", "n", "rule",
        "muted alone: before", "after", *(title for _, title in names),
    )  # fmt: skip
    return headers, [_line(row, [name for name, _ in names]) for row in rows]


def _table(atlas: HeadAtlas, rows: Sequence[AtlasRow]) -> None:
    """All shown heads as a table that can be sorted, and as a file."""
    headers, lines = table_of(atlas, rows)
    with st.expander(f"All {len(rows)} heads shown, as a table"):
        data = {header: [line[place] for line in lines] for place, header in enumerate(headers)}
        st.dataframe(
            data,
            hide_index=True,
            key="f-table",
            height=420,
            alt=f"Table of {len(rows)} heads: label, held-out share, best rule without words, n and scores.",
        )
        small(
            "Press a column's name to sort. Held-out: share of cases right, or mean weight for resting and copying, on "
            "the half not used to find the head. Best rule: the luckiest rule without words on the same cases."
        )
    st.download_button(
        "These heads as CSV",
        lambda: csv_text(headers, lines),
        f"headscope-{atlas.model.id}-heads.csv",
        "text/csv",
        key="f-csv",
        on_click="ignore",
        help="One row a head, with every number of the table.",
    )


def _line(row: AtlasRow, names: list[str]) -> tuple[str | int | float, ...]:
    first, muting = row.evidence[0], row.muting
    before, after = (float("nan"), float("nan")) if muting is None else (muting.before, muting.after)
    return (
        row.layer, row.head, row.kv_head, row.title, first.title, round(first.value, 3), round(first.baseline, 3),
        round(first.gain, 3), first.n, first.baseline_name, round(before, 4), round(after, 4),
        *(round(row.scores[name], 4) for name in names),
    )  # fmt: skip


def _tried(atlas: HeadAtlas) -> None:
    with st.expander("Every job tried, also those no head does"):
        rows = [
            (
                trial.title,
                short_name(trial.layer, trial.head),
                percent(trial.best.value),
                f"{percent(trial.best.baseline)}, {trial.best.baseline_name}",
                f"{trial.best.n}",
                f"{trial.n_passed}" if trial.n_passed else "none",
            )
            for trial in atlas.trials
        ]
        table(
            "For each job the head that the first half likes best, and how it does on the other half",
            ("job", "head", "held-out", "best rule without words", "n", "heads that pass"),
            rows,
        )
        for trial_id, sentence in (
            (
                "prep_up",
                "Prepositions: no head stays clearly above the best rule without words, with luck ruled out. No label.",
            ),
            ("meaning_only", "Where only the meaning decides who is meant, no head clearly beats chance here."),
        ):
            if any(trial.id == trial_id and not trial.n_passed for trial in atlas.trials):
                small(sentence)


def _pruning(atlas: HeadAtlas) -> None:
    curve = atlas.pruning
    if curve is None:
        return
    with st.expander("How many heads can go?"):
        said(pruning_words(curve))
        picture = pruning_chart(curve, theme())
        st.plotly_chart(picture.figure, key="f-pruning", alt=picture.alt, config={"displayModeBar": False})
        small(
            f"How well the model can {curve.measure}, on {curve.n_texts} held-out sentences ({written_by()}). "
            "The least important heads go first, weighed anew at every step on the other half (after Michel et al. "
            "2019, arXiv 1905.10650, section 4). Random order: a mean of three."
        )


def pruning_words(curve: PruningCurve) -> str:
    """How many heads can go, what as many at random do, and the smaller numbers that do worse, if there are any."""
    every, limit = curve.points[-1].n_muted, curve.points[0].loss * (1 + curve.tolerance)
    worse = [str(point.n_muted) for point in curve.points if point.n_muted < curve.n_free and point.loss > limit]
    but = f" The way there is not even: with {' or '.join(worse)} silent it rises more." if worse else ""
    return (
        f"With <b>{curve.n_free} of {every} heads</b> silent, the held-out loss is within "
        f"{percent(curve.tolerance)} of the whole model's.{but} As many at random take it from "
        f"{curve.points[0].loss:.2f} to {_at_random(curve):.2f} nats."
    )


def _at_random(curve: PruningCurve) -> float:
    """The loss with as many heads silent as can go, but drawn at random."""
    return next(point.random_loss for point in curve.points if point.n_muted == curve.n_free)
