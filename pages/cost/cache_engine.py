"""The tab “Agree with an engine”: the same cache in vLLM's words, a pasted start-up log explained, real lengths."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from attention.errors import UserError
from attention.kv_working import readable
from attention.vllm_log import EngineView, compare_with_log, engine_view, parse_engine_log
from pages.cost.cache_inputs import BOUND, Choice
from pages.cost.cache_parts import listed, small
from pages.shared.errors import show_error
from pages.shared.link_values import link_binding
from pages.shared.tables import table

BLOCKS = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class EngineInputs:
    """Tokens in a block, a pasted log, and how long texts really are."""

    block_size: int
    log: str
    prefix: int
    mean: int
    p95: int


def inputs() -> EngineInputs:
    """Block size, log, shared beginning, mean and 95th percentile of the lengths."""
    log = st.text_area(
        "Lines of a vLLM start-up log",
        key="c_log",
        height=110,
        placeholder="GPU KV cache size: 91,056 tokens\nMaximum concurrency for 8,192 tokens per request: 11.12x",
        bind=link_binding("c_log"),
        persist_state="session",
    )
    columns = st.columns(4, gap="small")
    with columns[0]:
        block = st.selectbox(
            "Tokens in a block", BLOCKS, index=BLOCKS.index(16), key="c_block",
            help="Engines hand out memory in blocks; the last block of a text is rarely full.", **BOUND,
        )  # fmt: skip
    with columns[1]:
        prefix = _box("Shared first tokens", "c_prefix", 0, 0, "A common beginning (a system prompt) is stored once.")
    with columns[2]:
        mean = _box("Mean length", "c_mean", 2_000, 1, "The average length of your users' texts.")
    with columns[3]:
        p95 = _box("95 % are shorter than", "c_p95", 6_000, 1, "The length that only one text in twenty exceeds.")
    return EngineInputs(block, log or "", prefix, mean, p95)


def show(choice: Choice, given: EngineInputs) -> None:
    """What vLLM would print, the log beside our numbers, and memory for real lengths."""
    left, right = st.columns(2, gap="large")
    with left:
        _in_their_words(choice, given)
    with right:
        _real_lengths(choice, given)


def _in_their_words(choice: Choice, given: EngineInputs) -> None:
    st.markdown("**In vLLM's words**")
    try:
        if given.log.strip():
            sentences = compare_with_log(choice.cache, parse_engine_log(given.log), given.block_size, choice.dtype)
            listed(sentences)
            return
        fit = choice.fit()
        room = max(0, fit.left + fit.cache)
        if choice.n_gpus > 1:
            small("vLLM prints what one GPU holds, so this tab counts one.")
        view = engine_view(choice.cache, room // choice.n_gpus, choice.tokens, given.block_size, choice.dtype)
    except UserError as error:
        show_error(error)
        return
    st.code(view.text, language=None, wrap_lines=True)
    listed(_explained(view, room // choice.n_gpus, given.block_size))


def _explained(view: EngineView, room: int, block_size: int) -> list[str]:
    return [
        f"One block of {block_size} tokens takes {view.block_bytes:,} bytes = {readable(view.block_bytes)}.",
        f"{readable(room)} beside the weights hold {view.blocks:,} whole blocks, "
        f"{view.blocks:,} × {block_size} = {view.tokens:,} tokens.",
        f"{view.tokens:,} / {view.request_len:,} tokens per request = {view.concurrency:.2f} requests at once.",
    ]


def _real_lengths(choice: Choice, given: EngineInputs) -> None:
    st.markdown("**For lengths as they really are**")
    if not given.mean <= given.p95 <= choice.tokens:
        st.info(
            f"The mean ({given.mean:,}) must not exceed the length of the longest 5 % ({given.p95:,}), nor that one "
            f"the tokens each ({choice.tokens:,}). Change one of them."
        )
        return
    if given.prefix > given.mean:
        st.info(f"A shared beginning of {given.prefix:,} tokens is longer than the mean text ({given.mean:,}).")
        return
    lengths = (("mean", given.mean), ("95th percentile", given.p95), ("longest", choice.tokens))
    rows = []
    for name, length in lengths:
        plain_bytes = choice.cache.bytes(length, choice.users, choice.dtype)
        blocks = choice.cache.bytes(length, choice.users, choice.dtype, block_size=given.block_size)
        shared = choice.cache.bytes(
            length, choice.users, choice.dtype, block_size=given.block_size, shared_prefix=given.prefix
        )
        rows.append((f"{name}: {length:,}", readable(plain_bytes), readable(blocks), readable(shared)))
    table(
        f"{choice.users:,} users, cache at {choice.dtype}",
        ("every text this long", "exact", f"in blocks of {given.block_size}", f"first {given.prefix:,} tokens shared"),
        rows,
    )
    small(
        "Texts of different lengths add up: where every layer keeps every token, the users together need what as "
        "many texts of the mean length need. Planning with the longest text for all wastes the difference."
    )


def _box(label: str, key: str, value: int, least: int, note: str) -> int:
    number = st.number_input(
        label, min_value=least, max_value=100_000_000, value=value, step=1, key=key, help=note, **BOUND
    )
    return least if number is None else int(number)
