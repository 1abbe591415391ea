"""Runnable programs for exactly these sizes: the same attention in NumPy, PyTorch and einops.

Every line that makes a tensor ends with that tensor's shape. All three draw the same
numbers from the same seed, in the order ``random_inputs`` draws them.
"""

from __future__ import annotations

from typing import Literal, get_args

from attention.errors import UserError
from attention.layout import HeadLayout
from attention.step_plan import BIASES, Sizes, StepPlan, input_shapes, plan_steps

Flavour = Literal["numpy", "torch", "einops"]
ROPE_BASE = 10000.0  # RoFormer, arXiv 2104.09864, section 3.2.2

_IMPORTS = {
    "numpy": ["import numpy as np"],
    "torch": ["import numpy as np", "import torch"],
    "einops": ["import numpy as np", "from einops import einsum, rearrange, repeat"],
}
_SOFTMAX = [
    "def softmax(scores):",
    "    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))",
    "    return powers / powers.sum(axis=-1, keepdims=True)",
]


def code_listing(
    layout: HeadLayout,
    seq_len: int,
    flavour: Flavour,
    *,
    batch_size: int | None = None,
    causal: bool = False,
    rope: bool = False,
    biases: bool = False,
    seed: int = 0,
) -> str:
    """A complete program: sizes, seeded numbers, then the seven steps, each with its shape.

    ``flavour`` is "numpy", "torch" or "einops" (einops on NumPy arrays). Raises UserError
    for another flavour and for sizes the steps cannot take.
    """
    if flavour not in get_args(Flavour):
        raise UserError(
            f"There is no listing called {flavour!r}.", f"It may be {', '.join(get_args(Flavour))}.", "Choose one."
        )
    sizes = Sizes(layout, seq_len, batch_size, causal, rope, frozenset(BIASES) if biases else frozenset())
    parts = [_IMPORTS[flavour], _size_lines(sizes), _input_lines(sizes, flavour, seed)]
    parts += _helper_lines(sizes, flavour)
    parts += _step_lines(sizes, flavour)
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def line_of(step: StepPlan, flavour: Flavour) -> str:
    """A step's one line of code in a flavour."""
    return {"numpy": step.code, "torch": step.torch, "einops": step.einops}[flavour]


def _size_lines(sizes: Sizes) -> list[str]:
    layout = sizes.layout
    lines = [f"batch_size = {sizes.batch_size}"] if sizes.batch_size else []
    lines += [f"seq_len, d_model = {sizes.seq_len}, {layout.d_model}"]
    lines += [f"n_heads, n_kv_heads, d_head = {layout.n_heads}, {layout.n_kv_heads}, {layout.d_head}"]
    if layout.d_head_v != layout.d_head:
        lines.append(f"d_head_v = {layout.d_head_v}")
    if layout.q_per_kv > 1:
        lines.append(f"q_per_kv = n_heads // n_kv_heads  # {layout.q_per_kv} query heads share each K/V head")
    return lines


def _input_lines(sizes: Sizes, flavour: Flavour, seed: int) -> list[str]:
    value = "d_head" if sizes.layout.d_head_v == sizes.layout.d_head else "d_head_v"
    named = {
        "x": "batch_size, seq_len, d_model" if sizes.batch_size else "seq_len, d_model",
        "W_q": "d_model, n_heads * d_head",
        "W_k": "d_model, n_kv_heads * d_head",
        "W_v": f"d_model, n_kv_heads * {value}",
        "W_o": f"n_heads * {value}, d_model",
        "b_q": "n_heads * d_head",
        "b_k": "n_kv_heads * d_head",
        "b_v": f"n_kv_heads * {value}",
        "b_o": "d_model",
    }
    shapes = input_shapes(sizes)
    lines = []
    for name, shape in shapes.items():
        if name in named:
            size = f"({named[name]},)" if len(shape) == 1 else f"({named[name]})"
            draw = f"rng.standard_normal({size})"
            made = f"torch.from_numpy({draw})" if flavour == "torch" else draw
            lines.append((f"{name} = {made}", shape))
    return [f"rng = np.random.default_rng({seed})", *_aligned(lines)]


def _helper_lines(sizes: Sizes, flavour: Flavour) -> list[list[str]]:
    parts = []
    if sizes.rope:
        seq_len, half = sizes.seq_len, sizes.layout.d_head // 2
        lines = [
            (f"frequencies = {ROPE_BASE} ** (-np.arange(0, d_head, 2) / d_head)", (half,)),
            ("angles = np.outer(np.arange(seq_len), frequencies)", (seq_len, half)),
            ("angles = np.concatenate([angles, angles], axis=-1)", (seq_len, 2 * half)),
        ]
        wrap = "torch.from_numpy({})" if flavour == "torch" else "{}"
        lines += [(f"{name} = " + wrap.format(f"np.{name}(angles)"), (seq_len, 2 * half)) for name in ("cos", "sin")]
        join = "torch.cat(({}), dim=-1)" if flavour == "torch" else "np.concatenate(({}), axis=-1)"
        turn = join.format("-rows[..., d_head // 2 :], rows[..., : d_head // 2]")
        parts += [_aligned(lines), ["def rotate_half(rows):", f"    return {turn}"]]
    if flavour != "torch":
        parts.append(_SOFTMAX)
    return parts


def _step_lines(sizes: Sizes, flavour: Flavour) -> list[list[str]]:
    groups: dict[str, list[StepPlan]] = {}
    for step in plan_steps(sizes):
        groups.setdefault(step.number, []).append(step)
    parts = []
    for number, steps in groups.items():
        title = ", ".join(dict.fromkeys(step.name for step in steps))
        lines = _aligned([(line_of(step, flavour), step.shape) for step in steps])
        parts.append([f"# {number} {title}", *lines])
    return parts


def _aligned(lines: list[tuple[str, tuple[int, ...]]]) -> list[str]:
    width = max(len(code) for code, _ in lines)
    return [f"{code:<{width}}  # {shape}" for code, shape in lines]
