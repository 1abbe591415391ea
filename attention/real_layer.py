"""One attention layer of a real model, taken out: what goes in, its weights, and what the model itself made of it.

The layer runs in the model's own code (torch's SDPA, not our kernel), so that the seven NumPy
steps have something of their own to be compared with.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention import kernel
from attention.errors import UserError
from attention.layout import HeadLayout
from attention.models import LoadedModel
from attention.multihead import StepTrace, multi_head_attention
from attention.tokens import encode

Array = NDArray[Any]
MOST_TOKENS = 64
SAME = 1e-4
"""Share of the largest output by which the seven steps may differ: far above rounding, far below any other formula."""


@dataclass(frozen=True, eq=False)
class RealLayer:
    """The inputs of one layer's attention, ready for ``multi_head_attention``, and the model's own answer.

    ``x`` (seq, d_model) is what enters the projections, ``expected`` (seq, d_model) what leaves
    W_o; ``weights`` as ``multi_head_attention`` takes them; ``rope`` (cos, sin), each (seq, d_head),
    or None. float32, read-only.
    """

    layer: int
    tokens: tuple[str, ...]
    x: Array
    weights: Mapping[str, Array]
    layout: HeadLayout
    causal: bool
    rope: tuple[Array, Array] | None
    expected: Array

    def run(self) -> StepTrace:
        """The seven steps on this layer's numbers."""
        return multi_head_attention(self.x, self.weights, self.layout, self.causal, rope=self.rope)

    def difference(self, output: Array) -> float:
        """The largest difference from the model's own output, as a share of its largest number (at least 1)."""
        scale = max(1.0, float(np.abs(self.expected).max()))
        return float(np.abs(output - self.expected).max()) / scale


@dataclass(frozen=True)
class _Parts:
    """The modules of one layer, whatever its architecture calls them."""

    attention: torch.nn.Module
    query: torch.nn.Linear
    key: torch.nn.Linear
    value: torch.nn.Linear
    output: torch.nn.Linear


def real_layer(model: LoadedModel, text: str, layer: int, *, start: str | None = None) -> RealLayer:
    """Layer ``layer`` of a model on a text: BERT's kin and Llama's kin (``q_proj`` … ``o_proj``, with or without RoPE).

    ``start`` is the token in front of a decoder's text. The steps are run once and compared, so that a
    model that does anything else (a window, normed or capped scores) is refused, not shown wrongly.
    Raises UserError for such a model, a layer the model has not, and a text over 64 tokens.
    """
    if not 0 <= layer < model.n_layers:
        raise UserError(
            f"{model.title} has no layer {layer}.",
            f"Layers run from 0 to {model.n_layers - 1}.",
            "Choose one of these.",
        )
    encoded = encode(model.tokenizer, text, start=start)
    if len(encoded.ids) > MOST_TOKENS:
        raise UserError(
            f"The text has {len(encoded.ids)} tokens.", f"Up to {MOST_TOKENS} can be drawn here.", "Shorten the text."
        )
    # A private twin that shares the weights: hooks on the shared module would fire for other people's texts.
    twin = _twin(model)
    parts = _parts(model, twin, layer)
    entered, left = _seen(twin, parts, torch.tensor([encoded.ids]))
    made = RealLayer(
        layer=layer,
        tokens=tuple(token.label for token in encoded.tokens),
        x=_frozen(entered["hidden"][0]),
        weights=_weights(parts),
        layout=model.layout,
        causal=model.kind == "decoder",
        rope=_rope(entered["rope"]),
        expected=_frozen(left[0]),
    )
    if made.difference(made.run().output) > SAME:
        raise _other_steps(model)
    return made


def _other_steps(model: LoadedModel) -> UserError:
    return UserError(
        f"{model.title} does more in its attention than the seven steps.",
        "Layers of BERT's and Llama's kin can be walked through here.",
        "Choose another model.",
    )


def _twin(model: LoadedModel) -> Any:
    shared: dict[int, Any] = {id(t): t for t in [*model.reference.parameters(), *model.reference.buffers()]}
    return copy.deepcopy(model.reference, shared)


def _parts(model: LoadedModel, twin: Any, layer: int) -> _Parts:
    """The layer's modules by the names BERT's or Llama's kin give them."""
    base = getattr(twin, "model", twin)
    if hasattr(base, "encoder") and hasattr(base.encoder, "layer"):
        block = base.encoder.layer[layer].attention
        own: Any = getattr(block, "self", None)
        if all(hasattr(own, name) for name in ("query", "key", "value")):
            return _Parts(own, own.query, own.key, own.value, block.output.dense)
    if hasattr(base, "layers"):
        own = getattr(base.layers[layer], "self_attn", None)
        if all(hasattr(own, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")):
            return _Parts(own, own.q_proj, own.k_proj, own.v_proj, own.o_proj)
    raise _other_steps(model)


def _seen(twin: Any, parts: _Parts, ids: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    """What entered the layer's projections, and what left W_o, during one forward."""
    entered: dict[str, Any] = {"rope": None}
    left: list[torch.Tensor] = []

    def note_tables(_: Any, __: Any, named: dict[str, Any]) -> None:
        entered["rope"] = named.get("position_embeddings")

    def note_rows(_: Any, given: tuple[torch.Tensor, ...]) -> None:
        entered["hidden"] = given[0]

    parts.attention.register_forward_pre_hook(note_tables, with_kwargs=True)
    parts.query.register_forward_pre_hook(note_rows)
    parts.output.register_forward_hook(lambda _, __, made: left.append(made))
    with kernel.forward_slot, torch.inference_mode():
        twin(input_ids=ids)
    return entered, left[0]


def _weights(parts: _Parts) -> dict[str, Array]:
    linears = {"q": parts.query, "k": parts.key, "v": parts.value, "o": parts.output}
    weights = {f"W_{letter}": _frozen(linear.weight.T) for letter, linear in linears.items()}  # nn.Linear: (out, in)
    return weights | {f"b_{letter}": _frozen(line.bias) for letter, line in linears.items() if line.bias is not None}


def _rope(tables: tuple[torch.Tensor, torch.Tensor] | None) -> tuple[Array, Array] | None:
    if tables is None:
        return None
    cos, sin = (_frozen(table[0]) for table in tables)
    return cos, sin


def _frozen(tensor: torch.Tensor) -> Array:
    array = np.array(tensor.detach().float().numpy(), order="C")
    array.flags.writeable = False
    return array
