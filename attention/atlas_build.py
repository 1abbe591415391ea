"""Measuring a model's atlas: every head scored, tried on every job, muted, and labelled only where that holds up."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention import formulas
from attention.atlas import (
    COMMAND,
    UNCLEAR,
    AtlasRow,
    Cell,
    Example,
    GroupEffect,
    HeadAtlas,
    MuteNumber,
    TrialResult,
    code_sha256,
    scores_at,
    sentences_sha256,
    shipped_atlas,
)
from attention.importance import pruning_curve
from attention.links import profile_of, word_weights
from attention.models import LoadedModel
from attention.muting import copy_losses
from attention.patterns import HALVES, Half, sentences
from attention.probes import (
    OFFSETS,
    head_scores,
    inner_rows,
    plain_traces,
    repeated_copy,
    resting_places,
    weights_on,
)
from attention.settings import settings
from attention.sharing import MuteHeads
from attention.tracing import AttentionTrace, trace
from attention.trials import LEAST_CASES, LEAST_SHARE, MARGIN, TRIALS, Case, Evidence, Judgement, beats, hits, judge

# The recipe's own seed chooses, the next one judges.
SEED_OF: dict[Half, int] = {"select": 0, "held_out": 1}
# Whether a head that looks like induction is missed is asked on more texts: these seeds', the held-out one first.
MISSED_SEEDS = (1, 2, 3, 4)
PLAIN = "previous_word"
N_EXAMPLES = 3
N_CELLS = 3
LEAST_SHOWN = 0.005
GROUP = 5
RANDOM_GROUPS = 12
OFFSET_TITLES = {"previous": "Previous token", "next": "Next token", "current": "The token itself"}
# A job that another one says better: named only when the other fails.
SAID_BETTER = {"agreement_person": "agreement", "dobj_up": "object_verb", "dobj_down": "verb_object"}

Heads = Iterable[tuple[int, int]]
Progress = Callable[[float], None]
Judged = dict[str, Judgement]


def build_atlas(model: LoadedModel, *, thorough: bool = False, progress: Progress | None = None) -> HeadAtlas:
    """Measure a model's atlas now.

    ``thorough`` also mutes every head on its own (else only those that could be called induction heads), mutes
    groups and draws the pruning curve: minutes for hundreds of heads. ``progress`` is called with the share done.
    Raises UserError for a model that cannot be traced.
    """
    say = progress or (lambda _: None)
    scores = head_scores(model, lambda share: say(0.1 * share))
    traces = {kind: plain_traces(model, kind) for kind in sorted({trial.kind for trial in TRIALS} | {PLAIN})}
    rows = {(kind, index): word_weights(one) for kind, found in traces.items() for index, one in enumerate(found)}
    say(0.2)
    causal = traces[PLAIN][0].causal
    judged: Judged = {trial.id: judge(trial, rows, causal) for trial in TRIALS}
    judged |= _judged_offsets(traces[PLAIN])
    judged["rest"] = _judged_rest(traces[PLAIN])
    judged |= _judged_copying(model)
    say(0.3)
    every = list(np.ndindex(model.n_layers, model.layout.n_heads))
    doubtful = [at for at in every if judged["induction"][at].passed] if model.kind == "decoder" else []
    muting = _muted_alone(model, every if thorough else doubtful, doubtful, lambda share: say(0.3 + 0.5 * share))
    _require_muting(judged["induction"], muting if model.kind == "decoder" else {})
    groups = _groups(model, scores["induction"].values) if thorough and model.kind == "decoder" else ()
    say(0.9)
    pruning = pruning_curve(model) if thorough else None
    say(1.0)
    return HeadAtlas(
        model=model.card,
        made=_made(model),
        scores=scores,
        profile=profile_of(
            (rows[PLAIN, index] for index in range(len(traces[PLAIN]))), *scores["previous"].values.shape
        ),
        rows=tuple(_row(model, at, judged, scores_at(scores.scores, *at), muting.get(at), rows) for at in every),
        trials=tuple(_result(trial_id, found) for trial_id, found in judged.items() if found),
        groups=groups,
        pruning=pruning,
    )


def atlas_of(model: LoadedModel, progress: Progress | None = None) -> HeadAtlas:
    """The shipped atlas where there is one for these very weights, else one measured now."""
    return shipped_atlas(model.id, model.revision) or build_atlas(model, progress=progress)


def _made(model: LoadedModel) -> dict[str, str]:
    return {
        "command": COMMAND,
        "code_sha256": code_sha256(),
        "weights_sha256": model.revision,
        "sentences_sha256": sentences_sha256(),
        "sentences": f"{sentences()['author']}, {sentences()['licence']}",
        **{name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")},
    }


def _half_of(index: int) -> Half:
    half: Half = sentences()[PLAIN][index]["half"]
    return half


def _judged_offsets(traces: list[AttentionTrace]) -> Judged:
    """Heads that look a fixed step away: share of rows with their largest weight there, against an even look."""
    judged: Judged = {}
    for job, offset in OFFSETS.items():
        shares: dict[Half, list[NDArray[np.bool_]]] = {half: [] for half in HALVES}
        even: dict[Half, list[float]] = {half: [] for half in HALVES}
        for index, traced in enumerate(traces):
            queries, keys = formulas.offset_cells(len(traced.tokens), offset, inner_rows(len(traced.tokens)))
            half = _half_of(index)
            shares[half].append(formulas.largest_at(traced.weights[..., queries, :], keys))
            even[half] += (1 / traced.visible(0).sum(axis=-1)[queries]).tolist()
        pooled = {half: np.concatenate(found, axis=-1).mean(axis=-1) for half, found in shares.items()}
        counts = {half: len(found) for half, found in even.items()}
        base = {half: float(np.mean(found)) for half, found in even.items()}
        judged[job] = _weighed(job, OFFSET_TITLES[job], pooled, base, counts, "an even look at every visible token")
        for at, one in judged[job].items():
            voita = "passes" if pooled["held_out"][at] >= formulas.POSITIONAL_SHARE else "does not pass"
            note = f"share of rows with the largest weight there; {voita} the 90 % rule"
            judged[job][at] = replace(one, note=note)
    return judged


def _judged_rest(traces: list[AttentionTrace]) -> Judgement:
    """Heads that mostly rest where nothing is said: the first token, or a special one."""
    mass: dict[Half, list[formulas.Floats]] = {half: [] for half in HALVES}
    even: dict[Half, list[float]] = {half: [] for half in HALVES}
    for index, traced in enumerate(traces):
        each = [formulas.sink_mass(maps, traced.visible(layer)) for layer, maps in enumerate(traced.weights)]
        mass[_half_of(index)].append(np.stack(each)[..., resting_places(traced)].max(axis=-1))
        even[_half_of(index)].append(float((1 / traced.visible(0).sum(axis=-1)).mean()))
    means = {half: np.mean(found, axis=0) for half, found in mass.items()}
    base = {half: float(np.mean(found)) for half, found in even.items()}
    counts = {half: len(found) for half, found in even.items()}
    title = "Rests on the first or a special token"
    return _weighed("rest", title, means, base, counts, "an even look at every visible token")


def _judged_copying(model: LoadedModel) -> Judged:
    """Heads that find the earlier copy of random tokens, or what followed it, against themselves without a copy."""
    found: dict[str, dict[Half, formulas.Floats]] = {"induction": {}, "duplicate": {}}
    control: dict[str, dict[Half, formulas.Floats]] = {"induction": {}, "duplicate": {}}
    counts: dict[Half, int] = {}
    for half, seed in SEED_OF.items():
        for copied, into in ((True, found), (False, control)):
            probe = repeated_copy(model, seed, copied=copied)
            weights = weights_on(model, probe.ids)
            counts[half] = probe.second.size * len(probe.ids)
            for job, offset in (("induction", 1 - probe.length), ("duplicate", -probe.length)):
                into[job][half] = formulas.offset_weight(weights, offset, probe.second).mean(axis=1)
    titles = {"induction": "Induction: what came next last time", "duplicate": "The same token before"}
    return {job: _weighed_heads(job, titles[job], found[job], control[job], counts) for job in found}


def _weighed(
    job: str,
    title: str,
    values: Mapping[Half, formulas.Floats],
    base: Mapping[Half, float],
    counts: Mapping[Half, int],
    baseline_name: str,
) -> Judgement:
    shape = values["held_out"].shape
    each = {half: np.full(shape, base[half]) for half in HALVES}
    return _weighed_heads(job, title, values, each, counts, baseline_name)


def _weighed_heads(
    job: str,
    title: str,
    values: Mapping[Half, formulas.Floats],
    base: Mapping[Half, formulas.Floats],
    counts: Mapping[Half, int],
    baseline_name: str = "the same cells of this head when nothing repeats",
) -> Judgement:
    judged: Judgement = {}
    for at in np.ndindex(*values["held_out"].shape):
        held_out, select = float(values["held_out"][at]), float(values["select"][at])
        judged[at] = Evidence(
            job=job,
            title=title,
            value=held_out,
            n=counts["held_out"],
            baseline=float(base["held_out"][at]),
            baseline_name=baseline_name,
            select_value=select,
            select_n=counts["select"],
            select_baseline=float(base["select"][at]),
            chance=None,
            passed=beats(select, float(base["select"][at])) and beats(held_out, float(base["held_out"][at])),
        )
    return judged


def _muted_alone(model: LoadedModel, heads: Heads, doubtful: Heads, say: Progress) -> dict[tuple[int, int], MuteNumber]:
    """What zeroing each head on its own does, on held-out texts; the ``doubtful`` ones on four times as many."""
    wanted, longer = list(heads), set(doubtful)
    measure = _embedding_shift(model) if model.kind == "encoder" else _copy_loss(model, longer)
    done: dict[tuple[int, int], MuteNumber] = {}
    # A thread of the pool knows what this one knows: also that nobody waits any more.
    contexts = [copy_context() for _ in wanted]
    with ThreadPoolExecutor(settings().forward_slots) as pool:
        numbers = pool.map(lambda context, at: context.run(measure, at), contexts, wanted)
        for at, number in zip(wanted, numbers, strict=True):
            done[at] = number
            say(len(done) / len(wanted))
    return done


def _copy_loss(model: LoadedModel, doubtful: set[tuple[int, int]]) -> Callable[[tuple[int, int]], MuteNumber]:
    probes = [repeated_copy(model, seed) for seed in (MISSED_SEEDS if doubtful else MISSED_SEEDS[:1])]
    before = [np.array(copy_losses(model, probe)) for probe in probes]

    def measure(at: tuple[int, int]) -> MuteNumber:
        n_seeds = len(probes) if at in doubtful else 1
        after = [np.array(copy_losses(model, probe, MuteHeads((at,)))) for probe in probes[:n_seeds]]
        return mute_number(np.concatenate(before[:n_seeds]), np.concatenate(after))

    return measure


def mute_number(before: NDArray[np.floating[Any]], after: NDArray[np.floating[Any]], harm: int = 1) -> MuteNumber:
    """The mean figures of paired texts and the standard error of their difference; ``harm`` is the bad direction."""
    change = after - before
    error = float(change.std(ddof=1) / np.sqrt(len(change)))
    always = bool((change * harm > 0).all())
    return MuteNumber(float(before.mean()), float(after.mean()), len(change), error, always)


def _embedding_shift(model: LoadedModel) -> Callable[[tuple[int, int]], MuteNumber]:
    texts = [item["text"] for item in sentences()[PLAIN] if item["half"] == "held_out"]
    before = _embeddings(model, texts, ())

    def measure(at: tuple[int, int]) -> MuteNumber:
        same = (before * _embeddings(model, texts, (at,))).sum(axis=-1)
        return mute_number(np.ones(len(texts)), same, harm=-1)

    return measure


def _embeddings(model: LoadedModel, texts: list[str], heads: tuple[tuple[int, int], ...]) -> NDArray[np.float32]:
    traces = trace(model, texts, what_if=MuteHeads(heads))
    return np.stack([traced.outputs.embedding for traced in traces])


def _require_muting(judged: Judgement, muting: Mapping[tuple[int, int], MuteNumber]) -> None:
    """An induction head must be missed: muting it alone has to raise the loss on the copy, by two standard errors."""
    for at, one in judged.items():
        number = muting.get(at)
        if number is None:
            missed, note = False, "what muting it does to the copy was not measured"
        else:
            missed = number.raises
            note = (
                f"muted alone, the loss on the copy goes from {number.before:.2f} to {number.after:.2f} nats "
                f"(± {2 * number.error:.2f}, {number.n} texts)"
            )
        judged[at] = replace(one, passed=one.passed and missed, note=note)


def _groups(model: LoadedModel, induction: NDArray[np.float64]) -> tuple[GroupEffect, ...]:
    """The strongest induction heads muted together, beside seeded draws of as many others and the strongest
    previous-token head alone."""
    order = np.argsort(-induction, axis=None, kind="stable")
    every = [divmod(int(index), induction.shape[1]) for index in order]
    strongest = tuple(sorted(every[:GROUP]))
    probe = repeated_copy(model)
    previous = _strongest_previous(model)
    before = float(np.mean(copy_losses(model, probe)))

    def effect(title: str, heads: tuple[tuple[int, int], ...]) -> GroupEffect:
        after = float(np.mean(copy_losses(model, probe, MuteHeads(heads))))
        return GroupEffect(title, heads, "zero", None, before, after, len(probe.ids))

    found = [
        effect(f"the {GROUP} strongest induction heads", strongest),
        effect("the strongest previous-token head", (previous,)),
    ]
    others = [at for at in every[GROUP:] if at != previous]
    for draw in range(RANDOM_GROUPS):
        generator = np.random.default_rng(draw)
        heads = tuple(sorted(others[index] for index in generator.choice(len(others), GROUP, replace=False)))
        found.append(effect(f"{GROUP} other heads, draw {draw}", heads))
    middle = median(one.after for one in found[2:])
    found.append(
        GroupEffect(
            f"the median of {RANDOM_GROUPS} draws of {GROUP} others", (), "zero", None, before, middle, len(probe.ids)
        )
    )
    start = model.tokenizer.bos_token
    if start in model.start_choices:
        begun = repeated_copy(model, start=start)
        without = float(np.mean(copy_losses(model, begun)))
        for title, heads, how in ((found[0].title, strongest, "mean"), (found[1].title, (previous,), "zero")):
            mute = MuteHeads(heads, "mean" if how == "mean" else "zero")
            after = float(np.mean(copy_losses(model, begun, mute)))
            found.append(GroupEffect(f"{title}, with a start token", heads, how, start, without, after, len(begun.ids)))
    return tuple(found)


def _strongest_previous(model: LoadedModel) -> tuple[int, int]:
    weights = weights_on(model, repeated_copy(model).ids)
    previous = formulas.offset_weight(weights, -1).mean(axis=1)
    layer, head = divmod(int(previous.argmax()), previous.shape[1])
    return layer, head


def _row(
    model: LoadedModel,
    at: tuple[int, int],
    judged: Judged,
    scores: Mapping[str, float],
    muting: MuteNumber | None,
    rows: Mapping[tuple[str, int], formulas.Floats],
) -> AtlasRow:
    found = [each[at] for each in judged.values() if each]
    evidence = named_by(found)
    label = evidence[0].job if evidence[0].passed else UNCLEAR
    return AtlasRow(
        layer=at[0],
        head=at[1],
        kv_head=model.layout.kv_head_of(at[1]),
        label=label,
        title=evidence[0].title if evidence[0].passed else "Unclear",
        evidence=evidence,
        scores=scores,
        muting=muting,
        examples=_examples(at, label, model.kind == "decoder", rows),
    )


def named_by(found: list[Evidence]) -> tuple[Evidence, ...]:
    """The jobs a head passed, the one to name it by first; without a job, the one it came closest to at the end.

    Resting is said only of a head without any other job; a narrow job gives way to the broader one that contains it.
    """
    working = [one for one in found if one.passed and one.job != "rest"]
    names = {one.job for one in working}
    kept = [one for one in working if SAID_BETTER.get(one.job) not in names]
    if kept:
        return tuple(sorted(kept, key=lambda one: (-one.gain_over_offset, one.job)))
    missed = [one for one in found if not one.passed and one.job != "rest" and one.n >= LEAST_CASES]
    closest = min(missed, key=lambda one: (shortfall(one), one.job))
    return (*(one for one in found if one.passed), closest)


def shortfall(one: Evidence) -> float:
    """How far the weaker half stays below what a label asks of it; below 0 for a job that fails for another reason."""
    halves = ((one.value, one.baseline), (one.select_value, one.select_baseline))
    return max(max(LEAST_SHARE, baseline + MARGIN) - value for value, baseline in halves)


def _examples(
    at: tuple[int, int], label: str, causal: bool, rows: Mapping[tuple[str, int], formulas.Floats]
) -> tuple[Example, ...]:
    """Held-out sentences in which the head does its job most strongly; of a head without one, its strongest cells."""
    trial = next((trial for trial in TRIALS if trial.id == label), None)
    if trial is not None:
        cases = trial.cases("held_out", causal)
        right = hits(cases, rows)[at]
        shown = [_example_of(case, at, rows) for case, hit in zip(cases, right, strict=True) if hit]
    else:
        indices = [index for index in range(len(sentences()[PLAIN])) if _half_of(index) == "held_out"]
        shown = [Example(PLAIN, index, strongest_cells(rows[PLAIN, index][at])) for index in indices]
    best: dict[int, Example] = {}
    for example in sorted(shown, key=lambda one: -one.cells[0].weight):
        best.setdefault(example.index, example)
    return tuple(list(best.values())[:N_EXAMPLES])


def _example_of(case: Case, at: tuple[int, int], rows: Mapping[tuple[str, int], formulas.Floats]) -> Example:
    map_ = rows[case.kind, case.index][at]
    key = int(map_[case.query].argmax())
    own = Cell(case.query, key, float(map_[case.query, key]))
    others = [cell for cell in strongest_cells(map_, N_CELLS + 1) if (cell.query, cell.key) != (own.query, own.key)]
    return Example(case.kind, case.index, (own, *others[: N_CELLS - 1]))


def strongest_cells(weights: formulas.Floats, n: int = N_CELLS) -> tuple[Cell, ...]:
    """The ``n`` largest weights of a (query, key) map between words, the strongest first.

    Beyond the first, weights that would read as 0 % are left out.
    """
    order = np.argsort(-weights, axis=None, kind="stable")[:n]
    places = [divmod(int(flat), weights.shape[1]) for flat in order]
    cells = [Cell(query, key, float(weights[query, key])) for query, key in places]
    return tuple(cell for cell in cells if cell is cells[0] or cell.weight >= LEAST_SHOWN)


def _result(trial_id: str, judged: Judgement) -> TrialResult:
    best = max(judged, key=lambda at: judged[at].select_value)
    n_passed = sum(one.passed for one in judged.values())
    return TrialResult(trial_id, judged[best].title, n_passed, best[0], best[1], judged[best])
