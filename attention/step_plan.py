"""The seven steps on paper: names, axes, shapes, code in three dialects, cost, and what reads what.

No array is made here, so a page can count parameters and FLOPs, or print a listing, for
sizes nobody wants to compute. ``multihead`` carries the plan out.

Shape letters, everywhere: seq (tokens), head, kv_head, d_head, query, key; a batch comes first.
One FLOP is one multiplication or one addition; a matrix product of (m, k) and (k, n) costs 2·m·k·n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from attention.errors import UserError
from attention.layout import HeadLayout
from attention.provenance import Gate, Link, Rule, same

MaskKind = Literal["bool", "float"]
BIASES = ("b_q", "b_k", "b_v", "b_o")
TRIL = "np.tril(np.ones((seq_len, seq_len), dtype=bool))"
TORCH_TRIL = "torch.ones(seq_len, seq_len, dtype=torch.bool).tril()"


@dataclass(frozen=True)
class Sizes:
    """Everything that decides the steps except the numbers themselves.

    ``batch_size=None`` means one sequence without a batch axis; ``biases`` lists those
    present; ``mask_shape`` and ``mask_kind`` describe a mask given beside ``causal``.
    Raises UserError for a seq_len or batch_size that is not a positive whole number, for
    an MLA layout, and for RoPE on an odd d_head.
    """

    layout: HeadLayout
    seq_len: int
    batch_size: int | None = None
    causal: bool = False
    rope: bool = False
    biases: frozenset[str] = field(default_factory=frozenset)
    mask_shape: tuple[int, ...] | None = None
    mask_kind: MaskKind = "bool"

    def __post_init__(self) -> None:
        for name in ("seq_len", "batch_size"):
            value = getattr(self, name)
            if value is None and name == "batch_size":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} is {value!r}.", "It must be a whole number from 1 up.", "Use at least 1.")
        if self.layout.rung == "MLA":
            raise UserError(
                "This layout has a latent (MLA), which has no W_k and W_v of the usual shape.",
                "The seven steps are those of MHA, GQA and MQA.",
                "Choose a layout without d_latent.",
            )
        if self.rope and self.layout.d_head % 2:
            raise UserError(
                f"RoPE turns dimensions in pairs, and d_head {self.layout.d_head} is odd.",
                "d_head must be even.",
                "Choose an even d_head or leave RoPE out.",
            )

    @property
    def lead(self) -> int:
        """How many axes come before the sequence's own: 1 with a batch, else 0."""
        return 0 if self.batch_size is None else 1

    def shape(self, *sizes: int) -> tuple[int, ...]:
        """``sizes`` with the batch size in front where there is one."""
        return sizes if self.batch_size is None else (self.batch_size, *sizes)

    @property
    def masked(self) -> bool:
        """Whether anything is hidden from any query."""
        return self.causal or self.mask_shape is not None


@dataclass(frozen=True)
class StepPlan:
    """One tensor of the computation, before anything is computed.

    ``number`` is "1" .. "7" or "3½" (RoPE); several tensors share a number (Q, K and V).
    ``symbol`` is the variable's name in all three code lines. ``flops`` and ``parameters``
    are exact counts; the formulas show the product that gives them.
    """

    number: str
    name: str
    symbol: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    sentence: str
    code: str
    torch: str
    einops: str
    flops: int = 0
    flops_formula: str = "0: no arithmetic"
    parameters: int = 0
    parameters_formula: str = "0: nothing learned here"
    links: tuple[Link, ...] = ()

    @property
    def key(self) -> str:
        """The step's address, unique in a run: ``3.K``."""
        return f"{self.number}.{self.symbol}"


@dataclass(frozen=True)
class CostRow:
    """One step's cost in this layout beside plain MHA (``n_kv_heads = n_heads``)."""

    number: str
    name: str
    symbol: str
    parameters: int
    parameters_mha: int
    parameters_formula: str
    flops: int
    flops_mha: int
    flops_formula: str


def plan_steps(sizes: Sizes) -> tuple[StepPlan, ...]:
    """Every tensor of the computation in order, from ``1.Q`` to ``7.output``."""
    makers: tuple[Callable[[Sizes], list[StepPlan]], ...] = (
        _project,
        _split,
        _permute,
        _rotate,
        _scores,
        _mix,
        _join,
        _out,
    )
    return tuple(step for make in makers for step in make(sizes))


def input_axes(sizes: Sizes) -> dict[str, tuple[str, ...]]:
    """Axis names of everything handed in: x, the weights, the biases, cos and sin, the mask."""
    q_cols, kv_cols, v_cols, joined = _columns(sizes.layout)
    axes = {
        "x": _axes(sizes, "seq", "d_model"),
        "W_q": ("d_model", q_cols),
        "W_k": ("d_model", kv_cols),
        "W_v": ("d_model", v_cols),
        "W_o": (joined, "d_model"),
    }
    axes |= {name: (axes["W_" + name[2:]][1],) for name in BIASES if name in sizes.biases}
    if sizes.rope:
        axes |= {"cos": ("seq", "d_head"), "sin": ("seq", "d_head")}
    if sizes.mask_shape is not None:
        axes["mask"] = ("batch", "head", "query", "key")[-len(sizes.mask_shape) :]
    return axes


def input_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Expected shapes of x, the weights, the biases present, cos and sin."""
    layout = sizes.layout
    shapes: dict[str, tuple[int, ...]] = {
        "x": sizes.shape(sizes.seq_len, layout.d_model),
        "W_q": (layout.d_model, layout.n_heads * layout.d_head),
        "W_k": (layout.d_model, layout.n_kv_heads * layout.d_head),
        "W_v": (layout.d_model, layout.n_kv_heads * layout.d_head_v),
        "W_o": (layout.n_heads * layout.d_head_v, layout.d_model),
    }
    shapes |= {name: (shapes["W_" + name[2:]][1],) for name in BIASES if name in sizes.biases}
    if sizes.rope:
        shapes |= dict.fromkeys(("cos", "sin"), (sizes.seq_len, layout.d_head))
    return shapes


def compare_with_mha(sizes: Sizes) -> tuple[CostRow, ...]:
    """Parameters and FLOPs of every step, this layout against the same with one K/V head per query head."""
    layout = sizes.layout
    full = HeadLayout(layout.d_model, layout.n_heads, layout.n_heads, layout.d_head, layout.d_head_v)
    plain = {step.key: step for step in plan_steps(replace(sizes, layout=full))}
    rows = []
    for step in plan_steps(sizes):
        other = plain.get(step.key)  # sharing K and V is a step MHA does not have
        rows.append(
            CostRow(
                step.number,
                step.name,
                step.symbol,
                step.parameters,
                other.parameters if other else 0,
                step.parameters_formula,
                step.flops,
                other.flops if other else 0,
                step.flops_formula,
            )
        )
    return tuple(rows)


# 1 project: (seq, d_model) @ (d_model, heads·width) -> (seq, heads·width)
def _project(sizes: Sizes) -> list[StepPlan]:
    return [_projection(sizes, symbol) for symbol in ("Q", "K", "V")]


def _projection(sizes: Sizes, symbol: str) -> StepPlan:
    layout, low = sizes.layout, symbol.lower()
    heads, head_name, width, width_name = _heads_of(layout, symbol)
    has_bias = f"b_{low}" in sizes.biases
    plus = f" + b_{low}" if has_bias else ""
    lead = sizes.lead
    links = [
        Link("x", (*same(*range(lead + 1)), Rule())),
        Link(f"W_{low}", (Rule(), *same(lead + 1))),
    ]
    if has_bias:
        links.append(Link(f"b_{low}", same(lead + 1)))
    cols = [(head_name, heads), (width_name, width)]
    rows = [*_batch_factor(sizes), ("seq_len", sizes.seq_len)]
    flops = [[("2", 2), *rows, ("d_model", layout.d_model), *cols]] + ([[*rows, *cols]] if has_bias else [])
    learned = [[("d_model", layout.d_model), *cols]] + ([cols] if has_bias else [])
    seq = _einops(sizes, "seq")
    return StepPlan(
        "1",
        "project",
        symbol,
        _axes(sizes, "seq", f"{head_name}·{width_name}"),
        sizes.shape(sizes.seq_len, heads * width),
        f"Every token's row of x times W_{low} gives {heads * width} numbers: {heads} × {width}, still in one row.",
        f"{symbol} = x @ W_{low}{plus}",
        f"{symbol} = x @ W_{low}{plus}",
        f'{symbol} = einsum(x, W_{low}, "{seq} d_model, d_model column -> {seq} column"){plus}',
        *_count(flops),
        *_count(learned),
        tuple(links),
    )


# 2 split: (seq, heads·width) -> (seq, heads, width)
def _split(sizes: Sizes) -> list[StepPlan]:
    steps = []
    lead = sizes.lead
    for symbol in ("Q", "K", "V"):
        heads, head_name, width, width_name = _heads_of(sizes.layout, symbol)
        axis = _head_axis(sizes.layout, symbol)
        size_names = ", ".join([*_batch_name(sizes), "seq_len", head_name, width_name])
        seq = _einops(sizes, "seq")
        steps.append(
            StepPlan(
                "2",
                "split",
                symbol,
                _axes(sizes, "seq", axis, width_name),
                sizes.shape(sizes.seq_len, heads, width),
                f"Each row of {heads * width} is cut into {heads} pieces of {width}. "
                f"{_same_numbers(sizes, heads, width)}",
                f"{symbol} = {symbol}.reshape({size_names})",
                f"{symbol} = {symbol}.view({size_names})",
                f'{symbol} = rearrange({symbol}, "{seq} ({axis} {width_name}) -> {seq} {axis} {width_name}", '
                f"{axis}={head_name})",
                links=(
                    Link(
                        f"1.{symbol}",
                        (*same(*range(lead + 1)), Rule("merge", lead + 1, lead + 2, width)),
                    ),
                ),
            )
        )
    return steps


# 3 permute: (seq, heads, width) -> (heads, seq, width)
def _permute(sizes: Sizes) -> list[StepPlan]:
    steps = []
    for symbol in ("Q", "K", "V"):
        heads, _, width, width_name = _heads_of(sizes.layout, symbol)
        axis = _head_axis(sizes.layout, symbol)
        before, after = (_einops(sizes, order) for order in (f"seq {axis}", f"{axis} seq"))
        steps.append(
            StepPlan(
                "3",
                "permute",
                symbol,
                _axes(sizes, axis, "seq", width_name),
                sizes.shape(heads, sizes.seq_len, width),
                f"The head axis moves to the front. {_same_numbers(sizes, heads, width)}",
                f"{symbol} = {symbol}.transpose({_swap(sizes)})",
                f"{symbol} = {symbol}.transpose({sizes.lead}, {sizes.lead + 1})",
                f'{symbol} = rearrange({symbol}, "{before} {width_name} -> {after} {width_name}")',
                links=(Link(f"2.{symbol}", _swapped(sizes)),),
            )
        )
    return steps


# 3½ rotate: (heads, seq, d_head) -> the same shape; RoFormer, arXiv 2104.09864, section 3.2.2, in Llama's pairing
def _rotate(sizes: Sizes) -> list[StepPlan]:
    if not sizes.rope:
        return []
    steps = []
    lead, d_head = sizes.lead, sizes.layout.d_head
    for symbol in ("Q", "K"):
        heads, head_name, _, _ = _heads_of(sizes.layout, symbol)
        line = f"{symbol} = {symbol} * cos + rotate_half({symbol}) * sin"
        size = [*_batch_factor(sizes), (head_name, heads), ("seq_len", sizes.seq_len), ("d_head", d_head)]
        table = same(lead + 1, lead + 2)
        # cos and sin hold one row per token; every head is turned by the same angles
        steps.append(
            StepPlan(
                "3½",
                "rotate (RoPE)",
                symbol,
                _axes(sizes, _head_axis(sizes.layout, symbol), "seq", "d_head"),
                sizes.shape(heads, sizes.seq_len, d_head),
                f"Dimension i and dimension i + {d_head // 2} turn together, by an angle that grows with the position.",
                line,
                line,
                line,
                *_count([[("3", 3), *size]]),
                links=(
                    Link(
                        f"3.{symbol}",
                        (*same(*range(lead + 2)), Rule("pair", lead + 2, width=d_head // 2)),
                    ),
                    Link("cos", table),
                    Link("sin", table),
                ),
            )
        )
    return steps


# 4 scores: (heads, seq, d_head) x (heads, seq, d_head) -> (heads, query, key), masked, then softmax
def _scores(sizes: Sizes) -> list[StepPlan]:
    steps = _shared(sizes, "K", "4")
    lead, layout = sizes.lead, sizes.layout
    lead_axes = tuple(range(lead + 1))
    before = "3½" if sizes.rope else "3"
    pair = _einops(sizes, "head query key")
    last = f"0, {'1, 3, 2' if lead else '2, 1'}"
    shape = sizes.shape(layout.n_heads, sizes.seq_len, sizes.seq_len)
    axes = _axes(sizes, "head", "query", "key")
    count = _pairs(sizes)
    steps.append(
        StepPlan(
            "4",
            "scores",
            "scores",
            axes,
            shape,
            f"Every query meets every key of its head: their dot product over {layout.d_head} numbers, divided by "
            f"√d_head = √{layout.d_head}.",
            f"scores = Q @ K.transpose({last}) / d_head**0.5",
            "scores = Q @ K.transpose(-2, -1) / d_head**0.5",
            f'scores = einsum(Q, K, "{_einops(sizes, "head query d_head")}, {_einops(sizes, "head key d_head")} '
            f'-> {pair}") / d_head**0.5',
            *_count([[("2", 2), *count, ("d_head", layout.d_head)], count]),
            links=(
                Link(f"{before}.Q", (*same(*lead_axes, lead + 1), Rule())),
                Link(steps[-1].key if steps else f"{before}.K", (*same(*lead_axes, lead + 2), Rule())),
            ),
        )
    )
    steps += _masking(sizes, axes, shape)
    source = steps[-1].key
    scored = steps[-1].symbol
    steps.append(
        StepPlan(
            "4",
            "softmax",
            "weights",
            axes,
            shape,
            "Each query's row of scores becomes shares that add up to 1.",
            f"weights = softmax({scored})",
            f"weights = {scored}.softmax(dim=-1)",
            f"weights = softmax({scored})",
            *_count([[("5", 5), *count]], ": find the maximum, subtract, exponentiate, add, divide"),
            links=(_softmax_link(sizes, source),),
        )
    )
    return steps


def _softmax_link(sizes: Sizes, source: str) -> Link:
    gate: Gate = "row" if sizes.masked else ""
    return Link(source, (*same(*range(sizes.lead + 2)), Rule()), gate)


def _masking(sizes: Sizes, axes: tuple[str, ...], shape: tuple[int, ...]) -> list[StepPlan]:
    if not sizes.masked:
        return []
    steps = [_causal_mask(sizes)] if sizes.causal else []
    mask_shape = steps[0].shape if steps else sizes.mask_shape
    adds = sizes.mask_shape is not None and sizes.mask_kind == "float"
    assert mask_shape is not None  # masked and not causal means a mask was given
    line = "masked = scores + mask" if adds else "masked = np.where(mask, scores, -np.inf)"
    rank = len(shape)
    steps.append(
        StepPlan(
            "4",
            "mask",
            "masked",
            axes,
            shape,
            "A pair that may not look gets −∞, which softmax turns into exactly 0.",
            line,
            line if adds else 'masked = scores.masked_fill(~mask, float("-inf"))',
            line,
            *(_count([_pairs(sizes)]) if adds else (0, "0: a choice, no arithmetic")),
            links=(
                Link("4.scores", same(*range(rank)), "element"),
                Link("4.mask" if sizes.causal else "mask", _broadcast_rules(mask_shape, rank)),
            ),
        )
    )
    return steps


def _causal_mask(sizes: Sizes) -> StepPlan:
    given = sizes.mask_shape
    square = (sizes.seq_len, sizes.seq_len)
    shape: tuple[int, ...] = square
    links: tuple[Link, ...] = ()
    if given is None:
        code, torch_code = f"mask = {TRIL}", f"mask = {TORCH_TRIL}"
    else:
        shape = (*given[:-2], *square)
        links = (Link("mask", _broadcast_rules(given, len(shape)), "element"),)
        if sizes.mask_kind == "bool":
            code, torch_code = f"mask = mask & {TRIL}", f"mask = mask & {TORCH_TRIL}"
        else:
            code = f"mask = np.where({TRIL}, mask, -np.inf)"
            torch_code = f'mask = torch.where({TORCH_TRIL}, mask, float("-inf"))'
    return StepPlan(
        "4",
        "causal mask",
        "mask",
        ("batch", "head", "query", "key")[-len(shape) :],
        shape,
        "Query i may look at keys 0 to i: the lower triangle, diagonal included.",
        code,
        torch_code,
        code,
        links=links,
    )


# 5 weights @ V: (heads, query, key) @ (heads, key, width) -> (heads, seq, width)
def _mix(sizes: Sizes) -> list[StepPlan]:
    steps = _shared(sizes, "V", "5")
    lead, layout = sizes.lead, sizes.layout
    width = layout.d_head_v
    width_name = _heads_of(layout, "V")[3]
    lead_axes = tuple(range(lead + 1))
    gate: Gate = "values" if sizes.masked else ""
    steps.append(
        StepPlan(
            "5",
            "weights @ V",
            "heads_out",
            _axes(sizes, "head", "seq", width_name),
            sizes.shape(layout.n_heads, sizes.seq_len, width),
            "Each query's output is the mean of its head's value rows, weighted by its row of weights.",
            "heads_out = weights @ V",
            "heads_out = weights @ V",
            f'heads_out = einsum(weights, V, "{_einops(sizes, "head query key")}, '
            f'{_einops(sizes, "head key", width_name)} -> {_einops(sizes, "head query", width_name)}")',
            *_count([[("2", 2), *_pairs(sizes), (width_name, width)]]),
            links=(
                Link("4.weights", (*same(*lead_axes, lead + 1), Rule())),
                Link(steps[-1].key if steps else "3.V", (*same(*lead_axes), Rule(), *same(lead + 2)), gate),
            ),
        )
    )
    return steps


# 6 permute back, concat: (heads, seq, width) -> (seq, heads, width) -> (seq, heads·width)
def _join(sizes: Sizes) -> list[StepPlan]:
    layout, lead = sizes.layout, sizes.lead
    width = layout.d_head_v
    width_name = _heads_of(layout, "V")[3]
    sizes_line = ", ".join([*_batch_name(sizes), "seq_len", f"n_heads * {width_name}"])
    seq = _einops(sizes, "seq")
    back = StepPlan(
        "6",
        "permute back",
        "heads_out",
        _axes(sizes, "seq", "head", width_name),
        sizes.shape(sizes.seq_len, layout.n_heads, width),
        f"The token axis comes back to the front. {_same_numbers(sizes, layout.n_heads, width)}",
        f"heads_out = heads_out.transpose({_swap(sizes)})",
        f"heads_out = heads_out.transpose({lead}, {lead + 1})",
        f'heads_out = rearrange(heads_out, "{_einops(sizes, "head seq", width_name)} -> {seq} head {width_name}")',
        links=(Link("5.heads_out", _swapped(sizes)),),
    )
    concat = StepPlan(
        "6",
        "concat",
        "concat",
        _axes(sizes, "seq", f"n_heads·{width_name}"),
        sizes.shape(sizes.seq_len, layout.n_heads * width),
        f"Each token's {layout.n_heads} pieces of {width} are laid side by side in one row again.",
        f"concat = heads_out.reshape({sizes_line})",
        f"concat = heads_out.reshape({sizes_line})",
        f'concat = rearrange(heads_out, "{seq} head {width_name} -> {seq} (head {width_name})")',
        links=(
            Link(
                back.key,
                (*same(*range(lead + 1)), Rule("high", lead + 1, width=width), Rule("low", lead + 1, width=width)),
            ),
        ),
    )
    return [back, concat]


# 7 W_o: (seq, heads·width) @ (heads·width, d_model) -> (seq, d_model)
def _out(sizes: Sizes) -> list[StepPlan]:
    layout, lead = sizes.layout, sizes.lead
    width = layout.d_head_v
    has_bias = "b_o" in sizes.biases
    plus = " + b_o" if has_bias else ""
    rows = [*_batch_factor(sizes), ("seq_len", sizes.seq_len)]
    cols = [("d_model", layout.d_model)]
    joined = [("n_heads", layout.n_heads), (_heads_of(layout, "V")[3], width)]
    links = [
        Link("6.concat", (*same(*range(lead + 1)), Rule())),
        Link("W_o", (Rule(), *same(lead + 1))),
    ]
    if has_bias:
        links.append(Link("b_o", same(lead + 1)))
    seq = _einops(sizes, "seq")
    return [
        StepPlan(
            "7",
            "W_o",
            "output",
            _axes(sizes, "seq", "d_model"),
            sizes.shape(sizes.seq_len, layout.d_model),
            "W_o mixes the heads' pieces: the first place where heads meet.",
            f"output = concat @ W_o{plus}",
            f"output = concat @ W_o{plus}",
            f'output = einsum(concat, W_o, "{seq} column, column d_model -> {seq} d_model"){plus}',
            *_count([[("2", 2), *rows, *joined, *cols]] + ([[*rows, *cols]] if has_bias else [])),
            *_count([[*joined, *cols]] + ([cols] if has_bias else [])),
            tuple(links),
        )
    ]


def _shared(sizes: Sizes, symbol: str, number: str) -> list[StepPlan]:
    """K or V copied once per query head of its group; nothing where every query head has its own."""
    layout, lead = sizes.layout, sizes.lead
    if layout.q_per_kv == 1:
        return []
    width, width_name = _heads_of(layout, symbol)[2:]
    source = "3½" if sizes.rope and symbol == "K" else "3"
    tail = f"seq {width_name}"
    return [
        StepPlan(
            number,
            f"share {symbol}",
            symbol,
            _axes(sizes, "head", "seq", width_name),
            sizes.shape(layout.n_heads, sizes.seq_len, width),
            f"Each K/V head serves {layout.q_per_kv} query heads in a row: repeat-interleave, 0, 0, 1, 1.",
            f"{symbol} = np.repeat({symbol}, q_per_kv, axis={lead})",
            f"{symbol} = {symbol}.repeat_interleave(q_per_kv, dim={lead})",
            f'{symbol} = repeat({symbol}, "{_einops(sizes, "kv_head", tail)} -> '
            f'{_einops(sizes, "(kv_head group)", tail)}", group=q_per_kv)',
            flops_formula="0: copies, no arithmetic",
            links=(
                Link(
                    f"{source}.{symbol}",
                    (*same(*range(lead)), Rule("high", lead, width=layout.q_per_kv), *same(lead + 1, lead + 2)),
                ),
            ),
        )
    ]


def _heads_of(layout: HeadLayout, symbol: str) -> tuple[int, str, int, str]:
    """How many heads a projection has, what that count is called, and the same for its width."""
    heads, head_name = (layout.n_heads, "n_heads") if symbol == "Q" else (layout.n_kv_heads, "n_kv_heads")
    if symbol == "V" and layout.d_head_v != layout.d_head:
        return heads, head_name, layout.d_head_v, "d_head_v"
    return heads, head_name, layout.d_head, "d_head"


def _columns(layout: HeadLayout) -> tuple[str, str, str, str]:
    value = _heads_of(layout, "V")[3]
    return "n_heads·d_head", "n_kv_heads·d_head", f"n_kv_heads·{value}", f"n_heads·{value}"


def _head_axis(layout: HeadLayout, symbol: str) -> str:
    """K and V heads are only called KV heads where they are fewer than the query heads."""
    return "head" if symbol == "Q" or layout.q_per_kv == 1 else "kv_head"


def _axes(sizes: Sizes, *names: str) -> tuple[str, ...]:
    return ("batch", *names) if sizes.lead else names


def _einops(sizes: Sizes, *names: str) -> str:
    return " ".join(["batch", *names] if sizes.lead else names)


def _batch_name(sizes: Sizes) -> list[str]:
    return ["batch_size"] if sizes.lead else []


def _batch_factor(sizes: Sizes) -> list[tuple[str, int]]:
    return [] if sizes.batch_size is None else [("batch_size", sizes.batch_size)]


def _pairs(sizes: Sizes) -> list[tuple[str, int]]:
    return [
        *_batch_factor(sizes),
        ("n_heads", sizes.layout.n_heads),
        ("seq_len", sizes.seq_len),
        ("seq_len", sizes.seq_len),
    ]


def _swap(sizes: Sizes) -> str:
    return "0, 2, 1, 3" if sizes.lead else "1, 0, 2"


def _swapped(sizes: Sizes) -> tuple[Rule, ...]:
    lead = sizes.lead
    return same(*range(lead), lead + 1, lead, lead + 2)


def _broadcast_rules(shape: tuple[int, ...], rank: int) -> tuple[Rule, ...]:
    """Rules for a mask that is aligned at the right and may have axes of size 1."""
    offset = rank - len(shape)
    return tuple(Rule() if size == 1 else Rule("same", axis + offset) for axis, size in enumerate(shape))


def _same_numbers(sizes: Sizes, heads: int, width: int) -> str:
    return f"Same {prod(sizes.shape(sizes.seq_len, heads, width))} numbers, new addresses."


def _count(products: list[list[tuple[str, int]]], note: str = "") -> tuple[int, str]:
    """A sum of products as a number and as the formula that gives it."""
    total = sum(prod(size for _, size in factors) for factors in products)
    named = " + ".join(" · ".join(name for name, _ in factors) for factors in products)
    numbers = " + ".join(" · ".join(str(size) for _, size in factors) for factors in products)
    return total, f"{named} = {numbers} = {total:,}{note}"
