"""What changes when heads fall silent: the next word, the loss, a sentence's embedding, the copying of a text."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from attention import kernel
from attention.errors import UserError
from attention.models import LoadedModel, load_model
from attention.probes import RepeatedCopy, repeated_copy
from attention.settings import settings
from attention.sharing import MuteHeads
from attention.tokens import clean_text, encode
from attention.tracing import trace, what_if_recorder

How = Literal["zero", "mean"]
Heads = tuple[tuple[int, int], ...]
BARS = 10


@dataclass(frozen=True)
class MuteRequest:
    """Everything the effect of muting depends on. ``key`` is the only thing any cache may use."""

    model: str
    text: str
    heads: Heads = ()
    how: How = "zero"
    start: str | None = None
    others: tuple[str, ...] = ()
    revision: str = ""

    @property
    def key(self) -> str:
        """Canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True)
class CopyRequest:
    """Everything the loss on a repeated copy depends on. ``key`` is the only thing any cache may use."""

    model: str
    heads: Heads = ()
    how: How = "zero"
    start: str | None = None
    seed: int = 0
    revision: str = ""

    @property
    def key(self) -> str:
        """Canonical JSON, told apart from a ``MuteRequest``."""
        return json.dumps(asdict(self) | {"copy": True}, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True)
class Outcome:
    """What a model makes of a text. NumPy only, picklable.

    Decoders: ``probabilities`` (vocab,) of the next token and ``loss``, the mean surprise over the text's own tokens
    in nats (None for a single token). Encoders: ``embedding`` (d_model,) of unit length and those of the other
    sentences, ``others`` (sentence, d_model).
    """

    probabilities: NDArray[np.float32] | None = None
    loss: float | None = None
    embedding: NDArray[np.float32] | None = None
    others: NDArray[np.float32] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held."""
        arrays = (self.probabilities, self.embedding, self.others)
        return sum(array.nbytes for array in arrays if array is not None) + 64


@dataclass(frozen=True)
class Change:
    """One number before and after muting: a token's probability, or a sentence's cosine similarity."""

    text: str
    before: float
    after: float


@dataclass(frozen=True)
class MutedEffect:
    """The effect of muting some heads on one text.

    ``next_tokens``: the likeliest ten before and the likeliest ten after, largest first before muting (decoders).
    ``loss``: mean surprise on the text's own tokens in nats. ``similarity``: cosine of the two embeddings of the text;
    ``similarities``: the text against the other sentences, all muted alike (encoders).
    """

    heads: Heads
    how: How
    next_tokens: tuple[Change, ...]
    loss: Change | None
    similarity: float | None
    similarities: tuple[Change, ...]


@dataclass(frozen=True)
class CopyEffect:
    """Loss on the second copy of random tokens, in nats a token, before and after muting; one number a text.

    Only the tokens after the copy's first count: nothing announces that one.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held, roughly."""
        return 64 * (2 + len(self.before))

    @property
    def mean_before(self) -> float:
        """Mean over texts without muting."""
        return float(np.mean(self.before))

    @property
    def mean_after(self) -> float:
        """Mean over texts with muting."""
        return float(np.mean(self.after))

    @property
    def raises(self) -> bool:
        """Whether muting raised the loss in every single text."""
        return all(after > before for before, after in zip(self.before, self.after, strict=True))


def muted_effect(
    model: LoadedModel | str,
    text: str,
    heads: Iterable[tuple[int, int]],
    how: How = "zero",
    *,
    start: str | None = None,
    others: tuple[str, ...] = (),
) -> MutedEffect:
    """What muting ``heads`` changes on one text; the model itself stays as it is.

    ``how="zero"`` puts zeros in place of a head's output, ``"mean"`` its mean over the text's rows. ``others`` are
    sentences an encoder compares the text with. Raises UserError for heads that are not there and for text, start or
    ``how`` the model cannot take.
    """
    loaded = load_model(model) if isinstance(model, str) else model
    chosen = tuple(sorted(set(heads)))
    return effect_between(
        loaded,
        MuteRequest(loaded.id, text, chosen, how, start, others),
        outcome(loaded, text, (), how, start=start, others=others),
        outcome(loaded, text, chosen, how, start=start, others=others),
    )


def outcome(
    model: LoadedModel,
    text: str,
    heads: Heads,
    how: How = "zero",
    *,
    start: str | None = None,
    others: Iterable[str] = (),
) -> Outcome:
    """What the model makes of a text with ``heads`` muted. Raises UserError as ``muted_effect``."""
    mute = MuteHeads(heads, how)
    mute.check(model.layout, model.n_layers)
    if model.kind == "encoder":
        traced = trace(model, [text, *others], start=start, what_if=mute)
        embeddings = np.stack([one.outputs.embedding for one in traced])
        return Outcome(embedding=embeddings[0], others=embeddings[1:])
    most = min(settings().max_tokens, model.max_positions)
    fed = encode(model.tokenizer, clean_text(text, settings().max_chars), start=start, max_tokens=most)
    ids = torch.tensor([fed.ids])
    logits = _logits(model, ids, mute, ids.shape[1])
    loss = float(torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])) if ids.shape[1] > 1 else None
    return Outcome(probabilities=logits[0, -1].softmax(dim=-1).numpy(), loss=loss)


def effect_between(model: LoadedModel, request: MuteRequest, before: Outcome, after: Outcome) -> MutedEffect:
    """The difference of two outcomes of one request's text, without and with its heads muted."""
    tokens: tuple[Change, ...] = ()
    if before.probabilities is not None and after.probabilities is not None:
        was, now = before.probabilities, after.probabilities
        top = {int(index) for side in (was, now) for index in np.argsort(-side, kind="stable")[:BARS]}
        tokens = tuple(
            Change(model.tokenizer.decode([index]), float(was[index]), float(now[index]))
            for index in sorted(top, key=lambda index: (-was[index], index))
        )
    similarity, similarities = None, []
    if before.embedding is not None and after.embedding is not None:
        similarity = float(before.embedding @ after.embedding)
        assert before.others is not None
        assert after.others is not None
        pairs = zip(request.others, before.others @ before.embedding, after.others @ after.embedding, strict=True)
        similarities = [Change(text, float(was), float(now)) for text, was, now in pairs]
    loss = None if before.loss is None or after.loss is None else Change(request.text, before.loss, after.loss)
    return MutedEffect(request.heads, request.how, tokens, loss, similarity, tuple(similarities))


def copy_effect(
    model: LoadedModel | str,
    heads: Iterable[tuple[int, int]],
    how: How = "zero",
    *,
    start: str | None = None,
    seed: int = 0,
) -> CopyEffect:
    """The loss on the repeated copy (``probes.repeated_copy``) without and with ``heads`` muted.

    Raises UserError for an encoder, which predicts no next token, and for heads that are not there.
    """
    loaded = load_model(model) if isinstance(model, str) else model
    probe = repeated_copy(loaded, seed, start=start)
    return CopyEffect(copy_losses(loaded, probe), copy_losses(loaded, probe, MuteHeads(tuple(heads), how)))


def copy_losses(model: LoadedModel, probe: RepeatedCopy, mute: MuteHeads | None = None) -> tuple[float, ...]:
    """Mean loss on the second copy's tokens after its first, one number a text, in nats."""
    if model.kind == "encoder":
        raise UserError(
            f"{model.id} reads both ways and predicts no next token.",
            "The repeated-copy loss needs a model that writes from left to right.",
            "Choose a decoder such as SmolLM2-135M-Instruct.",
        )
    silent = mute or MuteHeads(())
    silent.check(model.layout, model.n_layers)
    wanted = probe.length  # the last row of the logits is about a token that is not there
    logits = _logits(model, probe.ids, silent, wanted)[:, :-1]
    targets = probe.ids[:, -(wanted - 1) :]
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return tuple(losses.mean(dim=1).tolist())


def copy_effect_of_each_head(
    model: LoadedModel, seed: int = 0, how: How = "zero", progress: Callable[[float], None] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Loss on the repeated copy without muting (text,) and with each head alone muted (layer, head, text).

    One forward pass a head: minutes for a model of hundreds of heads.
    """
    probe = repeated_copy(model, seed)
    before = np.array(copy_losses(model, probe))
    after = np.empty((model.n_layers, model.layout.n_heads, len(before)))
    for layer, head in np.ndindex(after.shape[:2]):
        after[layer, head] = copy_losses(model, probe, MuteHeads(((layer, head),), how))
        if progress:
            progress((layer * after.shape[1] + head + 1) / (after.shape[0] * after.shape[1]))
    return before, after


def _logits(model: LoadedModel, ids: torch.Tensor, mute: MuteHeads, wanted: int) -> torch.Tensor:
    """Logits of the last ``wanted`` positions (text, wanted, vocab)."""
    takes = inspect.signature(model.model.forward).parameters
    extra: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    if "logits_to_keep" in takes:
        extra["logits_to_keep"] = wanted
    with kernel.forward_slot, torch.inference_mode(), kernel.recording(what_if_recorder(model, (mute,))):
        logits: torch.Tensor = model.model(input_ids=ids, **extra).logits
    return logits[:, -wanted:].float()
