"""Text to tokens: the ids a model reads, each with an honest label and its place in the text.

Every label is made from the source text by character offsets; the tokenizer's own
piece (with its ``Ġ``, ``▁`` or ``##``) stays beside it as ``raw``.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import regex  # type: ignore[import-untyped]
from tokenizers import Encoding, Tokenizer

from attention.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPACE_MARK, NEWLINE_MARK, TAB_MARK = "␣", "⏎", "⇥"
CONTINUES_MARK = "·"
MARK_OF = {" ": SPACE_MARK, "\n": NEWLINE_MARK, "\t": TAB_MARK}
REPLACEMENT = "\ufffd"
ENCODER, DECODER = "encoder", "decoder"

_NOT_TEXT = regex.compile(r"[\p{Cc}\p{Cs}--\n\t]", regex.V1)
_LONE_SURROGATE = regex.compile(r"\p{Cs}")
_GRAPHEME = regex.compile(r"\X")
# A word: word characters (Unicode counts the joiners of Arabic and Indic script among them), with apostrophes
# or hyphens only inside. Han and Hiragana are written without spaces, so each of their characters stands
# alone, as BERT's own splitter does it.
_WORD_CHAR = r"[[\w\p{M}]--[\p{Han}\p{Hiragana}]]"
_UNIT = regex.compile(rf"\s+|{_WORD_CHAR}+(?:['’\-‐‑]{_WORD_CHAR}+)*|\X", regex.V1)
_INVISIBLE = regex.compile(
    r"[\p{Default_Ignorable_Code_Point}\p{Cc}\p{Cs}\p{Z}\p{Noncharacter_Code_Point}⠀\ufff9-\ufffb]"
)
# Inside an emoji the joiners, variation selectors and flag tags are part of its spelling;
# in Arabic or Indic script a joiner decides the shape of the letter before it.
_EMOJI = regex.compile(r"[\p{Extended_Pictographic}\p{Regional_Indicator}\u20e3]")
_SHAPED_LETTER = regex.compile(r"[\p{L}\p{M}--\p{Latin}]", regex.V1)
_MARK = regex.compile(r"\p{M}")
_JOINERS = "\u200c\u200d"
_BYTE_PIECE = regex.compile(r"<0x([0-9A-F]{2})>")
_STARTS_TEXT = regex.compile(r"endoftext|im_start|(?:begin|start).?of", regex.IGNORECASE)


@dataclass(frozen=True)
class Token:
    """One token as the model reads it; offsets count characters of its own segment's text."""

    text: str
    label: str
    raw: str
    id: int
    special: bool
    start: int
    end: int
    segment: int
    word: int | None


@dataclass(frozen=True)
class Encoded:
    """A text (or pair) ready for a model. ``total`` counts the tokens before cutting, ``cut`` those dropped.

    ``type_ids`` are the tokenizer's own segment numbers, the ones a BERT expects as ``token_type_ids``.
    """

    ids: tuple[int, ...]
    tokens: tuple[Token, ...]
    cut: int
    total: int
    notice: str
    type_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Reader:
    """What this module needs of a tokenizer: a private copy nobody reconfigures, and its special tokens."""

    backend: Tokenizer
    special: dict[str, int]
    special_ids: frozenset[int]
    unknown: int | None
    byte_level: bool
    closes: bool
    size: int


@dataclass(frozen=True)
class _Piece:
    """One token before labelling: where the tokenizer says it came from."""

    id: int
    raw: str
    start: int
    end: int
    segment: int
    type_id: int
    added: bool


def clean_text(text: str, max_chars: int, what: str = "text") -> str:
    """The text with control characters made visible, or a UserError.

    ``\\r\\n`` becomes ``\\n``; every other control character except newline and tab, and every
    lone surrogate, becomes U+FFFD. Nothing is stripped or normalised. Raises UserError when
    nothing but whitespace is left or the length in characters is above ``max_chars``.
    """
    clean: str = _NOT_TEXT.sub(REPLACEMENT, text.replace("\r\n", "\n"))
    if not clean.strip():
        wrong = f"The {what} is empty." if not clean else f"The {what} holds only spaces or line breaks."
        raise UserError(wrong, "It needs at least one visible character.", "Type a sentence.")
    if len(clean) > max_chars:
        raise UserError(
            f"The {what} has {len(clean):,} characters.", f"At most {max_chars:,} are allowed.", "Shorten it."
        )
    return clean


def encode(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    pair: str | None = None,
    start: str | None = None,
    max_tokens: int = 512,
) -> Encoded:
    """The tokens of a text, or of a sentence pair, with labels, offsets and words.

    A tokenizer that closes a text itself (``[CLS] … [SEP]``) keeps what it adds. For any other, nothing
    is added but ``start``, one of its special tokens, in front. Above ``max_tokens`` the beginning and the
    added tokens are kept; of a pair the longer text is cut first.

    Offsets are the tokenizer's. Where a byte-level vocabulary lacks a byte (SmolLM2: those of unassigned
    characters only) the tokenizer drops it, and the offsets up to the next space are one short.

    Safe in threads: each tokenizer is read through a private copy whose settings never change, because
    transformers writes truncation into the shared one and then a second thread sees "Already borrowed".

    Raises UserError for a text without tokens, an unknown ``start``, a pair without a separator,
    or a tokenizer that cannot say where its tokens come from.
    """
    reader = _reader(tokenizer)
    _check_request(reader, text, pair, start, max_tokens)
    texts = (text,) if pair is None else (text, pair)
    encoding = _encoding(reader, text, pair)
    pieces = _pieces(reader, encoding)
    for segment in range(len(texts)):
        if not any(piece.segment == segment and not piece.added for piece in pieces):
            raise UserError(
                f"The model's tokenizer finds nothing to read in the {('text', 'second text')[segment]}.",
                "It needs at least one character the tokenizer knows.",
                "Type a word.",
            )
    if start is not None:
        pieces.insert(0, _Piece(reader.special[start], start, 0, 0, 0, 0, added=True))
    kept = _kept(pieces, max_tokens)
    tokens = _tokens(reader, pieces, kept, texts)
    return Encoded(
        ids=tuple(pieces[index].id for index in kept),
        tokens=tuple(tokens),
        cut=len(pieces) - len(kept),
        total=len(pieces),
        notice=_notice(pieces, kept),
        type_ids=tuple(pieces[index].type_id for index in kept),
    )


def _encoding(reader: _Reader, text: str, pair: str | None) -> Encoding:
    try:
        return reader.backend.encode(text, pair, add_special_tokens=reader.closes)
    except BaseException as error:
        # A tokenizer's own rules may run without end on some texts. Its library then panics, which is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(
            "This model's tokenizer gives up on this text.",
            "Its own rules for cutting text do not come to an end here.",
            "Change the text, or choose another model.",
        ) from None


def start_choices(tokenizer: PreTrainedTokenizerBase, kind: str) -> tuple[str, ...]:
    """The special tokens a decoder's text may sensibly start with, the tokenizer's own first choice first.

    These are its beginning-of-text token and every special token whose name says that a text begins
    (``<|endoftext|>`` stands between the texts of a training set, so it is also where one begins).
    Where there is neither: its end-of-text token. Empty for ``kind="encoder"``.
    """
    if kind == ENCODER:
        return ()
    special = _reader(tokenizer).special
    named = [name for name in special if _STARTS_TEXT.search(name)]
    first = [tokenizer.bos_token] if tokenizer.bos_token in special else []
    last = [tokenizer.eos_token] if tokenizer.eos_token in special else []
    return tuple(dict.fromkeys(first + named or last))


def words_of(tokens: Sequence[Token]) -> tuple[tuple[int, ...], ...]:
    """Token positions grouped by word, in order of first appearance; every special token alone."""
    groups: dict[tuple[bool, int], list[int]] = {}
    for position, token in enumerate(tokens):
        key = (True, position) if token.word is None else (False, token.word)
        groups.setdefault(key, []).append(position)
    return tuple(tuple(group) for group in groups.values())


def merge_to_words(weights: npt.ArrayLike, groups: Sequence[Sequence[int]]) -> npt.NDArray[Any]:
    """Attention between words from attention between tokens.

    weights: ``(..., query, key)`` over tokens; groups: as from words_of, every token once.
    Returns ``(..., query word, key word)``: summed over the pieces of a key, averaged over the pieces
    of a query, so a row that summed to 1 still does (Clark et al. 2019, arXiv 1906.04341, section 4.1).
    Raises ValueError when the groups do not cover both axes exactly once.
    """
    array = np.asarray(weights)
    order = [position for group in groups for position in group]
    n_tokens = len(order)
    if array.shape[-2:] != (n_tokens, n_tokens) or sorted(order) != list(range(n_tokens)) or not all(groups):
        raise ValueError(
            f"groups must hold every token of weights {array.shape} exactly once; they hold {n_tokens} positions"
        )
    sizes = np.array([len(group) for group in groups])
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    if order != list(range(n_tokens)):
        array = array[..., order, :][..., order]
    keys = np.add.reduceat(array, starts, axis=-1)
    summed: npt.NDArray[Any] = np.add.reduceat(keys, starts, axis=-2)
    return summed / sizes[:, None].astype(summed.dtype)


# --- reading a tokenizer ---------------------------------------------------------------------------

_readers: weakref.WeakKeyDictionary[Any, _Reader] = weakref.WeakKeyDictionary()
_readers_lock = threading.Lock()


def _reader(tokenizer: PreTrainedTokenizerBase) -> _Reader:
    with _readers_lock:
        reader = _readers.get(tokenizer)
        if reader is None or reader.size != len(tokenizer):
            reader = _read(tokenizer)
            _readers[tokenizer] = reader
        return reader


def _read(tokenizer: PreTrainedTokenizerBase) -> _Reader:
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"The tokenizer {type(tokenizer).__name__} does not say where in the text its tokens come from.",
            "Models with a tokenizer.json do.",
            "Choose another model.",
        )
    backend = _private_copy(tokenizer.backend_tokenizer)
    backend.encode_special_tokens = tokenizer.split_special_tokens
    ids = {index for index, added in tokenizer.added_tokens_decoder.items() if added.special}
    ids |= set(tokenizer.all_special_ids)
    special = {name: index for index in sorted(ids) if (name := backend.id_to_token(index)) is not None}
    added_mask = backend.encode("a", add_special_tokens=True).special_tokens_mask
    return _Reader(
        backend=backend,
        special=special,
        special_ids=frozenset(special.values()),
        unknown=tokenizer.unk_token_id,
        byte_level="ByteLevel" in f"{backend.pre_tokenizer!r}{backend.decoder!r}",
        closes=bool(added_mask) and added_mask[-1] == 1,
        size=len(tokenizer),
    )


def _private_copy(shared: Tokenizer) -> Tokenizer:
    """A copy that neither cuts nor pads, and leaves the space a byte-level piece begins with in its offsets."""
    parts = json.loads(shared.to_str())
    parts["truncation"] = parts["padding"] = None
    post = parts["post_processor"] or {}
    for step in (post, *post.get("processors", ())):
        if "trim_offsets" in step:
            step["trim_offsets"] = False
    return Tokenizer.from_str(json.dumps(parts))


def _check_request(reader: _Reader, text: str, pair: str | None, start: str | None, max_tokens: int) -> None:
    if any(_LONE_SURROGATE.search(part) for part in (text, pair or "")):
        raise UserError("The text holds half of a character.", "Whole characters are allowed.", "Paste it again.")
    if start is not None and reader.closes:
        raise UserError(
            f"The start token {start!r} was asked for.",
            "This model's tokenizer puts its own tokens round a text.",
            "Leave the start token out.",
        )
    if start is not None and start not in reader.special:
        raise UserError(
            f"The start token {start!r} is not one of this model's special tokens.",
            f"It has {', '.join(reader.special) or 'none'}.",
            "Choose one of those, or no start token.",
        )
    if pair is not None and not reader.closes:
        raise UserError(
            "A second text was given.",
            "This model reads one text: its tokenizer puts nothing between two.",
            "Leave the second text out, or choose an encoder such as all-MiniLM-L6-v2.",
        )
    added = reader.backend.num_special_tokens_to_add(pair is not None) if reader.closes else int(start is not None)
    least = added + (1 if pair is None else 2)
    if max_tokens < least:
        raise UserError(f"The limit is {max_tokens} tokens.", f"At least {least} are needed.", "Raise the limit.")


def _pieces(reader: _Reader, encoding: Encoding) -> list[_Piece]:
    pieces: list[_Piece] = []
    segment = 0
    rows = zip(encoding.ids, encoding.offsets, encoding.sequence_ids, encoding.type_ids, strict=True)
    for token_id, (start, end), sequence, type_id in rows:
        segment = segment if sequence is None else sequence
        # Not encoding.tokens: a unigram model puts the unknown word itself there, and raw is the vocabulary's entry.
        raw = reader.backend.id_to_token(token_id) or ""
        pieces.append(_Piece(token_id, raw, start, end, segment, type_id, added=sequence is None))
    return pieces


# --- cutting ---------------------------------------------------------------------------------------


def _kept(pieces: Sequence[_Piece], max_tokens: int) -> list[int]:
    """Positions that stay: everything added, and each segment's beginning, the longer segment cut first."""
    lengths = Counter(piece.segment for piece in pieces if not piece.added)
    room = max_tokens - sum(piece.added for piece in pieces)
    short, long = sorted((0, 1), key=lambda segment: lengths[segment])
    quota = {short: min(lengths[short], room // 2)}
    quota[long] = room - quota[short]
    seen: Counter[int] = Counter()
    kept = []
    for position, piece in enumerate(pieces):
        seen[piece.segment] += not piece.added
        if piece.added or seen[piece.segment] <= quota[piece.segment]:
            kept.append(position)
    return kept


def _notice(pieces: Sequence[_Piece], kept: Sequence[int]) -> str:
    if len(kept) == len(pieces):
        return ""
    first = Counter(pieces[position].segment for position in kept if not pieces[position].added)
    added = sum(piece.added for piece in pieces)
    if pieces[-1].added:
        counting, rest = f", counting the {added} its tokenizer adds", f" and those {added}"
    else:
        counting, rest = (", counting the start token" if added else ""), ""
    if len(first) == 2:
        return (
            f"The two texts have {len(pieces)} tokens{counting.replace('its', 'the')}; {len(kept)} are shown: "
            f"the first {first[0]} of the first text, the first {first[1]} of the second{rest}."
        )
    if rest:
        return f"The text has {len(pieces)} tokens{counting}; {len(kept)} are shown: its first {first[0]}{rest}."
    return f"The text has {len(pieces)} tokens{counting}; the first {len(kept)} are shown."


# --- labels ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TextMap:
    """For every character of one text: its grapheme and its word, each as (start, end)."""

    text: str
    graphemes: list[tuple[int, int]]
    words: list[tuple[int, int]]

    @classmethod
    def of(cls, text: str) -> _TextMap:
        return cls(text, _spans(_GRAPHEME, text), _spans(_UNIT, text))


def _spans(pattern: Any, text: str) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for match in pattern.finditer(text):
        spans.extend([match.span()] * (match.end() - match.start()))
    return spans


def _tokens(reader: _Reader, pieces: Sequence[_Piece], kept: Sequence[int], texts: Sequence[str]) -> list[Token]:
    """The kept pieces as tokens. All pieces are looked at, so that a character cut in two still says 1/3."""
    maps = [_TextMap.of(text) for text in texts]
    spans = _honest_spans(reader, pieces)
    shares = _shares(pieces, spans, maps)
    words: dict[object, int] = {}
    reached = [0] * len(texts)
    tokens = []
    for position in kept:
        piece, (start, end) = pieces[position], spans[position]
        text = texts[piece.segment][start:end]
        special = _is_special(reader, piece, text)
        word = None
        if special:
            label = piece.raw
        else:
            here = maps[piece.segment]
            unit = _unit(here, start, end)
            word = words.setdefault((piece.segment, unit or (position,)), len(words))
            label = _label(here, start, end, reached[piece.segment], shares[position])
            label = label or _label_without_text(reader, piece.raw)
            reached[piece.segment] = max(reached[piece.segment], end)
        tokens.append(Token(text, label, piece.raw, piece.id, special, start, end, piece.segment, word))
    return tokens


def _is_special(reader: _Reader, piece: _Piece, text: str) -> bool:
    """Added by the tokenizer, or spelled out in the text. A word the vocabulary lacks is not special."""
    if piece.added:
        return True
    if piece.id == reader.unknown and text.strip() != piece.raw:
        return False
    return piece.id in reader.special_ids


def _honest_spans(reader: _Reader, pieces: Sequence[_Piece]) -> list[tuple[int, int]]:
    """Offsets, except that a space the tokenizer itself put before a text came from no character.

    Tokenizers give such a space the offsets of the first character, which the next token has too.
    """
    spans: list[tuple[int, int]] = []
    for position, piece in enumerate(pieces):
        start, end = piece.start, piece.end
        if not piece.added and position + 1 < len(pieces) and not _piece_bytes(reader, piece.raw).strip(b" "):
            after = pieces[position + 1]
            if after.segment == piece.segment and not after.added and after.start < end:
                end = start
        spans.append((start, end))
    return spans


def _shares(
    pieces: Sequence[_Piece], spans: Sequence[tuple[int, int]], maps: Sequence[_TextMap]
) -> list[dict[int, tuple[int, int]]]:
    """For each token: of every grapheme it shares with other tokens, which part of how many it is."""
    owners: dict[tuple[int, int], list[int]] = {}
    for position, (piece, (start, end)) in enumerate(zip(pieces, spans, strict=True)):
        if not piece.added:
            for first in dict.fromkeys(span[0] for span in maps[piece.segment].graphemes[start:end]):
                owners.setdefault((piece.segment, first), []).append(position)
    shares: list[dict[int, tuple[int, int]]] = [{} for _ in pieces]
    for (_, first), positions in owners.items():
        if len(positions) > 1:
            for part, position in enumerate(positions, 1):
                shares[position][first] = (part, len(positions))
    return shares


def _visible_start(text: str, start: int, end: int) -> int:
    """Where the slice's first character that is not whitespace stands; ``end`` when there is none."""
    return next((at for at in range(start, end) if not text[at].isspace()), end)


def _unit(here: _TextMap, start: int, end: int) -> tuple[int, int] | None:
    """The word a slice belongs to: that of its first visible character, else its whitespace run."""
    if start == end:
        return None
    at = _visible_start(here.text, start, end)
    return here.words[at if at < end else start]


def _label(here: _TextMap, start: int, end: int, reached: int, shares: dict[int, tuple[int, int]]) -> str:
    """What a person reads for the slice ``start:end``; empty for an empty slice."""
    at = _visible_start(here.text, start, end)
    continues = at < end and here.words[at][0] < reached and here.graphemes[at][0] > here.words[at][0]
    if start < at < end and here.graphemes[start] == (start, start + 1) and here.text[start] == " ":
        start += 1
    shown = "".join(_shown(here, start, end, shares))
    return CONTINUES_MARK + shown if continues else shown


def _shown(here: _TextMap, start: int, end: int, shares: dict[int, tuple[int, int]]) -> Iterator[str]:
    alone = start < end and here.graphemes[start] == here.graphemes[end - 1]
    at = start
    while at < end:
        first, last = here.graphemes[at]
        if first in shares:
            part, parts = shares[first]
            gap_before, gap_after = " " * (at > start), " " * (last < end)
            yield f"{gap_before}{_visible(here.text[first:last], alone)} {part}/{parts}{gap_after}"
        else:
            yield _visible(here.text[at : min(last, end)], alone)
        at = last


def named(text: str) -> str:
    """A word as it may stand in a label: what nobody sees, or what turns the letters around it, is named (‹U+202E›)."""
    graphemes = _GRAPHEME.findall(text)
    return "".join(one if one == " " else _visible(one, alone=len(graphemes) == 1) for one in graphemes)


def _visible(grapheme: str, alone: bool) -> str:
    """One grapheme with nothing hidden in it. A code such as U+200B gets ‹ › when it has neighbours."""
    if grapheme.isprintable() and not _INVISIBLE.search(grapheme) and not _MARK.match(grapheme):
        return grapheme
    emoji = bool(_EMOJI.search(grapheme))
    carried = False  # by a visible character a combining mark can stand on
    before = ""
    parts = []
    for char in grapheme:
        if char in MARK_OF:
            parts.append(MARK_OF[char])
        elif _INVISIBLE.match(char):
            belongs = carried and (emoji or (char in _JOINERS and _SHAPED_LETTER.match(before)))
            code = f"U+{ord(char):04X}"
            parts.append(char if belongs else code if alone and len(grapheme) == 1 else f"‹{code}›")
        else:
            parts.append(char if carried or not _MARK.match(char) else "◌" + char)
            carried = True
        before = char
    return "".join(parts)


def _label_without_text(reader: _Reader, raw: str) -> str:
    """A label for a token that came from no character: the space it stands for, else its bytes in hex."""
    body = _piece_bytes(reader, raw)
    if body and not body.strip(b" "):
        return SPACE_MARK * len(body)
    return f"‹{body.hex(' ')}›"


def _piece_bytes(reader: _Reader, raw: str) -> bytes:
    """The bytes a tokenizer's piece stands for."""
    if reader.byte_level:
        table = _byte_of_char()
        if all(char in table for char in raw):
            return bytes(table[char] for char in raw)
    if match := _BYTE_PIECE.fullmatch(raw):
        return bytes([int(match[1], 16)])
    return raw.replace("▁", " ").encode()


@lru_cache(maxsize=1)
def _byte_of_char() -> dict[str, int]:
    """The byte each character of a byte-level piece stands for.

    GPT-2's rule: printable Latin-1 bytes keep their character, the other 68 take U+0100 onwards in order
    (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2, encoder.py).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}
