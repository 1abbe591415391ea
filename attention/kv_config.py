"""From a config.json (or a transformers config object) to what every layer keeps.

The order in which names are tried, and every exception, is written beside the code;
kv_families.py says which architectures are known. Nothing is guessed: what a config
does not say, and its architecture does not fix, is a UserError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from attention.errors import UserError
from attention.kv_families import FAMILIES, REFUSED, TEXT_TYPES, Family
from attention.kv_layers import LayerSpec
from attention.kv_patterns import Words, written_pattern
from attention.kv_reader import MAX_HEADS, MAX_LAYERS, MAX_TOKENS, ConfigReader, shown

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "n_ctx",
)
_SOURCE = ("max_source_positions", "max_encoder_position_embeddings", "n_positions", "max_position_embeddings")
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_NULL_MEANS_NONE = ("sliding_window", "attention_chunk_size")
_FALCON = ("falcon", "RefinedWeb", "RefinedWebModel")
ENCODER_REASON = (
    "An encoder reads the whole text at once and writes nothing, so it keeps no keys and values for a next token."
)


@dataclass(frozen=True)
class ModelShape:
    """What a config says about a cache: one LayerSpec per layer, in order.

    ``cross_layers`` (encoder-decoders) are fixed by the source text; ``source_len`` is the
    longest source the model was trained on, ``trained_context`` its longest text.
    ``reason`` says why there is no cache, when there is none.
    """

    model_type: str
    layers: tuple[LayerSpec, ...]
    n_heads: int
    cross_layers: tuple[LayerSpec, ...] = ()
    trained_context: int | None = None
    source_len: int | None = None
    reason: str = ""
    mtp_layers: int = 0


def read_shape(config: object, mtp: bool = False) -> ModelShape:
    """The shape of a model's cache from a dict or a transformers config object.

    ``mtp``: also count the multi-token-prediction layers, which cache only while
    speculative decoding is on. Raises UserError for anything missing, malformed or unknown.
    """
    reader, family = _text_part(_as_mapping(config))
    if family.attention == "encoder-decoder":
        return _encoder_decoder(reader)
    if family.attention == "encoder" and not reader.flag("is_decoder", False):
        return _encoder(reader)
    # EmbeddingGemma is a Gemma 3 that looks both ways: an encoder, whatever its model_type says.
    if reader.values.get("use_bidirectional_attention") is True:
        return _encoder(reader)
    layers = _decoder_layers(reader, family)
    count = _mtp_count(reader)
    if mtp and count:
        layers += (next(layer for layer in reversed(layers) if layer.kind in ("full", "latent")),) * count
    return ModelShape(
        model_type=reader.model_type,
        layers=layers,
        n_heads=_n_heads(reader) if any(layer.caches_tokens for layer in layers) else 0,
        trained_context=reader.optional(*_CONTEXT),
        mtp_layers=count,
        reason="" if any(layer.caches_tokens for layer in layers) else _no_attention(reader.model_type),
    )


def _no_attention(model_type: str) -> str:
    return f"{model_type} has no attention: it keeps a state of constant size instead of keys and values."


def _as_mapping(config: object) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    to_dict: Callable[[], Mapping[str, Any]] | None = getattr(config, "to_dict", None)
    if callable(to_dict):
        return to_dict()
    raise UserError(
        f"{shown(config)} is not a model's config.",
        "It must be a dict read from config.json, or a transformers config object.",
        "Give one of these.",
    )


def _text_part(config: Mapping[str, Any]) -> tuple[ConfigReader, Family]:
    """The part that describes the language model, and its family; a picture encoder's keys never win."""
    outer = config.get("model_type")
    for name in _TEXT_PARTS:
        inner = config.get(name)
        if isinstance(inner, Mapping):
            _refuse_by_name(outer)
            model_type = inner.get("model_type") or TEXT_TYPES.get(str(outer))
            return _known(inner, model_type)
    return _known(config, TEXT_TYPES.get(outer, outer) if isinstance(outer, str) else outer)


def _known(config: Mapping[str, Any], model_type: object) -> tuple[ConfigReader, Family]:
    if not isinstance(model_type, str) or not model_type:
        raise UserError(
            "This config does not say its model_type." if model_type is None else f"model_type is {shown(model_type)}.",
            'A config.json names its architecture, for example "llama".',
            "Paste the model's own config.json, complete and unchanged.",
        )
    _refuse_by_name(model_type)
    if model_type not in FAMILIES:
        near = get_close_matches(model_type, FAMILIES, n=3, cutoff=0.7)
        raise UserError(
            f"The architecture {shown(model_type)} is not one whose cache we have checked, so no number is given.",
            f"Names like it that are known: {', '.join(near)}."
            if near
            else f"{len(FAMILIES)} architectures are known.",
            "Choose a listed model, or set layers, heads and widths yourself.",
        )
    family = FAMILIES[model_type]
    # A null counts as left out, except that "sliding_window: null" says there is no window.
    left_out = {
        name: value
        for name, value in family.defaults
        if config.get(name) is None and not (name in _NULL_MEANS_NONE and name in config)
    }
    return ConfigReader({**config, **left_out}, model_type), family


def _refuse_by_name(model_type: object) -> None:
    if isinstance(model_type, str) and model_type in REFUSED:
        raise UserError(
            f"No number is given for {model_type}: {REFUSED[model_type]}.",
            "Only caches that we could check are counted.",
            "Choose another model.",
        )


def _n_heads(config: ConfigReader) -> int:
    return config.number(*_HEADS, most=MAX_HEADS)


def _n_kv_heads(config: ConfigReader) -> int:
    """K/V heads; the first name that a config has wins, else every query head has its own."""
    n_heads = _n_heads(config)
    if config.model_type in _FALCON and not config.flag("new_decoder_architecture", config.has("n_head_kv")):
        # Falcon-7B's file says num_kv_heads 71 and its code stores one.
        return 1 if config.flag("multi_query", True) else n_heads
    if config.model_type == "chatglm" and not config.flag("multi_query_attention", False):
        return n_heads
    inner = config.inner("attn_config")
    if config.has("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups"):
        n_kv = config.number(
            "num_key_value_heads",
            "num_kv_heads",
            "n_head_kv",
            "multi_query_group_num",
            "num_attention_groups",
            most=MAX_HEADS,
        )
    elif inner is not None and inner.has("kv_n_heads"):
        n_kv = inner.number("kv_n_heads", most=MAX_HEADS)
    elif inner is not None and inner.values.get("attn_type") == "multiquery_attention":
        n_kv = 1
    else:
        n_kv = 1 if config.flag("multi_query", config.model_type == "gpt_bigcode") else n_heads
    return _shareable(n_heads, n_kv)


def _shareable(n_heads: int, n_kv: int) -> int:
    if n_heads % n_kv:
        raise UserError(
            f"{n_heads} query heads cannot share {n_kv} K/V heads evenly, as this config says.",
            f"The number of K/V heads must divide {n_heads}.",
            "Check the config.json.",
        )
    return n_kv


def _d_head(config: ConfigReader, family: Family) -> int:
    """Width of a head: written, or the architecture's own default, or hidden_size / n_heads when that is whole."""
    # Zamba 2 prints a kv_channels of half the width its shared attention really has.
    names = ("attention_head_dim", "head_dim", "kv_channels", "d_kv")
    if config.has(*names):
        return config.number(*names)
    if family.head_dim is not None:
        return family.head_dim
    hidden, n_heads = config.number(*_HIDDEN), _n_heads(config)
    if config.model_type in ("zamba", "zamba2"):
        hidden *= 2  # the shared attention sees the hidden width twice, side by side
    if hidden % n_heads:
        raise UserError(
            f"hidden_size {hidden} is not divisible by {n_heads} heads, and this config gives no head_dim.",
            "A head's width must be a whole number.",
            "Add head_dim to the config.",
        )
    return hidden // n_heads


def _decoder_layers(config: ConfigReader, family: Family) -> tuple[LayerSpec, ...]:
    if config.model_type in ("nemotron-nas", "deci"):
        return _searched_layers(config, family)
    n_layers = _n_layers(config)
    words = written_pattern(config, n_layers)
    if words is None:
        words = family.layers(config, n_layers)
    make = _maker(config, family, words)
    shared = config.number("num_kv_shared_layers", default=0, least=0, most=n_layers)
    first_shared = n_layers - shared
    return tuple(
        LayerSpec("shared") if i >= first_shared and word != "state" else make(word, i) for i, word in enumerate(words)
    )


def _n_layers(config: ConfigReader) -> int:
    if config.model_type == "nemotron_h" and not config.has(*_LAYERS):
        return max(1, len(config.names("layers_block_type", "layer_types") or ()))
    if config.model_type == "longcat_flash":
        # Each of its layers has two attentions, and caches both.
        return 2 * config.number("num_layers", most=MAX_LAYERS)
    return config.number(*_LAYERS, most=MAX_LAYERS)


def _maker(config: ConfigReader, family: Family, words: Words) -> Callable[[str, int], LayerSpec]:
    """A function from a layer's word and index to its LayerSpec."""
    conv, recurrent = family.state(config) if family.state and {"state", "both"} & set(words) else (0, 0)
    window = _window(config, family) if "window" in words else None
    chunk = config.optional("attention_chunk_size") if "chunked" in words else None
    attends = {"full", "window", "chunked", "both"} & set(words)

    def make(word: str, index: int) -> LayerSpec:
        if word == "none":
            return LayerSpec("none")
        if word == "state":
            return LayerSpec("state", state_elements=conv, state_elements_fp32=recurrent)
        if family.attention == "latent":
            return _latent(config, family)
        n_kv, d_key, d_value = _geometry(config, family, word, index)
        if word == "both":
            return LayerSpec("full", n_kv, d_key, d_value, state_elements=conv, state_elements_fp32=recurrent)
        limit = {"window": window, "chunked": chunk}.get(word)
        kind = "full" if limit is None else ("window" if word == "window" else "chunked")
        return LayerSpec(kind, n_kv, d_key, d_value, window=limit)  # type: ignore[arg-type]

    if attends and family.attention == "heads":
        _geometry(config, family, "full", 0)  # a config without heads is refused before any layer is made
    return make


def _window(config: ConfigReader, family: Family) -> int | None:
    """Tokens a window layer keeps, or None when windows are switched off."""
    if not config.flag("use_sliding_window", not family.opt_in_window):
        return None
    if "sliding_window" in config.values and config.values["sliding_window"] is None:
        return None
    window = config.number("sliding_window", most=MAX_TOKENS, least=0)
    return window or None


def _geometry(config: ConfigReader, family: Family, word: str, index: int) -> tuple[int, int, int]:
    """(n_kv_heads, d_key, d_value) of one layer; some architectures give their layers two shapes."""
    n_kv, d_head = _n_kv_heads(config), _d_head(config, family)
    if config.model_type == "mimo_v2_flash":
        if word == "window":  # the class doubles the full layers' heads when the file names none
            n_kv = config.number("swa_num_key_value_heads", default=2 * n_kv, most=MAX_HEADS)
            d_head = config.number("swa_head_dim", default=d_head)
            return n_kv, d_head, config.number("swa_v_head_dim", "v_head_dim", default=d_head)
        return n_kv, d_head, config.number("v_head_dim", default=d_head)
    if config.model_type.startswith("gemma4"):
        n_kv, d_head = _gemma4_geometry(config, word, index, n_kv, d_head)
    return n_kv, d_head, d_head


def _layer_names(index: int) -> tuple[object, ...]:
    """How a config may spell a layer's number; transformers writes "05"."""
    return (index, *(str(index).zfill(digits) for digits in range(1, len(str(MAX_LAYERS)) + 1)))


def _gemma4_geometry(config: ConfigReader, word: str, index: int, n_kv: int, d_head: int) -> tuple[int, int]:
    """Full layers of Gemma 4 have heads of 512 and, where keys double as values, fewer of them; both are cached."""
    overrides = config.inner("per_layer_config")
    if overrides is not None:
        by_layer: Mapping[Any, Any] = overrides.values
        own = next((by_layer[name] for name in _layer_names(index) if name in by_layer), None)
        layer = ConfigReader(own if isinstance(own, Mapping) else {}, config.model_type)
        return layer.number("num_key_value_heads", default=n_kv, most=MAX_HEADS), layer.number(
            "head_dim", default=d_head
        )
    if word != "full":
        return n_kv, d_head
    if config.flag("attention_k_eq_v", False):
        n_kv = config.number("num_global_key_value_heads", default=n_kv, most=MAX_HEADS)
    return n_kv, config.number("global_head_dim", default=512)


def _latent(config: ConfigReader, family: Family) -> LayerSpec:
    """MLA: one row of ``kv_lora_rank + qk_rope_head_dim`` per token; head_dim and K/V heads play no part in it."""
    d_rope = config.number("qk_rope_head_dim")
    d_nope = config.number("qk_nope_head_dim")
    n_heads = _n_heads(config)
    return LayerSpec(
        "latent",
        n_kv_heads=n_heads,
        d_key=d_nope + d_rope,
        # MiniCPM 3 leaves v_head_dim out and means hidden_size / n_heads.
        d_value=config.optional("v_head_dim") or config.number(*_HIDDEN) // n_heads,
        d_latent=config.number("kv_lora_rank"),
        d_rope=d_rope,
        d_index=config.number("index_head_dim") if family.indexer else 0,
    )


def _searched_layers(config: ConfigReader, family: Family) -> tuple[LayerSpec, ...]:
    """Layers of a network found by search, each with its own heads or none (Nemotron-NAS, DeciLM)."""
    n_heads, d_head = _n_heads(config), _d_head(config, family)
    per_layer = config.numbers("num_key_value_heads_per_layer", most=MAX_HEADS)
    if per_layer is not None:
        return tuple(LayerSpec("full", _shareable(n_heads, max(1, n_kv)), d_head, d_head) for n_kv in per_layer)
    blocks = config.values.get("block_configs")
    if not isinstance(blocks, (list, tuple)) or not 0 < len(blocks) <= MAX_LAYERS:
        raise UserError(
            f"The config of this {config.model_type} model has no list of block_configs.",
            "It needs one entry for each layer.",
            "Paste the model's own config.json, complete.",
        )
    return tuple(_searched_layer(config, block, n_heads, d_head) for block in blocks)


def _searched_layer(config: ConfigReader, block: object, n_heads: int, d_head: int) -> LayerSpec:
    inner = ConfigReader(block if isinstance(block, Mapping) else {}, config.model_type).inner("attention")
    if inner is None:
        raise UserError(
            f"An entry of block_configs is {shown(block)}.", "Each needs its attention.", "Check the config.json."
        )
    if inner.flag("no_op", False) or inner.flag("replace_with_linear", False):
        return LayerSpec("none")
    group = _shareable(n_heads, inner.number("n_heads_in_group", most=MAX_HEADS))
    return LayerSpec("full", n_heads // group, d_head, d_head)


def _encoder(config: ConfigReader) -> ModelShape:
    n_layers = config.number(*_LAYERS, default=1, most=MAX_LAYERS)
    n_heads = config.number(*_HEADS, default=1, most=MAX_HEADS)
    none = LayerSpec("none")
    return ModelShape(
        config.model_type,
        (none,) * n_layers,
        n_heads,
        trained_context=config.optional(*_CONTEXT),
        reason=ENCODER_REASON,
    )


def _encoder_decoder(config: ConfigReader) -> ModelShape:
    """A self-cache that grows with the text written, and a cross-cache fixed by the text read."""
    n_layers = config.number("decoder_layers", "num_decoder_layers", "num_layers", most=MAX_LAYERS)
    n_heads = config.number("decoder_attention_heads", "num_heads", most=MAX_HEADS)
    d_model = config.number("d_model")
    if not config.has("d_kv") and d_model % n_heads:
        raise UserError(
            f"d_model {d_model} is not divisible by {n_heads} heads, and this config gives no d_kv.",
            "A head's width must be a whole number.",
            "Check the config.json.",
        )
    d_head = config.number("d_kv", default=d_model // n_heads)
    layer = LayerSpec("full", n_heads, d_head, d_head)
    return ModelShape(
        config.model_type,
        (layer,) * n_layers,
        n_heads,
        cross_layers=(layer,) * n_layers,
        trained_context=config.optional("max_decoder_position_embeddings", *_CONTEXT),
        source_len=config.optional(*_SOURCE),
    )


def _mtp_count(config: ConfigReader) -> int:
    return config.number("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, least=0, most=MAX_LAYERS)
