"""Exact bytes: the published numbers, and the laws the arithmetic obeys."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.errors import UserError
from attention.known_models import find_model
from attention.kv_cache import KVCache
from attention.kv_layers import PRECISIONS, LayerSpec, layer_token_bytes, precision
from attention.kv_working import readable

GIB, MIB, KIB = 2**30, 2**20, 2**10


def cache_of(model_type: str, **values: Any) -> KVCache:
    return KVCache.from_config({"model_type": model_type, **values})


LLAMA = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
FALCON_7B = {
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "num_kv_heads": 71,
    "multi_query": True,
    "new_decoder_architecture": False,
}
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


def test_llama_2_7b() -> None:
    cache = find_model("Llama-2-7B").cache
    assert cache.bytes(4096) == 2 * GIB
    assert cache.bytes_per_token() == 524_288


def test_llama_31_8b() -> None:
    cache = find_model("Llama-3.1-8B").cache
    assert cache.bytes(128_000) == 15.625 * GIB
    assert cache.bytes_per_token() == 131_072
    assert cache_of("llama", **LLAMA).bytes(128_000) == cache.bytes(128_000)


def test_llama_31_405b() -> None:
    cache = find_model("Llama-3.1-405B").cache
    assert cache.n_kv_heads == 8
    assert round(cache.bytes(128_000) / GIB, 2) == 61.52


def test_mistral_stops_at_its_window() -> None:
    cache = find_model("Mistral-7B-v0.1").cache
    for tokens in (4096, 4097, 32_768, 1_000_000):
        assert cache.bytes(tokens) == 512 * MIB
    assert cache.bytes(4095) < 512 * MIB
    assert cache.without_windows().bytes(32_768) == 4 * GIB


@pytest.mark.parametrize(
    ("name", "size"), [("DeepSeek-V3", 70_272), ("Qwen2.5-72B", 327_680), ("Llama-3.1-405B", 516_096)]
)
def test_bytes_per_token(name: str, size: int) -> None:
    assert find_model(name).cache.bytes_per_token() == size


def test_deepseek_v2_elements() -> None:
    cache = find_model("DeepSeek-V2").cache
    assert cache.elements_per_token == 34_560
    assert cache.as_if("MHA").elements_per_token == 1_966_080
    # The paper's comparison at equal precision: 98.24 % less than its own MHA shape.
    assert round(100 * (1 - 34_560 / 1_966_080), 2) == 98.24


def test_deepseek_v3_with_keys_and_values_per_head() -> None:
    cache = cache_of("deepseek_v3", **DEEPSEEK_V3)
    assert cache.per_head().bytes_per_token() == 4_997_120
    assert round(cache.per_head().bytes_per_token() / cache.bytes_per_token(), 2) == 71.11
    assert cache.bytes_per_token() == find_model("DeepSeek-V3").cache.bytes_per_token()


def test_gemma_3_27b() -> None:
    cache = find_model("Gemma-3-27B").cache
    assert round(cache.bytes(131_072) / GIB, 3) == 10.406
    assert cache.without_windows().bytes(131_072) == 62 * GIB


def test_jamba() -> None:
    cache = find_model("Jamba v0.1").cache
    assert cache.bytes(262_144) == 4 * GIB
    assert cache.state_bytes == 28 * (8192 * 4 * 2 + 8192 * 16 * 4)


def test_llama_2_70b_against_its_mha_shape_and_against_7b() -> None:
    cache = find_model("Llama-2-70B").cache
    assert cache.as_if("MHA").bytes(4096) == 8 * cache.bytes(4096)
    assert cache.bytes_per_token() == 320 * KIB
    assert find_model("Llama 2 7B").cache.bytes_per_token() == 512 * KIB


def test_minilm_keeps_nothing_and_says_why() -> None:
    cache = find_model("all-MiniLM-L6-v2").cache
    assert cache.bytes(512, 16) == 0
    assert "encoder" in cache.reason.lower()
    assert cache.rung is None
    assert cache.reason in cache.working(512).text


def test_falcon_7b_has_one_kv_head_although_its_file_says_71() -> None:
    cache = cache_of("falcon", **FALCON_7B)
    assert cache.n_kv_heads == 1
    assert cache.bytes_per_token() == 32 * 2 * 64 * 2
    assert cache.rung == "MQA"


def test_headline_four_times() -> None:
    cache = find_model("Llama 3 8B").cache
    assert cache.bytes(8192, 16) == 16 * GIB
    assert cache.as_if("MHA").bytes(8192, 16) == 64 * GIB
    assert cache.bytes(4 * 8192, 16) == cache.bytes(8192, 64) == cache.as_if("MHA").bytes(8192, 16)


def counted_by_hand(cache: KVCache, seq_len: int, batch: int, bits: int, block: int | None, prefix: int = 0) -> int:
    """Every stored token of every layer listed one by one, then counted."""
    total = 0
    for layer in cache.layers:
        if layer.kind in ("shared", "state", "none"):
            continue
        width = (
            layer.d_latent + layer.d_rope
            if layer.kind == "latent"
            else layer.n_kv_heads * (layer.d_key + layer.d_value)
        ) + layer.d_index
        first = 0 if layer.window is None else max(0, seq_len - layer.window)
        stored = set()
        for sequence in range(batch):
            for position in range(first, seq_len):
                stored.add(("all" if position < prefix else sequence, position))
        tokens = len(stored)
        if block is not None:
            tokens = batch * len({position // block for position in range(seq_len - first)}) * block
        total += tokens * width * bits // 8
    return total


layer_specs = st.one_of(
    st.builds(LayerSpec, st.just("full"), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9)),
    st.builds(
        LayerSpec, st.sampled_from(["window", "chunked"]), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9),
        window=st.integers(1, 12),
    ),
    st.builds(
        LayerSpec, st.just("latent"), st.just(4), st.just(3), st.just(2),
        d_latent=st.integers(1, 9), d_rope=st.integers(0, 5), d_index=st.integers(0, 3),
    ),
    st.sampled_from([LayerSpec("shared"), LayerSpec("none"), LayerSpec("state", state_elements=5)]),
)  # fmt: skip
caches = st.builds(
    KVCache, st.lists(layer_specs, min_size=1, max_size=5).map(tuple), n_heads=st.just(60), name=st.just("tiny")
)


@settings(max_examples=200, deadline=None)
@given(caches, st.integers(0, 30), st.integers(0, 4), st.sampled_from([("fp32", 32), ("bf16", 16), ("fp8", 8)]),
       st.none() | st.integers(1, 7))  # fmt: skip
def test_bytes_equal_a_count_by_hand(
    cache: KVCache, seq_len: int, batch: int, dtype: tuple[str, int], block: int | None
) -> None:
    expected = counted_by_hand(cache, seq_len, batch, dtype[1], block)
    assert cache.bytes(seq_len, batch, dtype[0], block_size=block) == expected


@settings(max_examples=200, deadline=None)
@given(caches, st.integers(0, 30), st.integers(0, 4), st.integers(0, 35))
def test_a_shared_beginning_is_stored_once(cache: KVCache, seq_len: int, batch: int, prefix: int) -> None:
    expected = counted_by_hand(cache, seq_len, batch, 16, None, prefix=prefix)
    assert cache.bytes(seq_len, batch, shared_prefix=prefix) == expected


def test_only_whole_blocks_of_a_beginning_are_shared() -> None:
    cache = find_model("Llama 3 8B").cache
    # 100 tokens hold 6 whole blocks of 16 = 96; each sequence of 196 has 13 blocks, 7 of its own.
    assert cache.bytes(196, 10, block_size=16, shared_prefix=100) == (6 + 10 * 7) * 16 * 131_072


@settings(max_examples=60, deadline=None)
@given(caches, st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 5), st.none() | st.integers(1, 7))
def test_arrays_give_what_single_numbers_give(
    cache: KVCache, lengths: list[int], batch: int, block: int | None
) -> None:
    sizes = cache.bytes(np.array(lengths), batch, block_size=block)
    assert sizes.dtype == np.int64
    assert sizes.tolist() == [cache.bytes(length, batch, block_size=block) for length in lengths]
    grid = cache.bytes(np.array(lengths)[:, None], np.array([1, batch]))
    assert grid.shape == (len(lengths), 2)
    assert cache.bytes_for_lengths(lengths) == sum(cache.bytes(length) for length in lengths)


@settings(max_examples=100, deadline=None)
@given(caches, st.integers(0, 30), st.integers(1, 4), st.sampled_from(sorted(set(PRECISIONS) - {"fp8_ds_mla"})),
       st.none() | st.integers(1, 7))  # fmt: skip
def test_the_working_multiplies_and_adds_up(
    cache: KVCache, seq_len: int, batch: int, dtype: str, block: int | None
) -> None:
    working = cache.working(seq_len, batch, dtype, block)
    assert working.total == cache.bytes(seq_len, batch, dtype, block) == sum(line.bytes for line in working.lines)
    assert sum(line.count for line in working.lines) == len(cache.layers)
    for line in working.lines:
        if line.spec.caches_tokens:
            assert prod(factor.value for factor in line.factors) == line.bytes
            # The printed sentence itself multiplies out: the first number of every factor.
            product, result = line.text.split(" = ")
            numbers = [re.match(r"[\d,]+", part.strip()) for part in product.split(" × ")]
            assert prod(int(number[0].replace(",", "")) for number in numbers if number) == line.bytes
            assert result == f"{line.bytes:,} bytes"
    assert f"{working.total:,} bytes" in working.text


def test_working_of_a_real_model_reads_like_the_formula() -> None:
    text = find_model("Llama 3 8B").cache.working(8192, 16).text
    assert "32 layers × 8 K/V heads × 256 numbers per head (128 key + 128 value) × 2 bytes (fp16)" in text
    assert text.endswith("= 16 GiB")
    gemma = find_model("Gemma 3 27B").cache.working(131_072)
    assert [(line.count, line.spec.kind) for line in gemma.lines] == [(52, "window"), (10, "full")]
    shared = find_model("Gemma 3n E4B").cache.working(4096).text
    assert "15 layers: each reuses" in shared


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 50))
def test_tensor_parallel_copies_heads_past_their_number(n_kv: int, gpus: int, seq_len: int) -> None:
    cache = KVCache.from_sizes(3, 32, n_kv, 16)
    per_gpu = max(1, n_kv // gpus)
    expected = gpus * per_gpu * 3 * 2 * 16 * 2 * seq_len
    assert cache.bytes(seq_len, tensor_parallel=gpus) == expected
    assert cache.bytes_per_gpu(seq_len, tensor_parallel=gpus) * gpus == expected
    assert cache.working(seq_len, tensor_parallel=gpus).total == expected
    assert prod(factor.value for factor in cache.working(seq_len, tensor_parallel=gpus).lines[0].factors) == expected


def test_the_latent_is_copied_to_every_gpu() -> None:
    cache = cache_of("deepseek_v3", **DEEPSEEK_V3)
    assert cache.bytes(100, tensor_parallel=8) == 8 * cache.bytes(100)
    assert cache.working(100, tensor_parallel=8).lines[0].bytes == 8 * cache.bytes(100)


def test_heads_that_no_engine_splits_are_refused() -> None:
    phi = find_model("Phi-4 14B").cache
    assert phi.n_kv_heads == 10
    with pytest.raises(UserError, match="10 K/V heads cannot be split evenly over 4 GPUs"):
        phi.bytes(100, tensor_parallel=4)
    assert phi.bytes(100, tensor_parallel=5) == phi.bytes(100)
    assert phi.bytes(100, tensor_parallel=20) == 2 * phi.bytes(100)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("fp32", 2 * 8 * 128 * 4),
        ("fp16", 2 * 8 * 128 * 2),
        ("bf16", 2 * 8 * 128 * 2),
        ("fp8", 2 * 8 * 128),
        ("int8", 2 * 8 * 132),
        ("int4", 2 * 8 * 68),
        ("q8_0", 2 * 8 * 128 * 17 // 16),
        ("q4_0", 2 * 8 * 128 * 9 // 16),
    ],
)
def test_precisions_carry_their_scales(dtype: str, size: int) -> None:
    assert layer_token_bytes(LayerSpec("full", 8, 128, 128), dtype) == size


def test_bits_per_element_of_the_block_formats() -> None:
    assert PRECISIONS["q8_0"].block_bytes * 8 / PRECISIONS["q8_0"].block == 8.5
    assert PRECISIONS["q4_0"].block_bytes * 8 / PRECISIONS["q4_0"].block == 4.5


def test_fp8_ds_mla_is_656_bytes_and_only_for_that_latent() -> None:
    cache = cache_of("deepseek_v3", **DEEPSEEK_V3)
    assert cache.bytes_per_token("fp8_ds_mla") == 61 * 656
    assert cache.working(10, dtype="fp8_ds_mla").total == 6560 * 61
    for other in (cache_of("llama", **LLAMA), find_model("MiniCPM3 4B").cache):
        with pytest.raises(UserError, match="fp8_ds_mla"):
            other.bytes(10, dtype="fp8_ds_mla")


def test_precision_names() -> None:
    assert precision("torch.bfloat16").name == "bf16"
    assert precision("FP8_E4M3").name == "fp8"
    with pytest.raises(UserError, match="int3"):
        precision("int3")


@pytest.mark.parametrize(
    "arguments",
    [
        {"seq_len": -1},
        {"seq_len": 1.5},
        {"seq_len": "many"},
        {"seq_len": True},
        {"seq_len": 10, "batch_size": -1},
        {"seq_len": 10, "block_size": 0},
        {"seq_len": 10, "tensor_parallel": 0},
        {"seq_len": 10, "tensor_parallel": 1.0},
        {"seq_len": 10, "shared_prefix": -1},
        {"seq_len": 2**41},
        {"seq_len": [1, -2]},
        {"seq_len": 2**40, "batch_size": 2**40},
    ],
)
def test_sizes_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        cache_of("llama", **LLAMA).bytes(**arguments)


def test_large_numbers_stay_exact() -> None:
    cache = find_model("Llama 3.1 405B").cache
    assert cache.bytes(10**9, 10_000) == 516_096 * 10**13
    assert cache.bytes(np.array([10**9]), 10_000).tolist() == [516_096 * 10**13]


def test_six_models_and_200_lengths_are_quick() -> None:
    models = [find_model(name).cache for name in
              ("Llama 3 8B", "Gemma 3 27B", "DeepSeek-V3", "Mistral 7B v0.1", "Jamba v0.1", "Llama 2 70B")]  # fmt: skip
    lengths = np.linspace(1, 131_072, 200).astype(np.int64)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for cache in models:
            cache.bytes(lengths)
        best = min(best, time.perf_counter() - start)
    assert best < 0.010


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (1023, "1,023 bytes"), (1024, "1 KiB"), (46_080, "45 KiB"), (512 * MIB, "512 MiB"),
     (16 * GIB, "16 GiB"), (round(10.406 * GIB), "10.41 GiB"), (100 * GIB, "100 GiB")],
)  # fmt: skip
def test_readable(size: int, text: str) -> None:
    assert readable(size) == text


def test_a_cache_is_frozen_and_equal_by_value() -> None:
    cache = cache_of("llama", **LLAMA)
    with pytest.raises(AttributeError):
        cache.n_heads = 3  # type: ignore[misc]
    assert cache == cache_of("llama", **LLAMA)
    assert cache != replace(cache, n_heads=64)


def test_the_memory_wing_loads_neither_torch_nor_a_page_nor_a_plot() -> None:
    code = (
        "import sys, attention.kv_cache, attention.known_models, attention.kv_budget, attention.vllm_log\n"
        "from attention.known_models import find_model\n"
        "find_model('Llama 3 8B').cache.working(8192)\n"
        "print(sorted(set(sys.modules) & {'torch', 'transformers', 'streamlit', 'plotly', 'pandas'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
