"""The classic wrong steps, really run: what breaks, what only looks right, and what a test would see.

Each mistake changes one line of the seven steps and leaves the rest alone. Most of them
raise nothing: every shape fits and only the numbers are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attention.errors import UserError
from attention.layout import HeadLayout
from attention.multihead import Step, StepTrace, multi_head_attention, rotate_half, softmax
from attention.provenance import axis_word

Array = NDArray[Any]
ROW_TOLERANCE = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 1e-4}


@dataclass(frozen=True)
class Mistake:
    """A wrong line and the right one it stands in for, before anything is run."""

    key: str
    title: str
    number: str
    caught_by: str


@dataclass(frozen=True, eq=False)
class Comparison:
    """One tensor made right and made wrong.

    A row is the last axis; it counts as wrong where any number differs by more than
    ``tolerance`` times the largest correct number (at least 1), or is not finite.
    ``difference`` is wrong - correct. Arrays are read-only.
    """

    symbol: str
    axes: tuple[str, ...]
    correct: Array
    wrong: Array
    difference: Array
    rows_wrong: int
    rows_total: int
    largest: float
    tolerance: float


@dataclass(frozen=True)
class Mix:
    """Where one row of the wrong tensor really got its numbers.

    ``row`` is the row's address in words, ``expected`` what it should hold, ``got`` what
    it holds; ``tokens`` are the tokens whose numbers ended up in it.
    """

    row: str
    expected: str
    got: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class MistakeReport:
    """What one mistake did to one attention.

    ``visible`` is False where the wrong line gives the right numbers at these settings;
    ``sentence`` then says why. ``error`` and ``mismatched_axis`` are set where NumPy
    refused. ``at_step`` compares the first tensor that goes wrong, ``output`` the last.
    """

    mistake: Mistake
    wrong_line: str
    right_line: str
    visible: bool
    sentence: str
    error: str | None = None
    mismatched_axis: str | None = None
    at_step: Comparison | None = None
    output: Comparison | None = None
    mixed: tuple[Mix, ...] = ()

    @property
    def rows_wrong(self) -> int:
        """Wrong rows of the final output."""
        return self.output.rows_wrong if self.output else 0

    @property
    def rows_total(self) -> int:
        """All rows of the final output: tokens, times sequences."""
        return self.output.rows_total if self.output else 0


@dataclass(frozen=True, eq=False)
class _Attempt:
    """A wrong run: its line, the tensor it spoils (None: not of the right shape), and the rest done right."""

    wrong_line: str
    right_line: str
    spoiled: str | None
    made: Array | None
    output: Array
    mixed: tuple[Mix, ...] = ()


class _MismatchError(Exception):
    """NumPy refused a line: which one, in its own words, and on which axis."""

    def __init__(self, wrong_line: str, right_line: str, error: str, axis: str) -> None:
        super().__init__(error)
        self.wrong_line, self.right_line, self.error, self.axis = wrong_line, right_line, error, axis


MISTAKES = (
    Mistake(
        "skip_permute",
        "Skip the permute: reshape straight to (heads, seq, d_head)",
        "3",
        "Compare with F.scaled_dot_product_attention, every size different; or change the last token only and check "
        "that no other token's row of K moves.",
    ),
    Mistake(
        "concat_without_permute",
        "Concatenate without permuting back",
        "6",
        "Use W_v and W_o that copy their input, and let each token look only at itself: the output must then be x.",
    ),
    Mistake(
        "no_scale",
        "Forget to divide by √d_head",
        "4",
        "Compare with F.scaled_dot_product_attention; or give every Q and K the value 1 and check that each score "
        "is √d_head.",
    ),
    Mistake("wrong_softmax_axis", "Softmax over the wrong axis", "4", "Check that every query's weights add up to 1."),
    Mistake(
        "tile_kv",
        "Tile the K/V heads instead of repeating each",
        "4",
        "Compare with enable_gqa=True at 4 query heads and 2 K/V heads. With 2 and 2, or with 1 K/V head, no test "
        "can tell.",
    ),
    Mistake(
        "mask_after_softmax",
        "Mask after the softmax",
        "4",
        "Check that every query's weights still add up to 1; or change a later token and see whether an earlier "
        "row moves.",
    ),
    Mistake(
        "drop_transpose",
        "Leave the transpose out: heads stay behind the tokens",
        "3",
        "Assert the shape of the weights: (n_heads, seq_len, seq_len). Use a seq_len that differs from n_heads.",
    ),
)


def run_mistake(
    key: str,
    x: ArrayLike,
    weights: Mapping[str, ArrayLike],
    layout: HeadLayout,
    causal: bool = False,
    mask: ArrayLike | None = None,
    rope: tuple[ArrayLike, ArrayLike] | None = None,
) -> MistakeReport:
    """Run attention right, run it with one wrong line, and compare.

    Arguments after ``key`` are those of ``multi_head_attention``. ``key`` is one of
    ``MISTAKES``: the six classics, and ``drop_transpose``, which NumPy often refuses.
    Raises UserError for an unknown key, and whatever ``multi_head_attention`` raises.
    """
    found = [mistake for mistake in MISTAKES if mistake.key == key]
    if not found:
        raise UserError(
            f"There is no mistake called {key!r}.",
            f"It may be {', '.join(each.key for each in MISTAKES)}.",
            "Choose one of these.",
        )
    right = multi_head_attention(x, weights, layout, causal, mask, rope)
    (mistake,) = found
    try:
        attempt = _ATTEMPTS[key](right)
    except _MismatchError as refusal:
        return MistakeReport(
            mistake,
            refusal.wrong_line,
            refusal.right_line,
            True,
            f"NumPy refuses: {refusal.axis}.",
            refusal.error,
            refusal.axis,
        )
    if attempt is None:
        return _nothing_to_break(mistake, right)
    return _reported(mistake, right, attempt)


def _reported(mistake: Mistake, right: StepTrace, attempt: _Attempt) -> MistakeReport:
    at_step = None
    if attempt.spoiled is not None and attempt.made is not None:
        step = right.step(attempt.spoiled)
        at_step = _compared(step.symbol, step.axes, step.array, attempt.made)
    last = right.steps[-1]
    output = _compared(last.symbol, last.axes, last.array, attempt.output)
    visible = bool(output.rows_wrong or (at_step and at_step.rows_wrong))
    return MistakeReport(
        mistake,
        attempt.wrong_line,
        attempt.right_line,
        visible,
        _silent(at_step, output) if visible else f"Not visible at these settings: {_why_hidden(mistake.key, right)}",
        at_step=at_step,
        output=output,
        mixed=attempt.mixed if visible else (),
    )


def _silent(at_step: Comparison | None, output: Comparison) -> str:
    verb = "row is" if output.rows_total == 1 else "rows are"
    sentence = f"Runs without an error. {output.rows_wrong} of {output.rows_total} {verb} wrong."
    if at_step and not output.rows_wrong:
        sentence += f" In {at_step.symbol}, {at_step.rows_wrong} of {at_step.rows_total} are."
    return sentence


def _nothing_to_break(mistake: Mistake, right: StepTrace) -> MistakeReport:
    wrong, line = {
        "tile_kv": ("K = np.tile(K, …)", "K"),
        "mask_after_softmax": ("weights = np.where(mask, weights, 0)", "weights = softmax(scores)"),
    }[mistake.key]
    right_line = line if " = " in line else "no line: every query head has its own K and V"
    return MistakeReport(
        mistake, wrong, right_line, False, f"Not visible at these settings: {_why_hidden(mistake.key, right)}"
    )


def _why_hidden(key: str, right: StepTrace) -> str:
    layout, late_mask = right.layout, key == "mask_after_softmax"
    moves_heads = key in ("skip_permute", "concat_without_permute", "drop_transpose")
    reasons = (
        (
            key == "tile_kv" and layout.q_per_kv == 1,
            "this is MHA, every query head has its own K and V, so nothing is copied.",
        ),
        (
            key == "tile_kv" and layout.n_kv_heads == 1,
            "with one K/V head (MQA), tiling and repeating give the same copies.",
        ),
        (late_mask and not right.sizes.masked, "there is no mask here. Turn causal on."),
        (
            right.sizes.seq_len == 1,
            "there is one token, so there is no second row to mix it with and every weight is 1.",
        ),
        (moves_heads and layout.n_heads == 1, "there is one head, so moving the head axis changes no address."),
        (key == "no_scale" and layout.d_head == 1, "d_head is 1, and √1 is 1."),
        (late_mask, "the mask hides nothing that had any weight."),
        (True, "the wrong line happens to give the same numbers here."),
    )
    return next(sentence for holds, sentence in reasons if holds)


# ---- the wrong lines. Shapes in comments leave the batch out.


def _skip_permute(right: StepTrace) -> _Attempt:
    layout = right.layout
    heads = {"Q": layout.n_heads, "K": layout.n_kv_heads, "V": layout.n_kv_heads}
    wrong = {
        symbol: right.step(f"1.{symbol}").array.reshape(right.step(f"3.{symbol}").shape)  # (heads, seq, d_head)
        for symbol in heads
    }
    # the heads that show it: with a single K/V head the reshape of K is right
    symbol = "K" if layout.n_kv_heads > 1 else "Q"
    counts = "n_kv_heads" if symbol == "K" else "n_heads"
    lead = "batch_size, " if right.sizes.lead else ""
    swap = right.step(f"3.{symbol}").code.split(f"{symbol}.", 1)[1]
    return _Attempt(
        f"{symbol} = {symbol}.reshape({lead}{counts}, seq_len, d_head)",
        f"{symbol} = {symbol}.reshape({lead}seq_len, {counts}, d_head).{swap}",
        f"3.{symbol}",
        wrong[symbol],
        _finish(right, wrong),
        _mixed_by_reshape(heads[symbol], right.sizes.seq_len, symbol, axis_word(right.step(f"3.{symbol}").axes[-3])),
    )


def _concat_without_permute(right: StepTrace) -> _Attempt:
    concat = right.step("6.concat")
    joined = right.step("5.heads_out").array.reshape(concat.shape)  # (heads, seq, d) read as (seq, heads·d)
    back = right.step("6.heads_out").code.split("heads_out.", 1)[1]
    reshape = concat.code.split("heads_out.", 1)[1]
    return _Attempt(
        f"concat = heads_out.{reshape}",
        f"concat = heads_out.{back}.{reshape}",
        "6.concat",
        joined,
        _projected(right, joined),
        _mixed_by_concat(right),
    )


def _no_scale(right: StepTrace) -> _Attempt:
    step = right.step("4.scores")
    scores = step.array * right.layout.d_head**0.5
    weights = softmax(_hidden(right, scores))
    line = step.code.split(" / ")[0]
    return _Attempt(line, step.code, "4.scores", scores, _from_weights(right, weights))


def _wrong_softmax_axis(right: StepTrace) -> _Attempt:
    step = right.step("4.weights")
    source = right.step("4.masked" if right.sizes.masked else "4.scores")
    weights = softmax(source.array, axis=-2)
    sums = weights.reshape(-1, *weights.shape[-2:])[0].sum(axis=-1)
    mixed = tuple(
        Mix(
            f"weights[{'batch 0, ' if right.sizes.lead else ''}head 0, query {query}]",
            "weights that add up to 1",
            f"{total:.2f} in all",
            (query,),
        )
        for query, total in enumerate(sums.tolist())
    )
    return _Attempt(
        f"weights = softmax({source.symbol}, axis=-2)",
        f"weights = softmax({source.symbol}, axis=-1)",
        step.key,
        weights,
        _from_weights(right, weights),
        mixed,
    )


def _tile_kv(right: StepTrace) -> _Attempt | None:
    layout = right.layout
    if layout.q_per_kv == 1:
        return None
    copies = [1] * right.sizes.lead + [layout.q_per_kv, 1, 1]
    K = np.tile(right.step("3½.K" if right.sizes.rope else "3.K").array, copies)  # heads 0, 1, 0, 1
    V = np.tile(right.step("3.V").array, copies)
    shown = ", ".join(["1"] * right.sizes.lead + ["q_per_kv", "1", "1"])
    mixed = tuple(
        Mix(
            f"query head {head}",
            f"KV {layout.kv_head_of(head)}",
            f"KV {head % layout.n_kv_heads}",
            tuple(range(right.sizes.seq_len)),
        )
        for head in range(layout.n_heads)
        if layout.kv_head_of(head) != head % layout.n_kv_heads
    )
    Q = right.step("3½.Q" if right.sizes.rope else "3.Q").array
    return _Attempt(f"K = np.tile(K, ({shown}))", right.step("4.K").code, "4.K", K, _from_heads(right, Q, K, V), mixed)


def _mask_after_softmax(right: StepTrace) -> _Attempt | None:
    if not right.sizes.masked:
        return None
    masked = right.step("4.masked")
    allowed = masked.array > -np.inf
    # numbers added by a float mask stay where they were; only blocking comes too late
    before = right.step("4.scores").array
    added = np.where(allowed, masked.array, before)
    weights = np.where(allowed, softmax(added), 0)
    totals = weights.reshape(-1, *weights.shape[-2:])[0].sum(axis=-1)
    mixed = tuple(
        Mix(
            f"weights[{'batch 0, ' if right.sizes.lead else ''}head 0, query {query}]",
            "weights that add up to 1",
            f"{total:.2f} in all: the hidden keys took the rest",
            tuple(np.flatnonzero(~allowed.reshape(-1, *allowed.shape[-2:])[0][query]).tolist()),
        )
        for query, total in enumerate(totals.tolist())
        if total < 1 - 1e-9
    )
    return _Attempt(
        "weights = np.where(mask, softmax(scores), 0)",
        "weights = softmax(np.where(mask, scores, -np.inf))",
        "4.weights",
        weights,
        _from_weights(right, weights),
        mixed,
    )


def _drop_transpose(right: StepTrace) -> _Attempt:
    layout, sizes = right.layout, right.sizes
    lines = ("K = K  # still (seq, heads, d_head)", right.step("3.K").code)
    lead = ("batch",) * sizes.lead
    late = (*lead, "seq", "head", "d_head")
    Q, K, V = (right.step(f"2.{symbol}").array for symbol in "QKV")  # (seq, heads, d_head)
    if sizes.rope:
        tables = [right.step(name) for name in ("cos", "sin")]
        Q, K = (
            _tried(
                lines, partial(_rotated, rows, *(table.array for table in tables)), (name, late, rows), _of(tables[0])
            )
            for name, rows in (("Q", Q), ("K", K))
        )
    K, V = (np.repeat(rows, layout.q_per_kv, axis=sizes.lead) for rows in (K, V))  # repeats tokens: they stand there
    turned = np.swapaxes(K, -1, -2)
    scores = _tried(
        lines, lambda: Q @ turned, ("Q", late, Q), ("K", (*lead, "seq", "d_head", "head"), turned), product=True
    )
    scores = scores / layout.d_head**0.5  # (seq, head, head): heads meet heads
    if sizes.masked:
        mask = right.step("4.mask" if sizes.causal else "mask")
        crossed = ("scores", (*lead, "seq", "head", "head"), scores)
        scores = _tried(lines, lambda: _with_mask(scores, mask.array), crossed, _of(mask))
    shares = softmax(scores)
    crossed = ("weights", (*lead, "seq", "head", "head"), shares)
    heads_out = _tried(lines, lambda: shares @ V, crossed, ("V", late, V), product=True)  # (seq, head, d_head)
    back = np.swapaxes(heads_out, -3, -2)  # the next lines are the right ones, and turn it the wrong way
    concat = right.step("6.concat")
    wanted = ("concat", concat.axes, concat.array)
    made = ("heads_out", (*lead, "head", "seq", "d_head"), back)
    joined = _tried(lines, lambda: back.reshape(concat.shape), made, wanted)
    shape = "(n_heads, query, key)"
    mix = Mix("weights", f"{shape} = {right.weights.shape}", f"(token, head, head) = {scores.shape}: tokens never meet")
    return _Attempt(*lines, None, None, _projected(right, joined), (mix,))


# ---- everything after the wrong line, done right


def _finish(right: StepTrace, heads: Mapping[str, Array]) -> Array:
    """Steps 3½ to 7 on Q, K and V of (heads, seq, d_head)."""
    layout, Q, K = right.layout, heads["Q"], heads["K"]
    if right.sizes.rope:
        cos, sin = right.step("cos").array, right.step("sin").array
        Q, K = _rotated(Q, cos, sin), _rotated(K, cos, sin)
    K, V = (np.repeat(rows, layout.q_per_kv, axis=-3) for rows in (K, heads["V"]))
    return _from_heads(right, Q, K, V)


def _from_heads(right: StepTrace, Q: Array, K: Array, V: Array) -> Array:
    scores = Q @ np.swapaxes(K, -1, -2) / right.layout.d_head**0.5
    return _from_weights(right, softmax(_hidden(right, scores)), V)


def _from_weights(right: StepTrace, weights: Array, V: Array | None = None) -> Array:
    if V is None:
        V = right.step("5.V" if right.layout.q_per_kv > 1 else "3.V").array
    joined = np.swapaxes(weights @ V, -3, -2).reshape(right.step("6.concat").shape)
    return _projected(right, joined)


def _projected(right: StepTrace, concat: Array) -> Array:
    output = concat @ right.step("W_o").array
    return output + right.step("b_o").array if "b_o" in right.sizes.biases else output


def _rotated(rows: Array, cos: Array, sin: Array) -> Array:
    return rows * cos + rotate_half(rows) * sin


def _hidden(right: StepTrace, scores: Array) -> Array:
    if not right.sizes.masked:
        return scores
    return _with_mask(scores, right.step("4.mask" if right.sizes.causal else "mask").array)


def _with_mask(scores: Array, mask: Array) -> Array:
    return np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask


# ---- what went where


def _mixed_by_reshape(heads: int, seq_len: int, symbol: str, word: str) -> tuple[Mix, ...]:
    """Row (head, slot) of the reshaped tensor is piece ``head·seq_len + slot`` of the flat numbers."""
    mixes = []
    for head in range(heads):
        for slot in range(seq_len):
            token, source = divmod(head * seq_len + slot, heads)
            if (source, token) != (head, slot):
                mixes.append(
                    Mix(
                        f"{symbol}[{word} {head}, token {slot}]",
                        f"token {slot}, {word} {head}",
                        f"token {token}, {word} {source}",
                        (token,),
                    )
                )
    return tuple(mixes)


def _mixed_by_concat(right: StepTrace) -> tuple[Mix, ...]:
    """Row ``token`` of the concat is made of pieces ``token·n_heads`` and on of (heads, seq) in flat order."""
    heads, seq_len = right.layout.n_heads, right.sizes.seq_len
    mixes = []
    for row in range(seq_len):
        pieces = [divmod(row * heads + place, seq_len) for place in range(heads)]
        if pieces != [(head, row) for head in range(heads)]:
            got = "; ".join(f"token {token}, head {head}" for head, token in pieces)
            tokens = tuple(sorted({token for _, token in pieces}))
            mixes.append(Mix(f"concat[token {row}]", f"token {row}, heads 0 to {heads - 1}", got, tokens))
    return tuple(mixes)


def _compared(symbol: str, axes: tuple[str, ...], correct: Array, wrong: Array) -> Comparison:
    difference = wrong - correct
    tolerance = ROW_TOLERANCE[correct.dtype]
    limit = tolerance * max(1.0, float(np.abs(correct).max()))
    rows = ~(np.abs(difference) <= limit).all(axis=-1)
    for array in (wrong, difference):
        array.flags.writeable = False
    return Comparison(
        symbol,
        axes,
        correct,
        wrong,
        difference,
        int(rows.sum()),
        rows.size,
        float(np.abs(difference).max()),
        tolerance,
    )


# ---- NumPy's refusals, with the axis named

_Operand = tuple[str, tuple[str, ...], Array]


def _of(step: Step) -> _Operand:
    return step.symbol, step.axes, step.array


def _tried(
    lines: tuple[str, str], operation: Callable[[], Array], one: _Operand, two: _Operand, product: bool = False
) -> Array:
    """Run an operation; where NumPy refuses, say which axis of which operand does not fit."""
    try:
        return operation()
    except ValueError as error:
        raise _MismatchError(*lines, str(error), _disagreement(one, two, product)) from error


def _disagreement(one: _Operand, two: _Operand, product: bool) -> str:
    """The first axes, counted from the right, whose sizes cannot be matched; a product first joins its inner two."""
    if product and one[2].shape[-1] != two[2].shape[-2]:
        return f"{one[0]}'s last axis is {one[2].shape[-1]}, {two[0]}'s axis {two[1][-2]} is {two[2].shape[-2]}"
    pairs = list(zip(*(zip(axes[::-1], array.shape[::-1], strict=True) for _, axes, array in (one, two)), strict=False))
    for (axis, size), (other, other_size) in pairs[2 if product else 0 :]:
        if size != other_size and 1 not in (size, other_size):
            return f"{one[0]}'s axis {axis} is {size}, {two[0]}'s axis {other} is {other_size}"
    return f"{one[0]} has shape {one[2].shape}, {two[0]} has shape {two[2].shape}"


_ATTEMPTS: dict[str, Callable[[StepTrace], _Attempt | None]] = {
    "skip_permute": _skip_permute,
    "concat_without_permute": _concat_without_permute,
    "no_scale": _no_scale,
    "wrong_softmax_axis": _wrong_softmax_axis,
    "tile_kv": _tile_kv,
    "mask_after_softmax": _mask_after_softmax,
    "drop_transpose": _drop_transpose,
}
