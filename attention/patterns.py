"""What a head does, with evidence: named scores, the sentences they were measured on, and what chance would give.

Every head here was found on the "select" half of our own sentences (``assets/sentences.json``) or before
they were written; what a page shows is the "held_out" half. ``python -m attention.patterns`` measures
everything again and writes ``assets/evidence.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attention.errors import UserError

ASSETS = Path(__file__).resolve().parents[1] / "assets"
Half = Literal["select", "held_out"]
HALVES: tuple[Half, ...] = ("select", "held_out")


@dataclass(frozen=True)
class Job:
    """A job some head does well: where the head is, and which words show it best.

    ``shown_by`` names words to look for first (none: any word); ``not_shown_by`` words it is not about.
    """

    id: str
    title: str
    layer: int
    head: int
    shown_by: frozenset[str] = frozenset()
    shown_by_name: str = ""
    not_shown_by: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Score:
    """One measured share (0 to 1) on ``n`` cases, with what the best rule without a head reaches on the same cases."""

    name: str
    half: Half
    value: float
    n: int
    baseline: float | None
    baseline_name: str


PRONOUNS = frozenset({"he", "she", "it", "they", "him", "her", "them", "his", "its", "their"})
FUNCTION_WORDS = PRONOUNS | frozenset(
    word
    for line in (
        "the a an this that these those every some any no my your our i you we who which whom what where when why how",
        "am is are was were be been being do does did have has had will would can could may might must shall should",
        "and or but so because if while although until before after as than then to of in on at by for from with into",
        "about over under up out off not",
    )
    for word in line.split()
)
RELATIVES = frozenset({"that", "which", "who", "whom"})
JOBS: dict[str, tuple[Job, ...]] = {
    "all-MiniLM-L6-v2": (
        Job("previous", "Previous word", 0, 2),
        Job("object_verb", "Object → its verb", 2, 0, not_shown_by=FUNCTION_WORDS),
        Job("agreement", "Who is meant", 1, 3, PRONOUNS, "pronoun"),
    ),
    "SmolLM2-135M-Instruct": (
        Job("previous", "Previous word", 16, 0),
        Job("latest_noun", "Latest noun", 25, 2, RELATIVES, "that, which or who"),
        Job("clause", "Start of the clause", 13, 5, not_shown_by=FUNCTION_WORDS),
    ),
}


@dataclass(frozen=True)
class Preset:
    """A link to start from: the words by number, and the head that is known to make it."""

    title: str
    model: str
    text: str
    query: int
    key: int
    layer: int
    head: int
    caption: str


_MINILM, _SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
PRESETS = (
    Preset(
        "they → cats",
        _MINILM,
        "Alice fed the cats because they were hungry.",
        5,
        3,
        1,
        3,
        "Who is meant by “they”? Only the cats agree with it in number.",
    ),
    Preset(
        "she → Alice",
        _MINILM,
        "Alice fed the cats because she was kind.",
        5,
        0,
        1,
        3,
        "One word changed, and the same head now looks at Alice.",
    ),
    Preset(
        "it → cat",
        _MINILM,
        "The cat sat on the mat because it was tired.",
        7,
        1,
        5,
        11,
        "Grammar allows the cat and the mat. Several heads look at the cat; on our test sentences none does reliably.",
    ),
    Preset(
        "object → verb",
        _MINILM,
        "The old farmer sold three brown cows.",
        6,
        3,
        2,
        0,
        "The cows look back at what was done with them, three words earlier.",
    ),
    Preset(
        "previous word",
        _MINILM,
        "The museum opens at ten today.",
        2,
        1,
        0,
        2,
        "This head looks one word back, whatever the words are. Compare the link with its positional figure.",
    ),
    Preset(
        "repeated name",
        _MINILM,
        "Anna met Paul in the park, and later Anna called him.",
        9,
        0,
        2,
        9,
        "The second Anna looks at the first.",
    ),
    Preset(
        "that → mat, a trap",
        _SMOLLM,
        "The cat sat on the mat that the dog chased.",
        6,
        5,
        16,
        0,
        "“mat” stands right before “that”. The previous-word head looks there for that reason alone.",
    ),
)


@cache
def sentences() -> dict[str, Any]:
    """Our own labelled sentences (CC0, written for Headscope), committed before anything was measured on them."""
    return json.loads((ASSETS / "sentences.json").read_text(encoding="utf-8"))


@cache
def evidence() -> dict[str, Any]:
    """The measured scores shipped with the app, as written by ``python -m attention.patterns``."""
    return json.loads((ASSETS / "evidence.json").read_text(encoding="utf-8"))


def evidence_for(model_id: str, job_id: str) -> tuple[Score, ...]:
    """The shipped scores of one job; empty when none was measured."""
    scores = evidence()["models"].get(model_id, {}).get("scores", {}).get(job_id, [])
    return tuple(Score(**score) for score in scores)


def caption_of(text: str) -> str:
    """What to look for in an example sentence; "" for any other text."""
    return next((example["caption"] for example in sentences()["examples"] if text == example["text"]), "")


@dataclass(frozen=True)
class Swap:
    """A small change of an example sentence that moves an arrow."""

    label: str
    text: str


def swap_of(text: str) -> Swap | None:
    """The change on offer for an example sentence, in either direction; ``None`` for any other text."""
    for example in sentences()["examples"]:
        swap = example.get("swap")
        if swap and text == example["text"]:
            return Swap(f"Change the pronoun: {swap['from']} → {swap['to']}", swap["text"])
        if swap and text == swap["text"]:
            return Swap(f"Change the pronoun: {swap['to']} → {swap['from']}", example["text"])
    return None


def word_rows(traced: Any, layer: int, head: int) -> np.ndarray:
    """One head's weights between words: sum over a word's key pieces, mean over its query pieces.

    Clark et al. 2019, arXiv 1906.04341, section 4.1. Shape (words, words), special tokens left out,
    so rows sum to one minus what rests on special tokens.
    """
    from attention.tokens import merge_to_words, words_of

    groups = words_of(traced.tokens)
    words = [index for index, group in enumerate(groups) if not traced.tokens[group[0]].special]
    return merge_to_words(traced.weights[layer, head], groups)[np.ix_(words, words)]


def fixed_offset(traced: Any, layer: int, head: int, offset: int) -> np.ndarray:
    """Weights A[i, i + offset] of rows 2 … T-2 (special tokens at the edges left out), one number a row."""
    weights = traced.weights[layer, head]
    rows = np.arange(2, len(weights) - 1)
    columns = rows + offset
    inside = (columns >= 0) & (columns < len(weights))
    return weights[rows[inside], columns[inside]]


def measure(model: Any, trace: Callable[..., Any]) -> dict[str, list[Score]]:
    """Every job of one bundled model measured on our sentences, both halves apart."""
    if model.id not in JOBS:
        raise UserError(
            f"{model.id} has no named heads.",
            f"{' and '.join(JOBS)} have.",
            "Choose one of these.",
        )
    measured: dict[str, list[Score]] = {}
    for job in JOBS[model.id]:
        scorer = SCORERS.get(job.id)
        if scorer:
            measured[job.id] = [score for half in HALVES for score in scorer(model, trace, job, half)]
    return measured


def _items(kind: str, half: Half) -> list[dict[str, Any]]:
    return [item for item in sentences()[kind] if item["half"] == half]


def _traces(
    model: Any, trace: Callable[..., Any], items: Sequence[dict[str, Any]]
) -> Iterable[tuple[dict[str, Any], Any]]:
    traced = trace(model, [item["text"] for item in items], start=model.default_start)
    return zip(items, traced, strict=True)


def agreement_scores(model: Any, trace: Callable[..., Any], job: Job, half: Half) -> list[Score]:
    """Pronoun → the noun that agrees with it. "above": the antecedent gets more weight than the other noun;
    "first": it gets more than any other word of the sentence. The baseline is the nearer noun."""
    scores = []
    for kind, label in (("agreement", "agrees in gender or number"), ("meaning_only", "only meaning decides")):
        above, first, nearest = [], [], []
        for item, traced in _traces(model, trace, _items(kind, half)):
            row = word_rows(traced, job.layer, job.head)[item["pronoun"]]
            above.append(row[item["antecedent"]] > row[item["other"]])
            first.append(int(row.argmax()) == item["antecedent"])
            nearest.append(item["antecedent"] > item["other"])
        baseline = float(np.mean(nearest))
        for name, hits in (("above", above), ("first", first)):
            scores.append(Score(f"{label}: {name}", half, float(np.mean(hits)), len(hits), baseline, "nearest noun"))
    return scores


def object_verb_scores(model: Any, trace: Callable[..., Any], job: Job, half: Half) -> list[Score]:
    """Object → its verb: how often the verb gets the largest weight of all words. The baseline is the best
    single fixed offset on the same sentences, in which the verb stands 1 to 4 words back equally often."""
    items = _items("object_verb", half)
    hits = []
    for item, traced in _traces(model, trace, items):
        row = word_rows(traced, job.layer, job.head)[item["object"]]
        hits.append(int(row.argmax()) == item["verb"])
    offsets = [item["object"] - item["verb"] for item in items]
    best = max(np.mean([offset == one for offset in offsets]) for one in set(offsets))
    return [Score("verb first", half, float(np.mean(hits)), len(hits), float(best), "best fixed offset")]


def previous_word_scores(model: Any, trace: Callable[..., Any], job: Job, half: Half) -> list[Score]:
    """Previous word: mean weight A[i, i-1] over rows 2 … T-2 of plain sentences, and of long texts made of them.

    The baseline is an even look at every visible word.
    """
    items = _items("previous_word", half)
    means, even = [], []
    for _, traced in _traces(model, trace, items):
        means.append(float(fixed_offset(traced, job.layer, job.head, -1).mean()))
        even.append(1 / len(traced.tokens))
    scores = [Score("mean weight", half, float(np.mean(means)), len(means), float(np.mean(even)), "an even look")]
    everything = " ".join(item["text"] for item in items)
    for words in (60, 90, 120, 200):
        text = " ".join(everything.split()[:words])
        traced = trace(model, text, start=model.default_start)
        value = float(fixed_offset(traced, job.layer, job.head, -1).mean())
        scores.append(Score(f"{len(traced.tokens)} tokens", half, value, 1, 1 / len(traced.tokens), "an even look"))
    return scores


SCORERS: dict[str, Callable[[Any, Callable[..., Any], Job, Half], list[Score]]] = {
    "agreement": agreement_scores,
    "object_verb": object_verb_scores,
    "previous": previous_word_scores,
}


def write_evidence(path: Path = ASSETS / "evidence.json") -> None:
    """Measure every bundled model again and write the file the pages read."""
    import hashlib

    from attention.models import load_model
    from attention.tracing import trace

    digest = hashlib.sha256((ASSETS / "sentences.json").read_bytes()).hexdigest()
    result: dict[str, Any] = {"command": "python -m attention.patterns", "sentences_sha256": digest, "models": {}}
    for model_id in JOBS:
        model = load_model(model_id)
        scores = {job: [asdict(score) for score in found] for job, found in measure(model, trace).items()}
        result["models"][model_id] = {"revision": model.revision, "scores": scores}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_evidence()
    json.dump(evidence(), sys.stdout, indent=1, ensure_ascii=False)
