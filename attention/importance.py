"""How much each head matters, from one backward pass; how many can go; and how long the vectors are that heads add.

All of it runs in a twin of the model that shares its weights but has an attention function of its own, in which
every head's output passes through a gate. The model everybody uses is never touched.
"""

from __future__ import annotations

import copy
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention import kernel
from attention.atlas import PruningCurve, PruningPoint
from attention.models import LoadedModel
from attention.patterns import Half, sentences
from attention.settings import settings
from attention.tokens import encode
from attention.tracing import AttentionTrace

NAME = f"{kernel.NAME}-gated"
# The scale sentence-embedding models such as MiniLM are trained with (sentence-transformers' ranking loss).
SIMILARITY_SCALE = 20.0
RANDOM_ORDERS = 3


@dataclass
class Gates:
    """What one forward pass of the twin uses and leaves. ``values`` (text, layer, head) scale each head's output.

    With ``watch`` on, ``passed`` gathers each layer's values (text, KV head, key, width) and the module that mixes
    its heads' outputs (W_O).
    """

    values: torch.Tensor | None = None
    watch: bool = False
    calls: int = 0
    given: tuple[int, int] = (0, 0)
    passed: list[tuple[torch.Tensor, Any]] = field(default_factory=list)
    last_values: torch.Tensor | None = None


_gates: ContextVar[Gates | None] = ContextVar("headscope_gates", default=None)
_twins: weakref.WeakKeyDictionary[LoadedModel, Any] = weakref.WeakKeyDictionary()
_twins_lock = threading.Lock()


def head_importance(
    model: LoadedModel, half: Half = "select", muted: Sequence[tuple[int, int]] = ()
) -> NDArray[np.float64]:
    """Expected sensitivity of the loss to each head: mean over texts of |d loss / d gate|, (layer, head).

    Every head's output is multiplied by a gate that is 1; one backward pass gives all derivatives (Michel, Levy &
    Neubig 2019, arXiv 1905.10650, section 4.1). Decoders: surprise at the next token on our plain sentences.
    Encoders: how well a sentence's embedding finds others of its topic. ``muted`` heads have gate 0.
    """
    texts = importance_texts(model, half)
    gates = _gate_values(model, len(texts), muted).requires_grad_()
    with kernel.forward_slot, torch.enable_grad(), torch.autograd.graph.allow_mutation_on_saved_tensors():
        losses, _ = _losses(model, half, gates)
        losses.sum().backward()
    assert gates.grad is not None
    scale = len(texts) if model.kind == "encoder" else 1  # an embedding's gate acts on every sentence's loss
    return np.asarray(gates.grad.abs().mean(dim=0).double().numpy() / scale)


def loss_of(model: LoadedModel, half: Half = "held_out", muted: Sequence[tuple[int, int]] = ()) -> tuple[float, float]:
    """Mean loss in nats and share of cases right with ``muted`` heads silent, on the sentences importance uses."""
    texts = importance_texts(model, half)
    with kernel.forward_slot, torch.inference_mode():
        losses, right = _losses(model, half, _gate_values(model, len(texts), muted))
    return float(losses.mean()), right


def pruning_curve(
    model: LoadedModel, steps: int = 10, progress: Callable[[float], None] | None = None, seed: int = 0
) -> PruningCurve:
    """Mute heads greedily, a ``steps``-th of them at a time: always those that matter least now, on the "select"
    half; the points are measured on "held_out". Random orders stand beside it, seeded.

    After Michel et al. 2019, arXiv 1905.10650, section 4.
    """
    every = list(np.ndindex(model.n_layers, model.layout.n_heads))
    counts = [round(len(every) * step / steps) for step in range(steps + 1)]
    generator = np.random.default_rng(seed)
    shuffled = [[every[index] for index in generator.permutation(len(every))] for _ in range(RANDOM_ORDERS)]
    order: list[tuple[int, int]] = []
    points = []
    for step, count in enumerate(counts):
        if count > len(order):
            importance = head_importance(model, "select", order)
            left = sorted(set(every) - set(order), key=lambda head: (importance[head], head))
            order += left[: count - len(order)]
        loss, right = loss_of(model, "held_out", order)
        random = (
            [loss_of(model, "held_out", heads[:count])[0] for heads in shuffled] if 0 < count < len(every) else [loss]
        )
        points.append(PruningPoint(count, loss, right, float(np.mean(random))))
        if progress:
            progress((step + 1) / len(counts))
    measure = "find a sentence of the same topic" if model.kind == "encoder" else "say the next token"
    return PruningCurve(tuple(points), tuple(order), len(importance_texts(model, "held_out")), measure)


def value_lengths(model: LoadedModel, traced: AttentionTrace) -> NDArray[np.float64] | None:
    """Length of each head's transformed value of each token, ‖v_j W_O‖: (layer, head, key).

    What Kobayashi et al. 2020, arXiv 2004.10102, call ‖f(x)‖. None for a model that changes a head's output before
    mixing the heads, where no W_O can be told apart.
    """
    gates = Gates(watch=True)
    with kernel.forward_slot, torch.inference_mode(), _gating(gates):
        _twin(model)(input_ids=torch.tensor([[token.id for token in traced.tokens]]))
        if len(gates.passed) != model.n_layers:
            return None
        return np.stack([_lengths(values[0], mix, model.layout.n_heads) for values, mix in gates.passed])


def _lengths(values: torch.Tensor, mix: Any, n_heads: int) -> NDArray[np.float64]:
    """‖v W_O‖ of every head and key, for values (KV head, key, width): W_O is asked with one head at a time."""
    n_kv_heads, n_keys, width = values.shape
    own = values.repeat_interleave(n_heads // n_kv_heads, dim=0)  # (head, key, width)
    alone = torch.zeros(n_heads, n_keys, n_heads, width)
    alone[torch.arange(n_heads), :, torch.arange(n_heads)] = own
    added = mix(alone.flatten(2)) - mix(torch.zeros(1, 1, n_heads * width))  # without W_O's bias
    return np.asarray(added.norm(dim=-1).double().numpy())


def importance_texts(model: LoadedModel, half: Half) -> list[dict[str, Any]]:
    """The sentences importance is measured on: plain ones for a decoder, ones with a topic for an encoder."""
    kind = "similarity" if model.kind == "encoder" else "previous_word"
    return [item for item in sentences()[kind] if item["half"] == half]


def _losses(model: LoadedModel, half: Half, gates: torch.Tensor) -> tuple[torch.Tensor, float]:
    """(text,) losses in nats and the share of cases right. ``gates`` (text, layer, head)."""
    items = importance_texts(model, half)
    if model.kind == "encoder":
        return _topic_losses(model, items, gates)
    return _next_token_losses(model, [item["text"] for item in items], gates)


def _topic_losses(model: LoadedModel, items: list[dict[str, Any]], gates: torch.Tensor) -> tuple[torch.Tensor, float]:
    """-log of the probability mass on the sentences of one's own topic, by cosine similarity times 20."""
    embeddings = []
    for index, item in enumerate(items):
        with _gating(Gates(gates[index : index + 1])):
            hidden = _twin(model)(input_ids=_ids(model, item["text"]))[0][0]
        embeddings.append(torch.nn.functional.normalize(hidden.float().mean(dim=0), dim=0))
    stacked = torch.stack(embeddings)
    itself = torch.eye(len(items), dtype=torch.bool)
    similar = (stacked @ stacked.T * SIMILARITY_SCALE).masked_fill(itself, -torch.inf)
    topics = [item["topic"] for item in items]
    same = torch.tensor([[one == other for other in topics] for one in topics]) & ~itself
    losses = similar.logsumexp(dim=1) - similar.masked_fill(~same, -torch.inf).logsumexp(dim=1)
    nearest = similar.argmax(dim=1)
    return losses, float(same[torch.arange(len(items)), nearest].float().mean())


def _next_token_losses(model: LoadedModel, texts: list[str], gates: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Mean surprise a text. One batch: in a causal model what stands right of a text cannot reach it."""
    ids = [_ids(model, text)[0] for text in texts]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=0)
    targets = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-100)[:, 1:]
    takes = inspect.signature(model.model.forward).parameters
    extra = {"use_cache": False} if "use_cache" in takes else {}
    with _gating(Gates(gates)):
        logits = _twin(model)(input_ids=padded, **extra).logits[:, :-1].float()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=-100)
    counted = targets != -100
    right = (logits.argmax(dim=-1) == targets)[counted].float().mean()
    return losses.sum(dim=1) / counted.sum(dim=1), float(right)


def _ids(model: LoadedModel, text: str) -> torch.Tensor:
    most = min(settings().max_tokens, model.max_positions)
    return torch.tensor([encode(model.tokenizer, text, start=model.default_start, max_tokens=most).ids])


def _gate_values(model: LoadedModel, n_texts: int, muted: Sequence[tuple[int, int]]) -> torch.Tensor:
    values = torch.ones(n_texts, model.n_layers, model.layout.n_heads)
    for layer, head in muted:
        values[:, layer, head] = 0.0
    return values


@contextmanager
def _gating(gates: Gates) -> Iterator[None]:
    token = _gates.set(gates)
    try:
        yield
    finally:
        _gates.reset(token)


def _gated_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's attention, each head's output then multiplied by its gate: (B, Q, H, V)."""
    output, weights = kernel.attention_forward(module, query, key, value, *rest, **options)
    gates = _gates.get()
    if gates is not None:
        if gates.values is not None:
            output = output * gates.values[:, gates.calls, None, :, None].to(output.dtype)
        if gates.watch:
            gates.last_values, gates.given = value, (output.data_ptr(), output.numel())
        gates.calls += 1
    return output, weights


def _watch_mixing(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
    """Forward pre-hook of the twin's matrices: the one that is given a layer's heads as they are is its W_O."""
    gates = _gates.get()
    if gates is None or not gates.watch or gates.last_values is None or not inputs:
        return
    if isinstance(inputs[0], torch.Tensor) and (inputs[0].data_ptr(), inputs[0].numel()) == gates.given:
        gates.passed.append((gates.last_values, module.forward))
        gates.last_values = None


def _twin(model: LoadedModel) -> Any:
    """The same weights in modules of their own, whose attention has gates; made once a model."""
    with _twins_lock:
        if model not in _twins:
            from transformers import AttentionInterface, AttentionMaskInterface
            from transformers.masking_utils import eager_mask

            AttentionInterface.register(NAME, _gated_attention)
            AttentionMaskInterface.register(NAME, eager_mask)
            shared: dict[int, Any] = {id(t): t for t in [*model.model.parameters(), *model.model.buffers()]}
            twin = copy.deepcopy(model.model, shared)
            twin.set_attn_implementation(NAME)
            for module in twin.modules():
                weight = getattr(module, "weight", None)
                if isinstance(weight, torch.Tensor) and weight.ndim == 2:
                    module.register_forward_pre_hook(_watch_mixing)
            _twins[model] = twin
        return _twins[model]
