"""Any text at all is a whole trace or one sentence, on both bundled models; never another error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import AttentionTrace, UserError, load_model, trace
from attention.models import LoadedModel

BOTH = [("all-MiniLM-L6-v2", None), ("SmolLM2-135M-Instruct", "<|endoftext|>"), ("SmolLM2-135M-Instruct", None)]
# Texts that must be drawn, whatever they hold.
DRAWN = {
    "one letter": "a",
    "emoji": "🙂🙃🎉",
    "a family": "👩‍👩‍👧‍👦",
    "a flag": "🇩🇪🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "sentence start": "<s>",
    "script end": "</script>",
    "image": "<img src=x onerror=alert(1)>",
    "emoji name": ":smile:",
    "emphasis": "*a*",
    "struck": "~~s~~ **b** `c` [d](e) $x$",
    "date": "2024-01-31",
    "Arabic": "القطة جلست على السجادة",
    "Hebrew": "החתול ישב על המחצלת",
    "Chinese": "猫坐在垫子上",
    "Japanese": "猫はマットの上に座った",
    "Greek": "Η γάτα κάθισε στο χαλάκι",
    "Hindi": "बिल्ली चटाई पर बैठी",
    "Thai": "แมวนั่งบนเสื่อ",
    "accents apart": "e\u0301 a\u0308",
    "a tower of accents": "e" + "\u0301" * 40,
    "right to left marks": "a\u202eb\u202cc\u200f",
    "zero width": "a\u200bb\ufeffc\u00ad",
    "NUL inside": "a\x00b",
    "control characters": "a\x01\x02\x1b[31mb\x7f\x85",
    "line breaks": "a\r\nb\rc\n\n\td",
    "half a pair": "a\ud800b",
    "private use": "a\ue000b\U000f0000",
    "own special tokens": "<|endoftext|> [CLS] [SEP] <|im_start|>user\nhi<|im_end|> [PAD]",
    "repeated": "the the the the",
    "spaces around": "   a   ",
    "one long word": "a" * 300,
    "template": "{{7*7}} ${7*7} %s {0} '; DROP TABLE--",
}
# Control characters become U+FFFD; MiniLM's tokenizer drops that too, and then there is nothing left to draw.
DRAWN_OR_TOLD = {"only NUL": "\x00", "only control characters": "\x01\x02\x7f", "only U+FFFD": "\ufffd\ufffd"}
REFUSED = {"nothing": "", "spaces": "   ", "line breaks": "\n\r\n\t", "wide spaces": "\u3000\u2003"}
REFUSED |= {"very long": "x" * 100_000, "many words": "word " * 20_000}


def assert_whole(traced: AttentionTrace, loaded: LoadedModel) -> None:
    n_tokens = len(traced.tokens)
    assert 1 <= n_tokens <= 512
    assert traced.weights.shape == (loaded.n_layers, loaded.layout.n_heads, n_tokens, n_tokens)
    assert traced.outputs.hidden.shape == (n_tokens, loaded.layout.d_model)
    assert np.isfinite(traced.weights).all()
    assert np.isfinite(traced.outputs.hidden).all()
    np.testing.assert_allclose(traced.weights.sum(axis=-1), 1, atol=1e-5)
    assert [check.name for check in traced.checks if not check.ok and check.name != "Tokens cut"] == []
    for token in traced.tokens:
        assert token.label
        assert token.text == ("" if token.start == token.end else traced.text[token.start : token.end])


def traced_or_told(model_id: str, text: str, start: str | None) -> AttentionTrace | UserError:
    loaded = load_model(model_id)
    try:
        traced: AttentionTrace = trace(loaded, text, start=start)
    except UserError as error:
        return error
    assert_whole(traced, loaded)
    return traced


@pytest.mark.parametrize(("model_id", "start"), BOTH)
@pytest.mark.parametrize("text", DRAWN.values(), ids=DRAWN.keys())
def test_a_strange_text_is_drawn(model_id: str, start: str | None, text: str) -> None:
    traced = traced_or_told(model_id, text, start)
    assert isinstance(traced, AttentionTrace)
    assert any(not token.special for token in traced.tokens)


@pytest.mark.parametrize(("model_id", "start"), BOTH)
@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_a_text_that_cannot_be_drawn_is_one_sentence(model_id: str, start: str | None, text: str) -> None:
    with pytest.raises(UserError, match=r"empty|only spaces|100,000 characters"):
        trace(model_id, text, start=start)


@pytest.mark.parametrize(("model_id", "start"), BOTH)
@pytest.mark.parametrize("text", DRAWN_OR_TOLD.values(), ids=DRAWN_OR_TOLD.keys())
def test_a_text_of_nothing_printable_is_drawn_or_told(model_id: str, start: str | None, text: str) -> None:
    found = traced_or_told(model_id, text, start)
    assert isinstance(found, AttentionTrace) or "nothing to read" in found.wrong


@pytest.mark.parametrize(("model_id", "start"), BOTH[1:2])
def test_the_longest_text_allowed_is_cut_with_a_notice(model_id: str, start: str | None) -> None:
    text = ("Alice fed the cats. " * 1000)[:20_000].strip()
    traced = traced_or_told(model_id, text, start)
    assert isinstance(traced, AttentionTrace)
    assert len(traced.tokens) == 512
    assert traced.n_cut > 1000
    assert "512" in traced.notice
    assert traced.text == text


@pytest.mark.parametrize("second", DRAWN.values(), ids=DRAWN.keys())
def test_a_strange_second_sentence_is_drawn(minilm: LoadedModel, second: str) -> None:
    traced = trace(minilm, "Alice fed the cats.", pair=second)
    assert {token.segment for token in traced.tokens} == {0, 1}
    assert np.isfinite(traced.weights).all()


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_a_second_sentence_that_cannot_be_drawn_is_one_sentence(minilm: LoadedModel, text: str) -> None:
    with pytest.raises(UserError, match="second sentence"):
        trace(minilm, "Alice fed the cats.", pair=text)


def test_one_bad_text_of_a_batch_is_told(minilm: LoadedModel) -> None:
    with pytest.raises(UserError, match="empty"):
        trace(minilm, ["Alice fed the cats.", ""])


@given(text=st.text(max_size=40))
@settings(max_examples=120)
def test_any_text_on_the_encoder(text: str) -> None:
    found = traced_or_told("all-MiniLM-L6-v2", text, None)
    assert isinstance(found, AttentionTrace) or found.next_step == "Type a word." or not text.strip()


@given(text=st.text(max_size=20), start=st.sampled_from([None, "<|endoftext|>", "<|im_start|>", "<s>", ""]))
@settings(max_examples=40)
def test_any_text_and_start_on_the_decoder(text: str, start: str | None) -> None:
    found = traced_or_told("SmolLM2-135M-Instruct", text, start)
    sound = start not in {"<s>", ""} and text.strip()
    assert isinstance(found, AttentionTrace) if sound else isinstance(found, UserError)
