"""A decoder writing token by token: its real cache's bytes, where it looks, and what else it might have said.

``python -m attention.generation record`` writes the recording on which the page opens.
"""

from __future__ import annotations

import datetime
import inspect
import math
import os
import platform
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attention import kernel
from attention.errors import UserError
from attention.kv_cache import KVCache
from attention.models import LoadedModel, load_model
from attention.settings import settings
from attention.tokens import MARK_OF, Encoded, clean_text, encode
from attention.turns import Turns
from attention.written import RECORDING, Alternative, GenerationStep, Run, as_bytes, to_json

MAX_NEW_TOKENS = 96
MOST_TEMPERATURE = 5.0
N_ALTERNATIVES = 5
# Lengths at which a text is read again without a cache; each costs a whole forward pass.
MOST_RECOMPUTED = 8
DTYPE_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
# Texts written at the same time, each taking a turn per token; more wait in line for a whole text.
writers = Turns(4)

RECORDED_MODEL = "SmolLM2-135M-Instruct"
RECORDED_PROMPT = "Once upon a time there was a little fox who"
RECORDED_TOKENS = 40
RECORDED_REPEATS = 5


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest at temperature 0, else drawn among the ``top_k`` likeliest."""

    temperature: float = 0.0
    top_k: int | None = None
    seed: int = 0

    def check(self, n_vocabulary: int) -> None:
        """Raise UserError for a temperature, top-k or seed that cannot be used."""
        warm = isinstance(self.temperature, int | float) and not isinstance(self.temperature, bool)
        if not (warm and math.isfinite(self.temperature) and 0 <= self.temperature <= MOST_TEMPERATURE):
            raise UserError(
                f"The temperature is {self.temperature!r}.",
                f"It may be 0 (always the likeliest token) to {MOST_TEMPERATURE:g}.",
                "Choose a temperature within that; 1 draws as the model itself would.",
            )
        if self.top_k is not None and not _whole_between(self.top_k, 1, n_vocabulary):
            raise UserError(
                f"Top-k is {self.top_k!r}.",
                f"It may be 1 to {n_vocabulary:,}, the size of the vocabulary.",
                "Choose a whole number within that, or none.",
            )
        if not _whole_between(self.seed, 0, 2**63 - 1):
            raise UserError(f"The seed is {self.seed!r}.", "It is a whole number from 0 up.", "Choose one, say 0.")


def generate(
    model: LoadedModel | str,
    prompt: str,
    *,
    start: str | None = None,
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
    head: tuple[int, int] | None = None,
) -> Generator[GenerationStep, None, None]:
    """Write on from ``prompt``, one GenerationStep a token, until the model ends or ``max_new_tokens`` are written.

    ``temperature`` 0 takes the likeliest token; above 0 one is drawn from softmax(logits / temperature),
    among the ``top_k`` likeliest when given. Equal seeds write equal texts. ``head`` (layer, head) names
    the one whose exact row each step carries. Between two steps nothing is held: whoever stops iterating
    has stopped the run. Raises UserError, at once, for what the model cannot take.
    """
    loaded = load_model(model) if isinstance(model, str) else model
    encoded = read_prompt(loaded, prompt, start=start, max_new_tokens=max_new_tokens)
    sampling = Sampling(temperature, top_k, seed)
    sampling.check(_n_vocabulary(loaded))
    if head is not None and not (0 <= head[0] < loaded.n_layers and 0 <= head[1] < loaded.layout.n_heads):
        raise UserError(
            f"There is no layer {head[0]}, head {head[1]}.",
            f"Layers are numbered 0 to {loaded.n_layers - 1}, heads 0 to {loaded.layout.n_heads - 1}.",
            "Choose one of these.",
        )
    return _steps(loaded, encoded.ids, max_new_tokens, sampling, head)


def read_prompt(model: LoadedModel, prompt: str, *, start: str | None, max_new_tokens: int) -> Encoded:
    """The prompt's tokens. Raises UserError for an encoder, too many new tokens, or a prompt without room for them."""
    if model.kind != "decoder":
        raise UserError(
            f"{model.title.split(':')[0]} reads a text in both directions, so it cannot write one on.",
            "Models that read left to right can, such as SmolLM2.",
            "Choose one of these.",
        )
    if not _whole_between(max_new_tokens, 1, MAX_NEW_TOKENS):
        raise UserError(
            f"{max_new_tokens!r} new tokens were asked for.",
            f"1 to {MAX_NEW_TOKENS} can be written at a time.",
            "Choose a number within that.",
        )
    room = min(settings().max_tokens, model.max_positions) - max_new_tokens
    clean = clean_text(prompt, settings().max_chars)
    encoded = encode(model.tokenizer, clean, start=start, max_tokens=max(1, room))
    if encoded.cut or room < 1:
        raise UserError(
            f"The prompt has {encoded.total:,} tokens and {max_new_tokens} more are to be written.",
            f"Together they may be {room + max_new_tokens:,}.",
            "Shorten the prompt, or write fewer tokens.",
        )
    return encoded


def begin_run(
    model: LoadedModel,
    prompt: str,
    *,
    start: str | None = None,
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Run:
    """The run of these settings before its first step. Raises UserError as ``generate`` does."""
    encoded = read_prompt(model, prompt, start=start, max_new_tokens=max_new_tokens)
    Sampling(temperature, top_k, seed).check(_n_vocabulary(model))
    return Run(
        model=model.id,
        title=model.title.split(":")[0],
        prompt=prompt,
        start=start,
        prompt_tokens=tuple(token.raw if token.special else token.text for token in encoded.tokens),
        prompt_labels=tuple(token.label for token in encoded.tokens),
        prompt_ids=encoded.ids,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        n_layers=model.n_layers,
        n_heads=model.layout.n_heads,
        n_kv_heads=model.layout.n_kv_heads,
        dtype=_dtype(model),
        working=KVCache.from_config(model.model.config).working(1, 1, _dtype(model)).text,
        max_new_tokens=max_new_tokens,
        machine=machine(),
    )


def recompute_seconds(
    model: LoadedModel, ids: Sequence[int], lengths: Sequence[int] | None = None
) -> tuple[tuple[int, float], ...]:
    """Seconds of one forward pass without a cache over the first n of ``ids``: (n, seconds) for each length.

    What every further token would cost if nothing were kept. Without ``lengths``: at most 8, spread
    evenly. Each pass takes a turn of its own. Raises UserError for more than 8, or a length ``ids`` has not.
    """
    wanted = spread_lengths(len(ids)) if lengths is None else tuple(lengths)
    if len(wanted) > MOST_RECOMPUTED:
        raise UserError(
            f"{len(wanted)} lengths were asked for.",
            f"At most {MOST_RECOMPUTED} are timed, each of them a whole forward pass.",
            "Choose fewer.",
        )
    for length in wanted:
        if not _whole_between(length, 1, len(ids)):
            raise UserError(
                f"A length of {length!r} was asked for.", f"This text has 1 to {len(ids)} tokens.", "Choose within."
            )
    timed = []
    for length in wanted:
        tokens = torch.tensor([list(ids[:length])])
        with kernel.forward_slot, torch.inference_mode():
            began = time.perf_counter()
            model.model(input_ids=tokens, use_cache=False, **_last_only(model))
            timed.append((length, time.perf_counter() - began))
    return tuple(timed)


def spread_lengths(n_tokens: int) -> tuple[int, ...]:
    """At most 8 lengths from a few tokens up to ``n_tokens``, evenly spread."""
    return tuple(sorted({int(length) for length in np.linspace(min(4, n_tokens), n_tokens, MOST_RECOMPUTED)}))


def shares(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The chance of each token to be drawn, float64 (vocab,), adding up to 1.

    softmax(logits / temperature) over the ``top_k`` largest logits; all on the largest at temperature 0.
    """
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), logits.shape[-1]).double()
    # Lowered by the largest first: however small the temperature, nothing overflows.
    scaled = (logits.double() - logits.max().double()) / sampling.temperature
    if sampling.top_k is not None:
        among = logits.topk(min(sampling.top_k, logits.shape[-1])).indices
        scaled = torch.full_like(scaled, -torch.inf).index_copy_(0, among, scaled[among])
    return scaled.softmax(dim=-1)


def machine() -> str:
    """What this program runs on, in words: cores and versions."""
    import transformers

    cores = os.cpu_count() or 1
    return (
        f"{cores} CPU core{'s' if cores > 1 else ''} ({platform.machine()}), torch {torch.__version__.split('+')[0]}, "
        f"transformers {transformers.__version__}"
    )


def _steps(
    model: LoadedModel, prompt_ids: Sequence[int], max_new_tokens: int, sampling: Sampling, head: tuple[int, int] | None
) -> Generator[GenerationStep, None, None]:
    from transformers import DynamicCache

    cache = DynamicCache(config=model.model.config)
    formula = KVCache.from_config(model.model.config)
    chooser = torch.Generator().manual_seed(sampling.seed)
    ends = _end_ids(model)
    dtype = _dtype(model)
    feed, n_cached = list(prompt_ids), 0
    for _ in range(max_new_tokens):
        n_cached += len(feed)
        logits, rows, seconds = _forward(model, feed, cache, n_cached)
        chances = shares(logits, sampling)
        chosen = int(logits.argmax() if sampling.temperature == 0 else torch.multinomial(chances, 1, generator=chooser))
        own = logits.double().softmax(dim=-1)
        per_layer = tuple(_layer_bytes(layer) for layer in cache.layers)
        token = model.tokenizer.decode([chosen])
        yield GenerationStep(
            token=token,
            label=_label(token),
            id=chosen,
            probability=float(own[chosen]),
            chance=float(chances[chosen]),
            alternatives=_alternatives(model, own, chances),
            n_cached=n_cached,
            cache_bytes=sum(per_layer),
            formula_bytes=formula.bytes(n_cached, 1, dtype),
            formula_bytes_16bit=formula.bytes(n_cached, 1, "fp16"),
            cache_bytes_per_layer=per_layer,
            attention_row=None if head is None else _frozen(rows[head].copy()),
            row_bytes=_frozen(as_bytes(rows)),
            seconds_with_cache=seconds,
            ends=chosen in ends,
        )
        if chosen in ends:
            return
        feed = [chosen]


def _forward(model: LoadedModel, feed: list[int], cache: Any, n_keys: int) -> tuple[torch.Tensor, np.ndarray, float]:
    """One turn: logits (vocab,) behind the last of ``feed``, every head's row (layer, head, n_keys), seconds."""
    recorder = kernel.Recorder(last_rows=[])
    with kernel.forward_slot, torch.inference_mode(), kernel.recording(recorder):
        began = time.perf_counter()
        output = model.model(
            input_ids=torch.tensor([feed]), use_cache=True, **{_cache_name(model): cache}, **_last_only(model)
        )
        seconds = time.perf_counter() - began
        logits = output.logits[0, -1].float()
    assert recorder.last_rows is not None
    rows = np.zeros((len(recorder.last_rows), model.layout.n_heads, n_keys), dtype=np.float32)
    for layer, row in enumerate(recorder.last_rows):
        rows[layer, :, n_keys - row.shape[-1] :] = row[0, :, 0].numpy()  # a window has dropped the oldest tokens
    return logits, rows, seconds


def _last_only(model: LoadedModel) -> dict[str, int]:
    """One row of a 49,152-word vocabulary is 192 KiB: ask for the last position only, where a model can be asked."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.model.forward).parameters else {}


def _cache_name(model: LoadedModel) -> str:
    """What this model's forward calls its cache: transformers is renaming ``past_key_values``, model by model."""
    return "cache" if "cache" in inspect.signature(model.model.forward).parameters else "past_key_values"


def _layer_bytes(layer: Any) -> int:
    held = (getattr(layer, name, None) for name in ("keys", "values", "indexer_keys"))
    return sum(tensor.nbytes for tensor in held if tensor is not None)


def _alternatives(model: LoadedModel, own: torch.Tensor, chances: torch.Tensor) -> tuple[Alternative, ...]:
    top = own.topk(min(N_ALTERNATIVES, own.shape[-1])).indices.tolist()
    return tuple(
        Alternative(_label(model.tokenizer.decode([id])), id, float(own[id]), float(chances[id])) for id in top
    )


def _label(token: str) -> str:
    """What a person reads for a written token: its leading space dropped, every other hidden character named."""
    shown = token[1:] if len(token) > 1 and token[0] == " " else token
    named = "".join(MARK_OF.get(char, char) if not char.isprintable() or char == " " else char for char in shown)
    return "".join(char if char.isprintable() else f"‹U+{ord(char):04X}›" for char in named)


def _end_ids(model: LoadedModel) -> frozenset[int]:
    """Tokens after which the model has nothing more to say, by its own generation settings."""
    of_model = getattr(model.model, "generation_config", None)
    ids = getattr(of_model, "eos_token_id", None)
    if ids is None:
        ids = model.tokenizer.eos_token_id
    return frozenset(() if ids is None else [ids] if isinstance(ids, int) else ids)


def _n_vocabulary(model: LoadedModel) -> int:
    return int(model.model.config.get_text_config().vocab_size)


def _dtype(model: LoadedModel) -> str:
    return DTYPE_NAMES[next(model.model.parameters()).dtype]


def _whole_between(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def record() -> Run:
    """The run the page opens on. Its times are the fastest of a few runs that write the same."""
    model = load_model(RECORDED_MODEL)
    start = model.default_start
    run = begin_run(model, RECORDED_PROMPT, start=start, max_new_tokens=RECORDED_TOKENS)
    runs = [
        tuple(generate(model, RECORDED_PROMPT, start=start, max_new_tokens=RECORDED_TOKENS))
        for _ in range(RECORDED_REPEATS)
    ]
    steps = tuple(
        replace(same[0], seconds_with_cache=min(step.seconds_with_cache for step in same))
        for same in zip(*runs, strict=True)
    )
    run = replace(
        run,
        steps=steps,
        recorded_on=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=f"{run.machine}, times the fastest of {RECORDED_REPEATS} runs",
    )
    timed = [recompute_seconds(model, run.ids[:-1]) for _ in range(RECORDED_REPEATS)]
    fastest = tuple((same[0][0], min(seconds for _, seconds in same)) for same in zip(*timed, strict=True))
    return replace(run, recomputed=fastest)


if __name__ == "__main__":
    if sys.argv[1:] != ["record"]:
        sys.exit("Usage: python -m attention.generation record")
    RECORDING.write_text(to_json(record()), encoding="utf-8")
