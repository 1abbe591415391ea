"""Which layers of a model keep every token, a window, a state or nothing, when its config names no layer_types.

Each rule says where it was read: the configuration class of that architecture in
transformers 5.24. Layers are numbered from 0; a rule returns one word per layer:
"full", "window", "chunked", "state", "both" (state and full attention) or "none".
"""

from __future__ import annotations

from collections.abc import Callable

from attention.errors import UserError
from attention.kv_reader import ConfigReader, shown

Words = tuple[str, ...]
PatternRule = Callable[[ConfigReader, int], Words]

WORDS = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "global_attention": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "window",
    "sliding_window_attention": "window",
    "local": "window",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "recurrent": "state",
    "conv": "state",
    "hybrid": "both",
    "mlp": "none",
    "moe": "none",
}
_NEMOTRON_LETTERS = {"M": "state", "*": "full", "-": "none", "E": "none"}


def _refuse(name: str, value: object, allowed: str) -> UserError:
    return UserError(
        f"{name} is {shown(value)} in this config.", allowed, "Paste the model's own config.json, complete."
    )


def words_of(types: Words, name: str = "layer_types") -> Words:
    """Layer words from a config's own list. Raises UserError for a kind of layer nobody here can count."""
    for kind in types:
        if kind not in WORDS:
            raise _refuse(name, kind, f"Known kinds of layer: {', '.join(WORDS)}.")
    return tuple(WORDS[kind] for kind in types)


def every(full_every: int, layers: int, other: str = "window") -> Words:
    """Layer ``i`` is full when ``(i + 1) % full_every == 0``, else ``other``."""
    return tuple("full" if full_every and (i + 1) % full_every == 0 else other for i in range(layers))


def all_full(config: ConfigReader, layers: int) -> Words:
    """Every layer keeps every token."""
    del config
    return ("full",) * layers


def window_everywhere(config: ConfigReader, layers: int) -> Words:
    """Every layer has the window the config sets, if it sets one (Mistral, Phi-3, StarCoder2)."""
    return ("window" if config.has("sliding_window") else "full",) * layers


def odd_layers_full(config: ConfigReader, layers: int) -> Words:
    """Window, full, window, full … (Gemma 2, gpt-oss)."""
    del config
    return every(2, layers)


def first_of_four_full(config: ConfigReader, layers: int) -> Words:
    """Layers 0, 4, 8, … are full (CWM, Granite SWA)."""
    del config
    return tuple("full" if i % 4 == 0 else "window" for i in range(layers))


def sliding_pattern(default: int) -> PatternRule:
    """One full layer in every ``default`` layers, the last of each group (Gemma 3: 6, Cohere 2: 4)."""

    def rule(config: ConfigReader, layers: int) -> Words:
        del config
        return every(default, layers)

    return rule


def written_pattern(config: ConfigReader, layers: int) -> Words | None:
    """What the config itself says about its layers, or None.

    In order: ``layer_types`` (or layers_block_type), ``hybrid_layer_pattern`` (0 full, 1
    window), ``sliding_window_pattern`` (a number, or letters L and G). Raises UserError
    when a list's length is not the number of layers.
    """
    types = config.names("layer_types", "layers_block_type")
    flags = config.numbers("hybrid_layer_pattern", most=1)
    if types is not None:
        words = words_of(types)
    elif flags is not None:
        words = tuple("window" if flag else "full" for flag in flags)
    elif config.has("sliding_window_pattern", "_sliding_window_pattern"):
        return _sliding_window_pattern(config, layers)
    else:
        return None
    if len(words) != layers:
        raise UserError(
            f"The config lists {len(words)} kinds of layer for {layers} layers.",
            "It needs one for each layer.",
            "Paste the model's own config.json, complete.",
        )
    return words


def _sliding_window_pattern(config: ConfigReader, layers: int) -> Words:
    letters = config.values.get("sliding_window_pattern")
    if not isinstance(letters, str):
        return every(config.number("sliding_window_pattern", "_sliding_window_pattern", least=0), layers)
    # Exaone 4 writes the group out: L local, G global; the last layer is global whatever its letter.
    if not letters or set(letters) - {"L", "G"}:
        raise _refuse("sliding_window_pattern", letters, "It must be a number, or letters L and G.")
    words = ["full" if letters[i % len(letters)] == "G" else "window" for i in range(layers)]
    return (*words[:-1], "full")


def gemma4(config: ConfigReader, layers: int) -> Words:
    """Five window layers, one full; the last layer is always full (Gemma 4)."""
    del config
    return (*every(6, layers)[:-1], "full")


def max_window_layers(config: ConfigReader, layers: int) -> Words:
    """The first ``max_window_layers`` layers are the full ones (Qwen 2 and 3, dots)."""
    first = config.number("max_window_layers", default=layers, least=0, most=1 << 31)
    return tuple("window" if i >= first else "full" for i in range(layers))


def qwen2_moe(config: ConfigReader, layers: int) -> Words:
    """Every other layer below ``max_window_layers`` has the window (Qwen 2 MoE)."""
    first = config.number("max_window_layers", default=layers, least=0, most=1 << 31)
    return tuple("window" if i < first and i % 2 == 0 else "full" for i in range(layers))


def smollm3(config: ConfigReader, layers: int) -> Words:
    """Layers without rotary positions get the window (SmolLM3)."""
    return tuple("full" if rope else "window" for rope in _rope_layers(config, layers))


def llama4(config: ConfigReader, layers: int) -> Words:
    """Layers with rotary positions see only their own chunk; every fourth sees everything (Llama 4)."""
    return tuple("chunked" if rope else "full" for rope in _rope_layers(config, layers))


def _rope_layers(config: ConfigReader, layers: int) -> tuple[int, ...]:
    written = config.numbers("no_rope_layers", most=1)
    if written:
        if len(written) != layers:
            raise _refuse("no_rope_layers", list(written), f"It needs one entry for each of the {layers} layers.")
        return written
    interval = config.number("no_rope_layer_interval", default=4)
    return tuple(int((i + 1) % interval != 0) for i in range(layers))


def every_nth_full(default: int, key: str, other: str) -> PatternRule:
    """One full layer in every ``key`` layers, the last of each group; the others are ``other``."""

    def rule(config: ConfigReader, layers: int) -> Words:
        return every(config.number(key, default=default), layers, other)

    return rule


def mimo(config: ConfigReader, layers: int) -> Words:
    """Layer 0 and every sixth layer are full (MiMo-V2-Flash)."""
    del config
    return tuple("full" if i == 0 or (i + 1) % 6 == 0 else "window" for i in range(layers))


def minimax(config: ConfigReader, layers: int) -> Words:
    """``attn_type_list`` (1 softmax attention, 0 linear), else every second layer from 0 on (MiniMax-Text-01)."""
    written = config.numbers("attn_type_list", most=1)
    if written is not None:
        return tuple("full" if flag else "state" for flag in written)
    return tuple("state" if i % 2 else "full" for i in range(layers))


def kimi_linear(config: ConfigReader, layers: int) -> Words:
    """``linear_attn_config.full_attn_layers``, counted from 1 in the file (Kimi Linear)."""
    linear = config.inner("linear_attn_config")
    written = linear.numbers("full_attn_layers", most=layers) if linear else None
    if written is None:
        raise _refuse("linear_attn_config", config.values.get("linear_attn_config"), "It must list full_attn_layers.")
    return tuple("full" if i + 1 in written else "state" for i in range(layers))


def jamba(config: ConfigReader, layers: int) -> Words:
    """Attention where ``i % attn_layer_period == attn_layer_offset``, Mamba elsewhere (Jamba)."""
    period = config.number("attn_layer_period", default=8)
    offset = config.number("attn_layer_offset", default=4, least=0)
    return tuple("full" if i % period == offset else "state" for i in range(layers))


def bamba(config: ConfigReader, layers: int) -> Words:
    """Attention at ``attn_layer_indices``, Mamba-2 elsewhere (Bamba)."""
    chosen = config.numbers("attn_layer_indices") or ()
    return tuple("full" if i in chosen else "state" for i in range(layers))


def lfm2(config: ConfigReader, layers: int) -> Words:
    """Attention at ``full_attn_idxs``, a short convolution elsewhere (LFM2)."""
    chosen = config.numbers("full_attn_idxs")
    return tuple("full" if chosen is None or i in chosen else "state" for i in range(layers))


def nemotron_h(config: ConfigReader, layers: int) -> Words:
    """``hybrid_override_pattern``, one letter per half-block: M Mamba-2, * attention, - or E an MLP (Nemotron-H)."""
    letters = config.values.get("hybrid_override_pattern")
    if not isinstance(letters, str) or not letters or set(letters) - set(_NEMOTRON_LETTERS):
        raise _refuse("hybrid_override_pattern", letters, "It must be letters M, *, - and E, one for each layer.")
    if len(letters) != layers:
        raise _refuse("hybrid_override_pattern", letters, f"It needs one letter for each of the {layers} layers.")
    return tuple(_NEMOTRON_LETTERS[letter] for letter in letters)


def state_everywhere(config: ConfigReader, layers: int) -> Words:
    """No attention at all: a constant state in every layer (Mamba)."""
    del config
    return ("state",) * layers


def both_everywhere(config: ConfigReader, layers: int) -> Words:
    """Attention and a Mamba-2 state side by side in every layer (Falcon-H1)."""
    del config
    return ("both",) * layers


def layer_types_required(config: ConfigReader, layers: int) -> Words:
    """This architecture follows no rule: its file must list the layers (Granite 4 H, Zamba)."""
    del layers
    raise UserError(
        f"The config of this {config.model_type} model does not say which layers have attention.",
        "It needs layer_types (or layers_block_type): one word for each layer.",
        "Paste the model's own config.json, complete.",
    )
