"""Quick-check questions about real heads, and about six lines of code with one mistake in them.

Answers come from the shipped maps, atlases and evidence, and from running the mistake. See ``quiz_numbers.Made``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np

from attention.atlas import HeadAtlas, shipped_atlas
from attention.formulas import broadness, offset_weight, sink_mass
from attention.mistakes import run_mistake
from attention.model_facts import BUNDLED, title_of
from attention.multihead import random_inputs
from attention.quiz_maps import HeadMap, shipped_maps
from attention.quiz_numbers import Made, Maker, draw_sizes

MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
OTHERS = 5  # maps beside the right one
Score = Callable[[HeadMap], float]


@dataclass(frozen=True)
class Task:
    """Something one head of a sentence does far more than others. Others must stay below ``apart`` of its score."""

    asked: str
    score: Score
    texts: tuple[str, ...]
    apart: float = 0.5
    words: tuple[str, str] | None = None


# ---- click the head that …


def _at(offset: int) -> Score:
    return lambda one: float(offset_weight(one.weights, offset))


def _rests(one: HeadMap) -> float:
    return float(sink_mass(one.weights, one.visible).max())


def _even(one: HeadMap) -> float:
    return float(np.nanmean(broadness(one.weights, one.visible)))


def _link(asked: str, text: str, query: str, key: str) -> Task:
    """“query looks at key”: the last token of that label, and the first."""
    return Task(
        asked, lambda one: float(one.weights[one.place(query), one.labels.index(key)]), (text,), words=(query, key)
    )


WOLVES, ALICE, COWS = _MINILM_TEXTS = (
    "The wolves circled the horse, but they did not attack.",
    "Alice fed the cats because they were hungry.",
    "The old farmer sold three brown cows.",
)
MAT, ANNA = "The cat sat on the mat that the dog chased.", "Anna met Paul in the park, and later Anna called him."
NEIGHBOURS = (
    Task("nearly every word looks at the one before it", _at(-1), (*_MINILM_TEXTS, MAT, ANNA)),
    Task("many words look at the one after them", _at(1), _MINILM_TEXTS),
)
LINKS = (
    _link("“they” looks at “wolves”", WOLVES, "they", "wolves"),
    _link("“they” looks at “cats”", ALICE, "they", "cats"),
    _link("“cows” looks at “sold”", COWS, "cows", "sold"),
    _link("the second “Anna” looks at “met”, which followed the first", ANNA, "Anna", "met"),
)
RESTING = (Task("nearly every word looks at one and the same token", _rests, (*_MINILM_TEXTS, MAT, ANNA)),)
EVEN = (Task("words spread their look most evenly, on average", _even, (*_MINILM_TEXTS, MAT, ANNA), apart=0.8),)


@dataclass(frozen=True)
class Field:
    """A task on one sentence: heads that do it, and heads that do not, the best first."""

    task: Task
    best: HeadMap
    others: tuple[HeadMap, ...]


@cache
def fields_of(tasks: tuple[Task, ...]) -> tuple[Field, ...]:
    """Every sentence on which a task has one right head and enough that are clearly wrong."""
    found = []
    for task in tasks:
        for text in task.texts:
            ranked = sorted((one for one in shipped_maps() if one.text == text), key=task.score, reverse=True)
            best = task.score(ranked[0])
            others = tuple(one for one in ranked[1:] if task.score(one) <= task.apart * best)
            if len(others) >= OTHERS:
                found.append(Field(task, ranked[0], others))
    return tuple(found)


def _head(tasks: tuple[Task, ...]) -> Maker:
    def make(draw: Random) -> Made:
        one = draw.choice(fields_of(tasks))
        values, mark = _map_values(one.best) | {"asked": one.task.asked}, None
        if one.task.words:
            query, key = one.task.words
            mark = (one.best.place(query), one.best.labels.index(key))
            values["query_place"] = mark[0]
        return Made(values, maps=(one.best, *draw.sample(one.others, OTHERS)), mark=mark)

    return make


def _map_values(one: HeadMap) -> dict[str, Any]:
    return {
        "text": one.text,
        "model": one.model,
        "model_title": title_of(one.model),
        "layer": one.layer,
        "head": one.head,
        "query_place": len(one.labels) - 2,
    }


# ---- read this heatmap


@dataclass(frozen=True)
class Reading:
    """A row of a map worth reading: the query's and the key's place, and the weight."""

    map: HeadMap
    query: int
    key: int
    weight: float


@cache
def _readings() -> tuple[Reading, ...]:
    """Rows whose strongest word stands out by twice and is no special token; the words themselves come once."""
    found = []
    for one in shipped_maps():
        once = [one.labels.count(label) == 1 and not special for label, special in _labelled(one)]
        for query, row in enumerate(one.weights):
            key = int(row.argmax())
            second = float(np.sort(row)[-2])
            if once[query] and once[key] and query != key and row[key] > max(0.3, 2 * second) and row[key] < 0.97:
                found.append(Reading(one, query, key, float(row[key])))
    return tuple(found)


def _labelled(one: HeadMap) -> list[tuple[str, bool]]:
    return list(zip(one.labels, one.special, strict=True))


def _reading_values(found: Reading) -> dict[str, Any]:
    one = found.map
    return _map_values(one) | {
        "query": one.labels[found.query],
        "key": one.labels[found.key],
        "query_place": found.query,
        "share": round(100 * found.weight),
    }


def _heat_word(draw: Random) -> Made:
    found = draw.choice(_readings())
    one = found.map
    seen = [place for place in range(len(one.labels)) if one.visible[found.query, place] and place != found.key]
    others = [one.labels[place] for place in seen if one.labels.count(one.labels[place]) == 1]
    wrong = draw.sample(others, min(4, len(others)))
    return Made(_reading_values(found), choices=(one.labels[found.key], *wrong), picture=one)


def _heat_share(draw: Random) -> Made:
    found = draw.choice(_readings())
    return Made(_reading_values(found), round(100 * found.weight), picture=found.map)


def _shown(model: str, layer: int, head: int, text: str) -> Maker:
    """A fixed question beside one shipped map."""

    def make(draw: Random) -> Made:
        one = next(
            each
            for each in shipped_maps()
            if (each.model, each.layer, each.head, each.text) == (model, layer, head, text)
        )
        top = one.labels[int(sink_mass(one.weights, one.visible).argmax())]
        return Made(_map_values(one) | {"resting": top, "share": round(100 * _rests(one))}, picture=one)

    return make


# ---- what was measured on many sentences


def _atlas(model: str) -> HeadAtlas:
    revision = next(bundled.sha256 for bundled in BUNDLED if bundled.id == model)
    atlas = shipped_atlas(model, revision)
    assert atlas is not None, f"the atlas of {model} ships with the app"
    return atlas


def _mates(draw: Random) -> Made:
    layout = _atlas(SMOLLM).model.layout
    head = draw.randrange(layout.n_heads)
    groups = [layout.query_heads_of(kv) for kv in range(layout.n_kv_heads)]
    own = layout.kv_head_of(head)
    right = _listed(groups[own])
    tiled = _listed(range(head % layout.n_kv_heads, layout.n_heads, layout.n_kv_heads))
    wrong = [tiled, *(_listed(group) for kv, group in enumerate(groups) if kv != own)]
    values = {"head": head, "n_heads": layout.n_heads, "n_kv_heads": layout.n_kv_heads, "own": own, "mates": right}
    return Made(values | {"model_title": title_of(SMOLLM)}, choices=(right, *wrong))


def _listed(heads: range) -> str:
    return ", ".join(map(str, heads))


def _evidence(draw: Random) -> Made:
    row = _atlas(MINILM).row(1, 3)
    first = row.evidence[0]
    return Made(
        {
            "layer": row.layer,
            "head": row.head,
            "share": round(100 * first.value),
            "chance": round(100 * first.baseline),
            "n": first.n,
        }
    )


def _pruning(draw: Random) -> Made:
    atlas = _atlas(SMOLLM)
    curve = atlas.pruning
    assert curve is not None, "the decoder's pruning was measured"
    every, free = len(atlas.rows), curve.n_free
    numbers = [free, *dict.fromkeys(one for one in (1, every // 2 + 10, every - 2) if abs(one - free) > 5)]
    values = {"every": every, "free": free, "tolerance": round(100 * curve.tolerance)}
    return Made(values | {"model_title": title_of(SMOLLM)}, choices=tuple(map(str, numbers)))


def _induction(draw: Random) -> Made:
    groups = {group.title: group for group in _atlas(SMOLLM).groups}
    five = groups["the 5 strongest induction heads"]
    others = next(group for title, group in groups.items() if title.startswith("the median"))
    values = {"before": f"{five.before:.1f}", "after": f"{five.after:.1f}", "others": f"{others.after:.1f}"}
    choices = (
        f"It rises from {five.before:.1f} to {five.after:.1f} nats.",
        f"It stays at {five.before:.1f} nats.",
        f"It rises from {five.before:.1f} to {others.after:.1f} nats.",
        f"It falls from {five.before:.1f} to {five.before / 2:.1f} nats.",
    )
    return Made(values | {"model_title": title_of(SMOLLM)}, choices=choices)


def _trap(draw: Random) -> Made:
    one = next(each for each in shipped_maps() if (each.text, each.layer, each.head) == (MAT, 16, 0))
    share = float(one.weights[one.place("that"), one.labels.index("mat")])
    elsewhere = _atlas(SMOLLM).row(one.layer, one.head).evidence[0]
    values = _map_values(one) | {"share": round(100 * share), "many": round(100 * elsewhere.value)}
    return Made(values, picture=one)


# ---- spot the bug in six lines


def _split(symbol: str, heads: str) -> str:
    return f"{symbol} = {symbol}.reshape(seq_len, {heads}, d_head).transpose(1, 0, 2)"


SCORES = "scores = Q @ K.transpose(0, 2, 1) / d_head**0.5"
SOFTMAX = "weights = softmax(scores, axis=-1)"
MIX = "heads_out = weights @ V"
CONCAT = "concat = heads_out.transpose(1, 0, 2).reshape(seq_len, n_heads * d_head)"
BOTH = "weights = softmax(Q @ K.transpose(0, 2, 1) / d_head**0.5, axis=-1)"
SPLITS = (_split("Q", "n_heads"), _split("K", "n_kv_heads"), _split("V", "n_kv_heads"))
REPEATS = tuple(f"{symbol} = np.repeat({symbol}, q_per_kv, axis=0)" for symbol in "KV")
MASKED = "weights = softmax(np.where(mask, scores, -np.inf))"
OUT = "output = concat @ W_o"
# For each mistake: six right lines, and which of them it spoils.
PROGRAMS: dict[str, tuple[tuple[str, ...], int]] = {
    "skip_permute": ((*SPLITS, BOTH, MIX, CONCAT), 1),
    "concat_without_permute": ((*SPLITS, BOTH, MIX, CONCAT), 5),
    "no_scale": ((*SPLITS, SCORES, SOFTMAX, MIX), 3),
    "wrong_softmax_axis": ((*SPLITS, SCORES, SOFTMAX, MIX), 4),
    "tile_kv": ((*REPEATS, SCORES, SOFTMAX, MIX, CONCAT), 0),
    "mask_after_softmax": ((SPLITS[2], SCORES, MASKED, MIX, CONCAT, OUT), 2),
}
# What stands above the six lines: the tensors they start from.
GIVEN = {
    "tile_kv": "Q has shape (n_heads, seq_len, d_head), K and V have (n_kv_heads, seq_len, d_head)",
    "mask_after_softmax": "Q and K are split and permuted already; mask is True where a query may look",
}
FROM_STEP_1 = "Q, K and V come from step 1, one row a token"
# The page's own names of the mistakes, as its link says them.
ON_SHAPES = {
    "skip_permute": "Skip the permute",
    "concat_without_permute": "Concat without permuting back",
    "no_scale": "Forget ÷ √d_head",
    "wrong_softmax_axis": "Softmax over the wrong axis",
    "tile_kv": "Tile K/V instead of repeating",
    "mask_after_softmax": "Mask after softmax",
}


def _bug(*keys: str) -> Maker:
    def make(draw: Random) -> Made:
        key = draw.choice(keys)
        causal = key == "mask_after_softmax"
        drawn = draw_sizes(draw, shared=key == "tile_kv", causal=causal)
        x, weights = random_inputs(drawn.layout, drawn.seq_len)
        report = run_mistake(key, x, weights, drawn.layout, causal)
        lines, place = PROGRAMS[key]
        spoiled = tuple(report.wrong_line if at == place else line for at, line in enumerate(lines))
        values = drawn.values | {
            "given": GIVEN.get(key, FROM_STEP_1),
            "title": report.mistake.title,
            "effect": report.sentence,
            "right_line": lines[place],
            "mistake": ON_SHAPES[key],
            "causal": str(causal).lower(),
        }
        numbers = tuple(f"Line {at}" for at in range(1, len(spoiled) + 1))
        return Made(values, place, choices=numbers, code=spoiled, shuffled=False)

    return make


HEADS: dict[str, Maker] = {
    "head_neighbour": _head(NEIGHBOURS),
    "head_word": _head(LINKS),
    "head_rest": _head(RESTING),
    "head_even": _head(EVEN),
    "heat_word": _heat_word,
    "heat_share": _heat_share,
    "heat_rows": _shown(MINILM, 1, 3, ALICE),
    "heat_mask": _shown(SMOLLM, 16, 5, MAT),
    "heat_rest": _shown(MINILM, 4, 5, WOLVES),
    "heat_trap": _trap,
    "mates": _mates,
    "evidence": _evidence,
    "pruning": _pruning,
    "induction": _induction,
    "bug_address": _bug("skip_permute", "concat_without_permute"),
    "bug_softmax": _bug("no_scale", "wrong_softmax_axis"),
    "bug_late": _bug("tile_kv", "mask_after_softmax"),
}
