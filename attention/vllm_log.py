"""A KV cache in vLLM's words: blocks of tokens, and the lines its start-up log prints.

vLLM divides the memory left for the cache into blocks of ``block_size`` tokens, rounding
down, and calls ``tokens / max_model_len`` the maximum concurrency (lines of vLLM 0.6 to
0.2x, as in github.com/vllm-project/vllm issues 10517 and 12330 and pull 13596).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from attention.errors import UserError
from attention.kv_cache import KVCache
from attention.kv_reader import shown
from attention.kv_working import readable

BLOCK_SIZE = 16
MAX_LOG_CHARS = 100_000
_MEMORY = re.compile(
    r"(?:Available KV cache memory:\s*|reserved for KV Cache is\s*|kv_cache_size=)(?P<gib>\d+(?:\.\d+)?)\s*(?:GiB|GB)"
)
_BLOCKS = re.compile(r"# ?GPU blocks:\s*(?P<blocks>[\d,]+)")
_TOKENS = re.compile(r"GPU KV cache size:\s*(?P<tokens>[\d,]+)\s*tokens")
_CONCURRENCY = re.compile(
    r"Maximum concurrency for\s*(?P<length>[\d,]+)\s*tokens per request:\s*(?P<times>\d+(?:\.\d+)?)x"
)


@dataclass(frozen=True)
class EngineView:
    """What vLLM would print for a cache: whole blocks, the tokens in them, requests of ``request_len`` at once."""

    blocks: int
    tokens: int
    block_bytes: int
    concurrency: float
    request_len: int

    @property
    def text(self) -> str:
        """The two lines as vLLM prints them."""
        return (
            f"GPU KV cache size: {self.tokens:,} tokens\n"
            f"Maximum concurrency for {self.request_len:,} tokens per request: {self.concurrency:.2f}x"
        )


@dataclass(frozen=True)
class EngineLog:
    """What a pasted log says; None where it says nothing. ``memory_gib`` is printed with two decimals."""

    memory_gib: float | None = None
    blocks: int | None = None
    tokens: int | None = None
    request_len: int | None = None
    concurrency: float | None = None


def engine_view(
    cache: KVCache, cache_bytes: int, request_len: int, block_size: int = BLOCK_SIZE, dtype: object = "fp16"
) -> EngineView:
    """Blocks, tokens and concurrency that ``cache_bytes`` give one model on one GPU.

    Exact for models whose layers all keep every token; raises UserError for others, whose
    blocks vLLM shares out between kinds of layers, and for a cache of 0 bytes.
    """
    if any((layer.caches_tokens and layer.window is not None) or layer.kind == "state" for layer in cache.layers):
        raise UserError(
            f"{cache.name or 'This model'} mixes kinds of layers, and vLLM shares one pool of blocks between them.",
            "The simple rule holds for models whose layers all keep every token.",
            "Compare bytes instead of blocks.",
        )
    block_bytes = cache.bytes(block_size, 1, dtype, block_size=block_size)
    if block_bytes == 0:
        raise UserError(
            cache.reason or "This model caches nothing.", "Blocks need a cache.", "Choose a model that writes text."
        )
    if request_len < 1:
        raise UserError(f"A request of {shown(request_len)} tokens.", "It needs at least 1 token.", "Choose a length.")
    blocks = cache_bytes // block_bytes
    tokens = blocks * block_size
    return EngineView(blocks, tokens, block_bytes, tokens / request_len, request_len)


def parse_engine_log(text: str) -> EngineLog:
    """Numbers from lines of a vLLM start-up log; the last line of each kind wins.

    Raises UserError when no line is recognised, or the text is longer than 100,000 characters.
    """
    if len(text) > MAX_LOG_CHARS:
        raise UserError(
            f"This text has {len(text):,} characters.",
            f"Up to {MAX_LOG_CHARS:,} are read.",
            "Paste only the lines about the KV cache.",
        )
    memory, blocks, tokens, concurrency = (
        _last(pattern, text) for pattern in (_MEMORY, _BLOCKS, _TOKENS, _CONCURRENCY)
    )
    if not any((memory, blocks, tokens, concurrency)):
        raise UserError(
            "No line of a vLLM start-up log was found in this text.",
            'It should hold a line such as "GPU KV cache size: 91,056 tokens".',
            "Paste the lines that vLLM prints before it is ready.",
        )
    return EngineLog(
        memory_gib=float(memory["gib"]) if memory else None,
        blocks=_count(blocks["blocks"]) if blocks else None,
        tokens=_count(tokens["tokens"]) if tokens else None,
        request_len=_count(concurrency["length"]) if concurrency else None,
        concurrency=float(concurrency["times"]) if concurrency else None,
    )


def compare_with_log(
    cache: KVCache, log: EngineLog, block_size: int = BLOCK_SIZE, dtype: object = "fp16"
) -> tuple[str, ...]:
    """Sentences that set a log beside our numbers and explain what is left between them.

    A printed 11.12 GiB may be anything from 11.115 to 11.125, so our blocks are a range.
    Raises UserError where ``engine_view`` does.
    """
    request = log.request_len or cache.trained_context or block_size
    per_block = engine_view(cache, 0, request, block_size, dtype).block_bytes
    sentences = [f"One block of {block_size} tokens of {cache.name or 'this model'} takes {readable(per_block)}."]
    blocks = log.blocks if log.blocks is not None else log.tokens // block_size if log.tokens is not None else None
    if log.memory_gib is not None:
        least = int((log.memory_gib - 0.005) * 2**30) // per_block
        most = int((log.memory_gib + 0.005) * 2**30) // per_block
        sentences.append(
            f"{log.memory_gib} GiB, rounded to two decimals in the log, hold {least:,} to {most:,} blocks."
        )
        if blocks is not None:
            sentences.append(_verdict(blocks, max(0, least), most, per_block))
    if blocks is not None:
        tokens = blocks * block_size
        sentences.append(f"{blocks:,} blocks hold {tokens:,} tokens, {readable(blocks * per_block)}.")
        if log.concurrency is not None and log.request_len:
            sentences.append(
                f"{tokens:,} / {log.request_len:,} tokens per request = {tokens / log.request_len:.2f}; "
                f"the log says {log.concurrency:.2f}."
            )
    return tuple(sentences)


def _verdict(blocks: int, least: int, most: int, per_block: int) -> str:
    if least <= blocks <= most:
        return f"The log's {blocks:,} blocks agree with ours."
    ratio = blocks / max(1, most if blocks > most else least)
    return (
        f"The log's {blocks:,} blocks do not: {ratio:.2f} times ours. A cache of another precision, several GPUs, "
        f"another block size or layers with windows change what a block holds ({readable(per_block)} here)."
    )


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for match in pattern.finditer(text):
        found = match
    return found


def _count(digits: str) -> int:
    return int(digits.replace(",", "")[:18])
