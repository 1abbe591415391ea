"""The architectures whose cache is known, by the model_type of their config.json.

Read in the configuration and modelling classes of transformers 5.24 and compared with
the tensors those models really cache; the few types that ship their own code (chatglm,
internlm, nemotron-nas, …) follow their published config.json. A model_type that is not here is refused, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attention import kv_patterns as pattern
from attention import kv_states as state

Attention = Literal["heads", "latent", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class Family:
    """How one architecture caches.

    ``head_dim`` and ``defaults`` are the values its configuration class assumes when the
    file leaves them out (published files do). ``indexer``: a sparse-attention key per token.
    ``opt_in_window``: a window counts only with ``use_sliding_window: true``.
    """

    attention: Attention = "heads"
    layers: pattern.PatternRule = pattern.window_everywhere
    state: state.StateRule | None = None
    head_dim: int | None = None
    defaults: tuple[tuple[str, int], ...] = ()
    indexer: bool = False
    opt_in_window: bool = False


_GEMMA3_TEXT = (("num_attention_heads", 8), ("num_key_value_heads", 4), ("sliding_window", 4096))


def _same(names: str, family: Family) -> dict[str, Family]:
    return dict.fromkeys(names.split(), family)


FAMILIES: dict[str, Family] = {
    # Every layer keeps every token, or one window for all layers.
    **_same(
        "llama mistral mixtral phi phi3 phimoe stablelm starcoder2 cohere granite granitemoe "
        "granitemoeshared nemotron olmo olmo2 olmoe flex_olmo persimmon arcee apertus ernie4_5_moe diffllama bitnet "
        "doge nanochat hunyuan_v1_dense hunyuan_v1_moe hyperclovax exaone jais2 jetmoe aria_text "
        "glm4_moe glm4v_text glm4v_moe_text",
        Family(),
    ),
    **_same(
        "gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gptj gpt_neo codegen bloom mpt dbrx falcon opt xglm biogpt ctrl",
        Family(layers=pattern.all_full),
    ),
    **_same("gemma", Family(head_dim=256)),
    **_same(
        "glm glm4 minimax_m2 ministral3 helium seed_oss ernie4_5 internlm3 solar_open iquestcoder hy_v3",
        Family(head_dim=128),
    ),
    **_same("ministral", Family()),
    # Architectures that ship their own code; keys as in their published config.json.
    **_same(
        "chatglm internlm internlm2 baichuan aquila xverse orion minicpm qwen RefinedWeb RefinedWebModel step1 "
        "minicpmv minicpmo",
        Family(),
    ),
    **_same("nemotron-nas deci", Family(layers=pattern.all_full)),
    # Windows in some layers.
    **_same("gemma2 vaultgemma", Family(layers=pattern.odd_layers_full, head_dim=256)),
    **_same("gpt_oss", Family(layers=pattern.odd_layers_full, head_dim=64)),
    **_same("gemma3_text", Family(layers=pattern.sliding_pattern(6), head_dim=256, defaults=_GEMMA3_TEXT)),
    **_same(
        "gemma3n_text",
        Family(
            layers=pattern.every_nth_full(5, "full_layer_every", "window"),
            head_dim=256,
            defaults=(("num_kv_shared_layers", 15), ("sliding_window", 512)),
        ),
    ),
    **_same("gemma4_text gemma4_unified_text", Family(layers=pattern.gemma4, head_dim=256)),
    **_same("cohere2", Family(layers=pattern.sliding_pattern(4))),
    **_same("cohere2_moe", Family(layers=pattern.sliding_pattern(4), head_dim=128)),
    **_same("exaone4 exaone_moe", Family(layers=pattern.sliding_pattern(4))),
    **_same("olmo3", Family(layers=pattern.every_nth_full(4, "full_layer_every", "window"))),
    **_same("afmoe", Family(layers=pattern.every_nth_full(4, "global_attn_every_n_layers", "window"), head_dim=128)),
    **_same("cwm", Family(layers=pattern.first_of_four_full, head_dim=128)),
    **_same("granite_swa granitemoe_swa", Family(layers=pattern.first_of_four_full)),
    **_same(
        "qwen2 qwen2_vl_text qwen2_5_vl_text mimo",
        Family(layers=pattern.max_window_layers, opt_in_window=True),
    ),
    **_same("dots1", Family(layers=pattern.max_window_layers)),
    **_same("qwen3_moe qwen3_vl_moe_text", Family(opt_in_window=True)),
    **_same("qwen3 qwen3_vl_text", Family(layers=pattern.max_window_layers, head_dim=128, opt_in_window=True)),
    **_same("qwen2_moe", Family(layers=pattern.qwen2_moe, opt_in_window=True)),
    **_same("smollm3", Family(layers=pattern.smollm3, opt_in_window=True)),
    **_same("llama4_text", Family(layers=pattern.llama4, head_dim=128, defaults=(("attention_chunk_size", 8192),))),
    **_same("mimo_v2_flash", Family(layers=pattern.mimo, head_dim=192, defaults=(("v_head_dim", 128),))),
    # Attention in some layers, a constant state in the others.
    **_same(
        "qwen3_next qwen3_5_text qwen3_5_moe_text",
        Family(
            layers=pattern.every_nth_full(4, "full_attention_interval", "state"),
            state=state.gated_delta_net,
            head_dim=256,
        ),
    ),
    **_same(
        "olmo_hybrid",
        Family(layers=pattern.every_nth_full(4, "full_layer_every", "state"), state=state.gated_delta_net),
    ),
    **_same("minimax", Family(layers=pattern.minimax, state=state.lightning)),
    **_same("jamba", Family(layers=pattern.jamba, state=state.mamba1)),
    **_same("bamba", Family(layers=pattern.bamba, state=state.mamba2)),
    **_same("granitemoehybrid", Family(layers=pattern.layer_types_required, state=state.mamba2)),
    **_same("nemotron_h", Family(layers=pattern.nemotron_h, state=state.mamba2, head_dim=128)),
    **_same("falcon_h1", Family(layers=pattern.both_everywhere, state=state.mamba2)),
    **_same("zamba", Family(layers=pattern.layer_types_required, state=state.mamba1)),
    **_same("zamba2", Family(layers=pattern.layer_types_required, state=state.mamba2)),
    **_same("lfm2 lfm2_moe", Family(layers=pattern.lfm2, state=state.short_convolution)),
    **_same("mamba falcon_mamba", Family(layers=pattern.state_everywhere, state=state.mamba1)),
    **_same("mamba2", Family(layers=pattern.state_everywhere, state=state.mamba2)),
    # Multi-head latent attention.
    **_same(
        "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite minicpm3 youtu longcat_flash sarvam_mla axk1",
        Family(attention="latent", layers=pattern.all_full),
    ),
    **_same("deepseek_v32 glm_moe_dsa", Family(attention="latent", layers=pattern.all_full, indexer=True)),
    **_same("kimi_linear", Family(attention="latent", layers=pattern.kimi_linear, state=state.kimi_delta)),
    # A source text is read once; its keys and values stay beside the growing ones.
    **_same(
        "t5 mt5 umt5 longt5 bart mbart pegasus pegasus_x marian m2m_100 blenderbot blenderbot-small plbart mvp led "
        "nllb-moe bigbird_pegasus whisper",
        Family(attention="encoder-decoder", layers=pattern.all_full),
    ),
    # The whole text is read at once; nothing is kept for a next token.
    **_same(
        "bert roberta distilbert albert electra camembert xlm-roberta xlm-roberta-xl mpnet deberta deberta-v2 "
        "modernbert nomic_bert convbert mobilebert squeezebert megatron-bert ernie longformer layoutlm esm roformer "
        "rembert vit siglip_vision_model clip_vision_model clip_text_model",
        Family(attention="encoder", layers=pattern.all_full),
    ),
}

REFUSED: dict[str, str] = {
    "deepseek_v4": "DeepSeek-V4 keeps compressed blocks, half-filled buffers and a window side by side",
    "minimax_m3_vl": "MiniMax-M3 keeps a sparse index of blocks beside its keys and values",
    "mllama": "Llama 3.2 Vision keeps keys and values of the picture in its cross-attention layers",
    "recurrent_gemma": "RecurrentGemma keeps its window and its state inside the model, not in a cache",
    "rwkv": "RWKV has no attention, and its state is not a cache of keys and values",
    "xlstm": "xLSTM has no attention, and its state is not a cache of keys and values",
    "openai-gpt": "The first GPT has no cache in any library we could measure",
    "hunyuan": "Hunyuan-Large shares keys and values between neighbouring layers in a way its file does not settle",
}

TEXT_TYPES: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "llama4": "llama4_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "aria": "aria_text",
    "mistral3": "mistral",
}
