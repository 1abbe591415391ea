"""A sentence through a model: TraceRequest -> AttentionTrace, every head's weights and their checks."""

from __future__ import annotations

import inspect
import json
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from attention import kernel
from attention.errors import UserError
from attention.layout import HeadLayout
from attention.model_facts import ModelCard
from attention.models import LoadedModel, load_model, positions_before_text
from attention.plans import kv_plan
from attention.settings import settings
from attention.sharing import MuteHeads, WhatIf, as_what_ifs, named_values
from attention.tokens import Encoded, Token, clean_text, encode

KEEPABLE = ("q", "k", "v")
BATCH_BYTES = 256 * 2**20
# float32 sums of up to 512 softmax terms stay within a few units of 6e-8 of 1.
ROW_SUM_TOLERANCE = 1e-5
SDPA_TOLERANCE = 1e-4


@dataclass(frozen=True)
class TraceRequest:
    """Everything a trace depends on. ``key`` is the only thing any cache may use."""

    model: str
    text: str
    pair: str | None = None
    start: str | None = None
    keep: tuple[str, ...] = ()
    layer: int | None = None
    what_if: tuple[WhatIf, ...] = ()
    revision: str = ""

    @property
    def key(self) -> str:
        """Canonical JSON with class names, so that two different what-ifs never collide."""
        return json.dumps(named_values(self), sort_keys=True, ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True)
class Check:
    """One self-check of a trace: what was compared, the number, and whether it holds. ``ok=None``: not applicable."""

    name: str
    value: float
    text: str
    ok: bool | None
    meaning: str


@dataclass(frozen=True)
class Outputs:
    """What the model itself gave. ``hidden`` (seq_len, d_model); ``embedding`` (d_model,) of unit length, encoders;
    ``next_tokens`` the ten likeliest continuations with probabilities, decoders."""

    hidden: np.ndarray
    embedding: np.ndarray | None
    next_tokens: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Kept:
    """q (n_heads, seq_len, d_head), k and v (n_kv_heads, …) of one layer, as the kernel received them,
    and the numbers that turn q·k into scores."""

    layer: int
    tensors: dict[str, np.ndarray]
    scaling: float
    softcap: float | None


@dataclass(frozen=True)
class AttentionTrace:
    """Every head's attention on one text. NumPy only, read-only, picklable.

    ``weights`` float32 (layer, head, query, key). ``masks`` (kind, query, key) booleans, True
    where a row may look; ``mask_of_layer[layer]`` names the kind. ``sink_logits`` is True for
    models whose rows may sum below 1 (gpt-oss). Bytes of the arrays: ``nbytes``.
    """

    request: TraceRequest
    tokens: tuple[Token, ...]
    weights: np.ndarray
    masks: np.ndarray
    mask_of_layer: tuple[int, ...]
    sink_logits: bool
    outputs: Outputs
    model: ModelCard
    layout: HeadLayout
    notice: str
    n_cut: int
    seconds: float
    type_ids: tuple[int, ...] = ()
    kept: Kept | None = None
    checks: tuple[Check, ...] = field(default=())

    @property
    def text(self) -> str:
        """The (first) sentence, exactly as traced."""
        return self.request.text

    @property
    def causal(self) -> bool:
        """Whether no row may look at a later column, in any layer."""
        return not bool(np.triu(self.masks, k=1).any())

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held."""
        kept = sum(array.nbytes for array in self.kept.tensors.values()) if self.kept else 0
        return self.weights.nbytes + self.masks.nbytes + self.outputs.hidden.nbytes + kept

    def visible(self, layer: int) -> np.ndarray:
        """The mask layer ``layer`` really used: (query, key) booleans."""
        return self.masks[self.mask_of_layer[layer]]

    def blank_rows(self, layer: int) -> np.ndarray:
        """Rows that may look at nothing at all: (query,) booleans. Their weights are 0, not NaN."""
        return np.logical_not(self.visible(layer).any(axis=-1))

    def verify(self, model: LoadedModel | None = None) -> Check:
        """Run the same tokens through the model's own SDPA path and compare the last hidden states.

        A second forward pass, so it runs only when asked. ``model`` is needed only for a
        model that ``load_model`` cannot find by id.
        """
        if self.request.what_if:
            return Check(
                "Own SDPA output", float("nan"), "not compared", None, "A what-if changes the output on purpose."
            )
        loaded = model or load_model(self.model.id)
        ids = torch.tensor([[token.id for token in self.tokens]])
        inputs = {"input_ids": ids, **_segments(loaded, [self.type_ids], ids, [0])}
        recorder = kernel.Recorder()
        with kernel.forward_slot, torch.inference_mode(), kernel.recording(recorder):
            _forward(loaded.reference, loaded.kind, inputs, [len(self.tokens) - 1])
        assert recorder.hidden is not None
        return sdpa_check(self.outputs.hidden, recorder.hidden[0].float().numpy())


def sdpa_check(ours: np.ndarray, theirs: np.ndarray) -> Check:
    """Largest absolute difference between two (seq_len, d_model) outputs, relative to the largest value seen."""
    difference = float(np.abs(ours - theirs).max())
    scale = max(1.0, float(np.abs(theirs).max()))
    return Check(
        "Own SDPA output",
        difference,
        f"largest difference {difference:.1e}",
        difference <= SDPA_TOLERANCE * scale,
        "The same text through the model's own fused attention gives the same output, up to float32 rounding.",
    )


def trace(
    model: LoadedModel | str,
    text: str | list[str],
    *,
    pair: str | None = None,
    start: str | None = None,
    keep: tuple[str, ...] = (),
    layer: int | None = None,
    what_if: WhatIf | tuple[WhatIf, ...] | None = None,
    padding: Literal["right", "left"] = "right",
) -> Any:
    """Trace a text (-> AttentionTrace) or several (-> list, each without its padding).

    ``start`` is a special token put before a decoder's text; none is added otherwise. ``keep``
    names tensors ("q", "k", "v") of layer ``layer`` to keep. Raises UserError for text, start,
    layer or what-if the model cannot take.
    """
    loaded = load_model(model) if isinstance(model, str) else model
    texts = [text] if isinstance(text, str) else list(text)
    what_ifs = as_what_ifs(what_if)
    _check_request(loaded, keep, layer, what_ifs)
    requests, encodings = [], []
    for one in texts:
        clean = clean_text(one, settings().max_chars)
        clean_pair = None if pair is None else clean_text(pair, settings().max_chars, what="second sentence")
        request = TraceRequest(loaded.id, clean, clean_pair, start, tuple(keep), layer, what_ifs, loaded.revision)
        requests.append(request)
        encodings.append(
            encode(
                loaded.tokenizer,
                clean,
                pair=clean_pair,
                start=start,
                max_tokens=min(settings().max_tokens, loaded.max_positions),
            )
        )
        _check_vocabulary(loaded, encodings[-1])
    traces: list[AttentionTrace] = []
    for batch in _batches(loaded, encodings):
        traces += _run(loaded, [requests[i] for i in batch], [encodings[i] for i in batch], padding)
    return traces[0] if isinstance(text, str) else traces


def _check_request(loaded: LoadedModel, keep: tuple[str, ...], layer: int | None, what_ifs: tuple[WhatIf, ...]) -> None:
    for name in keep:
        if name not in KEEPABLE:
            raise UserError(f"{name!r} cannot be kept.", "q, k and v can.", "Choose among these.")
    if keep and layer is None:
        raise UserError("To keep tensors, one layer must be named.", f"0 to {loaded.n_layers - 1}.", "Pass layer=…")
    if layer is not None and not 0 <= layer < loaded.n_layers:
        raise UserError(
            f"There is no layer {layer}.", f"Layers are numbered 0 to {loaded.n_layers - 1}.", "Choose one of these."
        )
    for one in what_ifs:
        one.check(loaded.layout, loaded.n_layers)


def _check_vocabulary(loaded: LoadedModel, encoding: Encoded) -> None:
    known = getattr(loaded.model.config.get_text_config(), "vocab_size", sys.maxsize)
    strange = next((token for token in encoding.tokens if token.id >= known), None)
    if strange is not None:
        raise UserError(
            f"The tokenizer of {loaded.id} makes token number {strange.id} of {strange.label!r}.",
            f"The model knows the numbers 0 to {known - 1}.",
            "The tokenizer belongs to another model; check the files.",
        )


def _batches(loaded: LoadedModel, encodings: list[Encoded]) -> list[list[int]]:
    """Split into runs whose padded weights stay under BATCH_BYTES."""
    batches: list[list[int]] = []
    for index, encoding in enumerate(encodings):
        longest = max([len(encoding.ids)] + [len(encodings[i].ids) for i in (batches[-1] if batches else [])])
        size = (len(batches[-1]) + 1 if batches else 1) * loaded.n_layers * loaded.layout.n_heads * longest**2 * 4
        if batches and size <= BATCH_BYTES:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _run(
    loaded: LoadedModel, requests: list[TraceRequest], encodings: list[Encoded], padding: Literal["right", "left"]
) -> list[AttentionTrace]:
    began = time.perf_counter()
    inputs, first = _padded(loaded, encodings, padding)
    recorder = what_if_recorder(
        loaded,
        requests[0].what_if,
        n_layers=loaded.n_layers,
        keep=requests[0].keep,
        keep_layer=requests[0].layer,
        attended=inputs.get("attention_mask"),
    )
    last = [begin + len(encoding.ids) - 1 for begin, encoding in zip(first, encodings, strict=True)]
    with kernel.forward_slot, torch.inference_mode(), kernel.recording(recorder):
        logits = _forward(loaded.model, loaded.kind, inputs, last)
    if recorder.calls != loaded.n_layers or recorder.weights is None:
        raise UserError(
            f"{loaded.id} called attention {recorder.calls} times instead of {loaded.n_layers}.",
            "Each layer must call it once.",
            "Choose another model.",
        )
    seconds = (time.perf_counter() - began) / len(encodings)
    return [
        _unpadded(loaded, request, encoding, recorder, logits, row, first[row], seconds)
        for row, (request, encoding) in enumerate(zip(requests, encodings, strict=True))
    ]


def what_if_recorder(loaded: LoadedModel, what_ifs: tuple[WhatIf, ...], **fields: Any) -> kernel.Recorder:
    """A recorder under which a forward pass carries out the what-ifs, and leaves the model as it is."""
    mutes = tuple(one for one in what_ifs if isinstance(one, MuteHeads))
    return kernel.Recorder(plan=kv_plan(loaded, what_ifs), mutes=mutes, **fields)


def _padded(
    loaded: LoadedModel, encodings: list[Encoded], padding: Literal["right", "left"]
) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Model inputs for a batch, and where each text's first token stands in its row."""
    lengths = [len(encoding.ids) for encoding in encodings]
    longest = max(lengths)
    first = [longest - length if padding == "left" else 0 for length in lengths]
    pad_id = _pad_id(loaded)
    ids = torch.full((len(encodings), longest), pad_id)
    attend = torch.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        here = slice(first[row], first[row] + lengths[row])
        ids[row, here] = torch.tensor(encoding.ids)
        attend[row, here] = 1
    inputs = {"input_ids": ids}
    if min(lengths) < longest:
        inputs["attention_mask"] = attend
        if padding == "left" and _takes_positions(loaded):
            inputs["position_ids"] = (attend.cumsum(dim=1) - 1).clamp(min=0)
    return inputs | _segments(loaded, [encoding.type_ids for encoding in encodings], ids, first), first


def _pad_id(loaded: LoadedModel) -> int:
    """The padding the model itself knows (RoBERTa counts positions by it), else the tokenizer's, else any."""
    of_model = getattr(loaded.model.config, "pad_token_id", None)
    return next((one for one in (of_model, loaded.tokenizer.pad_token_id) if one is not None and one >= 0), 0)


def _takes_positions(loaded: LoadedModel) -> bool:
    """Whether positions may be passed: RoBERTa's kin count them from the padding themselves, with an offset."""
    takes = "position_ids" in inspect.signature(loaded.model.forward).parameters
    return takes and positions_before_text(loaded.model) == 0


def _segments(
    loaded: LoadedModel, type_ids: list[tuple[int, ...]], ids: torch.Tensor, first: list[int]
) -> dict[str, torch.Tensor]:
    """token_type_ids where a pair is present and the model takes them."""
    if not any(map(any, type_ids)) or "token_type_ids" not in inspect.signature(loaded.model.forward).parameters:
        return {}
    types = torch.zeros_like(ids)
    for row, (begin, own) in enumerate(zip(first, type_ids, strict=True)):
        types[row, begin : begin + len(own)] = torch.tensor(own)
    return {"token_type_ids": types}


def _forward(model: Any, kind: str, inputs: dict[str, torch.Tensor], last: list[int]) -> torch.Tensor | None:
    """Run the model, its trunk's hidden states going to the recorder. Decoders: logits (B, vocab) at each ``last``."""
    takes = inspect.signature(model.forward).parameters
    extra: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    if kind == "encoder":
        model(**inputs, **extra)
        return None
    # One row of a 49,152-word vocabulary is 192 KiB: ask only for the positions wanted.
    wanted = sorted(set(last))
    if "logits_to_keep" in takes:
        logits = model(**inputs, **extra, logits_to_keep=torch.tensor(wanted)).logits
    else:
        logits = model(**inputs, **extra).logits[:, wanted]
    return torch.stack([logits[row, wanted.index(position)] for row, position in enumerate(last)]).float()


def _unpadded(
    loaded: LoadedModel,
    request: TraceRequest,
    encoding: Encoded,
    recorder: kernel.Recorder,
    logits: torch.Tensor | None,
    row: int,
    first: int,
    seconds: float,
) -> AttentionTrace:
    here = slice(first, first + len(encoding.ids))
    assert recorder.weights is not None
    assert recorder.hidden is not None
    weights = recorder.weights[:, row, :, here, here]
    masks = [_visible(mask, row, here) for mask in recorder.masks]
    hidden = recorder.hidden[row, here].float()
    traced = AttentionTrace(
        request=request,
        tokens=encoding.tokens,
        weights=_frozen(weights),
        masks=_frozen(torch.stack(masks)),
        mask_of_layer=tuple(recorder.mask_of_layer),
        sink_logits=recorder.sinks,
        outputs=Outputs(
            _frozen(hidden),
            _embedding(loaded, hidden),
            () if logits is None else _next_tokens(loaded, logits[row]),
        ),
        model=loaded.card,
        layout=loaded.layout,
        notice=encoding.notice,
        n_cut=encoding.cut,
        seconds=seconds,
        type_ids=encoding.type_ids,
        kept=_kept(recorder, row, here),
    )
    return replace(traced, checks=self_checks(traced))


def _visible(mask: torch.Tensor | None, row: int, here: slice) -> torch.Tensor:
    size = here.stop - here.start
    if mask is None:
        return torch.ones((size, size), dtype=torch.bool)
    cells = kernel.visible_cells(mask)
    cells = cells[row if cells.shape[0] > 1 else 0, 0]  # (query, key), or (1, key) where all rows agree
    if cells.shape[0] == 1:
        cells = cells.expand(here.stop, -1)
    return cells[here, here]


def _kept(recorder: kernel.Recorder, row: int, here: slice) -> Kept | None:
    if not recorder.keep:
        return None
    assert recorder.keep_layer is not None
    tensors = {name: _frozen(recorder.kept[name][row][:, here]) for name in recorder.keep}
    return Kept(recorder.keep_layer, tensors, recorder.kept["scaling"], recorder.kept["softcap"])


def _embedding(loaded: LoadedModel, hidden: torch.Tensor) -> np.ndarray | None:
    """Mean over tokens, scaled to length 1: how the MiniLM sentence model pools (its 1_Pooling/config.json)."""
    if loaded.kind != "encoder":
        return None
    return _frozen(torch.nn.functional.normalize(hidden.mean(dim=0), dim=0))


def _next_tokens(loaded: LoadedModel, logits: torch.Tensor) -> tuple[tuple[str, float], ...]:
    top = logits.softmax(dim=-1).topk(min(10, logits.shape[-1]))
    return tuple((loaded.tokenizer.decode([int(id)]), float(p)) for p, id in zip(top.values, top.indices, strict=True))


def self_checks(traced: AttentionTrace) -> tuple[Check, ...]:
    """What a trace can say about itself without a second pass: row sums, mask leak, finite numbers, cut, time."""
    sums = traced.weights.sum(axis=-1)
    off = 0.0
    leak = 0.0
    for kind in range(len(traced.masks)):
        layers = [layer for layer, used in enumerate(traced.mask_of_layer) if used == kind]
        rows = traced.masks[kind].any(axis=-1)
        part = sums[layers][..., rows]
        if part.size:
            over = part - 1 if traced.sink_logits else np.abs(part - 1)
            off = float(np.maximum(off, over.max()))  # unlike max(), keeps a NaN
        hidden = ~traced.masks[kind]
        if hidden.any():
            # Layer by layer and in place: a copy of all hidden cells would be half as large as the trace.
            leaks = [traced.weights[layer].max(where=hidden, initial=0.0) for layer in layers]
            leak = float(np.maximum(leak, np.max(leaks)))
    finite = bool(np.isfinite(sums).all())
    sums_meaning = (
        "This model has learned sinks outside the text, so rows sum to at most 1."
        if traced.sink_logits
        else "Each row of each head shares out exactly one whole."
    )
    return (
        Check("Row sums", off, f"off by at most {off:.1e}", off <= ROW_SUM_TOLERANCE, sums_meaning),
        Check("Mask leak", leak, f"{leak:.1e}", leak == 0.0, "No weight lies where the model may not look."),
        Check(
            "Finite",
            float(finite),
            "all numbers finite" if finite else "NaN or infinity",
            finite,
            "No NaN, no infinity.",
        ),
        Check(
            "Tokens cut",
            float(traced.n_cut),
            str(traced.n_cut),
            traced.n_cut == 0,
            traced.notice or "The whole text is shown.",
        ),
    )


def _frozen(array: torch.Tensor) -> np.ndarray:
    result = np.ascontiguousarray(array.numpy())
    if result.base is not None and not result.flags.owndata and result.nbytes < array.untyped_storage().nbytes():
        result = result.copy()
    result.setflags(write=False)
    return result


def facts_of(card: ModelCard) -> dict[str, Any]:
    """The model card as plain JSON-able values, for exports."""
    return asdict(card)
