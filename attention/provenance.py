"""Where one element of a tensor comes from and where it goes: index rules, never values.

A step's ``Link`` says, axis by axis, how an index into the new tensor is found from an
index into a tensor it was made of. The same rules read backwards give the way forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Region = tuple[int | slice | tuple[int, ...], ...]
RuleKind = Literal["all", "same", "merge", "high", "low", "pair"]
Gate = Literal["", "element", "row", "values"]

_WORDS = {"seq": "token", "kv_head": "KV head", "d_head": "dim", "d_head_v": "dim", "d_model": "column"}


@dataclass(frozen=True)
class Rule:
    """How one axis of a source tensor is indexed, given an index of the new tensor.

    ``all``: the whole axis was summed over. ``same``: equal to new axis ``a``.
    ``merge``: ``new[a] * width + new[b]``. ``high``: ``new[a] // width``; ``low``:
    ``new[a] % width``. ``pair``: ``new[a]`` and its RoPE partner ``width`` dims away.
    """

    kind: RuleKind = "all"
    a: int = 0
    b: int = 0
    width: int = 1


@dataclass(frozen=True)
class Link:
    """One tensor a step reads: its key, a rule per axis, and which mask narrows the dependence.

    ``gate`` is about blocked (query, key) pairs: ``element``: a blocked element was
    overwritten, so it owes nothing to the source; ``row``: softmax, a blocked weight is 0
    whatever the row holds; ``values``: a blocked key's value is multiplied by 0.
    """

    source: str
    rules: tuple[Rule, ...]
    gate: Gate = ""


def same(*axes: int) -> tuple[Rule, ...]:
    """Rules for source axes that equal the new tensor's ``axes``."""
    return tuple(Rule("same", axis) for axis in axes)


def sources_of(link: Link, chosen: Mask, source_shape: tuple[int, ...], allowed: Mask | None = None) -> Mask:
    """Which source elements the ``chosen`` elements of the new tensor depend on (a mask of ``source_shape``).

    ``allowed`` is True where a query may look at a key, shaped like the scores.
    """
    if link.gate and allowed is not None:
        if link.gate == "element":
            chosen = chosen & np.broadcast_to(allowed, chosen.shape)
        elif link.gate == "row":
            return (chosen & ~allowed) | np.broadcast_to((chosen & allowed).any(-1, keepdims=True), chosen.shape)
        else:
            return np.asarray(np.swapaxes(allowed, -1, -2).astype(np.float32) @ chosen.astype(np.float32) > 0)
    found = np.zeros(source_shape, bool)
    unused = set(range(chosen.ndim)) - {axis for rule in link.rules for axis in _axes_of(rule)}
    at = np.nonzero(chosen.any(axis=tuple(unused), keepdims=True))
    if not at[0].size:
        return found
    index: list[Any] = [_read(rule, at) for rule in link.rules]
    found[tuple(index)] = True
    for axis, rule in enumerate(link.rules):
        if rule.kind == "pair":
            index[axis] = _partner(at[rule.a], rule.width)
            found[tuple(index)] = True
    return found


def targets_of(link: Link, chosen: Mask, new_shape: tuple[int, ...], allowed: Mask | None = None) -> Mask:
    """Which elements of the new tensor the ``chosen`` source elements reach (a mask of ``new_shape``)."""
    if link.gate and allowed is not None and link.gate != "element":
        if link.gate == "row":
            return (chosen & ~allowed) | (chosen.any(-1, keepdims=True) & allowed)
        return np.asarray(allowed.astype(np.float32) @ chosen.astype(np.float32) > 0)
    reached = np.zeros(new_shape, bool)
    summed = tuple(axis for axis, rule in enumerate(link.rules) if rule.kind == "all")
    at = np.nonzero(chosen.any(axis=summed, keepdims=True))
    if not at[0].size:
        return reached
    for index in _written(link.rules, at, len(new_shape)):
        reached[index] = True
    if link.gate == "element" and allowed is not None:
        reached &= allowed
    return reached


def region_of(chosen: Mask) -> Region:
    """The smallest block (ints, slices, or listed positions per axis) that holds all chosen elements."""
    region: list[int | slice | tuple[int, ...]] = []
    for axis in range(chosen.ndim):
        others = tuple(other for other in range(chosen.ndim) if other != axis)
        region.append(_compact(np.flatnonzero(chosen.any(axis=others))))
    return tuple(region)


def in_words(symbol: str, axes: tuple[str, ...], region: Region) -> str:
    """A region as a person says it: ``K[head 1, token 2, dim 3]``."""
    return f"{symbol}[{', '.join(_part(axis, at) for axis, at in zip(axes, region, strict=True))}]"


def axis_word(axis: str) -> str:
    """What one position on an axis is called: ``token`` on ``seq``, ``dim`` on ``d_head``."""
    return _WORDS.get(axis, "column" if "·" in axis else axis)


def _axes_of(rule: Rule) -> tuple[int, ...]:
    if rule.kind == "all":
        return ()
    return (rule.a, rule.b) if rule.kind == "merge" else (rule.a,)


def _read(rule: Rule, at: tuple[NDArray[np.intp], ...]) -> Any:
    if rule.kind == "all":
        return slice(None)
    if rule.kind == "merge":
        return at[rule.a] * rule.width + at[rule.b]
    if rule.kind == "high":
        return at[rule.a] // rule.width
    if rule.kind == "low":
        return at[rule.a] % rule.width
    return at[rule.a]


def _written(rules: tuple[Rule, ...], at: tuple[NDArray[np.intp], ...], rank: int) -> list[tuple[Any, ...]]:
    base: list[Any] = [slice(None)] * rank
    spread: tuple[int, list[Any]] | None = None
    lows = {rule.a: at[axis] for axis, rule in enumerate(rules) if rule.kind == "low"}
    for axis, rule in enumerate(rules):
        if rule.kind == "same":
            base[rule.a] = at[axis]
        elif rule.kind == "merge":
            base[rule.a], base[rule.b] = at[axis] // rule.width, at[axis] % rule.width
        elif rule.kind == "high" and rule.a in lows:
            base[rule.a] = at[axis] * rule.width + lows[rule.a]
        elif rule.kind == "high":  # one K/V head serves `width` query heads
            spread = rule.a, [at[axis] * rule.width + copy for copy in range(rule.width)]
        elif rule.kind == "pair":
            spread = rule.a, [at[axis], _partner(at[axis], rule.width)]
    if spread is None:
        return [tuple(base)]
    axis, choices = spread
    return [(*base[:axis], choice, *base[axis + 1 :]) for choice in choices]


def _partner(dims: NDArray[np.intp], half: int) -> NDArray[np.intp]:
    return (dims + half) % (2 * half)


def _compact(places: NDArray[np.intp]) -> int | slice | tuple[int, ...]:
    if places.size == 1:
        return int(places[0])
    steps = set(np.diff(places).tolist())
    if len(steps) == 1:
        step = int(steps.pop())
        return slice(int(places[0]), int(places[-1]) + 1, None if step == 1 else step)
    return tuple(places.tolist())


def _part(axis: str, at: int | slice | tuple[int, ...]) -> str:
    word = axis_word(axis)
    if isinstance(at, int):
        return f"{word} {at}"
    words = "queries" if word == "query" else "batches" if word == "batch" else f"{word}s"
    if isinstance(at, slice) and at.step is None and at.stop - at.start > 2:
        return f"{words} {at.start} to {at.stop - 1}"
    places = at if isinstance(at, tuple) else tuple(range(at.start, at.stop, at.step or 1))
    return f"{words} {', '.join(map(str, places[:-1]))} and {places[-1]}"
