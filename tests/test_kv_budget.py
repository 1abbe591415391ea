"""The ladder of sharing, what fits, the memory floor, and when the cache outgrows the weights."""

from __future__ import annotations

from typing import Any

import pytest

from attention.errors import UserError
from attention.known_models import find_gpu, find_model
from attention.kv_budget import choose_n_kv, decode_floor_seconds, fits, ladder, tokens_to_outgrow
from attention.kv_cache import KVCache

GIB, MIB, KIB = 2**30, 2**20, 2**10


def cache_of(model_type: str, **values: Any) -> KVCache:
    return KVCache.from_config({"model_type": model_type, **values})


def test_the_ladder_of_llama_3_8b() -> None:
    steps = ladder(find_model("Llama 3 8B").cache)
    assert [(step.label, step.cache.bytes_per_token() // KIB) for step in steps] == [
        ("MHA", 512),
        ("GQA-16", 256),
        ("GQA-8", 128),
        ("GQA-4", 64),
        ("GQA-2", 32),
        ("MQA", 16),
        ("MLA", 36),
    ]
    assert [step.label for step in steps if step.is_own] == ["GQA-8"]
    # DeepSeek-V2's widths: a latent of 4 head widths and a RoPE key of half of one, in every layer.
    assert steps[-1].cache.layers[0].d_latent == 512
    assert steps[-1].cache.layers[0].d_rope == 64
    narrow = ladder(find_model("Llama 3 8B").cache, d_latent=256, d_rope=32)
    assert narrow[-1].cache.bytes_per_token() == 32 * (256 + 32) * 2


def test_the_ladder_keeps_windows_and_head_widths() -> None:
    for step in ladder(find_model("Gemma 3 27B").cache):
        assert [layer.window for layer in step.cache.layers].count(1024) == 52
        assert step.cache.bytes(131_072) < step.cache.without_windows().bytes(131_072)
    assert ladder(find_model("all-MiniLM-L6-v2").cache) == ()
    own = [step.label for step in ladder(find_model("DeepSeek-V2").cache) if step.is_own]
    assert own == ["MLA"]


def test_as_if_refuses_heads_that_do_not_divide() -> None:
    with pytest.raises(UserError, match="32 query heads cannot share 7"):
        find_model("Llama 3 8B").cache.as_if("GQA", 7)
    with pytest.raises(UserError):
        find_model("Llama 3 8B").cache.as_if("GQA")


def test_from_sizes() -> None:
    assert KVCache.from_sizes(32, 32, 8, 128).bytes(8192, 16) == 16 * GIB
    assert KVCache.from_sizes(32, 32, 8, 128, window=4096).bytes(100_000) == 512 * MIB
    assert KVCache.from_sizes(61, 128, 128, 128, d_latent=512, d_rope=64).bytes_per_token() == 70_272
    with pytest.raises(UserError):
        KVCache.from_sizes(32, 32, 5, 128)


def test_memory_floor_of_one_step() -> None:
    model = find_model("Llama 3 8B")
    eight = decode_floor_seconds(model.cache, model.weights_bytes(), 3.35e12, 8192, 16)
    thirty_two = decode_floor_seconds(model.cache.as_if("MHA"), model.weights_bytes(), 3.35e12, 8192, 16)
    assert round(eight * 1000, 1) == 9.9
    assert round(thirty_two * 1000, 1) == 25.3
    assert decode_floor_seconds(model.cache, model.weights_bytes(), 3.35e12, 8192, 16, n_gpus=4) == pytest.approx(
        eight / 4
    )
    for bandwidth in (0, -1, float("nan")):
        with pytest.raises(UserError):
            decode_floor_seconds(model.cache, 1, bandwidth, 10)


@pytest.mark.parametrize(
    ("name", "tokens"), [("Llama 2 7B", 25_700), ("Llama 3 8B", 122_500), ("Llama 2 70B", 421_000)]
)
def test_when_the_cache_outgrows_the_weights(name: str, tokens: int) -> None:
    model = find_model(name)
    exact = tokens_to_outgrow(model.cache, model.weights_bytes())
    assert exact is not None
    assert abs(exact - tokens) < 50
    assert model.cache.bytes(exact) > model.weights_bytes() >= model.cache.bytes(exact - 1)


def test_windows_put_the_crossing_off_and_states_never_cross() -> None:
    model = find_model("Mistral 7B v0.1")
    short, long = (tokens_to_outgrow(model.cache, model.weights_bytes(), seq_len=length) for length in (4096, 32_768))
    assert short is not None
    assert long is not None
    assert 7.99 < long / short < 8.01
    assert tokens_to_outgrow(cache_of("mamba", hidden_size=64, num_hidden_layers=2), 10**9) is None


def test_what_fits_on_one_gpu() -> None:
    model, gpu = find_model("Llama 3 8B"), find_gpu("H100")
    fit = fits(model.cache, model.weights_bytes(), gpu, 8192, 16)
    assert fit.fits
    assert fit.used + fit.left == fit.capacity == 80 * GIB
    assert fit.overhead == 8 * GIB
    assert fit.max_batch is not None
    assert fit.max_context is not None
    # One more of either does not fit.
    room = fit.capacity - fit.overhead - fit.weights
    assert model.cache.bytes(8192, fit.max_batch) <= room < model.cache.bytes(8192, fit.max_batch + 1)
    assert model.cache.bytes(fit.max_context, 16) <= room < model.cache.bytes(fit.max_context + 1, 16)
    # Four times the users as with MHA, computed (whole users only).
    mha = fits(model.cache.as_if("MHA"), model.weights_bytes(), gpu, 8192, 16)
    assert mha.max_batch == fit.max_batch // 4
    assert any("Memory allows" in note and "8,192" in note for note in fit.notes)
    assert fits(model.cache, model.weights_bytes(), gpu, 8192, 16, overhead_bytes=0).overhead == 0


def test_what_does_not_fit() -> None:
    model, gpu = find_model("Llama 3.1 405B"), find_gpu("H100")
    fit = fits(model.cache, model.weights_bytes(), gpu, 8192)
    assert not fit.fits
    assert fit.left < 0
    assert (fit.max_batch, fit.max_context) == (0, 0)
    assert any("weights alone" in note for note in fit.notes)
    assert fits(model.cache, model.weights_bytes(4), gpu, 8192, n_gpus=4).fits
    sixteen = fits(model.cache, model.weights_bytes(), gpu, 8192, n_gpus=16)
    assert sixteen.cache == 2 * model.cache.bytes(8192)
    assert any("stored 2 times" in note for note in sixteen.notes)
    assert (sixteen.capacity, sixteen.overhead) == (16 * 80 * GIB, 16 * 8 * GIB)


def test_memory_never_limits_a_window_or_a_state() -> None:
    gpu = find_gpu("H100")
    assert fits(find_model("Mistral 7B v0.1").cache, 10**10, gpu, 8192).max_context is None
    mamba = fits(cache_of("mamba", hidden_size=64, num_hidden_layers=2), 10**9, gpu, 8192, 4)
    assert mamba.max_context is None
    assert mamba.cache == 0
    assert mamba.state > 0
    assert mamba.max_batch is not None
    encoder = fits(find_model("all-MiniLM-L6-v2").cache, 10**8, gpu, 512)
    assert (encoder.max_context, encoder.max_batch) == (None, None)


def test_fit_counts_the_source_of_an_encoder_decoder() -> None:
    cache = cache_of("t5", d_model=64, d_kv=8, num_heads=8, num_layers=2, n_positions=512)
    fit = fits(cache, 10**6, find_gpu("T4"), 10, 3, source_len=100)
    assert fit.state == cache.cross_bytes_for(100, 3)


def test_choosing_the_number_of_kv_heads() -> None:
    model, gpu = find_model("Llama 3 8B"), find_gpu("H100")
    rows = choose_n_kv(model.cache, model.weights_bytes(), gpu, model.d_model, 8192, 16)
    assert [row.step.n_kv_heads for row in rows] == [32, 16, 8, 4, 2, 1]
    row = rows[2]
    assert row.kv_parameters == 32 * 4096 * 2 * 8 * 128
    assert row.gpu_counts == (1, 2, 4, 8)
    assert round(row.floor_seconds * 1000, 1) == 9.9
    assert [one.bytes_per_token for one in rows] == sorted((one.bytes_per_token for one in rows), reverse=True)
