"""What the head viewer opens with: the heads with a job, the word that shows it best, and the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attention.patterns import JOBS, Job, Score, evidence_for, swap_of
from attention.plots.numbers import percent
from attention.plots.viewer import Average, Card, ViewedTrace, ViewerScene

if TYPE_CHECKING:
    from attention.tracing import AttentionTrace, Check

# Which card is chosen when the page opens: the first whose words are in the text; a newcomer can check it by reading.
OPENS_WITH = ("agreement", "latest_noun", "object_verb", "previous")


def heads_scene(
    traced: AttentionTrace,
    *,
    checks: Sequence[Check] = (),
    twin: AttentionTrace | None = None,
    compare: AttentionTrace | None = None,
    full_layers: tuple[int, ...] | None = None,
    nearest: tuple[int, int] | None = None,
    hints: bool = False,
) -> ViewerScene:
    """The Heads page's scene for a trace: cards of the model's named heads, their average, the checks.

    Models without named heads get no cards. ``twin`` or ``compare`` is shown beside the head. ``nearest`` is the
    (layer, head) to send first when a long text does not fit whole.
    """
    base_id = traced.model.id.split("~")[0]
    jobs = JOBS.get(base_id, ())
    queries = {job.id: _query_showing(traced, job) for job in jobs}
    opening = _opening(traced, jobs)
    focus = queries[opening.id] if opening else _first_word(traced)
    if "previous" in queries and focus > 1:
        queries["previous"] = focus
    cards = tuple(
        Card(job.id, job.title, job.layer, job.head, queries[job.id], _card_line(traced, base_id, job)) for job in jobs
    )
    second = [ViewedTrace(twin, "twin")] if twin else [ViewedTrace(compare, "compare")] if compare else []
    swap = swap_of(traced.text)
    return ViewerScene(
        traces=(ViewedTrace(traced), *second),
        cards=cards,
        average=Average(tuple((job.layer, job.head) for job in jobs), focus) if jobs else None,
        start=(*(nearest or ((opening.layer, opening.head) if opening else (0, 0))), focus),
        swap_label=swap.label if swap else None,
        checks=tuple((check.name, check.text, check.ok) for check in checks if check.ok is not None),
        notices=(traced.notice,) if traced.notice else (),
        hints=hints,
        full_layers=full_layers,
    )


def _opening(traced: AttentionTrace, jobs: Sequence[Job]) -> Job | None:
    ordered = [job for name in OPENS_WITH for job in jobs if job.id == name]
    return next((job for job in ordered if not job.shown_by or _rows_of(traced, job)), None)


def _rows_of(traced: AttentionTrace, job: Job) -> list[int]:
    return [index for index, token in enumerate(traced.tokens) if token.label.lower() in job.shown_by]


def _card_line(traced: AttentionTrace, base_id: str, job: Job) -> str:
    if traced.model.id != base_id:
        return "Random weights: nothing was learned"
    if job.shown_by and not _rows_of(traced, job):
        return f"No {job.shown_by_name} in this text: its strongest link is shown"
    return evidence_line(base_id, job)


def evidence_line(model_id: str, job: Job) -> str:
    """The measured evidence for a job in one line, from sentences the head was not chosen on; "" when there is none."""
    scores = {score.name: score for score in evidence_for(model_id, job.id) if score.half == "held_out"}
    if job.id == "agreement" and scores:
        agrees, meaning = scores["agrees in gender or number: first"], scores["only meaning decides: above"]
        return (
            f"Right in {percent(agrees.value)} of {agrees.n} sentences where gender or number decides; "
            f"{percent(meaning.value)} of {meaning.n} where only meaning does"
        )
    if job.id == "object_verb" and scores:
        hit = scores["verb first"]
        return f"Right in {percent(hit.value)} of {hit.n} sentences; best fixed distance {percent(hit.baseline or 0.0)}"
    if job.id == "previous" and scores:
        return _previous_line(scores)
    return "One example, not yet tested on many sentences"


def _previous_line(scores: dict[str, Score]) -> str:
    mean = scores["mean weight"]
    long_texts = [score for score in scores.values() if score is not mean]
    line = f"Mean {percent(mean.value)} over {mean.n} sentences"
    broken = next((score for score in long_texts if score.value < mean.value - 0.1), None)
    return f"{line}; only {percent(broken.value)} in a text of {broken.name}" if broken else line


def _first_word(traced: AttentionTrace) -> int:
    return next((index for index, token in enumerate(traced.tokens) if not token.special), 0)


def _query_showing(traced: AttentionTrace, job: Job) -> int:
    """The row that shows a job best: a word it is about where the text has one, else the row with the
    strongest link to another ordinary word."""
    special = np.array([token.special for token in traced.tokens])
    links = np.array(traced.weights[job.layer, job.head])
    links[:, special] = 0.0
    links[special] = 0.0
    np.fill_diagonal(links, 0.0)
    about = [
        index
        for index, token in enumerate(traced.tokens)
        if token.label.lower() not in job.not_shown_by and token.label.isalnum()
    ]
    strongest = links.max(axis=-1)
    candidates = _rows_of(traced, job) or about or np.flatnonzero(~special).tolist() or list(range(len(special)))
    return max(candidates, key=lambda row: float(strongest[row]))
