"""The catalogue: sourced, findable, and agreeing with the configs it was read from."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from attention.errors import UserError
from attention.known_models import (
    ASSETS,
    KnownModel,
    find_gpu,
    find_model,
    known_gpus,
    known_models,
    layer_order,
    models_sharing,
)
from attention.kv_cache import KVCache

MODELS = {model.name: model for model in known_models()}
COUNTED = [model for model in known_models() if not model.refusal]
UNITS_GB_S = 10**9


def test_the_catalogue_is_large_and_every_entry_is_sourced() -> None:
    assert len(MODELS) == len(known_models()) == 165
    for model in known_models():
        assert model.sources
        assert all(len(source) > 10 for source in model.sources)
        assert model.n_layers > 0
        assert model.d_head > 0
        if model.rung != "MLA":
            assert model.n_heads % model.n_kv_heads == 0


def test_what_was_not_read_in_a_source_is_named() -> None:
    entries = json.loads((ASSETS / "models.json").read_text(encoding="utf-8"))["models"]
    for entry in entries:
        for name in ("release_year", "license"):
            if entry[f"{name}_source"] == "not verified":
                assert name in entry["unverified_fields"]
        if entry["params_source"] and "not verified" in entry["params_source"]:
            assert "params_b" in entry["unverified_fields"]
        states = entry["layer_counts"].get("linear", 0) + entry["layer_counts"].get("mamba", 0)
        assert not states or "recurrent_state" in entry or "recurrent_state" in entry["unverified_fields"]
    assert "release_year" in MODELS["GPT-2 small"].unverified_fields


def test_nobody_whose_shape_is_unverified_is_listed() -> None:
    for name in ("Yi 6B 200K", "Hunyuan-Large 389B", "GLM-4.5-Air", "Kimi Linear 48B-A3B", "Granite 4.0 Micro 3B"):
        assert name not in MODELS


@pytest.mark.parametrize("model", COUNTED, ids=lambda model: model.name)
def test_layers_are_as_counted_in_the_file(model: KnownModel) -> None:
    order = layer_order(model.facts)
    assert Counter(order) == Counter(model.facts["layer_counts"])
    assert len(model.cache.layers) == len(order)
    # A direct count from the facts, without any KVCache code.
    facts: dict[str, Any] = dict(model.facts)
    full = facts.get("full_layers") or {}
    tokens, expected = 20_000, 0
    for kind, layers in facts["layer_counts"].items():
        if model.architecture == "encoder" or kind in ("mamba", "linear", "mlp", "noop", "shared"):
            continue
        if facts.get("mla"):
            width = facts["mla"]["kv_lora_rank"] + facts["mla"]["qk_rope_head_dim"] + facts.get("index_head_dim", 0)
        elif kind == "full" and full:
            width = full["n_kv_heads"] * (full["head_dim"] + full.get("v_head_dim", full["head_dim"]))
        else:
            width = facts["n_kv_heads"] * (facts["head_dim"] + facts["v_head_dim"])
        kept = tokens if kind == "full" else min(tokens, facts["window"])
        expected += layers * width * kept * 2
    assert model.cache.bytes(tokens) == expected


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Llama 3 8B", "Llama 3 8B"),
        ("llama-3-8b", "Llama 3 8B"),
        ("LLAMA3 8b", "Llama 3 8B"),
        ("  llama_3_8B ", "Llama 3 8B"),
        ("Llama-2-7B", "Llama 2 7B"),
        ("DeepSeek-V3", "DeepSeek-V3"),
        ("deepseek v3", "DeepSeek-V3"),
        ("Jamba", "Jamba v0.1 52B"),
        ("jamba v0.1", "Jamba v0.1 52B"),
        ("meta-llama/Meta-Llama-3-8B", "Llama 3 8B"),
        ("Meta-Llama-3-8B", "Llama 3 8B"),
        ("sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        ("SmolLM2-135M-Instruct", "SmolLM2 135M"),
        ("tinyllama", "TinyLlama 1.1B"),
    ],
)
def test_models_are_found(name: str, found: str) -> None:
    assert find_model(name).name == found


def test_every_name_finds_itself() -> None:
    for name in MODELS:
        assert find_model(name).name == name


@pytest.mark.parametrize(
    ("name", "listed"),
    [("llama 3", "Llama 3 8B"), ("lama 3 8b", "Llama 3 8B"), ("gemma", "Gemma 2B"), ("mixtral", "Mixtral 8x7B")],
)
def test_near_matches_are_listed(name: str, listed: str) -> None:
    with pytest.raises(UserError) as caught:
        find_model(name)
    assert listed in caught.value.allowed


@pytest.mark.parametrize("name", ["", "   ", "-", "zzzzzz", "<script>", "x" * 10_000])
def test_nonsense_is_one_sentence(name: str) -> None:
    with pytest.raises(UserError) as caught:
        find_model(name)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", [None, 3, ["Llama"]])
def test_names_that_are_no_text(name: Any) -> None:
    with pytest.raises(UserError):
        find_model(name)


def test_a_model_that_cannot_be_counted_is_refused_by_name() -> None:
    model = find_model("DeepSeek-V4 Flash")
    assert model.refusal
    with pytest.raises(UserError, match="DeepSeek-V4 Flash"):
        _ = model.cache


def test_weights() -> None:
    assert find_model("Llama 2 7B").weights_bytes() == find_model("Llama 2 7B").params * 2  # type: ignore[operator]
    assert find_model("Llama 2 7B").weights_bytes(4) * 4 == find_model("Llama 2 7B").weights_bytes()
    unknown = [model for model in known_models() if model.params is None]
    for model in unknown:
        with pytest.raises(UserError):
            model.weights_bytes()


# Parts of published config.json files that decide the cache, beside the catalogue's own numbers.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama 3.1 8B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "Mistral 7B v0.1": {
        "model_type": "mistral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "Gemma 3 27B": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "head_dim": 128,
            "hidden_size": 5376,
            "num_attention_heads": 32,
            "num_hidden_layers": 62,
            "num_key_value_heads": 16,
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27},
    },
    # This file names neither heads nor widths: the class fills them in.
    "Gemma 3 4B": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    },
    "Gemma 2 9B": {
        "model_type": "gemma2",
        "head_dim": 256,
        "hidden_size": 3584,
        "num_attention_heads": 16,
        "num_hidden_layers": 42,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "Qwen2.5 72B": {
        "model_type": "qwen2",
        "hidden_size": 8192,
        "max_window_layers": 70,
        "num_attention_heads": 64,
        "num_hidden_layers": 80,
        "num_key_value_heads": 8,
        "sliding_window": 131072,
        "use_sliding_window": False,
    },
    "DeepSeek-V3": {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "kv_lora_rank": 512,
        "num_attention_heads": 128,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
    "Falcon 7B": {
        "model_type": "falcon",
        "hidden_size": 4544,
        "multi_query": True,
        "new_decoder_architecture": False,
        "num_attention_heads": 71,
        "num_hidden_layers": 32,
        "num_kv_heads": 71,
    },
    "Falcon 40B": {
        "model_type": "falcon",
        "hidden_size": 8192,
        "multi_query": True,
        "new_decoder_architecture": True,
        "num_attention_heads": 128,
        "num_hidden_layers": 60,
        "num_kv_heads": 8,
    },
    "ChatGLM3 6B": {
        "model_type": "chatglm",
        "hidden_size": 4096,
        "kv_channels": 128,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "num_attention_heads": 32,
        "num_layers": 28,
    },
    "gpt-oss 20b": {
        "model_type": "gpt_oss",
        "head_dim": 64,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
    },
    "Jamba v0.1 52B": {
        "model_type": "jamba",
        "attn_layer_offset": 4,
        "attn_layer_period": 8,
        "hidden_size": 4096,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
    },
    "Llama 4 Scout 17B-16E": {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text",
            "attention_chunk_size": 8192,
            "head_dim": 128,
            "hidden_size": 5120,
            "no_rope_layers": [],
            "num_attention_heads": 40,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
        },
    },
    "all-MiniLM-L6-v2": {
        "model_type": "bert",
        "hidden_size": 384,
        "num_attention_heads": 12,
        "num_hidden_layers": 6,
    },
    "SmolLM2 135M": {
        "model_type": "llama",
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
    },
    "Qwen3-Next 80B-A3B": {
        "model_type": "qwen3_next",
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_size": 2048,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_config_and_catalogue_tell_the_same_cache(name: str) -> None:
    from_config, listed = KVCache.from_config(PUBLISHED[name]), find_model(name).cache
    for tokens in (1, 1000, 20_000, 200_000):
        assert from_config.bytes(tokens, 3) == listed.bytes(tokens, 3)
    assert from_config.state_bytes == listed.state_bytes
    assert from_config.rung == listed.rung
    assert [layer.kind for layer in from_config.layers] == [layer.kind for layer in listed.layers]


def test_models_with_the_same_sharing() -> None:
    four = models_sharing(4, limit=100)
    assert find_model("Llama 3 8B") in four
    assert all(model.n_heads == 4 * model.n_kv_heads for model in four)
    assert len(models_sharing(4)) == 6
    assert "DeepSeek-V3" not in {model.name for model in models_sharing(1, limit=500)}


def test_gpus_are_sourced_and_in_the_right_units() -> None:
    assert len(known_gpus()) >= 12
    for gpu in known_gpus():
        assert len(gpu.source) > 20
        assert gpu.memory_bytes % 2**30 == 0
        assert 16 * 2**30 <= gpu.memory_bytes <= 288 * 2**30
        assert 300 * UNITS_GB_S <= gpu.bandwidth <= 8000 * UNITS_GB_S
    assert find_gpu("H100").bandwidth == 3_350 * UNITS_GB_S
    assert find_gpu("nvidia h100 80gb sxm").memory_bytes == 80 * 2**30
    assert find_gpu("rtx-4090").name == "NVIDIA GeForce RTX 4090"
    with pytest.raises(UserError, match="A100 40 GB"):
        find_gpu("a100")
    with pytest.raises(UserError):
        find_gpu("abacus")
