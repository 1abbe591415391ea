"""Multi-head attention in seven steps of plain NumPy, every step kept.

    1 project        x @ W_q, W_k, W_v      (seq, d_model)        -> (seq, heads·d_head)
    2 split          reshape                (seq, heads·d_head)   -> (seq, heads, d_head)
    3 permute        transpose              (seq, heads, d_head)  -> (heads, seq, d_head)
    3½ rotate        RoPE, where given      (heads, seq, d_head)  -> the same shape
    4 scores         Q Kᵀ / √d_head, mask, softmax                -> (heads, query, key)
    5 weights @ V                                                 -> (heads, seq, d_head)
    6 permute back, concat                                        -> (seq, heads·d_head)
    7 W_o                                                         -> (seq, d_model)

Attention Is All You Need, arXiv 1706.03762, section 3.2; shared K/V heads: arXiv 2305.13245.
A batch axis, where x has one, comes first in every tensor. Needs NumPy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attention.errors import UserError
from attention.layout import HeadLayout
from attention.listings import ROPE_BASE, code_listing
from attention.provenance import Mask, Region, axis_word, in_words, region_of, sources_of, targets_of
from attention.step_plan import (
    BIASES,
    CostRow,
    Sizes,
    StepPlan,
    compare_with_mha,
    input_axes,
    input_shapes,
    plan_steps,
)

__all__ = [
    "CostRow",
    "Guidance",
    "Place",
    "ScoreRank",
    "Sizes",
    "Step",
    "StepPlan",
    "StepTrace",
    "code_listing",
    "compare_with_mha",
    "d_head_guidance",
    "multi_head_attention",
    "plan_steps",
    "random_inputs",
    "rope_tables",
    "rotate_half",
    "score_rank",
    "softmax",
]

Array = NDArray[Any]
WEIGHTS = ("W_q", "W_k", "W_v", "W_o")


@dataclass(frozen=True, eq=False)
class Step(StepPlan):
    """One tensor of a run: its plan, the array itself (read-only), and how it lies in memory.

    ``strides`` counts elements (as ``torch.Tensor.stride``), ``contiguous`` is C order,
    ``copied`` says whether the step wrote new memory or only re-addressed the old.
    """

    array: Array = None  # type: ignore[assignment]  # always given; a default is owed to the plan's defaults
    strides: tuple[int, ...] = ()
    contiguous: bool = True
    copied: bool = True

    __eq__ = object.__eq__  # two runs of one plan are not the same step
    __hash__ = object.__hash__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.array.flags.writeable = False  # pickling forgets it


@dataclass(frozen=True)
class Place:
    """Some elements of one tensor: which, how many, and in words.

    ``position`` is the step's index in ``StepTrace.steps``, or None for an input.
    ``region`` indexes the array (ints, slices, or listed positions).
    """

    key: str
    symbol: str
    number: str
    position: int | None
    region: Region
    count: int
    text: str


@dataclass(frozen=True, eq=False)
class StepTrace:
    """A finished run: every tensor in order, the inputs it came from, and what to mind.

    ``notes`` are sentences about this very run (queries that may look at nothing).
    Arrays are read-only.
    """

    sizes: Sizes
    inputs: tuple[Step, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()

    @property
    def layout(self) -> HeadLayout:
        """The layout the run was made with."""
        return self.sizes.layout

    @property
    def output(self) -> Array:
        """The last step's array, (seq, d_model), with the batch in front where x had one."""
        return self.steps[-1].array

    @property
    def weights(self) -> Array:
        """Attention weights (head, query, key); rows add up to 1."""
        return self.step("weights").array

    @property
    def scores(self) -> Array:
        """Scores (head, query, key) after ÷ √d_head, before mask and softmax."""
        return self.step("scores").array

    def step(self, name: str) -> Step:
        """A step or input by key (``3.K``, ``x``), else the last step of that symbol (``scores``, ``K``).

        Raises UserError for a name this run has not.
        """
        every = (*self.inputs, *self.steps)
        found = [step for step in every if _key(step) == name] or [step for step in every if step.symbol == name]
        if not found:
            names = ", ".join(map(_key, every))
            raise UserError(f"This run has no tensor {name!r}.", f"It has {names}.", "Choose one of these.")
        return found[-1]

    def where_from(self, step: int | str | Step, index: tuple[int, ...]) -> tuple[Place, ...]:
        """The elements of earlier tensors that decide element ``index`` of a step.

        Exact: a change to an element named here can change this one, a change to any
        other cannot. A pair the mask blocks owes nothing to its score, and a blocked
        key's value reaches nobody. Raises UserError for an index outside the array.
        """
        here = self._resolve(step)
        chosen = self._one(here, index)
        places = []
        for link in here.links:
            source = self.step(link.source)
            found = sources_of(link, chosen, source.shape, self._allowed(here))
            if found.any():
                places.append(self._place(source, found))
        return tuple(places)

    def where_to(self, step: int | str | Step, index: tuple[int, ...]) -> tuple[Place, ...]:
        """The elements of the next tensors that element ``index`` of a step reaches. As ``where_from``."""
        here = self._resolve(step)
        chosen = self._one(here, index)
        places = []
        for target in self.steps:
            for link in target.links:
                if link.source == _key(here):
                    reached = targets_of(link, chosen, target.shape, self._allowed(target))
                    if reached.any():
                        places.append(self._place(target, reached))
        return tuple(places)

    def lit(self, step: int | str | Step, index: tuple[int, ...]) -> dict[str, Mask]:
        """Everything one element came from and everything it reaches: a mask per tensor, by key.

        Follows ``where_from`` back to the inputs and ``where_to`` on to the output. Inputs
        carry their bare name (``x``, ``W_q``) as key. All-False masks are included.
        """
        here = self._resolve(step)
        chosen = self._one(here, index)
        masks = {_key(each): np.zeros(each.shape, bool) for each in (*self.inputs, *self.steps)}
        masks[_key(here)] = chosen
        for later in reversed(self.steps):
            if masks[later.key].any():
                for link in later.links:
                    masks[link.source] |= sources_of(
                        link, masks[later.key], masks[link.source].shape, self._allowed(later)
                    )
        onward = {key: np.zeros_like(mask) for key, mask in masks.items()}
        onward[_key(here)] = chosen
        for later in self.steps:
            for link in later.links:
                if onward[link.source].any():
                    onward[later.key] |= targets_of(link, onward[link.source], later.shape, self._allowed(later))
        return {key: mask | onward[key] for key, mask in masks.items()}

    def story(self, step: int | str | Step, index: tuple[int, ...]) -> str:
        """The element's way in one or two sentences: what it was, what it was made of, where it goes."""
        here = self._resolve(step)
        said = in_words(here.symbol, here.axes, index)
        moves: list[str] = []
        at, spot = here, index
        sources = self.where_from(at, spot)
        while len(sources) == 1 and sources[0].count == 1 and sources[0].position is not None:
            moves.append(sources[0].text)
            at, spot = self.steps[sources[0].position], tuple(int(part) for part in sources[0].region)  # type: ignore[arg-type]
            sources = self.where_from(at, spot)
        sentences = [f"{said} was {', and before that '.join(moves)}."] if moves else []
        subject = "It" if moves else said
        if sources:
            sentences.append(f"{subject} was computed from {_listed([place.text for place in sources])}.")
        elif not here.links and here.number == "0":
            sentences.append(f"{said} was given.")
        onward = self.where_to(here, index)
        if onward:
            sentences.append(f"It goes into {_listed([place.text for place in onward])}.")
        return " ".join(sentences)

    def _resolve(self, step: int | str | Step) -> Step:
        if isinstance(step, Step):
            return step
        if isinstance(step, str):
            return self.step(step)
        if not 0 <= step < len(self.steps):
            raise UserError(
                f"There is no step at position {step}.",
                f"Positions run from 0 to {len(self.steps) - 1}.",
                "Choose one of these.",
            )
        return self.steps[step]

    def _one(self, step: Step, index: tuple[int, ...]) -> Mask:
        if len(index) != len(step.shape):
            raise UserError(
                f"{step.symbol} has {len(step.shape)} axes ({', '.join(step.axes)}), the index has {len(index)}.",
                "Give one position per axis.",
                "Count the axes again.",
            )
        for axis, place, size in zip(step.axes, index, step.shape, strict=True):
            if not 0 <= place < size:
                raise UserError(
                    f"{step.symbol} has no {axis_word(axis)} {place} (axis {axis}).",
                    f"It may be 0 to {size - 1}.",
                    "Choose one of these.",
                )
        chosen = np.zeros(step.shape, bool)
        chosen[tuple(index)] = True
        return chosen

    def _place(self, step: Step, chosen: Mask) -> Place:
        region = region_of(chosen)
        position = None if step.number == "0" else self.steps.index(step)
        text = in_words(step.symbol, step.axes, region)
        return Place(_key(step), step.symbol, step.number, position, region, int(chosen.sum()), text)

    def _allowed(self, target: Step) -> Mask | None:
        """Which (query, key) pairs are open, as the target's gated link needs them."""
        if not self.sizes.masked:
            return None
        if target.symbol == "mask":
            return np.broadcast_to(np.tril(np.ones(target.shape[-2:], bool)), target.shape)
        shape = self.sizes.shape(self.layout.n_heads, self.sizes.seq_len, self.sizes.seq_len)
        return np.broadcast_to(_open_pairs(self.step("4.mask" if self.sizes.causal else "mask").array), shape)


@dataclass(frozen=True)
class ScoreRank:
    """Measured rank of each head's score matrix beside its bound."""

    ranks: tuple[int, ...]
    bound: int
    tolerance: float
    sentence: str


@dataclass(frozen=True)
class Guidance:
    """What to think of a head width: ``level`` is "usual", "note" or "warning"."""

    level: str
    sentence: str


def multi_head_attention(
    x: ArrayLike,
    weights: Mapping[str, ArrayLike],
    layout: HeadLayout,
    causal: bool = False,
    mask: ArrayLike | None = None,
    rope: tuple[ArrayLike, ArrayLike] | None = None,
) -> StepTrace:
    """Run attention on ``x`` and keep every step.

    x: (seq, d_model) or (batch, seq, d_model). weights: ``W_q`` (d_model, n_heads·d_head),
    ``W_k`` and ``W_v`` (d_model, n_kv_heads·d_head), ``W_o`` (n_heads·d_head, d_model), used
    as ``x @ W``; biases ``b_q``, ``b_k``, ``b_v``, ``b_o`` where a model has them.
    mask: True = may look (as ``F.scaled_dot_product_attention``), or numbers added to the
    scores; (query, key), with head and batch axes in front if wanted, each full or 1.
    rope: (cos, sin), each (seq, d_head), in Llama's pairing (dim i with dim i + d_head/2).
    float64 (or whole numbers) anywhere computes in float64, else float32.

    A query that may look at no key gets weights of exactly 0, as SDPA does, and a note.
    Raises UserError naming the axis for any shape that does not fit.
    """
    values, sizes = _checked_inputs(x, weights, layout, causal, mask, rope)
    done = _compute(values, sizes)
    axes = input_axes(sizes)
    inputs = tuple(_input(name, axes[name], values[name]) for name in axes)
    made: dict[str, Array] = dict(values)
    steps = []
    for plan in plan_steps(sizes):
        before = made[plan.links[0].source] if plan.links else None
        steps.append(_recorded(plan, done[plan.key], before))
        made[plan.key] = done[plan.key]
    return StepTrace(sizes, inputs, tuple(steps), _notes(done["4.weights"], sizes))


def random_inputs(
    layout: HeadLayout, seq_len: int, seed: int = 0, *, batch_size: int | None = None, biases: bool = False
) -> tuple[Array, dict[str, Array]]:
    """x and weights from ``default_rng(seed).standard_normal``, float64.

    Drawn in the order x, W_q, W_k, W_v, W_o, then b_q, b_k, b_v, b_o; x is (seq, d_model),
    or (batch, seq, d_model). Raises UserError for sizes the steps cannot take.
    """
    rng = np.random.default_rng(seed)
    shapes = input_shapes(Sizes(layout, seq_len, batch_size, biases=frozenset(BIASES) if biases else frozenset()))
    drawn = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return drawn.pop("x"), drawn


def rope_tables(seq_len: int, d_head: int, base: float = ROPE_BASE) -> tuple[Array, Array]:
    """cos and sin of every position's angles, each (seq, d_head), float64, in Llama's pairing.

    angle(position, i) = position · base^(-2i / d_head): RoFormer, arXiv 2104.09864, section
    3.2.2. Raises UserError for an odd d_head.
    """
    if d_head % 2:
        raise UserError(
            f"RoPE turns dimensions in pairs, and d_head {d_head} is odd.",
            "d_head must be even.",
            "Choose an even d_head or leave RoPE out.",
        )
    angles = np.outer(np.arange(seq_len), base ** (-np.arange(0, d_head, 2) / d_head))
    angles = np.concatenate([angles, angles], axis=-1)
    return np.cos(angles), np.sin(angles)


def rotate_half(rows: Array) -> Array:
    """The second half negated in front of the first: what sin multiplies in RoPE."""
    half = rows.shape[-1] // 2
    return np.concatenate([-rows[..., half:], rows[..., :half]], axis=-1)


def softmax(scores: Array, axis: int = -1) -> Array:
    """Shares that add up to 1 along ``axis``; a row of nothing but −∞ becomes all 0."""
    top = scores.max(axis=axis, keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = powers.sum(axis=axis, keepdims=True)
    return np.asarray(powers / np.where(total == 0, 1, total))


def score_rank(scores: ArrayLike, d_head: int) -> ScoreRank:
    """Measure the rank of every head's score matrix; it cannot exceed d_head.

    scores: (query, key) or (..., query, key), before mask and softmax. Q Kᵀ is a product
    of a (seq, d_head) and a (d_head, seq) matrix, so its rank is at most d_head (Bhojanapalli
    et al., arXiv 2002.07028, section 3, names this bottleneck). A singular value counts when
    it exceeds largest · max(shape) · machine epsilon, LAPACK's usual tolerance; ``tolerance``
    is the largest such threshold. Raises UserError for scores that are not finite or not matrices.
    """
    matrix = np.asarray(scores)
    if matrix.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        matrix = matrix.astype(np.float64)
    if matrix.ndim < 2 or not matrix.size:
        raise UserError(
            f"Scores of shape {matrix.shape} are no matrix.", "The last two axes are query and key.", "Give scores."
        )
    if not np.isfinite(matrix).all():
        raise UserError(
            "Some scores are not finite.", "The rank is that of the scores before the mask.", "Use the step 'scores'."
        )
    values = np.linalg.svd(matrix.reshape(-1, *matrix.shape[-2:]), compute_uv=False)
    thresholds = values[:, :1] * max(matrix.shape[-2:]) * np.finfo(matrix.dtype).eps
    ranks = tuple(int(count) for count in (values > thresholds).sum(axis=-1))
    bound = min(d_head, *matrix.shape[-2:])
    size = f"{matrix.shape[-2]} × {matrix.shape[-1]}"
    found = f"rank {ranks[0]}" if len(set(ranks)) == 1 else f"ranks {min(ranks)} to {max(ranks)}"
    limit = "d_head" if d_head <= min(matrix.shape[-2:]) else "the number of tokens"
    sentence = (
        f"Measured on these scores: {found}. It cannot exceed {bound} ({limit}): every score in the {size} table "
        f"is a dot product of {d_head} numbers."
    )
    return ScoreRank(ranks, bound, float(thresholds.max()), sentence)


def d_head_guidance(d_head: int) -> Guidance:
    """One plain remark on a head width.

    64 is the original Transformer's (arXiv 1706.03762, section 3.2.2), 128 Llama's (arXiv
    2302.13971, table 2: 4096 / 32); MiniLM-L6's 32 is 384 / 12 in its config.json. Raises
    UserError for a width below 1.
    """
    if d_head < 1:
        raise UserError(f"d_head is {d_head}.", "It must be 1 or more.", "Choose a width, usually 64 to 128.")
    if 64 <= d_head <= 128:
        return Guidance("usual", f"d_head {d_head} is usual: most models use 64 to 128.")
    if d_head < 32:
        return Guidance(
            "warning",
            f"d_head {d_head} is small: a head's scores have rank at most {d_head}, so it can tell few patterns "
            "apart. Most models use 64 to 128; MiniLM manages with 32.",
        )
    if d_head < 64:
        own = " MiniLM itself uses 32." if d_head == 32 else " MiniLM uses 32."
        return Guidance("note", f"d_head {d_head} is below the usual 64 to 128, and works.{own}")
    return Guidance(
        "note", f"d_head {d_head} is above the usual 64 to 128: wider heads, and more KV cache per K/V head."
    )


def _compute(given: Mapping[str, Array], sizes: Sizes) -> dict[str, Array]:
    """The seven steps themselves; shapes are without the batch axis. Keys are the plan's."""
    layout, lead = sizes.layout, sizes.shape(sizes.seq_len)
    done: dict[str, Array] = {}
    for symbol, heads, width in (
        ("Q", layout.n_heads, layout.d_head),
        ("K", layout.n_kv_heads, layout.d_head),
        ("V", layout.n_kv_heads, layout.d_head_v),
    ):
        flat = _linear(given["x"], given, symbol.lower())  # (seq, heads·width)
        split = flat.reshape(*lead, heads, width)  # (seq, heads, width)
        done |= {f"1.{symbol}": flat, f"2.{symbol}": split, f"3.{symbol}": np.swapaxes(split, -3, -2)}
    Q, K, V = (done[f"3.{symbol}"] for symbol in ("Q", "K", "V"))  # (heads, seq, width)
    if sizes.rope:
        Q = done["3½.Q"] = Q * given["cos"] + rotate_half(Q) * given["sin"]
        K = done["3½.K"] = K * given["cos"] + rotate_half(K) * given["sin"]
    if layout.q_per_kv > 1:
        K = done["4.K"] = np.repeat(K, layout.q_per_kv, axis=-3)  # (n_heads, seq, d_head)
        V = done["5.V"] = np.repeat(V, layout.q_per_kv, axis=-3)
    scores = done["4.scores"] = Q @ np.swapaxes(K, -1, -2) / layout.d_head**0.5  # (n_heads, query, key)
    if sizes.masked:
        mask = given.get("mask")
        if sizes.causal:
            mask = done["4.mask"] = _with_causal(mask, sizes.seq_len)
        assert mask is not None  # masked and not causal means a mask was given
        hidden = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        scores = done["4.masked"] = hidden
    weights = done["4.weights"] = softmax(scores)
    heads_out = done["5.heads_out"] = weights @ V  # (n_heads, seq, width)
    back = done["6.heads_out"] = np.swapaxes(heads_out, -3, -2)  # (seq, n_heads, width)
    concat = done["6.concat"] = back.reshape(*lead, -1)  # (seq, n_heads·width)
    done["7.output"] = _linear(concat, given, "o")  # (seq, d_model)
    return done


def _linear(rows: Array, given: Mapping[str, Array], letter: str) -> Array:
    made = rows @ given[f"W_{letter}"]
    return made + given[f"b_{letter}"] if f"b_{letter}" in given else made


def _with_causal(mask: Array | None, seq_len: int) -> Array:
    lower = np.tril(np.ones((seq_len, seq_len), dtype=bool))
    if mask is None:
        return lower
    return mask & lower if mask.dtype == bool else np.where(lower, mask, -np.inf)


def _open_pairs(mask: Array) -> Mask:
    return mask if mask.dtype == bool else np.asarray(mask > -np.inf)


def _notes(weights: Array, sizes: Sizes) -> tuple[str, ...]:
    if not sizes.masked:
        return ()
    rows = np.argwhere(weights.sum(axis=-1) == 0)
    if not len(rows):
        return ()
    queries = sorted({int(row[-1]) for row in rows})
    named = ", ".join(map(str, queries[:8])) + (" …" if len(queries) > 8 else "")
    return (
        f"The mask leaves query {named} no key to look at ({len(rows)} rows over all heads): these weights are all 0. "
        "F.scaled_dot_product_attention does the same; nn.MultiheadAttention gives NaN.",
    )


def _key(step: StepPlan) -> str:
    return step.symbol if step.number == "0" else step.key


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _input(name: str, axes: tuple[str, ...], array: Array) -> Step:
    plan = StepPlan("0", "input", name, axes, array.shape, "Given.", "", "", "", flops_formula="0: given")
    return _recorded(plan, array, None)


def _recorded(plan: StepPlan, array: Array, before: Array | None) -> Step:
    array.flags.writeable = False
    planned = {each.name: getattr(plan, each.name) for each in fields(StepPlan)} | {"shape": array.shape}
    return Step(
        **planned,
        array=array,
        strides=tuple(stride // array.itemsize for stride in array.strides),
        contiguous=bool(array.flags.c_contiguous),
        copied=before is None or not np.may_share_memory(before, array),
    )


def _checked_inputs(
    x: ArrayLike,
    weights: Mapping[str, ArrayLike],
    layout: HeadLayout,
    causal: bool,
    mask: ArrayLike | None,
    rope: tuple[ArrayLike, ArrayLike] | None,
) -> tuple[dict[str, Array], Sizes]:
    given = {"x": _numbers("x", x)} | {name: _numbers(name, array) for name, array in weights.items()}
    _check_names(set(given) - {"x"})
    if given["x"].ndim not in (2, 3) or 0 in given["x"].shape:
        raise UserError(
            f"x has shape {given['x'].shape}.",
            f"Expected (seq, {layout.d_model}) or (batch, seq, {layout.d_model}), no axis empty.",
            "Give one row of d_model numbers per token.",
        )
    if rope is not None:
        given |= {name: _one_table(name, table) for name, table in zip(("cos", "sin"), rope, strict=True)}
    shown = None if mask is None else _mask_array(mask)
    sizes = Sizes(
        layout,
        given["x"].shape[-2],
        given["x"].shape[0] if given["x"].ndim == 3 else None,
        causal,
        rope is not None,
        frozenset(given) & frozenset(BIASES),
        None if shown is None else shown.shape,
        "bool" if shown is None or shown.dtype == bool else "float",
    )
    axes = input_axes(sizes)
    for name, expected in input_shapes(sizes).items():
        _check_shape(name, given[name].shape, expected, axes[name])
    if shown is not None:
        _check_mask(shown, sizes)
    dtype = np.result_type(*given.values())
    values = {name: np.array(array, dtype=dtype, order="C") for name, array in given.items()}
    if shown is not None:
        values["mask"] = np.array(shown, dtype=bool if shown.dtype == bool else dtype)
    return values, sizes


def _numbers(name: str, value: ArrayLike) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{name} holds {array.dtype} values.", "It must hold real numbers.", f"Convert {name} first.")
    if array.dtype.kind in "biu":
        return array.astype(np.float64)
    if not np.isfinite(array).all():
        raise UserError(f"{name} holds NaN or infinite values.", "It must be finite.", f"Look at how {name} was made.")
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def _check_names(names: set[str]) -> None:
    missing = [name for name in WEIGHTS if name not in names]
    strange = sorted(names - {*WEIGHTS, *BIASES})
    if missing or strange:
        wrong = " and ".join(
            part
            for part in (
                f"{', '.join(missing)} missing" if missing else "",
                f"{', '.join(map(repr, strange))} unknown" if strange else "",
            )
            if part
        )
        raise UserError(
            f"The weights do not fit: {wrong}.",
            f"They are {', '.join(WEIGHTS)}, and biases {', '.join(BIASES)} where a model has them.",
            "Name them so.",
        )


def _check_shape(name: str, got: tuple[int, ...], expected: tuple[int, ...], axes: tuple[str, ...]) -> None:
    if got == expected:
        return
    layout = f"({', '.join(axes)}) = {expected}"
    if len(got) != len(expected):
        raise UserError(
            f"{name} has {len(got)} axes, shape {got}.", f"Expected {len(expected)} axes: {layout}.", "Reshape it."
        )
    at = next(axis for axis in range(len(got)) if got[axis] != expected[axis])
    turned = name.startswith("W_") and got == expected[::-1]
    raise UserError(
        f"{name} has shape {got}: axis {at} ({axes[at]}) expected {expected[at]}, got {got[at]}.",
        f"Expected {layout}.",
        "It looks transposed: nn.Linear stores (out, in), so pass its weight.T."
        if turned
        else "Change the array or the layout.",
    )


def _one_table(name: str, table: ArrayLike) -> Array:
    array = _numbers(name, table)
    return array[0] if array.ndim == 3 and array.shape[0] == 1 else array  # models hand out (1, seq, d_head)


def _mask_array(mask: ArrayLike) -> Array:
    array = np.asarray(mask)
    if array.dtype == bool:
        return array
    if array.dtype.kind != "f":
        raise UserError(
            f"The mask holds {array.dtype} values.",
            "True/False (True = may look), or floating-point numbers added to the scores.",
            "Use mask.astype(bool) if 1 means may look.",
        )
    if np.isnan(array).any() or np.isposinf(array).any():
        raise UserError("The mask holds NaN or +∞.", "Added numbers are finite or −∞.", "Use −∞ to block a pair.")
    return array


def _check_mask(mask: Array, sizes: Sizes) -> None:
    full = sizes.shape(sizes.layout.n_heads, sizes.seq_len, sizes.seq_len)
    names = ("batch", "head", "query", "key")[-len(full) :]
    shown = f"(query, key) = {full[-2:]}, or ({', '.join(names)}) = {full}, where an axis may be 1"
    if mask.ndim not in (2, 3, 4) or mask.ndim > len(full):
        raise UserError(f"The mask has {mask.ndim} axes, shape {mask.shape}.", f"Expected {shown}.", "Reshape it.")
    if mask.ndim == 3 and len(full) == 4:
        raise UserError(
            f"The mask has shape {mask.shape}: with a batch, three axes could mean batches or heads.",
            f"Expected {shown}.",
            "Write mask[:, None] for one mask per sequence, mask[None] for one per head.",
        )
    offset = len(full) - mask.ndim
    for axis, got in enumerate(mask.shape):
        expected = full[axis + offset]
        if got not in (1, expected):
            raise UserError(
                f"The mask has shape {mask.shape}: axis {axis} ({names[axis + offset]}) expected {expected}, "
                f"got {got}.",
                f"Expected {shown}.",
                "Change the mask or x.",
            )
