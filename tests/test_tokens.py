"""Labels, offsets, words and cutting, on two real tokenizers and on small ones built here."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from attention import tokens as tokens_module
from attention.errors import UserError
from attention.tokens import Encoded, Token, clean_text, encode, merge_to_words, start_choices, words_of

if TYPE_CHECKING:
    from attention.models import LoadedModel

CORPUS = ["the cat sat on the mat", "the cats were hungry because they played", "playing in the rain", "aaaa bbbb"] * 4
RAINBOW, FAMILY, FLAG, THUMB = "🏳️‍🌈", "👨‍👩‍👧", "🇳🇱", "👍🏽"
HOSTILE = [
    "<s>",
    "</script>",
    "<img src=x onerror=alert(1)>",
    ":smile:",
    "*a* ~~s~~ **b** `c` [d](e) $f$",
    "مرحبا بالعالم",
    "می‌خواهم",
    "שלום עולם",
    "你好，世界",
    "Καλημέρα κόσμε",
    "नमस्ते",
    "한국어",
    "สวัสดี",
    "🙂",
    RAINBOW,
    FAMILY + FLAG + THUMB,
    "café déjà",
    "e\u0301\u0323",
    "\u0301",
    "a\u200bb",
    "\u202eabc\u202c",
    "\u00a0\u3000",
    "Ġ",
    "▁",
    "##",
    "##ing",
    "Ċ",
    "<0x0A>",
    "[CLS]",
    "[UNK]",
    "<|im_start|>",
    "<|endoftext|>",
    "it's well-known",
    "'tis the cats'",
    " ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\x00",
    "2026-01-31",
    "NaN",
]


def wrap(backend: Tokenizer, **special: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def byte_level(*, prefix_space: bool = False, trim: bool = False, closing: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2's, or as RoBERTa's with ``closing``; merges learnt from CORPUS."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    names = ["<s>", "</s>", "<|endoftext|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=names, initial_alphabet=sorted(alphabet), show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    if closing:
        backend.post_processor = processors.RobertaProcessing(
            ("</s>", 1), ("<s>", 0), trim_offsets=trim, add_prefix_space=prefix_space
        )
        return wrap(backend, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>")
    backend.post_processor = processors.ByteLevel(trim_offsets=trim)
    return wrap(backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def metaspace(*, byte_fallback: bool) -> PreTrainedTokenizerFast:
    """Unigram pieces with ``▁`` for a space, as T5's and Llama 2's, putting a bos in front by itself."""
    pieces = ["▁", "▁the", "▁cat", "▁play", "ing", "s", "H", "ello", *"abcdefghijklmnopqrstuvwxyz.,<>/"]
    vocabulary = [("<unk>", 0.0), ("<s>", 0.0), *((piece, -float(rank + 2)) for rank, piece in enumerate(pieces))]
    vocabulary += [(f"<0x{byte:02X}>", -90.0) for byte in range(256)] if byte_fallback else []
    backend = Tokenizer(models.Unigram(vocabulary, 0, byte_fallback=byte_fallback))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return wrap(backend, bos_token="<s>", unk_token="<unk>")


SMALL = {
    "byte-level": byte_level(),
    "byte-level, trimmed": byte_level(trim=True),
    "byte-level, prefix": byte_level(prefix_space=True),
    "byte-level, prefix, trimmed": byte_level(prefix_space=True, trim=True),
    "closing": byte_level(closing=True, trim=True),
    "metaspace": metaspace(byte_fallback=False),
    "metaspace, bytes": metaspace(byte_fallback=True),
}
NAMES = [*SMALL, "minilm", "smollm"]
COVERING = [name for name in NAMES if name.startswith("byte-level")] + ["closing", "smollm"]
CLOSING = ("closing", "minilm")

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
mixed_text = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=4) | st.sampled_from(["the", " cats", " "])).map(
    "".join
)
sentence = (any_text | mixed_text).map(lambda text: clean_text(text + "x", 10_000))
# SmolLM2's vocabulary lacks the bytes that only unassigned characters begin with: its tokenizer drops them.
assigned = st.lists(st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=9)).map(
    lambda parts: clean_text("".join(parts) + "x", 10_000)
)


@pytest.fixture(scope="module")
def named(minilm: LoadedModel, smollm: LoadedModel) -> dict[str, Any]:
    return SMALL | {"minilm": minilm.tokenizer, "smollm": smollm.tokenizer}


def labels(encoded: Encoded) -> list[str]:
    return [token.label for token in encoded.tokens]


def content(encoded: Encoded) -> list[Token]:
    return [token for token in encoded.tokens if not token.special]


# --- clean_text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u00a0\u3000", "\r\n"])
def test_text_without_a_visible_character_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="The second text"):
        clean_text(text, 10, "second text")


def test_empty_and_blank_are_told_apart() -> None:
    with pytest.raises(UserError, match="is empty"):
        clean_text("", 10)
    with pytest.raises(UserError, match="only spaces"):
        clean_text("  ", 10)


def test_too_long_says_the_count_and_the_limit() -> None:
    assert clean_text("a" * 20_000, 20_000) == "a" * 20_000
    with pytest.raises(UserError, match=r"100,000 characters.*20,000"):
        clean_text("a" * 100_000, 20_000)


def test_control_characters_and_lone_surrogates_become_visible() -> None:
    assert clean_text("a\x00b\x1b\x7f\x85\ud800c\r", 99) == "a\ufffdb\ufffd\ufffd\ufffd\ufffdc\ufffd"


def test_everything_else_is_left_alone() -> None:
    text = "  a\tb\nc\u200bd\u202ee e\u0301 ﬁ " + FAMILY
    assert clean_text(text, 99) == text
    assert clean_text("a\r\nb\r\n", 99) == "a\nb\n"


@given(st.text(st.characters(), min_size=1))
def test_clean_text_is_stable_and_can_be_encoded_as_utf8(text: str) -> None:
    clean = clean_text(text + "x", 10_000)
    assert clean_text(clean, 10_000) == clean
    assert clean.encode().decode() == clean
    assert not any(ord(char) < 32 and char not in "\n\t" for char in clean)


# --- ids, offsets, labels of any text --------------------------------------------------------------


@given(name=st.sampled_from(NAMES), text=sentence)
@example(name="smollm", text="".join(HOSTILE).replace("\x00", "").replace("\r", ""))
@example(name="minilm", text="".join(HOSTILE).replace("\x00", "").replace("\r", ""))
def test_any_text_gives_honest_tokens(named: dict[str, Any], name: str, text: str) -> None:
    encoded = encode(named[name], text, max_tokens=100_000)
    assert list(encoded.ids) == named[name](text, add_special_tokens=name in CLOSING)["input_ids"]
    assert [token.id for token in encoded.tokens] == list(encoded.ids)
    assert [token.raw for token in encoded.tokens] == named[name].convert_ids_to_tokens(list(encoded.ids))
    assert (encoded.cut, encoded.total, encoded.notice) == (0, len(encoded.ids), "")
    reached = 0
    for token in encoded.tokens:
        assert token.text == text[token.start : token.end]
        assert token.label
        if token.special:
            assert (token.label, token.word) == (token.raw, None)
        else:
            assert token.word is not None
            assert not any(mark in token.label and mark not in text for mark in ("Ġ", "Ċ", "▁", "##", "<0x"))
            assert not any(char in token.label for char in "\u200b\u202e\n\t\u00a0\x00")
        if token.text or not token.special:
            assert reached <= token.start <= token.end <= len(text)
            reached = token.start


@given(name=st.sampled_from(COVERING), text=assigned)
@example(name="byte-level, trimmed", text="  a   b\n\n  c x")
@example(name="byte-level, prefix, trimmed", text=" the  cats x")
@example(name="byte-level, prefix, trimmed", text="<s>x")
def test_byte_level_slices_cover_the_text(named: dict[str, Any], name: str, text: str) -> None:
    walked = ""
    for token in encode(named[name], text, max_tokens=100_000).tokens:
        assert token.start <= len(walked)
        walked += text[len(walked) : token.end]
    assert walked == text


@given(name=st.sampled_from(COVERING), text=st.text("ab catsply.'\n\t-", max_size=20).map(lambda text: text + "x"))
def test_plain_labels_read_back_as_the_text(named: dict[str, Any], name: str, text: str) -> None:
    for token in content(encode(named[name], text)):
        if token.text:
            shown = token.label.removeprefix("·").translate({ord("␣"): " ", ord("⏎"): "\n", ord("⇥"): "\t"})
            implied = token.text.startswith(" ") and bool(token.text.strip())
            assert shown == token.text[implied:]


@given(name=st.sampled_from(NAMES), text=sentence)
def test_words_never_reach_across_a_space(named: dict[str, Any], name: str, text: str) -> None:
    encoded = encode(named[name], text, max_tokens=100_000)
    numbers = [token.word for token in encoded.tokens if token.word is not None]
    assert list(dict.fromkeys(numbers)) == list(range(len(set(numbers))))
    for group in words_of(encoded.tokens):
        if encoded.tokens[group[0]].word is not None and encoded.tokens[group[0]].text.strip():
            span = text[encoded.tokens[group[0]].start : encoded.tokens[group[-1]].start + 1]
            assert not any(char.isspace() for char in span.lstrip()[:-1])


# --- the label rules -------------------------------------------------------------------------------

SMOLLM_LABELS = [
    ("Alice unbelievably fed.", ["Alice", "unbelie", "·v", "·ably", "fed", "."]),
    ("they weren't", ["they", "weren", "·'t"]),
    ("Hello  y", ["Hello", "␣", "y"]),
    ("a\tx\n\n y", ["a", "⇥", "x", "⏎⏎", "y"]),
    ("   ", ["␣␣␣"]),
    ("🙂", ["🙂 1/2", "🙂 2/2"]),
    ("x\u200by", ["x", "U+200B 1/2", "U+200B 2/2", "y"]),
    ("a café cafe\u0301", ["a", "café", "ca", "·f e\u0301 1/3", "·e\u0301 2/3", "·e\u0301 3/3"]),
    ("中文字", ["中", "文", "字"]),
    ("Ġ ## ▁", ["Ġ 1/2", "Ġ 2/2", "##", "▁ 1/2", "▁ 2/2"]),
    ("\u0301x", ["◌\u0301 1/2", "◌\u0301 2/2", "·x"]),
    ("ی\u200cx", ["ی\u200c 1/3", "ی\u200c 2/3", "ی\u200c 3/3", "·x"]),
    ("b\u200dx", ["b‹U+200D› 1/3", "b‹U+200D› 2/3", "b‹U+200D› 3/3", "·x"]),
    ("[CLS] <s>", ["[", "CL", "·S", "]", "<", "s", ">"]),
    ("a <|im_start|>b", ["a", "␣", "<|im_start|>", "b"]),
]


@pytest.mark.parametrize(("text", "expected"), SMOLLM_LABELS)
def test_smollm_labels(smollm: LoadedModel, text: str, expected: list[str]) -> None:
    assert labels(encode(smollm.tokenizer, text)) == expected


MINILM_LABELS = [
    ("Alice unbelievably fed.", ["Alice", "un", "·bel", "·ie", "·va", "·bly", "fed", "."]),
    ("playing İstanbul", ["playing", "İstanbul"]),
    ("##ing ▁ Ġ", ["#", "#", "ing", "▁", "Ġ"]),
    (f"see {RAINBOW} {FAMILY}", ["see", RAINBOW, FAMILY]),
    ("a [CLS] <|im_start|>", ["a", "[CLS]", "<", "|", "im", "·_", "·start", "|", ">"]),
    ("a\u200bb c", ["a‹U+200B›b", "c"]),
    ("\u0301abc", ["abc"]),  # the tokenizer drops the accent, so no earlier token is continued
    ("你好吗", ["你", "好", "吗"]),
    ("می‌خواهم", ["م", "·ی", "·خ", "·و", "·ا", "·ه", "·م"]),
]


@pytest.mark.parametrize(("text", "expected"), MINILM_LABELS)
def test_minilm_labels(minilm: LoadedModel, text: str, expected: list[str]) -> None:
    assert labels(encode(minilm.tokenizer, text)) == ["[CLS]", *expected, "[SEP]"]


def test_only_one_leading_space_is_implied() -> None:
    vocabulary = {"Ġ": 0, "Ċ": 1, "a": 2, "ĠĠ": 3, "ĠĠa": 4, "ĊĠ": 5, "ĊĠa": 6, "Ġa": 7}
    backend = Tokenizer(models.BPE(vocabulary, [("Ġ", "Ġ"), ("ĠĠ", "a"), ("Ċ", "Ġ"), ("ĊĠ", "a"), ("Ġ", "a")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    for text, label in (("  a", "␣a"), ("\n a", "⏎␣a"), (" a", "a"), ("  ", "␣␣")):
        (token,) = encode(wrap(backend), text).tokens
        assert (token.text, token.label, token.word) == (text, label, 0)


@pytest.mark.parametrize("emoji", ["🙂", RAINBOW, FAMILY, FLAG, THUMB, "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "ก็", "한"])
@pytest.mark.parametrize("name", [name for name in COVERING if "prefix" not in name])
def test_a_character_split_over_tokens_counts_its_parts(named: dict[str, Any], name: str, emoji: str) -> None:
    parts = content(encode(named[name], emoji))
    assert len(parts) > 1
    assert [token.label for token in parts] == [f"{emoji} {part}/{len(parts)}" for part in range(1, len(parts) + 1)]
    assert {token.word for token in parts} == {0}


def test_two_equal_emoji_are_two_words_each_counted_from_one(smollm: LoadedModel) -> None:
    encoded = encode(smollm.tokenizer, "🙂🙂")
    assert labels(encoded) == ["🙂 1/2", "🙂 2/2"] * 2
    assert [token.word for token in encoded.tokens] == [0, 0, 1, 1]


def test_byte_fallback_pieces_are_parts_of_their_character() -> None:
    assert labels(encode(SMALL["metaspace, bytes"], "the 🙂s")) == [
        "the",
        "␣",
        "🙂 1/4",
        "🙂 2/4",
        "🙂 3/4",
        "🙂 4/4",
        "s",
    ]


def test_metaspace_labels() -> None:
    tokenizer = SMALL["metaspace"]
    assert labels(encode(tokenizer, "the cats playing")) == ["the", "cat", "·s", "play", "·ing"]
    assert labels(encode(tokenizer, "the  cat")) == ["the", "␣", "cat"]


@pytest.mark.parametrize("name", ["metaspace", "byte-level, prefix", "byte-level, prefix, trimmed"])
def test_a_space_the_tokenizer_put_in_front_came_from_no_character(name: str) -> None:
    encoded = encode(SMALL[name], "Hello")
    space, first = encoded.tokens[:2]
    assert (space.text, space.label, space.start, space.end, space.special) == ("", "␣", 0, 0, False)
    assert (first.text, first.label) == ("H", "H")


def test_a_token_from_no_character_shows_its_bytes() -> None:
    backend = Tokenizer(models.BPE({"<unk>": 0, "â": 1, "ĸ": 2, "a": 3}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = wrap(backend)
    reader = tokens_module._reader(tokenizer)
    assert tokens_module._label_without_text(reader, "âĸ") == "‹e2 96›"
    unigram = tokens_module._reader(SMALL["metaspace, bytes"])
    for raw, label in (("▁▁", "␣␣"), ("<0xE2>", "‹e2›"), ("<0x20>", "␣")):
        assert tokens_module._label_without_text(unigram, raw) == label


def test_the_byte_alphabet_is_gpt2s() -> None:
    table = tokens_module._byte_of_char()
    assert sorted(table) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(table.values()) == list(range(256))
    assert {char: table[char] for char in "ĠĊĉĀ!â"} == {
        "Ġ": 0x20,
        "Ċ": 0x0A,
        "ĉ": 0x09,
        "Ā": 0x00,
        "!": 0x21,
        "â": 0xE2,
    }
    for code in range(0x80, 0x110):
        piece = "".join(
            token for token, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(code))
        )
        assert bytes(table[char] for char in piece) == chr(code).encode()


# --- special tokens --------------------------------------------------------------------------------


def test_special_comes_from_the_tokenizer_not_from_the_spelling(minilm: LoadedModel, smollm: LoadedModel) -> None:
    typed = {token.text: token for token in encode(minilm.tokenizer, "x [CLS] [PAD] <s> <|im_start|>").tokens}
    assert typed["[CLS]"].special
    assert typed["[PAD]"].special
    assert not typed["s"].special
    first, *_, last = encode(minilm.tokenizer, "x [CLS]").tokens
    assert (first.label, first.text, first.start, first.end, first.word) == ("[CLS]", "", 0, 0, None)
    assert (last.label, last.text, last.start, last.end, last.special) == ("[SEP]", "", 0, 0, True)
    in_smollm = {token.text: token.special for token in encode(smollm.tokenizer, "[CLS]<|im_start|><repo_name>").tokens}
    assert in_smollm == {"[": False, "CL": False, "S": False, "]": False, "<|im_start|>": True, "<repo_name>": True}


def test_a_role_given_to_a_plain_token_makes_it_special() -> None:
    tokenizer = byte_level()
    tokenizer.pad_token = "!"
    assert [token.special for token in encode(tokenizer, "a!").tokens] == [False, True]


def test_a_word_the_vocabulary_lacks_is_no_special_token(minilm: LoadedModel) -> None:
    _, emoji, written, _ = encode(minilm.tokenizer, "🙂 [UNK]").tokens
    assert (emoji.raw, emoji.label, emoji.special, emoji.word) == ("[UNK]", "🙂", False, 0)
    assert (written.raw, written.label, written.special, written.word) == ("[UNK]", "[UNK]", True, None)


def test_start_token_is_put_first_and_nothing_else_is_added(smollm: LoadedModel) -> None:
    plain = encode(smollm.tokenizer, "The cat")
    started = encode(smollm.tokenizer, "The cat", start="<|endoftext|>")
    assert started.ids == (0, *plain.ids)
    assert started.tokens[1:] == plain.tokens
    assert started.tokens[0] == Token("", "<|endoftext|>", "<|endoftext|>", 0, True, 0, 0, 0, None)


def test_a_bos_the_tokenizer_would_add_is_left_to_the_person() -> None:
    tokenizer = SMALL["metaspace"]
    assert tokenizer("the")["input_ids"][0] == 1
    assert labels(encode(tokenizer, "the")) == ["the"]
    assert labels(encode(tokenizer, "the", start="<s>")) == ["<s>", "the"]


def test_a_start_token_must_be_special(smollm: LoadedModel, minilm: LoadedModel) -> None:
    with pytest.raises(UserError, match=r"'the'.*<\|endoftext\|>, <\|im_start\|>"):
        encode(smollm.tokenizer, "The cat", start="the")
    with pytest.raises(UserError, match=r"'\[CLS\]'.*puts its own"):
        encode(minilm.tokenizer, "The cat", start="[CLS]")


def test_start_choices(smollm: LoadedModel, minilm: LoadedModel) -> None:
    assert start_choices(smollm.tokenizer, "decoder") == ("<|im_start|>", "<|endoftext|>")
    assert start_choices(minilm.tokenizer, "encoder") == ()
    assert start_choices(SMALL["closing"], "encoder") == ()
    assert start_choices(SMALL["metaspace"], "decoder") == ("<s>",)
    only_end = Tokenizer(models.BPE({"a": 0, "</s>": 1}, []))
    assert start_choices(wrap(only_end, eos_token="</s>"), "decoder") == ("</s>",)
    assert start_choices(wrap(Tokenizer(models.BPE({"a": 0}, []))), "decoder") == ()


# --- pairs -----------------------------------------------------------------------------------------


def test_a_pair_has_two_segments_and_one_count_of_words(minilm: LoadedModel) -> None:
    encoded = encode(minilm.tokenizer, "the cats", pair="cats play.")
    assert labels(encoded) == ["[CLS]", "the", "cats", "[SEP]", "cats", "play", ".", "[SEP]"]
    assert [token.segment for token in encoded.tokens] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [token.word for token in encoded.tokens] == [None, 0, 1, None, 2, 3, 4, None]
    twice = encode(minilm.tokenizer, "the cats", pair="the cats").tokens
    assert [token.word for token in twice] == [None, 0, 1, None, 2, 3, None]
    assert encoded.tokens[4].start == 0
    own = minilm.tokenizer("the cats", "cats play.")
    assert list(encoded.ids) == own["input_ids"]
    assert list(encoded.type_ids) == own["token_type_ids"] == [token.segment for token in encoded.tokens]


def test_type_ids_are_the_tokenizers_own_where_it_has_one_type() -> None:
    encoded = encode(SMALL["closing"], "the cats", pair="the mat")
    assert labels(encoded)[:1] + labels(encoded)[-1:] == ["<s>", "</s>"]
    assert {token.segment for token in encoded.tokens} == {0, 1}
    assert set(encoded.type_ids) == {0}


@given(first=sentence, second=sentence)
def test_pair_slices_are_of_their_own_text(minilm: LoadedModel, first: str, second: str) -> None:
    for token in encode(minilm.tokenizer, first, pair=second, max_tokens=100_000).tokens:
        assert token.text == (first, second)[token.segment][token.start : token.end]


def test_a_decoder_refuses_a_pair(smollm: LoadedModel) -> None:
    with pytest.raises(UserError, match="second text"):
        encode(smollm.tokenizer, "a", pair="b")


# --- cutting ---------------------------------------------------------------------------------------


def test_a_long_text_is_cut_with_a_notice(smollm: LoadedModel) -> None:
    whole = encode(smollm.tokenizer, "cat " * 40, max_tokens=1000)
    cut = encode(smollm.tokenizer, "cat " * 40, max_tokens=12)
    assert cut.ids == whole.ids[:12]
    assert cut.tokens == whole.tokens[:12]
    assert (cut.total, cut.cut) == (whole.total, whole.total - 12)
    assert cut.notice == f"The text has {whole.total} tokens; the first 12 are shown."


def test_the_start_token_stays_when_a_text_is_cut(smollm: LoadedModel) -> None:
    cut = encode(smollm.tokenizer, "cat " * 40, start="<|im_start|>", max_tokens=5)
    assert labels(cut) == ["<|im_start|>", "cat", "cat", "cat", "cat"]
    assert cut.notice == f"The text has {cut.total} tokens, counting the start token; the first 5 are shown."


def test_the_closing_token_stays_when_a_text_is_cut(minilm: LoadedModel) -> None:
    cut = encode(minilm.tokenizer, "cat " * 700)
    assert len(cut.ids) == 512
    assert (cut.tokens[0].label, cut.tokens[-1].label) == ("[CLS]", "[SEP]")
    assert (cut.total, cut.cut) == (702, 190)
    assert cut.notice == (
        "The text has 702 tokens, counting the 2 its tokenizer adds; 512 are shown: its first 510 and those 2."
    )


def test_a_pair_that_is_cut_says_what_is_left_of_each(minilm: LoadedModel) -> None:
    notice = encode(minilm.tokenizer, "a " * 36, pair="b " * 12, max_tokens=20).notice
    assert notice == (
        "The two texts have 51 tokens, counting the 3 the tokenizer adds; 20 are shown: "
        "the first 9 of the first text, the first 8 of the second and those 3."
    )


def test_exactly_the_limit_is_not_cut(minilm: LoadedModel) -> None:
    assert encode(minilm.tokenizer, "cat " * 8, max_tokens=10).notice == ""
    assert encode(minilm.tokenizer, "cat " * 9, max_tokens=10).cut == 1


@given(
    name=st.sampled_from(CLOSING),
    first=st.integers(1, 30),
    second=st.none() | st.integers(1, 30),
    limit=st.integers(6, 40),
)
def test_cutting_agrees_with_the_tokenizers_own(
    named: dict[str, Any], name: str, first: int, second: int | None, limit: int
) -> None:
    text, pair = "a " * first, None if second is None else "b " * second
    own = named[name](text, pair, truncation="longest_first", max_length=limit)
    assert list(encode(named[name], text, pair=pair, max_tokens=limit).ids) == own["input_ids"]


def test_a_character_cut_in_two_still_says_how_many_parts_it_has(smollm: LoadedModel) -> None:
    assert labels(encode(smollm.tokenizer, f"see {RAINBOW}", max_tokens=3)) == [
        "see",
        f"{RAINBOW} 1/9",
        f"{RAINBOW} 2/9",
    ]


def test_a_limit_without_room_is_refused(minilm: LoadedModel, smollm: LoadedModel) -> None:
    assert len(encode(minilm.tokenizer, "a b c", max_tokens=3).ids) == 3
    for tokenizer, more, least in (
        (minilm.tokenizer, {}, 3),
        (minilm.tokenizer, {"pair": "b"}, 5),
        (smollm.tokenizer, {}, 1),
        (smollm.tokenizer, {"start": "<|im_start|>"}, 2),
    ):
        with pytest.raises(UserError, match=f"At least {least}"):
            encode(tokenizer, "a b c", max_tokens=least - 1, **more)


# --- text nothing can be made of -------------------------------------------------------------------


def test_a_text_the_tokenizer_reads_nothing_in_is_refused(minilm: LoadedModel, smollm: LoadedModel) -> None:
    for text in ("", " \n", "\u200b", "\ufffd"):
        with pytest.raises(UserError, match="nothing to read in the text"):
            encode(minilm.tokenizer, text)
    with pytest.raises(UserError, match="nothing to read in the second text"):
        encode(minilm.tokenizer, "a", pair="\u200b")
    with pytest.raises(UserError, match="nothing to read"):
        encode(smollm.tokenizer, "", start="<|endoftext|>")


def test_half_a_character_is_refused(smollm: LoadedModel, minilm: LoadedModel) -> None:
    with pytest.raises(UserError, match="half of a character"):
        encode(smollm.tokenizer, "a\ud83d")
    with pytest.raises(UserError, match="half of a character"):
        encode(minilm.tokenizer, "a", pair="\udc00")


def test_a_tokenizer_without_offsets_is_refused() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(UserError, match="Slow"):
        encode(Slow(), "a")  # type: ignore[arg-type]


# --- a tokenizer many threads share ----------------------------------------------------------------


def test_the_tokenizers_own_settings_are_neither_used_nor_changed() -> None:
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    before = (tokenizer.backend_tokenizer.truncation, tokenizer.backend_tokenizer.padding)
    assert encode(tokenizer, "a b c d e f") == encode(SMALL["byte-level"], "a b c d e f")
    assert (tokenizer.backend_tokenizer.truncation, tokenizer.backend_tokenizer.padding) == before


def test_a_tokenizer_told_to_split_special_tokens_does() -> None:
    backend = SMALL["byte-level"].backend_tokenizer
    splitting = wrap(Tokenizer.from_str(backend.to_str()), eos_token="<|endoftext|>", split_special_tokens=True)
    assert encode(SMALL["byte-level"], "<|endoftext|>").tokens[0].special
    assert not any(token.special for token in encode(splitting, "<|endoftext|>").tokens)


def test_a_token_added_later_is_seen() -> None:
    tokenizer = byte_level()
    assert len(encode(tokenizer, "zzqzz").ids) == 5
    tokenizer.add_tokens(["zzqzz"])
    assert len(encode(tokenizer, "zzqzz").ids) == 1


def test_threads_never_see_each_others_truncation() -> None:
    tokenizer = byte_level(closing=True)
    texts = ["the cat " * length for length in range(20, 60)]
    expected = [encode(tokenizer, text, max_tokens=limit) for limit, text in enumerate(texts, 10)]
    stop = threading.Event()

    def rewrite_settings() -> int:
        rounds = 0
        while not stop.is_set():
            tokenizer.backend_tokenizer.enable_truncation(3 + rounds % 5)
            tokenizer.backend_tokenizer.no_truncation()
            rounds += 1
        return rounds

    with ThreadPoolExecutor(9) as pool:
        rewriter = pool.submit(rewrite_settings)
        try:
            jobs = [
                pool.submit(encode, tokenizer, text, max_tokens=limit)
                for _ in range(8)
                for limit, text in enumerate(texts, 10)
            ]
            results = [job.result() for job in jobs]
        finally:
            stop.set()
        assert rewriter.result() > 0
    assert results == expected * 8


def test_a_tokenizer_first_used_by_many_threads_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_level()
    calls: list[int] = []
    second_call = threading.Event()
    read = tokens_module._read

    def counted(given: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            second_call.set()
        second_call.wait(timeout=0.3)  # long enough for another thread to come in, were it let in
        return read(given)

    monkeypatch.setattr(tokens_module, "_read", counted)
    together = threading.Barrier(8)

    def visit() -> Encoded:
        together.wait(timeout=30)
        return encode(tokenizer, "the cats")

    with ThreadPoolExecutor(8) as pool:
        results = [job.result() for job in [pool.submit(visit) for _ in range(8)]]
    assert len(set(results)) == 1
    assert len(calls) == 1


# --- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("it's well-known.", ["it's", "well-known", "."]),
        ("rock'n'roll 'tis cats'", ["rock'n'roll", "'", "tis", "cats", "'"]),
        ("a -- b_c 3.14!?", ["a", "-", "-", "b_c", "3", ".", "14", "!", "?"]),
        ("l’été cafe\u0301", ["l’été", "cafe\u0301"]),
        ("你好。", ["你", "好", "。"]),
        ("می‌خواهم نان", ["می‌خواهم", "نان"]),
        (f"a{FAMILY}{FLAG}b", ["a", FAMILY, FLAG, "b"]),
        ("a\n\n\nb", ["a", "\n\n\n", "b"]),
    ],
)
def test_words_come_from_the_text(text: str, words: list[str]) -> None:
    encoded = encode(SMALL["byte-level"], text)
    found = []
    for group in words_of(encoded.tokens):
        first, last = encoded.tokens[group[0]], encoded.tokens[group[-1]]
        found.append(text[first.start : last.end])
    assert [word if word.isspace() else word.strip(" ") for word in found if word != " "] == words


def test_words_of_keeps_special_tokens_alone(minilm: LoadedModel) -> None:
    encoded = encode(minilm.tokenizer, "unbelievably [SEP][SEP] good")
    assert words_of(encoded.tokens) == ((0,), (1, 2, 3, 4, 5), (6,), (7,), (8,), (9,))
    assert words_of(()) == ()


def test_merge_to_words_is_a_sum_over_keys_and_a_mean_over_queries() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3, 5)).astype(np.float32)
    groups = ((0,), (1, 3), (2, 4))
    merged = merge_to_words(weights, groups)
    assert merged.shape == (2, 3, 3, 3)
    assert merged.dtype == np.float32
    for row, queries in enumerate(groups):
        for column, keys in enumerate(groups):
            each = [sum(weights[:, :, query, key] for key in keys) for query in queries]
            np.testing.assert_allclose(merged[:, :, row, column], sum(each) / len(queries), atol=1e-6)
    np.testing.assert_allclose(merged.sum(-1), 1, atol=1e-6)


def test_merge_to_words_by_hand() -> None:
    weights = [[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]
    np.testing.assert_allclose(merge_to_words(weights, [(0,), (1, 2)]), [[1.0, 0.0], [0.3, 0.7]])
    np.testing.assert_array_equal(merge_to_words(weights, [(0,), (1,), (2,)]), weights)


@pytest.mark.parametrize("groups", [[(0,), (1,)], [(0, 1), (1, 2)], [(0,), (), (1, 2)], [(0, 1, 3)], []])
def test_groups_that_do_not_cover_the_tokens_once_are_refused(groups: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="exactly once"):
        merge_to_words(np.ones((3, 3)), groups)
