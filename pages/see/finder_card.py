"""The card of one head: its label with the evidence for and against, sentences, what muting it does, every score."""

from __future__ import annotations

import html
import re

import streamlit as st

from attention.atlas import AtlasRow, Example, HeadAtlas
from attention.patterns import sentences
from attention.plots.colours import KEY, QUERY
from attention.plots.numbers import percent
from attention.trials import Evidence
from pages.see.finder_parts import short_name, small, theme, written_by
from pages.shared.open_head import open_head
from pages.shared.tables import table

# Jobs judged by a mean weight instead of by a share of cases right.
MEANS = frozenset({"rest", "induction", "duplicate"})
ROWS = frozenset({"previous", "next", "current"})


def card(atlas: HeadAtlas, layer: int, head: int) -> None:
    """Everything known about one head."""
    row = atlas.row(layer, head)
    shared = f", K/V head {row.kv_head}" if atlas.model.layout.q_per_kv > 1 else ""
    st.html(
        f'<h3 class="hs-f-card">Layer {layer}, head {head}{shared}: {html.escape(row.title)}</h3>'
        f'<p class="hs-f-lines">{html.escape(_verdict(row))}</p>'
    )
    table(
        "Evidence, on sentences not used to find the head",
        ("job", "held-out", "best rule without words", "n", "first half", "luck"),
        [_evidence(one) for one in row.evidence],
    )
    # What muting says of an induction head stands below, with its error.
    for note in (one.note for one in row.evidence if one.note and not (one.job == "induction" and row.muting)):
        small(f"{note[0].upper()}{note[1:]}.")
    _examples(row)
    _muting(atlas, row)
    open_head(layer, head)


def _verdict(row: AtlasRow) -> str:
    first = row.evidence[0]
    share = "mean weight" if first.job in MEANS else "of rows" if first.job in ROWS else "of cases right"
    said = f"{percent(first.value)} {share} against {percent(first.baseline)} ({first.baseline_name})."
    return said if first.passed else f"It came closest to “{first.title}”: {said} That is not enough for a label."


def _evidence(one: Evidence) -> tuple[str, ...]:
    rule = f"{percent(one.baseline)}, {one.baseline_name}"
    first_half = f"{percent(one.select_value)} (rule {percent(one.select_baseline)}, n {one.select_n})"
    luck = "–" if one.chance is None else percent(max(one.chance, 0.001))  # files round to 0, chance is never nil
    return one.title, percent(one.value), rule, str(one.n), first_half, luck


def _examples(row: AtlasRow) -> None:
    if not row.examples:
        return
    works = row.evidence[0].passed and row.label not in MEANS
    where = "Where it does this most" if works else "Its strongest looks between words"
    small(f"{where}, in held-out sentences ({written_by()}):")
    lines = "".join(f"<li>{_example(one)}</li>" for one in row.examples)
    st.html(f'<ul class="hs-f-examples">{lines}</ul>')


def _example(one: Example) -> str:
    words = re.findall(sentences()["word_pattern"], one.text)
    q_ink, k_ink = QUERY.on(theme()), KEY.on(theme())
    cells = "; ".join(
        f'<b style="color:{q_ink}">{html.escape(words[cell.query])}</b> → '
        f'<b style="color:{k_ink}">{html.escape(words[cell.key])}</b> {percent(cell.weight)}'
        for cell in one.cells
    )
    return f"{html.escape(one.text)}<br>{cells}"


def _muting(atlas: HeadAtlas, row: AtlasRow) -> None:
    number = row.muting
    if number is None:
        small("Muting this head alone was not measured. Try it under Mute heads.")
    elif atlas.model.kind == "encoder":
        small(
            f"Muted alone (zeros in its place), a sentence's embedding keeps {number.after:.4f} ± {number.error:.4f} "
            f"cosine similarity to itself; 1 is no change (mean ± standard error, n = {number.n})."
        )
    else:
        rose = " It rises in every text." if number.always else " It does not rise in every text."
        small(
            f"Muted alone (zeros in its place), the loss on a text said twice goes from {number.before:.2f} to "
            f"{number.after:.2f} nats. The change is {number.change:+.2f} ± {number.error:.2f} (standard error, "
            f"n = {number.n} texts of random tokens).{rose}"
        )


def all_scores(atlas: HeadAtlas, layer: int, head: int) -> None:
    """Every named score of one head, with formula and source."""
    row = atlas.row(layer, head)
    rows = [
        (
            score.title,
            f"{row.scores[score.name]:.3f}",
            score.unit,
            score.rows,
            str(score.n),
            score.formula,
            score.source,
        )
        for score in atlas.scores.scores
    ]
    with st.expander(f"All scores of {short_name(layer, head)}, with formulas and sources"):
        table("Means over texts", ("score", "value", "unit", "rows", "n texts", "formula", "source"), rows)
