"""Is a head doing a job, or does it only look like it? Cases from our sentences, counted against rules without words.

A case is a query word and the words that would be right. A head is right when one of them gets the largest weight
of all words in its row, alone. Heads are chosen on the "select" half and judged on the "held_out" half.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention.formulas import Floats
from attention.patterns import HALVES, Half, sentences

MARGIN = 0.10
LEAST_SHARE = 0.5
LEAST_CASES = 20
CHANCE = 0.05


@dataclass(frozen=True)
class Case:
    """Sentence ``index`` of list ``kind``: from word ``query``, any of ``targets`` is right.

    ``rival`` is the other noun of a pronoun sentence, which a careless reader would take.
    """

    kind: str
    index: int
    query: int
    targets: frozenset[int]
    rival: int | None = None


@dataclass(frozen=True)
class Trial:
    """A job to try every head on: ``cases`` are found in sentences of one list.

    ``noted``, a trial of the same list, finds the cases the note on the evidence counts; None: the trial's own.
    """

    id: str
    title: str
    kind: str
    find: Callable[[dict[str, Any]], Sequence[tuple[int, frozenset[int], int | None]]]
    noted: Trial | None = None

    def cases(self, half: Half, causal: bool) -> list[Case]:
        """The cases of one half. A causal model is asked only where a right word stands before the query."""
        found = []
        for index, item in enumerate(sentences()[self.kind]):
            if item["half"] == half:
                for query, targets, rival in self.find(item):
                    seen = frozenset(target for target in targets if target < query) if causal else targets
                    if seen:
                        found.append(Case(self.kind, index, query, seen, rival))
        return found


@dataclass(frozen=True)
class Baseline:
    """The best rule that knows no words, on the same cases: its share of right answers and what the rule is."""

    value: float
    name: str


@dataclass(frozen=True)
class Evidence:
    """What speaks for a head's job, and what speaks against: the held-out half beside the best rule without words.

    ``value``, ``baseline`` and the ``select_`` pair are shares of cases right, or mean weights, 0 to 1. ``n`` and
    ``select_n`` count cases. ``chance`` is the probability that, of all heads put forward by the
    select half, one no better than the baseline does this well (exact binomial times their number, at most 1; None
    for mean weights). ``note`` says anything else that was asked.
    """

    job: str
    title: str
    value: float
    n: int
    baseline: float
    baseline_name: str
    select_value: float
    select_n: int
    select_baseline: float
    chance: float | None
    passed: bool
    offset_baseline: float | None = None
    note: str = ""

    @property
    def gain(self) -> float:
        """Points above the best rule without words, held-out."""
        return self.value - self.baseline

    @property
    def gain_over_offset(self) -> float:
        """Points above the best single distance, held-out; as ``gain`` where distance is not the rival."""
        return self.value - (self.baseline if self.offset_baseline is None else self.offset_baseline)


def _up(relation: str) -> Callable[[dict[str, Any]], list[tuple[int, frozenset[int], int | None]]]:
    def find(item: dict[str, Any]) -> list[tuple[int, frozenset[int], int | None]]:
        arcs = [arc for arc in item["arcs"] if arc["relation"] == relation]
        return [(arc["dependent"], frozenset({arc["head"]}), None) for arc in arcs]

    return find


def _down(relation: str) -> Callable[[dict[str, Any]], list[tuple[int, frozenset[int], int | None]]]:
    def find(item: dict[str, Any]) -> list[tuple[int, frozenset[int], int | None]]:
        by_head: dict[int, set[int]] = {}
        for arc in item["arcs"]:
            if arc["relation"] == relation:
                by_head.setdefault(arc["head"], set()).add(arc["dependent"])
        return [(head, frozenset(dependents), None) for head, dependents in by_head.items()]

    return find


def _between(query: str, target: str) -> Callable[[dict[str, Any]], list[tuple[int, frozenset[int], int | None]]]:
    return lambda item: [(item[query], frozenset({item[target]}), None)]


def _pronoun(*pronouns: str) -> Callable[[dict[str, Any]], list[tuple[int, frozenset[int], int | None]]]:
    def find(item: dict[str, Any]) -> list[tuple[int, frozenset[int], int | None]]:
        if pronouns and item["pronoun_word"].lower() not in pronouns:
            return []
        return [(item["pronoun"], frozenset({item["antecedent"]}), item["other"])]

    return find


_EVERY_PRONOUN = Trial("agreement", "Who is meant (he, she, it, they)", "agreement", _pronoun())
TRIALS: tuple[Trial, ...] = (
    _EVERY_PRONOUN,
    Trial("agreement_person", "Who is meant (he or she only)", "agreement", _pronoun("he", "she"), _EVERY_PRONOUN),
    Trial("object_verb", "Object → its verb", "object_verb", _between("object", "verb")),
    Trial("verb_object", "Verb → its object", "object_verb", _between("verb", "object")),
    Trial("nsubj_up", "Subject → its verb", "dependencies", _up("nsubj")),
    Trial("nsubj_down", "Verb → its subject", "dependencies", _down("nsubj")),
    Trial("dobj_up", "Object → its verb, any sentence", "dependencies", _up("dobj")),
    Trial("dobj_down", "Verb → its object, any sentence", "dependencies", _down("dobj")),
    Trial("pobj_up", "Noun → its preposition", "dependencies", _up("pobj")),
    Trial("pobj_down", "Preposition → its noun", "dependencies", _down("pobj")),
    Trial("prep_up", "Preposition → what it belongs to", "dependencies", _up("prep")),
    Trial("prep_down", "Word → the preposition after it", "dependencies", _down("prep")),
    Trial("poss_up", "Owner → what is owned", "dependencies", _up("poss")),
    Trial("poss_down", "What is owned → its owner", "dependencies", _down("poss")),
    Trial("aux_up", "Helping verb → main verb", "dependencies", _up("aux")),
    Trial("aux_down", "Main verb → its helping verb", "dependencies", _down("aux")),
    Trial("amod_up", "Adjective → its noun", "dependencies", _up("amod")),
    Trial("amod_down", "Noun → its adjective", "dependencies", _down("amod")),
    Trial("det_up", "Article → its noun", "dependencies", _up("det")),
    Trial("det_down", "Noun → its article", "dependencies", _down("det")),
    Trial("advmod_up", "Adverb → its word", "dependencies", _up("advmod")),
    Trial("advmod_down", "Word → its adverb", "dependencies", _down("advmod")),
    Trial("meaning_only", "Who is meant, by meaning alone", "meaning_only", _pronoun()),
)

# (kind, sentence) -> every head's word rows (layer, head, word, word)
WordRows = Mapping[tuple[str, int], Floats]
# (layer, head) -> what speaks for that head; empty where a job cannot be asked of a model.
Judgement = dict[tuple[int, int], Evidence]


def hits(cases: Sequence[Case], rows: WordRows) -> NDArray[np.bool_]:
    """Whether each head is right in each case: (layer, head, case). A tie for the largest weight is wrong."""
    found = []
    for case in cases:
        row = rows[case.kind, case.index][..., case.query, :]
        largest = row.max(axis=-1, keepdims=True)
        alone = (row == largest).sum(axis=-1) == 1
        found.append(alone & np.isin(row.argmax(axis=-1), list(case.targets)))
    return np.stack(found, axis=-1)


def best_rule(cases: Sequence[Case], learned_from: Sequence[Case] = ()) -> Baseline:
    """The best of all rules without words on these very cases: one distance, one place, the nearer noun, or, with
    other cases to learn from, a table that says for each place of the query word where to look.

    Chosen after the fact, in its own favour: a head has to beat the luckiest rule. The table is what any mixture of
    distances and places could learn, so no head that reads positions only does better but by luck.
    """
    places = Counter(place for case in cases for place in case.targets)
    place, by_place = max(places.items(), key=lambda pair: (pair[1], -pair[0]))
    rules = [best_offset(cases)]
    rules.append(Baseline(by_place / len(cases), f"always word number {place + 1} of the sentence"))
    if all(case.rival is not None for case in cases):
        nearer = [max(case.targets) > case.rival for case in cases if case.rival is not None]
        rules.append(Baseline(float(np.mean(nearer)), "always the nearer noun"))
    if learned_from:
        look_at = places_table(learned_from)
        right = [look_at(case.query) in case.targets for case in cases]
        rules.append(Baseline(float(np.mean(right)), "the likeliest place for each place, learned on the other half"))
    return max(rules, key=lambda rule: rule.value)


def places_table(cases: Sequence[Case]) -> Callable[[int], int]:
    """For each place of a query word the place its target stands at most often in ``cases``.

    A place that does not occur there is served by the most frequent distance.
    """
    counts: dict[int, Counter[int]] = {}
    for case in cases:
        counts.setdefault(case.query, Counter()).update(case.targets)
    table = {query: max(sorted(found), key=found.__getitem__) for query, found in counts.items()}
    offsets = Counter(target - case.query for case in cases for target in case.targets)
    step = max(sorted(offsets, key=abs), key=offsets.__getitem__)
    return lambda query: table.get(query, query + step)


def best_offset(cases: Sequence[Case]) -> Baseline:
    """The best single distance on these very cases: what a purely positional head could reach."""
    offsets = Counter(offset for case in cases for offset in {target - case.query for target in case.targets})
    offset, count = max(offsets.items(), key=lambda pair: (pair[1], -abs(pair[0])))
    words = "word" if abs(offset) == 1 else "words"
    return Baseline(count / len(cases), f"always {abs(offset)} {words} {'back' if offset < 0 else 'ahead'}")


def chance_of(n_right: int, n: int, share: float) -> float:
    """Probability of at least ``n_right`` of ``n`` right answers by a rule that is right with ``share`` (binomial)."""
    return math.fsum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n_right, n + 1))


def judge(trial: Trial, rows: WordRows, causal: bool) -> Judgement:
    """The evidence of every head on one trial; empty where no case can be asked.

    The select half puts heads forward: those right at least ``LEAST_SHARE`` of the time and at least ``MARGIN`` above
    the best rule on the same cases. A head put forward passes when the same holds held-out, on at least
    ``LEAST_CASES`` cases, and luck is unlikely: were all heads put forward only as good as the best rule, one of them
    would do so well with a probability of at most ``CHANCE`` (Bonferroni's bound).
    """
    cases = {half: trial.cases(half, causal) for half in HALVES}
    shape = next(iter(rows.values())).shape[:2]
    judged: Judgement = {}
    if not all(cases.values()):
        return judged
    rules = {
        "select": best_rule(cases["select"]),
        "held_out": best_rule(cases["held_out"], learned_from=cases["select"]),
    }
    right = {half: hits(found, rows) for half, found in cases.items()}
    noted = (trial.noted or trial).cases("held_out", causal)
    noted_right = hits(noted, rows)
    n, by_offset = len(cases["held_out"]), best_offset(cases["held_out"])
    forward = {at for at in np.ndindex(*shape) if beats(float(right["select"][at].mean()), rules["select"].value)}
    for at in np.ndindex(*shape):
        value = float(right["held_out"][at].mean())
        alone = chance_of(int(right["held_out"][at].sum()), n, rules["held_out"].value)
        chance = min(1.0, alone * max(1, len(forward)))
        judged[at] = Evidence(
            job=trial.id,
            title=trial.title,
            value=value,
            n=n,
            baseline=rules["held_out"].value,
            baseline_name=rules["held_out"].name,
            select_value=float(right["select"][at].mean()),
            select_n=len(cases["select"]),
            select_baseline=rules["select"].value,
            chance=chance,
            passed=at in forward and n >= LEAST_CASES and chance <= CHANCE and beats(value, rules["held_out"].value),
            offset_baseline=by_offset.value,
            note=_by_pronoun(noted, noted_right[at]),
        )
    return judged


def _by_pronoun(cases: Sequence[Case], right: NDArray[np.bool_]) -> str:
    """Right answers for each pronoun, such as ``he 11 of 12``; "" for cases without one."""
    words = [sentences()[case.kind][case.index].get("pronoun_word", "") for case in cases]
    counts = {word: (int(sum(right[np.array(words) == word])), words.count(word)) for word in dict.fromkeys(words)}
    return ", ".join(f"{word} {hit} of {n}" for word, (hit, n) in counts.items() if word)


def beats(value: float, baseline: float) -> bool:
    """At least half of the time, and at least ten points above the baseline (up to rounding of the last digit)."""
    return value >= LEAST_SHARE and value - baseline >= MARGIN - 1e-9
