"""Every rule for reading a config, and every way to get one wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.errors import UserError
from attention.known_models import find_model
from attention.kv_cache import KVCache
from attention.kv_reader import config_from_text


def cache_of(model_type: str, **values: Any) -> KVCache:
    return KVCache.from_config({"model_type": model_type, **values})


LLAMA = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
}


@pytest.mark.parametrize(
    ("model_type", "values", "n_kv"),
    [
        ("llama", {"num_key_value_heads": 4, "num_kv_heads": 2}, 4),
        ("RefinedWeb", {"n_head_kv": 8}, 8),
        ("chatglm", {"multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128}, 2),
        ("chatglm", {"multi_query_attention": False, "multi_query_group_num": 2, "kv_channels": 128}, 32),
        ("step1", {"num_attention_groups": 8}, 8),
        ("mpt", {"attn_config": {"kv_n_heads": 8}}, 8),
        ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, 1),
        ("gpt_bigcode", {"multi_query": True}, 1),
        ("gpt_bigcode", {"multi_query": False}, 32),
        ("falcon", {"num_kv_heads": 8, "new_decoder_architecture": True, "multi_query": True}, 8),
        ("falcon", {"num_kv_heads": 32, "multi_query": False}, 32),
        ("falcon", {"num_kv_heads": 32, "multi_query": True}, 1),
        ("llama", {}, 32),
        ("llama", {"num_key_value_heads": None}, 32),
    ],
)
def test_kv_heads_in_order(model_type: str, values: dict[str, Any], n_kv: int) -> None:
    base = {"num_hidden_layers": 2, "hidden_size": 4096, "num_attention_heads": 32}
    assert cache_of(model_type, **base, **values).n_kv_heads == n_kv


def test_searched_network_has_its_own_heads_in_every_block() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 8, "no_op": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True}},
        {"attention": {"n_heads_in_group": 16, "replace_with_linear": False}},
        {"attention": {"replace_with_linear": True}},
    ]
    cache = cache_of("nemotron-nas", num_attention_heads=64, hidden_size=8192, block_configs=blocks)
    assert [layer.n_kv_heads for layer in cache.layers] == [8, 0, 4, 0]
    assert [layer.kind for layer in cache.layers] == ["full", "none", "full", "none"]


@pytest.mark.parametrize(
    ("model_type", "values", "width"),
    [
        ("mistral", {"head_dim": 128, "hidden_size": 5120}, 128),
        ("chatglm", {"kv_channels": 96, "multi_query_attention": True, "multi_query_group_num": 2}, 96),
        ("llama", {}, 128),
        ("qwen3", {"hidden_size": 1024}, 128),
        ("gemma", {"hidden_size": 3072}, 256),
        ("llama", {"head_dim": None}, 128),
    ],
)
def test_head_width(model_type: str, values: dict[str, Any], width: int) -> None:
    cache = cache_of(model_type, **{"num_hidden_layers": 1, "hidden_size": 4096, "num_attention_heads": 32, **values})
    assert (cache.layers[0].d_key, cache.layers[0].d_value) == (width, width)


def test_mla_ignores_head_dim_and_kv_heads() -> None:
    plain = cache_of("deepseek_v3", **DEEPSEEK_V3)
    odd = cache_of("deepseek_v3", **{**DEEPSEEK_V3, "head_dim": 56, "num_key_value_heads": 7})
    assert plain.bytes(1000) == odd.bytes(1000) == 1000 * 61 * (512 + 64) * 2


def test_patterns_in_order() -> None:
    base = {**LLAMA, "num_hidden_layers": 4, "sliding_window": 100}
    kinds = {
        name: [layer.kind for layer in cache_of("gemma3_text", head_dim=128, **base, **values).layers]
        for name, values in {
            "layer_types": {
                "layer_types": ["full_attention", "sliding_attention"] * 2,
                "hybrid_layer_pattern": [1, 1, 1, 1],
                "sliding_window_pattern": 2,
            },
            "hybrid": {"hybrid_layer_pattern": [0, 1, 1, 0], "sliding_window_pattern": 2},
            "pattern": {"sliding_window_pattern": 2},
            "architecture": {},
        }.items()
    }
    assert kinds["layer_types"] == ["full", "window", "full", "window"]
    assert kinds["hybrid"] == ["full", "window", "window", "full"]
    assert kinds["pattern"] == ["window", "full", "window", "full"]
    assert kinds["architecture"] == ["window"] * 4


def test_use_sliding_window_false_wins() -> None:
    for model_type in ("qwen2", "mistral", "gemma3_text"):
        off = cache_of(model_type, **LLAMA, head_dim=128, sliding_window=64, use_sliding_window=False)
        assert off.bytes(1000) == 1000 * off.bytes_per_token()
    assert cache_of("qwen2", **LLAMA, sliding_window=64, max_window_layers=0).layers[0].kind == "full"
    assert cache_of("mistral", **LLAMA, sliding_window=None).layers[0].kind == "full"


def test_qwen2_first_layers_are_the_full_ones() -> None:
    cache = cache_of("qwen2", **LLAMA, sliding_window=64, use_sliding_window=True, max_window_layers=20)
    assert [layer.kind for layer in cache.layers] == ["full"] * 20 + ["window"] * 12


def test_letters_for_layers() -> None:
    cache = cache_of("exaone4", **{**LLAMA, "num_hidden_layers": 6}, sliding_window=64, sliding_window_pattern="LLG")
    assert [layer.kind for layer in cache.layers] == ["window", "window", "full"] * 2
    last = cache_of("exaone4", **{**LLAMA, "num_hidden_layers": 5}, sliding_window=64, sliding_window_pattern="LLLG")
    assert [layer.kind for layer in last.layers] == ["window", "window", "window", "full", "full"]
    hybrid = cache_of(
        "nemotron_h",
        **{**LLAMA, "num_hidden_layers": 4},
        hybrid_override_pattern="M*-E",
        mamba_num_heads=4,
        mamba_head_dim=8,
        ssm_state_size=16,
        n_groups=2,
    )
    assert [layer.kind for layer in hybrid.layers] == ["state", "full", "none", "none"]
    assert hybrid.state_bytes == (4 * 8 + 2 * 2 * 16) * 4 * 2 + 4 * 8 * 16 * 4


def test_layers_that_share_keep_nothing() -> None:
    values = {"num_hidden_layers": 10, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 2048}
    cache = cache_of("gemma3n_text", **values, sliding_window=512, num_kv_shared_layers=4)
    assert [layer.kind for layer in cache.layers] == ["window"] * 4 + ["full", "window"] + ["shared"] * 4


def test_gemma_4_full_layers_have_another_shape() -> None:
    text = {
        "num_hidden_layers": 6,
        "hidden_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "sliding_window": 1024,
    }
    cache = cache_of("gemma4", text_config=text)
    assert [(layer.kind, layer.n_kv_heads, layer.d_key) for layer in cache.layers] == [("window", 8, 256)] * 5 + [
        ("full", 2, 512)
    ]
    # Only where keys double as values do the full layers have fewer heads.
    assert cache_of("gemma4", text_config={**text, "attention_k_eq_v": False}).layers[-1].n_kv_heads == 8


def test_keys_and_values_may_differ_in_width() -> None:
    cache = cache_of(
        "mimo_v2_flash",
        num_hidden_layers=6,
        hidden_size=4096,
        num_attention_heads=64,
        num_key_value_heads=4,
        swa_num_key_value_heads=8,
        head_dim=192,
        v_head_dim=128,
        sliding_window=128,
    )
    assert [layer.kind for layer in cache.layers] == ["full", "window", "window", "window", "window", "full"]
    assert cache.bytes(1) == (2 * 4 + 4 * 8) * (192 + 128) * 2
    assert cache.bytes(1000) == (2 * 4 * 1000 + 4 * 8 * 128) * (192 + 128) * 2


def test_indexer_keys_are_counted() -> None:
    cache = cache_of("deepseek_v32", **DEEPSEEK_V3, index_head_dim=128)
    assert cache.bytes_per_token() == 61 * (512 + 64 + 128) * 2
    assert cache.bytes_per_token("fp8_ds_mla") == 61 * (656 + 132)


def test_mtp_layers_count_only_when_enabled() -> None:
    config = {"model_type": "deepseek_v3", **DEEPSEEK_V3}
    assert len(KVCache.from_config(config).layers) == 61
    assert len(KVCache.from_config(config, mtp=True).layers) == 62
    assert KVCache.from_config(config, mtp=True).bytes_per_token() == 62 * 576 * 2


def test_multimodal_reads_the_text_part() -> None:
    vision = {"num_hidden_layers": 27, "num_attention_heads": 16, "hidden_size": 1152, "model_type": "siglip"}
    text = {**LLAMA, "model_type": "llama", "max_position_embeddings": 4096}
    cache = KVCache.from_config({"model_type": "llava", "vision_config": vision, "text_config": text})
    assert cache.bytes_per_token() == 131_072
    assert cache.trained_context == 4096
    # Gemma 3's text_config names no model_type of its own in older files.
    outer = {"model_type": "gemma3", "text_config": {**LLAMA, "sliding_window": 1024}, "vision_config": vision}
    assert KVCache.from_config(outer).layers[0].d_key == 256


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "modernbert", "deberta-v2"])
def test_encoders_give_zero_with_a_reason(model_type: str) -> None:
    cache = cache_of(model_type, num_hidden_layers=12, num_attention_heads=12, hidden_size=768)
    assert cache.bytes(512, 8) == 0
    assert cache.bytes_per_token() == 0
    assert "no next token" in cache.reason or "next token" in cache.reason


def test_gemma_that_looks_both_ways_is_an_encoder() -> None:
    assert cache_of("gemma3_text", **LLAMA, sliding_window=512, use_bidirectional_attention=True).bytes(100) == 0


def test_encoder_decoder_has_a_growing_and_a_fixed_part() -> None:
    cache = cache_of("t5", d_model=4096, d_kv=64, num_heads=64, num_layers=24, num_decoder_layers=24, n_positions=512)
    per_token = 24 * 64 * 128 * 2
    assert cache.bytes(10) == 10 * per_token
    assert cache.cross_bytes_for(512, 3) == 3 * 512 * per_token
    assert cache.cross_bytes == 512 * per_token
    whisper = cache_of("whisper", d_model=384, decoder_layers=4, decoder_attention_heads=6, max_source_positions=1500)
    assert whisper.cross_bytes == 1500 * 4 * 384 * 2 * 2


def test_state_does_not_grow_and_is_separate() -> None:
    cache = cache_of("mamba", hidden_size=768, num_hidden_layers=24, state_size=16, conv_kernel=4, expand=2)
    assert cache.bytes(100_000) == 0
    assert cache.state_bytes == 24 * (1536 * 4 * 2 + 1536 * 16 * 4)
    assert cache.state_bytes_for(5) == 5 * cache.state_bytes
    assert "constant" in cache.reason


def test_more_tokens_than_trained_is_a_number_and_a_warning() -> None:
    cache = find_model("Llama 3 8B").cache
    assert cache.bytes(9000) == 9000 * 131_072
    assert "8,192" in cache.warnings(9000)[0]
    assert "9,000" in cache.warnings(9000)[0]
    assert cache.warnings(8192) == ()


def _deep() -> str:
    return "[" * 100_000 + "]" * 100_000


MALFORMED_TEXTS = {
    "not JSON": "num_hidden_layers: 32",
    "cut off": '{"model_type": "llama", "num_hidden_layers": 3',
    "empty": "",
    "a list": "[1, 2, 3]",
    "a number": "32",
    "not a number": '{"model_type": "llama", "hidden_size": NaN}',
    "endless digits": '{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}",
    "deep": _deep(),
    "5 MB": '{"model_type": "llama", "note": "' + "x" * 5_000_000 + '"}',
}
SLIDING = ["sliding_attention"] * 32
MALFORMED = {
    "no model_type": LLAMA,
    "model_type is a number": {**LLAMA, "model_type": 7},
    "unknown architecture": {**LLAMA, "model_type": "transmogrifier"},
    "missing layers": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4},
    "missing heads": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4},
    "missing width": {"model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 4},
    "string for a number": {**LLAMA, "model_type": "llama", "num_hidden_layers": "32"},
    "float for a number": {**LLAMA, "model_type": "llama", "num_hidden_layers": 32.0},
    "true for a number": {**LLAMA, "model_type": "llama", "num_hidden_layers": True},
    "negative": {**LLAMA, "model_type": "llama", "num_hidden_layers": -32},
    "zero": {**LLAMA, "model_type": "llama", "num_attention_heads": 0},
    "a billion heads": {**LLAMA, "model_type": "llama", "num_attention_heads": 10**9, "head_dim": 1},
    "a billion layers": {**LLAMA, "model_type": "llama", "num_hidden_layers": 10**9},
    "heads that do not share": {**LLAMA, "model_type": "llama", "num_key_value_heads": 7},
    "width that does not divide": {**LLAMA, "model_type": "llama", "hidden_size": 4097},
    "nested number": {**LLAMA, "model_type": "llama", "hidden_size": {"value": 4096}},
    "layer_types of another length": {**LLAMA, "model_type": "llama", "layer_types": ["full_attention"]},
    "layer_types unknown": {**LLAMA, "model_type": "llama", "layer_types": ["telepathy"] * 32},
    "layer_types not a list": {**LLAMA, "model_type": "llama", "layer_types": "full_attention"},
    "layer_types of numbers": {**LLAMA, "model_type": "llama", "layer_types": [1] * 32},
    "layer_types endless": {**LLAMA, "model_type": "llama", "layer_types": ["full_attention"] * 100_000},
    "window is a word": {**LLAMA, "model_type": "mistral", "sliding_window": "wide"},
    "window is missing": {**LLAMA, "model_type": "gemma2"},
    "flag is a word": {
        **LLAMA,
        "model_type": "qwen2",
        "use_sliding_window": "yes",
        "layer_types": ["sliding_attention"] * 32,
    },
    "latent without a rank": {**LLAMA, "model_type": "deepseek_v3", "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
    "hybrid without layers": {**LLAMA, "model_type": "granitemoehybrid"},
    "searched without blocks": {**LLAMA, "model_type": "nemotron-nas"},
    "searched block is a word": {**LLAMA, "model_type": "nemotron-nas", "block_configs": ["x"]},
    "nested twice": {"model_type": "llava", "text_config": {"text_config": {"text_config": {}}}},
    "refused by name": {**LLAMA, "model_type": "deepseek_v4"},
    "refused inside": {"model_type": "mllama", "text_config": {**LLAMA, "model_type": "llama"}},
    "empty": {},
}


def _one_sentence(error: UserError) -> None:
    text = str(error)
    assert 20 < len(text) < 400
    assert "\n" not in text
    assert text.endswith(".")
    assert error.wrong
    assert error.allowed
    assert error.next_step


@pytest.mark.parametrize("what", MALFORMED_TEXTS)
def test_malformed_text_is_one_user_error(what: str) -> None:
    with pytest.raises(UserError) as caught:
        config_from_text(MALFORMED_TEXTS[what])
    _one_sentence(caught.value)


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_config_is_one_user_error(what: str) -> None:
    with pytest.raises(UserError) as caught:
        KVCache.from_config(MALFORMED[what])
    _one_sentence(caught.value)


@pytest.mark.parametrize("thing", [None, 3, "llama", [1], object()])
def test_things_that_are_no_config(thing: object) -> None:
    with pytest.raises(UserError):
        KVCache.from_config(thing)


def test_a_good_text_is_read() -> None:
    text = json.dumps({"model_type": "llama", **LLAMA})
    assert KVCache.from_config(config_from_text(text)).bytes_per_token() == 131_072


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(
    model_type=st.sampled_from("llama qwen2 gemma4 gemma3 falcon deepseek_v3 jamba t5 nemotron-nas".split()),  # noqa: SIM905
    changes=st.dictionaries(
        st.sampled_from(
            [
                *LLAMA, *DEEPSEEK_V3, "sliding_window", "layer_types", "use_sliding_window", "text_config", "head_dim",
                "attn_config", "block_configs", "per_layer_config", "num_kv_shared_layers", "multi_query", "d_model",
                "hybrid_layer_pattern", "sliding_window_pattern", "num_heads", "num_layers",
            ]
        ),
        json_values,
        max_size=5,
    ),
)  # fmt: skip
def test_whatever_a_config_holds_the_answer_is_a_number_or_a_user_error(
    model_type: str, changes: dict[str, Any]
) -> None:
    size: object = None
    try:
        size = KVCache.from_config({**LLAMA, **changes, "model_type": model_type}).bytes(1000, 2)
    except UserError:
        return  # any other exception fails the test
    assert isinstance(size, int)
    assert size >= 0
