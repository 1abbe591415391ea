"""The arithmetic against caches that transformers really allocates.

Tiny random models of many architectures run in bfloat16 at two lengths (below and above
the window of 6) and two batch sizes; the bytes of the tensors in their cache must equal
ours exactly. Every exception is written down with its reason, and tested as such.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
)

from attention.kv_cache import KVCache
from attention.kv_families import FAMILIES

WINDOW, SHORT, LONG, BATCHES = 6, 4, 11, (1, 3)
FULL, SLIDE, CHUNK, LINEAR, HYBRID = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
    "hybrid",
)
VOCAB = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# All sizes differ, so that no two can be swapped unnoticed.
BASE: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    **VOCAB,
}
GQA = {**BASE, "num_key_value_heads": 2}
MOE = {
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
MLA = {
    **BASE,
    **MOE,
    "num_key_value_heads": 6,
    "kv_lora_rank": 10,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
WIDE = {**GQA, "head_dim": 12}
# Positions in three directions need the width that these models have.
PICTURES = {**BASE, "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128}
ALTERNATING = {**WIDE, "sliding_window": WINDOW, "layer_types": [SLIDE, FULL, SLIDE, FULL]}
QWEN_WINDOW = {**GQA, "sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 1}
DELTA = {
    **GQA,
    **MOE,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4,
    "layer_types": [LINEAR, FULL, LINEAR, FULL],
    "shared_expert_intermediate_size": 16,
}
MAMBA2 = {
    **GQA,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
GPT = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64, **VOCAB}
T5 = {
    "d_model": 48,
    "d_kv": 7,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 5,
    "vocab_size": 64,
    "decoder_start_token_id": 0,
    "local_radius": 3,
}
BART = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    **VOCAB,
}

DECODERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        [
            "llama",
            "phi",
            "stablelm",
            "cohere",
            "granite",
            "olmo",
            "olmo2",
            "arcee",
            "apertus",
            "bitnet",
            "doge",
            "nanochat",
            "diffllama",
            "exaone",
            "nemotron",
            "hyperclovax",
            "jais2",
        ],
        GQA,
    ),
    **{
        name: {**GQA, **MOE}
        for name in ["olmoe", "flex_olmo", "granitemoe", "granitemoeshared", "glm4_moe", "ernie4_5_moe", "qwen3_moe"]
    },
    **dict.fromkeys(
        ["gemma", "glm", "glm4", "qwen3", "seed_oss", "ernie4_5", "internlm3", "hunyuan_v1_dense", "ministral3"], WIDE
    ),
    "helium": {**BASE, "num_key_value_heads": 6, "head_dim": 8},
    "minimax_m2": {**WIDE, **MOE},
    "solar_open": {**WIDE, **MOE},
    **{name: {**GQA, "sliding_window": WINDOW} for name in ("mistral", "phi3", "starcoder2")},
    **{name: {**GQA, **MOE, "sliding_window": WINDOW} for name in ("mixtral", "phimoe")},
    **dict.fromkeys(
        ["gemma2", "gemma3_text", "vaultgemma", "cohere2", "exaone4", "cwm", "olmo3", "ministral"], ALTERNATING
    ),
    **{name: {**ALTERNATING, **MOE} for name in ("gpt_oss", "afmoe", "exaone_moe", "granite_swa")},
    "gemma3n_text": {
        **ALTERNATING,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": {
        **ALTERNATING,
        "global_head_dim": 20,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64,
    },
    "gemma4_unified_text": {
        **ALTERNATING,
        "global_head_dim": 20,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64,
    },
    **{name: {**ALTERNATING, **MOE} for name in ("cohere2_moe", "granitemoe_swa")},
    **dict.fromkeys(["aria_text", "iquestcoder", "qwen3_vl_text"], WIDE),
    **{name: {**WIDE, **MOE} for name in ("hunyuan_v1_moe", "hy_v3", "qwen3_vl_moe_text")},
    **dict.fromkeys(["qwen2_vl_text", "qwen2_5_vl_text"], PICTURES),
    "glm4v_text": {**BASE, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2},
    "glm4v_moe_text": {**PICTURES, **MOE},
    "mimo_v2_flash": {**ALTERNATING, **MOE, "num_key_value_heads": 1, "head_dim": 24, "v_head_dim": 8},
    "qwen2": QWEN_WINDOW,
    "qwen2_moe": {**QWEN_WINDOW, **MOE, "shared_expert_intermediate_size": 16, "max_window_layers": 3},
    "dots1": {**GQA, **MOE, "sliding_window": WINDOW, "max_window_layers": 1},
    "smollm3": {**GQA, "sliding_window": WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 0, 1, 0]},
    "llama4_text": {
        **WIDE,
        **MOE,
        "attention_chunk_size": WINDOW,
        "layer_types": [CHUNK, FULL, CHUNK, FULL],
        "intermediate_size_mlp": 64,
    },
    "jetmoe": {
        **BASE,
        "num_key_value_heads": 3,
        "kv_channels": 12,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "ctrl": {**GPT, "dff": 64},
    "gptj": {**GPT, "rotary_dim": 4},
    "codegen": {**GPT, "n_embd": 64, "n_head": 4, "rotary_dim": 4, "n_ctx": 64},
    "gpt_neo": {
        "hidden_size": 48,
        "num_layers": 4,
        "num_heads": 6,
        "window_size": WINDOW,
        "attention_types": [[["global", "local"], 2]],
        "max_position_embeddings": 64,
        **VOCAB,
    },
    "bloom": {"hidden_size": 48, "n_layer": 3, "n_head": 6, **VOCAB},
    "mpt": {"d_model": 48, "n_heads": 6, "n_layers": 3, "max_seq_len": 64, **VOCAB},
    "dbrx": {
        "d_model": 48,
        "n_heads": 6,
        "n_layers": 3,
        "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 48},
        **VOCAB,
    },
    "falcon": {**BASE, "multi_query": True, "new_decoder_architecture": False},
    "xglm": {
        "d_model": 48,
        "ffn_dim": 64,
        "num_layers": 3,
        "attention_heads": 6,
        "max_position_embeddings": 64,
        **VOCAB,
    },
    "opt": {**BASE, "ffn_dim": 64, "word_embed_proj_dim": 48},
    **dict.fromkeys(("gpt_neox", "gpt_neox_japanese", "biogpt", "persimmon"), BASE),
    "roberta": {**BASE, "is_decoder": True},
    **dict.fromkeys(["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu", "sarvam_mla", "axk1"], MLA),
    "longcat_flash": {
        **MLA,
        "num_layers": 2,
        "head_dim": 4,
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 16,
        "zero_expert_num": 1,
        "moe_topk": 2,
    },
    **{
        name: {**MLA, "index_head_dim": 8, "index_n_heads": 2, "index_topk": 4}
        for name in ("deepseek_v32", "glm_moe_dsa")
    },
    "kimi_linear": {
        **MLA,
        "layer_types": [LINEAR, FULL, LINEAR, FULL],
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "linear_conv_kernel_dim": 4,
    },
    "qwen3_next": {**DELTA, "head_dim": 12},
    "qwen3_5_text": {**DELTA, "head_dim": 12},
    "qwen3_5_moe_text": {**DELTA, "head_dim": 12},
    "olmo_hybrid": DELTA,
    "granitemoehybrid": {
        **MAMBA2,
        **MOE,
        "layer_types": [LINEAR, FULL, LINEAR, FULL],
        "shared_intermediate_size": 16,
    },
    "bamba": {**MAMBA2, "attn_layer_indices": [1, 3]},
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 96, "head_dim": 12},
    "jamba": {
        **GQA,
        **MOE,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "nemotron_h": {
        **{key: value for key, value in WIDE.items() if key != "num_hidden_layers"},
        **MOE,
        "layers_block_type": [LINEAR, FULL, "mlp", "moe"],
        "mamba_num_heads": 6,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "conv_kernel": 4,
        "expand": 2,
        "chunk_size": 8,
        "moe_shared_expert_intermediate_size": 16,
    },
    "zamba": {
        **BASE,
        "num_key_value_heads": 6,
        "layers_block_type": [LINEAR, HYBRID, LINEAR, HYBRID],
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "n_mamba_heads": 2,
        "mamba_dt_rank": 4,
        "attention_head_dim": 16,
        "attention_hidden_size": 96,
        "use_mamba_kernels": False,
    },
    "zamba2": {
        **BASE,
        "num_key_value_heads": 6,
        "layers_block_type": [LINEAR, HYBRID, LINEAR, HYBRID],
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
        "n_mamba_heads": 6,
        "adapter_rank": 4,
        "num_mem_blocks": 1,
    },
    "lfm2": {**GQA, "layer_types": ["conv", FULL, "conv", FULL], "conv_L_cache": 3},
    "lfm2_moe": {**GQA, **MOE, "layer_types": ["conv", FULL, "conv", FULL], "conv_L_cache": 3},
    "mamba": {**BASE, "state_size": 8, "expand": 2, "conv_kernel": 4, "time_step_rank": 4},
    "falcon_mamba": {**BASE, "state_size": 8, "expand": 2, "conv_kernel": 4, "time_step_rank": 4},
    "mamba2": {
        **VOCAB,
        "hidden_size": 48,
        "num_hidden_layers": 4,
        "num_heads": 6,
        "head_dim": 16,
        "state_size": 8,
        "expand": 2,
        "conv_kernel": 4,
        "n_groups": 1,
        "chunk_size": 8,
    },
    "minimax": {**WIDE, **MOE, "layer_types": [LINEAR, FULL, LINEAR, FULL]},
}
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5"), T5),
    **dict.fromkeys(
        [
            "bart",
            "mbart",
            "pegasus",
            "m2m_100",
            "blenderbot",
            "blenderbot-small",
            "plbart",
            "mvp",
            "nllb-moe",
            "bigbird_pegasus",
            "pegasus_x",
        ],
        BART,
    ),
    "led": {
        **BART,
        "attention_window": [4, 4],
        "max_encoder_position_embeddings": 64,
        "max_decoder_position_embeddings": 64,
    },
    "marian": {**BART, "pad_token_id": 63, "forced_eos_token_id": 2},
}


@pytest.fixture(autouse=True)
def _quiet_single_thread() -> Any:
    transformers.logging.set_verbosity_error()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensors_of(cache: Any) -> tuple[int, int]:
    """Bytes of (keys, values and indexer keys; constant states) that a transformers cache holds."""
    growing = state = 0
    for layer in cache.layers:
        for name in ("keys", "values", "indexer_keys"):
            tensor = getattr(layer, name, None)
            growing += 0 if tensor is None else tensor.nbytes
        for name in ("conv_states", "recurrent_states"):
            held = getattr(layer, name, None) or {}
            state += sum(tensor.nbytes for tensor in held.values() if tensor is not None)
    state += sum(tensor.nbytes for tensor in getattr(cache, "linear_cache", []) if isinstance(tensor, torch.Tensor))
    return growing, state


def as_dynamic_cache(cache: KVCache) -> KVCache:
    """Our numbers with the first documented exception applied.

    After a step, transformers' dynamic cache drops a window layer to W - 1 tokens: the
    next query itself is the W-th. We count the W tokens that attention needs at once.
    """
    layers = (replace(layer, window=layer.window - 1) if layer.window else layer for layer in cache.layers)
    return replace(cache, layers=tuple(layers))


def decoder(config: Any) -> Any:
    torch.manual_seed(0)
    kind = AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModel
    return kind.from_config(config).eval().to(torch.bfloat16)


def cache_after(model: Any, length: int, batch: int) -> Any:
    with torch.inference_mode():
        out = model(input_ids=torch.randint(3, 60, (batch, length)), use_cache=True)
    held = getattr(out, "past_key_values", None)
    return held if held is not None else out.cache_params


def test_every_architecture_that_transformers_has_is_compared() -> None:
    compared = {*DECODERS, *ENCODER_DECODERS, "whisper"}
    assert len(compared) >= 40
    for name, family in FAMILIES.items():
        if family.attention != "encoder" and name in CONFIG_MAPPING:
            assert name in compared


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_cache_is_byte_exact(name: str) -> None:
    config = CONFIG_MAPPING[name](**DECODERS[name])
    ours, model = as_dynamic_cache(KVCache.from_config(config)), decoder(config)
    for length in (SHORT, LONG):
        for batch in BATCHES:
            growing, state = tensors_of(cache_after(model, length, batch))
            assert growing == ours.bytes(length, batch, "bf16"), (name, length, batch)
            assert state == ours.state_bytes_for(batch, "bf16"), (name, length, batch)
    assert ours.bytes(LONG, 1, "bf16") + ours.state_bytes > 0


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder_caches_are_byte_exact(name: str) -> None:
    config = CONFIG_MAPPING[name](**ENCODER_DECODERS[name])
    ours = KVCache.from_config(config)
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config).eval().to(torch.bfloat16)
    for length, source in ((SHORT, 9), (LONG, 5)):
        for batch in BATCHES:
            with torch.inference_mode():
                held = model(
                    input_ids=torch.randint(3, 60, (batch, source)),
                    decoder_input_ids=torch.randint(3, 60, (batch, length)),
                    use_cache=True,
                ).past_key_values
            assert tensors_of(held.self_attention_cache)[0] == ours.bytes(length, batch, "bf16")
            assert tensors_of(held.cross_attention_cache)[0] == ours.cross_bytes_for(source, batch, "bf16")


def test_whisper_keeps_its_fixed_source() -> None:
    config = CONFIG_MAPPING["whisper"](
        **{**BART, "max_source_positions": 20, "max_target_positions": 64, "num_mel_bins": 4},
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    ours = KVCache.from_config(config)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.inference_mode():
        held = model(
            input_features=torch.zeros(3, 4, 40), decoder_input_ids=torch.randint(3, 60, (3, SHORT)), use_cache=True
        ).past_key_values
    assert tensors_of(held.self_attention_cache)[0] == ours.bytes(SHORT, 3, "fp32")
    assert tensors_of(held.cross_attention_cache)[0] == ours.cross_bytes_for(20, 3, "fp32")
    assert ours.source_len == 20
    assert ours.cross_bytes == ours.cross_bytes_for(20)


def test_exception_falcon_40b_style_caches_all_query_heads() -> None:
    # transformers copies every K/V head to all its query heads before it caches; the architecture needs the groups.
    config = CONFIG_MAPPING["falcon"](**BASE, new_decoder_architecture=True, num_kv_heads=2)
    ours = KVCache.from_config(config)
    held = tensors_of(cache_after(decoder(config), LONG, 3))[0]
    assert ours.n_kv_heads == 2
    assert held == ours.as_if("MHA").bytes(LONG, 3, "bf16") == 3 * ours.bytes(LONG, 3, "bf16")


def test_exception_mpt_with_one_kv_head_caches_all_query_heads() -> None:
    # transformers' MPT ignores kv_n_heads altogether; the models trained with it have one K/V head.
    config = CONFIG_MAPPING["mpt"](**{**DECODERS["mpt"], "attn_config": {"kv_n_heads": 1}}).to_dict()
    config["attn_config"]["kv_n_heads"] = 1
    ours = KVCache.from_config(config)
    held = tensors_of(cache_after(decoder(CONFIG_MAPPING["mpt"](**DECODERS["mpt"])), LONG, 3))[0]
    assert ours.n_kv_heads == 1
    assert held == ours.as_if("MHA").bytes(LONG, 3, "bf16") == 6 * ours.bytes(LONG, 3, "bf16")


def test_exception_window_layers_hold_one_token_less_between_steps() -> None:
    config = CONFIG_MAPPING["mistral"](**DECODERS["mistral"])
    ours = KVCache.from_config(config)
    held = tensors_of(cache_after(decoder(config), LONG, 1))[0]
    assert held == ours.bytes(WINDOW - 1, 1, "bf16")
    assert ours.bytes(LONG, 1, "bf16") == ours.bytes(WINDOW, 1, "bf16")


def test_cache_grows_step_by_step_as_the_formula_says() -> None:
    config = CONFIG_MAPPING["gemma2"](**ALTERNATING)
    ours = as_dynamic_cache(KVCache.from_config(config))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    held = None
    with torch.inference_mode():
        for length in range(1, LONG + 1):
            held = model(input_ids=torch.tensor([[5]]), cache=held, use_cache=True).past_key_values
            assert tensors_of(held)[0] == ours.bytes(length, 1, "fp32")


# What published files leave out, their configuration class fills in: raw JSON and object must agree.
RAW = {
    "gemma3_text": {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024},
    "gemma2": {
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
    },
    "gemma3n_text": {"hidden_size": 2048, "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2},
    "gemma4_text": {
        "hidden_size": 2816,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "sliding_window": 1024,
    },
    "gpt_oss": {
        "hidden_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
    },
    "cohere2": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    "exaone4": {
        "hidden_size": 5120,
        "num_hidden_layers": 6,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    "olmo3": {"hidden_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 32, "sliding_window": 4096},
    "cwm": {
        "hidden_size": 6144,
        "num_hidden_layers": 9,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "sliding_window": 8192,
    },
    "afmoe": {"num_hidden_layers": 9, "num_attention_heads": 16, "sliding_window": 1024, "hidden_size": 2048},
    "llama4_text": {
        "hidden_size": 5120,
        "num_hidden_layers": 9,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
    },
    "mimo_v2_flash": {
        "hidden_size": 4096,
        "num_hidden_layers": 13,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "sliding_window": 128,
    },
    "qwen2": {
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "use_sliding_window": True,
        "sliding_window": 4096,
        "max_window_layers": 20,
    },
    "qwen2_moe": {
        "hidden_size": 2048,
        "num_hidden_layers": 9,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "use_sliding_window": True,
        "sliding_window": 4096,
        "max_window_layers": 5,
    },
    "qwen3": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "use_sliding_window": False,
        "sliding_window": 4096,
    },
    "smollm3": {
        "hidden_size": 2048,
        "num_hidden_layers": 9,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "use_sliding_window": True,
        "sliding_window": 512,
    },
    "qwen3_next": {
        "hidden_size": 2048,
        "num_hidden_layers": 9,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
    "jamba": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    "nemotron_h": {
        "hidden_size": 4096,
        "hybrid_override_pattern": "M-M-M*-E",
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
    },
    "zamba2": {
        "hidden_size": 2560,
        "num_hidden_layers": 3,
        "num_attention_heads": 32,
        "layers_block_type": ["mamba", "hybrid", "mamba"],
        "mamba_d_state": 64,
        "n_mamba_heads": 80,
        "mamba_ngroups": 1,
    },
    "lfm2": {
        "hidden_size": 2048,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "full_attn_idxs": [2, 5],
    },
    "kimi_linear": {
        "hidden_size": 2304,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "linear_attn_config": {
            "full_attn_layers": [4, 5],
            "kda_layers": [1, 2, 3],
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    },
    "granite_swa": {
        "hidden_size": 2048,
        "num_hidden_layers": 9,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": 512,
    },
    "minimax": {
        "hidden_size": 6144,
        "num_hidden_layers": 5,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}


@pytest.mark.parametrize("name", RAW)
def test_raw_json_and_config_object_agree(name: str) -> None:
    raw = KVCache.from_config({"model_type": name, **RAW[name]})
    built = KVCache.from_config(CONFIG_MAPPING[name](**RAW[name]))
    assert raw.layers == built.layers
    assert raw.n_heads == built.n_heads


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "mamba2"])  # its head_dim is no key's width
def test_raw_json_and_config_object_agree_without_a_head_width(name: str) -> None:
    # Where a file gives no head_dim, the class has its own idea of it; ours must be the same.
    sizes = {key: value for key, value in DECODERS[name].items() if key != "head_dim"}
    built = KVCache.from_config(CONFIG_MAPPING[name](**sizes))
    assert KVCache.from_config({"model_type": name, **sizes}).layers == built.layers
