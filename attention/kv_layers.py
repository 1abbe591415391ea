"""What one layer stores for a token, and what a stored number costs at each precision.

Shape letters: n_kv_heads K/V heads, d_key and d_value the widths of one key and one
value vector, d_latent and d_rope the two parts of MLA's shared row, d_index the width
of a sparse-attention indexer's key. No torch here: numpy and the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attention.errors import UserError

LayerKind = Literal["full", "window", "chunked", "latent", "shared", "state", "none"]

KIND_WORDS: dict[LayerKind, str] = {
    "full": "keeps every token",
    "window": "keeps the last tokens of its window",
    "chunked": "keeps at most one chunk of tokens",
    "latent": "keeps one latent row per token",
    "shared": "reuses the keys and values of another layer",
    "state": "keeps a state of constant size",
    "none": "has no attention",
}


@dataclass(frozen=True)
class LayerSpec:
    """What one layer keeps in memory while a model writes.

    ``window`` is the most tokens the layer keeps (None: all). ``state_elements``
    (at the model's precision) and ``state_elements_fp32`` count a constant state per
    sequence (Mamba, linear attention, short convolutions); a layer may have one beside its
    keys and values (Falcon-H1).
    For ``latent`` layers n_kv_heads, d_key and d_value describe the keys and values that
    could be rebuilt from the latent; they are not stored.
    """

    kind: LayerKind
    n_kv_heads: int = 0
    d_key: int = 0
    d_value: int = 0
    window: int | None = None
    d_latent: int = 0
    d_rope: int = 0
    d_index: int = 0
    state_elements: int = 0
    state_elements_fp32: int = 0

    @property
    def caches_tokens(self) -> bool:
        """Whether this layer's memory grows (at first, at least) with the text."""
        return self.kind in ("full", "window", "chunked", "latent")

    @property
    def elements_per_token(self) -> int:
        """Numbers stored per token: ``n_kv_heads * (d_key + d_value)``, or ``d_latent + d_rope`` for MLA.

        MLA stores one row shared by all heads, so there is no factor 2 and no head count
        (DeepSeek-V2, arXiv 2405.04434, section 2.1.3). An indexer adds ``d_index``.
        """
        if not self.caches_tokens:
            return 0
        if self.kind == "latent":
            return self.d_latent + self.d_rope + self.d_index
        return self.n_kv_heads * (self.d_key + self.d_value) + self.d_index


@dataclass(frozen=True)
class Precision:
    """How a cached number is stored, scales included.

    ``bits`` per element; ``scale_bytes`` for every stored vector (one head, one token);
    ``block`` > 0: rows are cut into blocks of that many elements of ``block_bytes`` each.
    """

    name: str
    label: str
    bits: int
    scale_bytes: int = 0
    block: int = 0
    block_bytes: int = 0
    source: str = ""

    def row_bytes(self, vectors: int, width: int) -> int:
        """Bytes of ``vectors`` vectors of ``width`` elements that belong to one token and one layer."""
        if self.block:
            return -(-vectors * width // self.block) * self.block_bytes
        return vectors * (-(-width * self.bits // 8) + self.scale_bytes)


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("fp32", "fp32, 4 bytes", 32),
    "fp16": Precision("fp16", "fp16, 2 bytes", 16),
    "bf16": Precision("bf16", "bf16, 2 bytes", 16),
    "fp8": Precision(
        "fp8", "fp8, 1 byte", 8, source="vLLM docs, Quantized KV Cache: scales per tensor or head, not per token"
    ),
    "int8": Precision(
        "int8",
        "int8, 1 byte and a float32 scale per head vector",
        8,
        scale_bytes=4,
        source="vLLM int8_per_token_head: one float32 scale after each head's data, 132 bytes per 128 elements",
    ),
    "int4": Precision(
        "int4",
        "int4, half a byte and a float32 scale per head vector",
        4,
        scale_bytes=4,
        source="vLLM int4_per_token_head: two elements in a byte, one float32 scale, 68 bytes per 128 elements",
    ),
    "q8_0": Precision(
        "q8_0", "q8_0, 34 bytes per 32 elements", 8, block=32, block_bytes=34, source="ggml block_q8_0: 32 int8 + fp16"
    ),
    "q4_0": Precision(
        "q4_0", "q4_0, 18 bytes per 32 elements", 4, block=32, block_bytes=18, source="ggml block_q4_0: 32 int4 + fp16"
    ),
    "fp8_ds_mla": Precision(
        "fp8_ds_mla",
        "fp8_ds_mla, 656 bytes per token and layer",
        8,
        source="vLLM: 512 fp8 latent elements, 4 float32 scales, 64 bf16 RoPE elements",
    ),
}

DS_MLA_LATENT, DS_MLA_ROPE = 512, 64
DS_MLA_ROW_BYTES = DS_MLA_LATENT + 4 * 4 + 2 * DS_MLA_ROPE
DS_MLA_INDEX_SCALE_BYTES = 4
_SPELLINGS = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
}


def precision(dtype: object) -> Precision:
    """The precision called ``dtype``: a name such as "fp16", or a torch dtype (read by its name).

    Raises UserError for a name that is not in ``PRECISIONS``.
    """
    if isinstance(dtype, Precision):
        return dtype
    name = str(dtype).strip().lower().removeprefix("torch.")
    name = _SPELLINGS.get(name, name)
    if name not in PRECISIONS:
        raise UserError(
            f"There is no cache precision called {str(dtype)[:40]!r}.",
            f"It may be one of {', '.join(PRECISIONS)}.",
            "Choose one of these.",
        )
    return PRECISIONS[name]


def heads_per_gpu(n_kv_heads: int, tensor_parallel: int) -> int:
    """K/V heads each GPU holds when ``tensor_parallel`` GPUs share a layer: ``max(1, n_kv // tp)``.

    Past ``n_kv_heads`` every further GPU holds a copy of a head another one has, so the
    total grows. Raises UserError when neither number divides the other: engines refuse that split.
    """
    if n_kv_heads % tensor_parallel and tensor_parallel % n_kv_heads:
        raise UserError(
            f"{n_kv_heads} K/V heads cannot be split evenly over {tensor_parallel} GPUs.",
            f"The number of GPUs must divide {n_kv_heads}, or be a multiple of it.",
            "Choose another number of GPUs.",
        )
    return max(1, n_kv_heads // tensor_parallel)


def layer_token_bytes(layer: LayerSpec, dtype: object = "fp16", tensor_parallel: int = 1) -> int:
    """Bytes one layer adds per token kept, summed over all GPUs that hold it.

    The MLA latent and the indexer key have no heads to divide: every GPU keeps a copy.
    Raises UserError for "fp8_ds_mla" on a layer that is not a 512 + 64 latent.
    """
    stored = precision(dtype)
    if not layer.caches_tokens:
        return 0
    if stored.name == "fp8_ds_mla":
        return tensor_parallel * _ds_mla_bytes(layer)
    index = stored.row_bytes(1, layer.d_index) if layer.d_index else 0
    if layer.kind == "latent":
        return tensor_parallel * (stored.row_bytes(1, layer.d_latent + layer.d_rope) + index)
    heads = heads_per_gpu(layer.n_kv_heads, tensor_parallel)
    pair = stored.row_bytes(heads, layer.d_key) + stored.row_bytes(heads, layer.d_value)
    return tensor_parallel * (pair + index)


def _ds_mla_bytes(layer: LayerSpec) -> int:
    if (layer.d_latent, layer.d_rope) != (DS_MLA_LATENT, DS_MLA_ROPE):
        raise UserError(
            "fp8_ds_mla describes a latent of 512 and 64 RoPE elements, and this layer stores "
            + (f"{layer.d_latent} and {layer.d_rope}." if layer.kind == "latent" else "keys and values per head."),
            "It fits DeepSeek-V2, V3 and models with the same latent.",
            'Choose "fp8" instead.',
        )
    return DS_MLA_ROW_BYTES + (layer.d_index + DS_MLA_INDEX_SCALE_BYTES if layer.d_index else 0)
