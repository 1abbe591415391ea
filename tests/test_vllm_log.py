"""A cache in an engine's words, and its log lines read back."""

from __future__ import annotations

import pytest

from attention.errors import UserError
from attention.known_models import find_model
from attention.vllm_log import compare_with_log, engine_view, parse_engine_log

GIB, MIB = 2**30, 2**20


def test_llama_3_8b_on_vllm() -> None:
    model = find_model("Llama 3 8B")
    # vLLM printed "11.12GiB" and 5,691 blocks: the memory it really had was within half a hundredth of that.
    memory = 5691 * 2 * MIB + MIB
    assert f"{memory / GIB:.2f}" == "11.12"
    view = engine_view(model.cache, memory, 8192)
    assert (view.blocks, view.tokens) == (5691, 91_056)
    assert f"{view.concurrency:.2f}x" == "11.12x"
    assert view.text.splitlines()[0] == "GPU KV cache size: 91,056 tokens"


OLD_LOG = """INFO worker.py:241] model weights take 14.96GiB; non_torch_memory takes 0.10GiB; PyTorch activation
peak memory takes 9.37GiB; the rest of the memory reserved for KV Cache is 11.12GiB.
INFO gpu_executor.py:76] # GPU blocks: 5691, # CPU blocks: 2048
INFO gpu_executor.py:80] Maximum concurrency for 8192 tokens per request: 11.12x"""
NEW_LOG = """INFO gpu_worker.py:440] Available KV cache memory: 11.12 GiB
INFO kv_cache_utils.py:1087] GPU KV cache size: 91,056 tokens
INFO kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens per request: 11.12x"""


def test_logs_old_and_new_are_read() -> None:
    old, new = parse_engine_log(OLD_LOG), parse_engine_log(NEW_LOG)
    assert (old.memory_gib, old.blocks, old.request_len, old.concurrency) == (11.12, 5691, 8192, 11.12)
    assert (new.memory_gib, new.tokens, new.request_len, new.concurrency) == (11.12, 91_056, 8192, 11.12)
    assert old.tokens is None
    assert new.blocks is None


@pytest.mark.parametrize("log", [OLD_LOG, NEW_LOG])
def test_a_log_that_agrees_is_explained(log: str) -> None:
    text = " ".join(compare_with_log(find_model("Llama 3 8B").cache, parse_engine_log(log)))
    assert "5,691 blocks agree" in text
    assert "91,056" in text
    assert "11.12" in text


def test_a_log_that_does_not_agree_is_explained() -> None:
    text = " ".join(compare_with_log(find_model("Llama 2 7B").cache, parse_engine_log(OLD_LOG)))
    assert "do not" in text
    assert "precision" in text


@pytest.mark.parametrize("text", ["", "hello", "GPU KV cache size: many tokens", "x" * 200_000])
def test_text_that_is_no_log(text: str) -> None:
    with pytest.raises(UserError):
        parse_engine_log(text)


def test_blocks_are_refused_where_the_simple_rule_fails() -> None:
    for name in ("Gemma 3 27B", "Jamba v0.1", "all-MiniLM-L6-v2"):
        with pytest.raises(UserError):
            engine_view(find_model(name).cache, 10**9, 1024)
