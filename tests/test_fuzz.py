"""Made-up input for everything that reads a stranger's words: a result or one sentence, never another error.

200 examples of each here; HEADSCOPE_FUZZ=10000 (`make fuzz`) runs as many as it says, and more whole pages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest
from transformers import PreTrainedTokenizerBase

from attention import UserError
from attention.kv_cache import KVCache
from attention.kv_families import FAMILIES
from attention.kv_reader import MAX_LAYERS, config_from_text
from attention.quiz import read_shape
from attention.tokens import clean_text, encode, words_of
from attention.tracing import AttentionTrace, trace
from attention.views import cell_from
from attention.vllm_log import parse_engine_log
from pages.see.finder_mute import heads_of
from pages.shared.errors import plain
from pages.shared.link_values import FREE, unreadable
from pages.shared.rooms import RefusedError, Rooms
from pages.shared.site import PAGES
from tests.page_links import BOUND
from tests.tiny_models import tiny, tiny_tokenizer

MANY = int(os.environ.get("HEADSCOPE_FUZZ", "200"))
fuzz = settings(max_examples=MANY, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
ENTRY = str(Path(__file__).resolve().parent.parent / "pages" / "entry.py")

# Numbers at which arithmetic goes wrong, as JSON and links spell them.
ODD_NUMBERS = [0, 1, -1, 2**31, 2**63, 10**30, 1e308, 0.5, True, None, "8", "²", [], {}]
ODD_WORDS = [
    "",
    " ",
    "inf",
    "-inf",
    "nan",
    "1e999",
    "9" * 400,
    "-1",
    "1.5",
    "²",
    "١",
    "0x10",
    "true",
    "None",
    "[]",
    "\x00",
]
ODD_WORDS += [
    "<img src=x onerror=alert(1)>",
    "\u202ecba",
    "L99 H99",
    "~untrained",
    "%00",
    "../../etc/passwd",
    "🙂",
    "\ud7ff",
]
NAMES = sorted(
    {
        *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim", "kv_lora_rank"),
        *(
            "qk_rope_head_dim",
            "qk_nope_head_dim",
            "v_head_dim",
            "sliding_window",
            "sliding_window_pattern",
            "layer_types",
        ),
        *(
            "max_window_layers",
            "use_sliding_window",
            "attention_chunk_size",
            "text_config",
            "block_configs",
            "num_heads",
        ),
        *("per_layer_config", "attn_config", "multi_query", "hybrid_override_pattern", "num_nextn_predict_layers"),
        *("max_position_embeddings", "d_model", "d_kv", "decoder_layers", "n_layer", "n_head", "num_kv_shared_layers"),
    }
)
names = st.sampled_from(NAMES) | st.text(max_size=5)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(ODD_NUMBERS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)
sizes = st.integers(1, 64) | anything
by_layer = st.dictionaries(st.text(max_size=3), anything, max_size=3)
likely = st.fixed_dictionaries(
    {"model_type": st.sampled_from(sorted(FAMILIES))},
    optional=dict.fromkeys(NAMES, sizes) | {"per_layer_config": by_layer},
)


def result_or_told(run: Callable[[], Any]) -> Any:
    """What comes out, or None where a person is told what is wrong; any other error is the test's."""
    try:
        return run()
    except (UserError, RefusedError) as error:
        told = error.sentence if isinstance(error, RefusedError) else str(error)
    if not told or len(told) > 2000 or "Traceback" in told:
        pytest.fail(f"this is no sentence: {told[:300]}")
    return None


def counted(text: str) -> KVCache | None:
    cache: KVCache | None = result_or_told(lambda: KVCache.from_config(config_from_text(text)))
    if cache is not None:
        assert len(cache.layers) <= 3 * MAX_LAYERS
        assert result_or_told(lambda: cache.bytes(1000)) != -1
    return cache


@given(config=likely)
@fuzz
def test_a_config_is_counted_or_told(config: dict[str, Any]) -> None:
    counted(json.dumps(config))


@given(text=st.text(max_size=60) | st.text('{}[]":,0123456789eE+-.ntfalsru\\\u202e ', max_size=80))
@fuzz
def test_any_text_as_a_config_is_told(text: str) -> None:
    assert counted(text) is None


@pytest.fixture(scope="module")
def tokenizers() -> list[PreTrainedTokenizerBase]:
    return [tiny_tokenizer(encoder=False), tiny_tokenizer(encoder=True)]


@given(text=st.text(max_size=80), pair=st.none() | st.text(max_size=20), most=st.integers(1, 40))
@fuzz
def test_any_text_becomes_tokens_that_hide_nothing(
    tokenizers: list[PreTrainedTokenizerBase], text: str, pair: str | None, most: int
) -> None:
    for tokenizer in tokenizers:
        encoded = result_or_told(lambda by=tokenizer: encode(by, clean_text(text, 1000), pair=pair, max_tokens=most))
        if encoded is None:
            continue
        assert len(encoded.tokens) == len(encoded.ids) <= most
        assert encoded.total == len(encoded.ids) + encoded.cut
        assert sorted(place for group in words_of(encoded.tokens) for place in group) == list(range(len(encoded.ids)))
        for token in encoded.tokens:
            assert token.label.strip(), "every token can be seen"
            assert all(mark not in token.label for mark in "\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u200b\ufeff\x00")


@given(text=st.text(max_size=200) | st.text("GPU KVcachesize#blo:k,0123456789. tnMimumxqrpfoAv", max_size=200))
@fuzz
def test_any_text_as_an_engines_log_is_read_or_told(text: str) -> None:
    log = result_or_told(lambda: parse_engine_log(text))
    assert log is None or log.tokens is None or log.tokens >= 0


# ---- what stands behind the links


@pytest.fixture(scope="module")
def traced() -> AttentionTrace:
    return trace(tiny("llama"), "the cat sat on the mat", start="<s>")


values = st.sampled_from(ODD_WORDS) | st.text(max_size=30) | st.integers().map(str)


@given(
    asked=st.dictionaries(st.sampled_from(["v.layer", "v.head", "v.query", "v.key", "v.scale"]), values),
    lock=st.none() | st.dictionaries(st.sampled_from(["layer", "head", "query", "key"]), anything),
)
@fuzz
def test_any_viewer_state_is_a_cell_that_may_be_looked_at(traced: AttentionTrace, asked: Any, lock: Any) -> None:
    layer, head, query, key = cell_from(traced, lock, asked, (1, 2, 3))
    assert traced.visible(layer)[query, key]
    assert np.isfinite(traced.weights[layer, head, query, key])


@given(names=st.lists(values | st.from_regex(r"L\d+ H\d+", fullmatch=True), max_size=5))
@fuzz
def test_any_names_of_heads_are_heads(names: list[str]) -> None:
    heads = heads_of(names)
    assert list(heads) == sorted(set(heads))


@given(
    asked=st.dictionaries(
        st.sampled_from(["q_seed", "c_n", "text", "f_mute"]), st.lists(values, min_size=1, max_size=3)
    )
)
@fuzz
def test_a_number_that_stays_in_a_link_can_be_made_whole(asked: dict[str, list[str]]) -> None:
    dropped = unreadable(asked)
    assert not set(dropped) & FREE
    for name in set(asked) - set(dropped) - FREE:
        for value in asked[name]:
            assert value.strip()
            try:
                number = float(value)
            except ValueError:
                continue
            assert abs(int(number)) <= 1e15


@given(code=anything, token=anything, state=st.text(max_size=60) | st.text("/?&=%abcxyz.+", max_size=60) | anything)
@fuzz
def test_any_request_to_a_room_is_granted_or_refused(code: Any, token: Any, state: Any) -> None:
    rooms = Rooms(["/", "/cache"])
    real, its_token = rooms.open("somebody")
    for ask in (
        lambda: rooms.follow(code, "else", lambda: None),
        lambda: rooms.lead(code, token, lambda: None),
        lambda: rooms.lead(real, token, lambda: None),
        lambda: rooms.close(real, token),
    ):
        with pytest.raises(RefusedError) as refused:
            ask()
        assert 400 <= refused.value.status < 600
    if result_or_told(lambda: rooms.show(real, its_token, state) or "shown"):
        assert state.partition("?")[0] in {"/", "/cache"}


@given(text=st.text(max_size=40) | st.text("(), 0123456789x×-+.", max_size=40))
@fuzz
def test_any_answer_that_should_be_a_shape_is_one_or_told(text: str) -> None:
    shape = result_or_told(lambda: read_shape(text))
    assert shape is None or all(isinstance(size, int) for size in shape)


@given(text=st.text(max_size=60))
@fuzz
def test_words_in_a_sentence_of_ours_keep_no_markdown(text: str) -> None:
    written = plain(text)
    unescaped = [mark for place, mark in enumerate(written) if mark in "*_`[<$" and written[place - 1 : place] != "\\"]
    assert unescaped == []
    assert "\n" not in written


# ---- whole pages


def test_every_page_is_among_them() -> None:
    assert set(BOUND) == {page.path for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path or "heads")
@given(data=st.data())
@settings(max_examples=max(1, MANY // 100), suppress_health_check=list(HealthCheck))
def test_any_link_opens_its_page(page: Any, data: st.DataObject) -> None:
    asked = {
        name: data.draw(values.filter(lambda word: "\ud7ff" not in word), name)
        for name in BOUND[page.path]
        if name != "l_say"
    }
    assert_opens(page.file, asked)


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [("quiz", "q_seed", value) for value in ("inf", "9" * 400, "", "²")]
    + [("lesson", "n_heads", ""), ("cache", "c_n", "inf")],
)
def test_a_value_no_box_can_read_is_taken_out_aloud(path: str, name: str, value: str) -> None:
    opened = assert_opens(next(page.file for page in PAGES if page.path == path), {name: value})
    said = [toast.value for toast in opened.toast] + [info.value for info in opened.info]
    assert any("This link" in one for one in said), said


def assert_opens(file: str, asked: dict[str, str]) -> AppTest:
    opened = AppTest.from_file(ENTRY, default_timeout=120)
    opened.switch_page(file)
    for name, value in asked.items():
        opened.query_params[name] = value
    opened.run()
    assert [one.message for one in opened.exception] == [], asked
    return opened
