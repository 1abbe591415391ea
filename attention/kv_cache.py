"""Exact bytes of a model's KV cache: what every layer keeps, for any length, batch and precision.

    bytes = Σ over layers of  tokens kept × numbers per token × bytes per number × sequences

Tokens kept: all of them in a full layer, ``min(T, W)`` under a window, none where a layer
reuses another's. Numbers per token: ``n_kv_heads * (d_key + d_value)``, or MLA's
``d_latent + d_rope``. Everything is whole numbers; GiB means 2**30 bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from attention.errors import UserError
from attention.kv_config import read_shape
from attention.kv_layers import KIND_WORDS, LayerKind, LayerSpec, heads_per_gpu, layer_token_bytes, precision
from attention.kv_reader import MAX_TOKENS, shown
from attention.kv_working import Factor, Working, WorkingLine
from attention.layout import Rung

Ints = npt.NDArray[np.int64]
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class KVCache:
    """What a model keeps while it writes, one LayerSpec per layer.

    The growing cache (``bytes``), a constant state (``state_bytes``) and an
    encoder-decoder's cross-cache (``cross_bytes``) are separate numbers, never added up
    silently. ``reason`` says why the cache is 0 bytes, when it is. ``trained_context``
    and ``source_len`` are in tokens.
    """

    layers: tuple[LayerSpec, ...]
    n_heads: int = 0
    name: str = ""
    cross_layers: tuple[LayerSpec, ...] = ()
    trained_context: int | None = None
    source_len: int | None = None
    reason: str = ""

    @classmethod
    def from_config(cls, config: object, name: str = "", mtp: bool = False) -> KVCache:
        """The cache of the model that a config.json (as a dict) or a transformers config object describes.

        ``mtp=True`` also counts multi-token-prediction layers, which cache only while
        speculative decoding is on. Raises UserError for a config that is malformed, does
        not say enough, or is of an architecture that is not known.
        """
        shape = read_shape(config, mtp=mtp)
        return cls(
            layers=shape.layers,
            n_heads=shape.n_heads,
            name=name or shape.model_type,
            cross_layers=shape.cross_layers,
            trained_context=shape.trained_context,
            source_len=shape.source_len,
            reason=shape.reason,
        )

    @classmethod
    def from_sizes(
        cls,
        n_layers: int,
        n_heads: int,
        n_kv_heads: int,
        d_head: int,
        window: int | None = None,
        d_latent: int | None = None,
        d_rope: int = 0,
    ) -> KVCache:
        """A cache from plain sizes, every layer alike; ``d_latent`` makes it MLA. Raises UserError like a config."""
        sizes = {"num_hidden_layers": n_layers, "num_attention_heads": n_heads, "head_dim": d_head}
        cache = cls.from_config(
            {"model_type": "mistral", **sizes, "num_key_value_heads": n_kv_heads, "sliding_window": window},
            "your model",
        )
        return cache if d_latent is None else cache.as_if("MLA", d_latent=d_latent, d_rope=d_rope)

    @cached_property
    def groups(self) -> tuple[tuple[LayerSpec, int], ...]:
        """Equal layers together: (spec, how many), in the order in which each kind first appears."""
        return tuple(Counter(self.layers).items())

    @property
    def rung(self) -> Rung | None:
        """MHA, GQA, MQA or MLA, judged by the first layer that caches; None when none does."""
        for layer in self.layers:
            if layer.kind == "latent":
                return "MLA"
            if layer.caches_tokens:
                return "MHA" if layer.n_kv_heads == self.n_heads else "MQA" if layer.n_kv_heads == 1 else "GQA"
        return None

    @property
    def n_kv_heads(self) -> int:
        """K/V heads of the first layer that caches (0 when none does); layers may differ, see ``layers``."""
        return next((layer.n_kv_heads for layer in self.layers if layer.caches_tokens), 0)

    @property
    def elements_per_token(self) -> int:
        """Numbers stored for one token while every window still has room."""
        return sum(layer.elements_per_token for layer in self.layers)

    @overload
    def bytes(
        self,
        seq_len: int,
        batch_size: int = 1,
        dtype: object = "fp16",
        block_size: int | None = None,
        tensor_parallel: int = 1,
        shared_prefix: int = 0,
    ) -> int: ...

    @overload
    def bytes(
        self,
        seq_len: Ints | Sequence[int],
        batch_size: int | Ints | Sequence[int] = 1,
        dtype: object = "fp16",
        block_size: int | None = None,
        tensor_parallel: int = 1,
        shared_prefix: int = 0,
    ) -> Ints: ...

    def bytes(
        self,
        seq_len: Any,
        batch_size: Any = 1,
        dtype: object = "fp16",
        block_size: int | None = None,
        tensor_parallel: int = 1,
        shared_prefix: int = 0,
    ) -> int | Ints:
        """Bytes of the growing cache, exact; arrays of ``seq_len`` and ``batch_size`` broadcast.

        ``block_size`` rounds the tokens of every layer up to whole blocks, as paged engines
        do. ``tensor_parallel`` counts the bytes of all GPUs together: past n_kv_heads the
        heads are copied and the total grows. ``shared_prefix`` tokens at the start of every
        sequence are stored once (whole blocks only, when there are blocks).
        Raises UserError for sizes that are not whole, negative, or too large to count.
        """
        tokens, sequences = _whole("seq_len", seq_len), _whole("batch_size", batch_size)
        _one_number("tensor_parallel", tensor_parallel, least=1)
        _one_number("shared_prefix", shared_prefix, least=0)
        if block_size is not None:
            _one_number("block_size", block_size, least=1)
        prefix = shared_prefix // block_size * block_size if block_size else shared_prefix
        per_token = [(spec, count * layer_token_bytes(spec, dtype, tensor_parallel)) for spec, count in self.groups]
        longest = int(tokens.max(initial=0)) + (block_size or 0)
        if sum(size for _, size in per_token) * longest * max(1, int(sequences.max(initial=0))) > _LARGEST:
            raise UserError(
                "This cache is too large to count: more than 9 billion GiB.",
                "Fewer tokens, sequences, layers or heads can be counted.",
                "Choose a smaller number.",
            )
        total = np.zeros(np.broadcast_shapes(tokens.shape, sequences.shape), dtype=np.int64)
        for spec, size in per_token:
            total += size * _stored_tokens(spec, tokens, sequences, block_size, prefix)
        return int(total) if total.ndim == 0 else total

    def bytes_per_gpu(
        self,
        seq_len: int,
        batch_size: int = 1,
        dtype: object = "fp16",
        block_size: int | None = None,
        tensor_parallel: int = 1,
    ) -> int:
        """Bytes each of ``tensor_parallel`` GPUs holds."""
        return self.bytes(seq_len, batch_size, dtype, block_size, tensor_parallel) // tensor_parallel

    def bytes_per_token(self, dtype: object = "fp16", seq_len: int = 0, tensor_parallel: int = 1) -> int:
        """Bytes the next token adds to one sequence of ``seq_len`` tokens; full windows add nothing."""
        return self.bytes(seq_len + 1, 1, dtype, tensor_parallel=tensor_parallel) - self.bytes(
            seq_len, 1, dtype, tensor_parallel=tensor_parallel
        )

    def bytes_for_lengths(self, lengths: Sequence[int] | Ints, dtype: object = "fp16", **options: Any) -> int:
        """Bytes of sequences of different lengths together: what really is in memory, not the longest times all."""
        sizes = np.atleast_1d(np.asarray(self.bytes(np.atleast_1d(np.asarray(lengths)), 1, dtype, **options)))
        return sum(int(size) for size in sizes)

    @property
    def state_bytes(self) -> int:
        """Bytes of the constant state of one sequence, at 16 bits where the model does not insist on float32."""
        return self.state_bytes_for()

    def state_bytes_for(self, batch_size: int = 1, dtype: object = "fp16") -> int:
        """Bytes of the constant state, whatever the length; most recurrent parts stay in float32.

        Counted as transformers 5.24 allocates it. Only "fp32", "fp16" and "bf16" name a
        state's precision; a quantised K/V cache leaves the state at 16 bits.
        """
        bits = precision(dtype).bits if precision(dtype).name in ("fp32", "fp16", "bf16") else 16
        per_sequence = sum(layer.state_elements * bits // 8 + layer.state_elements_fp32 * 4 for layer in self.layers)
        return per_sequence * _one_number("batch_size", batch_size, least=0)

    @property
    def cross_bytes(self) -> int:
        """Bytes of an encoder-decoder's cross-cache for one source of ``source_len`` tokens at 16 bits; else 0."""
        return self.cross_bytes_for(self.source_len or 0)

    def cross_bytes_for(self, source_len: int, batch_size: int = 1, dtype: object = "fp16") -> int:
        """Bytes of the cross-cache: fixed once a source of ``source_len`` tokens has been read."""
        tokens = _one_number("source_len", source_len, least=0) * _one_number("batch_size", batch_size, least=0)
        return tokens * sum(layer_token_bytes(layer, dtype) for layer in self.cross_layers)

    def warnings(self, seq_len: int) -> tuple[str, ...]:
        """Sentences to show beside a number: it is given, but a reader should know. Nothing is ever clipped."""
        if self.trained_context is None or seq_len <= self.trained_context:
            return ()
        return (
            f"{self.name or 'This model'} was trained on texts of up to {self.trained_context:,} tokens; "
            f"{seq_len:,} is more. The bytes are right, the answers may not be.",
        )

    def working(
        self,
        seq_len: int,
        batch_size: int = 1,
        dtype: object = "fp16",
        block_size: int | None = None,
        tensor_parallel: int = 1,
    ) -> Working:
        """How ``bytes`` comes about, as data: one line per group of equal layers, whose factors multiply to its bytes.

        The lines add up to ``bytes`` of the same arguments, exactly.
        """
        total = self.bytes(seq_len, batch_size, dtype, block_size, tensor_parallel)
        lines = tuple(
            _working_line(spec, count, seq_len, batch_size, dtype, block_size, tensor_parallel)
            for spec, count in self.groups
        )
        return Working(lines=lines, total=total, reason=self.reason)

    def as_if(
        self, rung: Rung, n_kv_heads: int | None = None, d_latent: int | None = None, d_rope: int | None = None
    ) -> KVCache:
        """The same model with another way of sharing: layers, windows and head widths stay.

        "MHA" and "MQA" fix the K/V heads; "GQA" needs ``n_kv_heads``; "MLA" takes
        ``d_latent`` and ``d_rope``, by default 4 and 1/2 head widths (DeepSeek-V2, arXiv
        2405.04434, section 2.1.4). A model that stores a latent is rebuilt with its head
        widths without the RoPE part. Raises UserError when n_kv_heads does not divide n_heads.
        """
        if rung == "MLA":
            layers = tuple(_latent_of(layer, d_latent, d_rope) for layer in self.layers)
        else:
            wanted = {"MHA": self.n_heads, "MQA": 1}.get(rung, n_kv_heads)
            if self.n_heads and (not isinstance(wanted, int) or wanted < 1 or self.n_heads % wanted):
                raise UserError(
                    f"{self.n_heads} query heads cannot share {shown(wanted)} K/V heads evenly.",
                    f"The number of K/V heads must divide {self.n_heads}.",
                    "Choose another number.",
                )
            layers = tuple(_heads_of(layer, wanted or 0) for layer in self.layers)
        return replace(self, layers=layers)

    def without_windows(self) -> KVCache:
        """The same model with every window and chunk opened: all its attention layers keep every token."""
        return replace(
            self,
            layers=tuple(
                layer if layer.window is None else replace(layer, kind=_open(layer), window=None)
                for layer in self.layers
            ),
        )

    def per_head(self) -> KVCache:
        """An MLA model cached as keys and values per head, RoPE part included: what transformers did before 5.18."""
        return replace(
            self,
            layers=tuple(
                replace(layer, kind="full", d_latent=0, d_rope=0, d_index=0) if layer.kind == "latent" else layer
                for layer in self.layers
            ),
        )


def _open(layer: LayerSpec) -> LayerKind:
    return "latent" if layer.kind == "latent" else "full"


def _heads_of(layer: LayerSpec, n_kv_heads: int) -> LayerSpec:
    if not layer.caches_tokens:
        return layer
    if layer.kind != "latent":
        return replace(layer, n_kv_heads=n_kv_heads)
    return replace(
        layer,
        kind="full" if layer.window is None else "window",
        n_kv_heads=n_kv_heads,
        d_key=layer.d_key - layer.d_rope,
        d_latent=0,
        d_rope=0,
        d_index=0,
    )


def _latent_of(layer: LayerSpec, d_latent: int | None, d_rope: int | None) -> LayerSpec:
    if not layer.caches_tokens:
        return layer
    width, rope = (layer.d_latent, layer.d_rope) if layer.kind == "latent" else (4 * layer.d_key, layer.d_key // 2)
    width = width if d_latent is None else _one_number("d_latent", d_latent, least=1)
    rope = rope if d_rope is None else _one_number("d_rope", d_rope, least=0)
    return replace(layer, kind="latent", d_latent=width, d_rope=rope)


def _kept_tokens(spec: LayerSpec, tokens: Ints, block_size: int | None) -> Ints:
    kept = tokens if spec.window is None else np.minimum(tokens, spec.window)
    return kept if block_size is None else -(-kept // block_size) * block_size


def _stored_tokens(spec: LayerSpec, tokens: Ints, sequences: Ints, block_size: int | None, prefix: int) -> Ints:
    """Tokens of all sequences together, those of a common beginning counted once."""
    kept = _kept_tokens(spec, tokens, block_size)
    if not prefix:
        return kept * sequences
    # Of what a layer still keeps, only tokens behind the common beginning are a sequence's own.
    own = np.minimum(kept, _kept_tokens(replace(spec, window=None), np.maximum(tokens - prefix, 0), block_size))
    return own * sequences + (kept - own) * (sequences > 0)


def _working_line(
    spec: LayerSpec,
    count: int,
    seq_len: int,
    batch_size: int,
    dtype: object,
    block_size: int | None,
    tensor_parallel: int,
) -> WorkingLine:
    factors: list[Factor] = [Factor("layers", count)]
    if spec.caches_tokens:
        factors += _token_factors(spec, dtype, tensor_parallel)
        kept = int(_kept_tokens(spec, np.asarray(seq_len, dtype=np.int64), block_size))
        limit = f", at most {spec.window:,} kept" if spec.window is not None else ""
        blocks = f", in blocks of {block_size}" if block_size else ""
        factors.append(Factor(f"token{'' if kept == 1 else 's'}{limit}{blocks}", kept))
        factors.append(Factor("sequence" if batch_size == 1 else "sequences", int(batch_size)))
    size = 1
    for factor in factors:
        size *= factor.value
    return WorkingLine(spec, count, KIND_WORDS[spec.kind], tuple(factors), size if spec.caches_tokens else 0)


def _token_factors(spec: LayerSpec, dtype: object, tensor_parallel: int) -> list[Factor]:
    """The bytes of one token in one layer, cut into factors a reader can check."""
    stored = precision(dtype)
    plain = stored.bits % 8 == 0 and not (stored.scale_bytes or stored.block or stored.name == "fp8_ds_mla")
    copies = [Factor("GPUs that each keep a copy", tensor_parallel)] if tensor_parallel > 1 else []
    if spec.kind == "latent" or spec.d_index:
        if not plain or (spec.kind != "latent" and spec.d_index):
            return [Factor(f"bytes per token ({stored.label})", layer_token_bytes(spec, dtype)), *copies]
        indexer = f" + {spec.d_index} indexer" if spec.d_index else ""
        name = f"numbers per token ({spec.d_latent} latent + {spec.d_rope} RoPE{indexer})"
        return [Factor(name, spec.elements_per_token), Factor(f"bytes ({stored.name})", stored.bits // 8), *copies]
    heads = heads_per_gpu(spec.n_kv_heads, tensor_parallel)
    gpus = [Factor("GPUs", tensor_parallel)] if tensor_parallel > 1 else []
    if plain:
        return [
            Factor("K/V heads" if tensor_parallel == 1 else "K/V heads on each GPU", heads),
            Factor(f"numbers per head ({spec.d_key} key + {spec.d_value} value)", spec.d_key + spec.d_value),
            Factor(f"bytes ({stored.name})", stored.bits // 8),
            *gpus,
        ]
    per_gpu = stored.row_bytes(heads, spec.d_key) + stored.row_bytes(heads, spec.d_value)
    if stored.block:
        return [Factor(f"bytes per token for {heads} K/V heads ({stored.label})", per_gpu), *gpus]
    return [
        Factor("K/V heads" if tensor_parallel == 1 else "K/V heads on each GPU", heads),
        Factor(f"bytes per head ({stored.label})", per_gpu // heads),
        *gpus,
    ]


def _whole(name: str, value: object) -> Ints:
    """``value`` as int64, checked: whole numbers from 0 to 2**40."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu" and not (array.dtype.kind == "O" and _all_ints(array)) and array.size:
        raise UserError(
            f"{name} is {shown(value)}.", "It must be whole numbers from 0 up.", f"Give {name} as integers."
        )
    if array.size and (int(array.min()) < 0 or int(array.max()) > MAX_TOKENS):
        raise UserError(
            f"{name} is {shown(value)}.", f"It must be from 0 to {MAX_TOKENS:,}.", f"Choose {name} within that."
        )
    return array.astype(np.int64)


def _all_ints(array: npt.NDArray[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in array.flat)


def _one_number(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= MAX_TOKENS:
        raise UserError(f"{name} is {shown(value)}.", f"It must be a whole number from {least} up.", f"Correct {name}.")
    return int(value)
