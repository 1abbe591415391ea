"""Point at two words, get the heads: every head ranked by how much the one looks at the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attention.errors import UserError
from attention.tokens import merge_to_words, words_of

if TYPE_CHECKING:
    from attention.models import LoadedModel
    from attention.tracing import AttentionTrace


@dataclass(frozen=True)
class Word:
    """One word of a traced text: its number among the words, its text, and its tokens' positions in the trace."""

    index: int
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class HeadLink:
    """How much one head's query word looks at the key word.

    ``weight`` (0 to 1) is between words: summed over the key's pieces, averaged over the query's (Clark et al. 2019,
    arXiv 1906.04341, section 4.1). ``rank`` is the key's place among all words of the row, 1 the strongest; special
    tokens do not take part. ``positional`` is what this head gives a word at this distance on average over our
    plain sentences (``previous_word``): a weight no higher than that needs no words to explain it.
    """

    layer: int
    head: int
    kv_head: int
    weight: float
    rank: int
    positional: float

    @property
    def gain(self) -> float:
        """How far the weight lies above what the distance alone would have given."""
        return self.weight - self.positional


@dataclass(frozen=True)
class OffsetProfile:
    """Each head's mean weight between words by distance alone, on our plain sentences.

    ``means`` is (layer, head, 2 · reach + 1); the middle is distance 0, negative distances come first.
    ``counts`` (2 · reach + 1,) says how many word pairs each mean is over.
    """

    means: NDArray[np.float64]
    counts: NDArray[np.int64]

    @property
    def reach(self) -> int:
        """The largest distance measured, in words."""
        return (self.means.shape[-1] - 1) // 2

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held."""
        return int(self.means.nbytes + self.counts.nbytes)

    def at(self, offset: int) -> NDArray[np.float64]:
        """(layer, head) mean weight at key - query = ``offset``; beyond ``reach`` the farthest distance measured."""
        return np.asarray(self.means[..., self.reach + max(-self.reach, min(self.reach, offset))])


def words_in(traced: AttentionTrace) -> tuple[Word, ...]:
    """The words of a traced text in reading order, special tokens left out; punctuation counts as a word."""
    texts = (traced.request.text, traced.request.pair or "")
    found: list[Word] = []
    for group in words_of(traced.tokens):
        first, last = traced.tokens[group[0]], traced.tokens[group[-1]]
        if not first.special:
            text = texts[first.segment][first.start : last.end]
            found.append(Word(len(found), text.strip() or first.label, group))
    return tuple(found)


def word_weights(traced: AttentionTrace) -> NDArray[np.float32]:
    """Every head's weights between words, special tokens left out: (layer, head, query word, key word)."""
    groups = words_of(traced.tokens)
    words = [index for index, group in enumerate(groups) if not traced.tokens[group[0]].special]
    merged = merge_to_words(traced.weights, groups)
    return np.asarray(merged[:, :, words][..., words])


def find_word(words: tuple[Word, ...], wanted: str | int, what: str = "word") -> int:
    """The number of a word given by its number, or by its text when that occurs once.

    Upper and lower case are told apart only when that leaves one word. Raises UserError otherwise; ``what`` names
    the word's part in the message.
    """
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if 0 <= wanted < len(words):
            return wanted
        raise UserError(
            f"There is no {what} number {wanted}.",
            f"The text has {len(words)} words, numbered 0 to {len(words) - 1}.",
            "Choose one of these.",
        )
    exact = [word.index for word in words if word.text == wanted]
    folded = [word.index for word in words if word.text.casefold() == str(wanted).casefold()]
    places = exact if len(exact) == 1 else folded
    if len(places) == 1:
        return places[0]
    if not places:
        raise UserError(
            f"The {what} {wanted!r} is not in the text.",
            f"Its words are {', '.join(word.text for word in words)}.",
            "Choose one of these, or give a word's number.",
        )
    raise UserError(
        f"The {what} {wanted!r} stands in the text {len(places)} times.",
        f"It is word number {' and '.join(map(str, places))}.",
        "Give the number of the one you mean.",
    )


def find_link(traced: AttentionTrace, query: str | int, key: str | int) -> tuple[int, int]:
    """The two word numbers of a link. Raises UserError when the model cannot look from ``query`` to ``key``."""
    words = words_in(traced)
    from_word, to_word = find_word(words, query, "query word"), find_word(words, key, "key word")
    if from_word == to_word:
        raise UserError(
            f"Both ends of the link are word number {from_word}, {words[from_word].text!r}.",
            "A link joins two different words.",
            "Choose another word for one end.",
        )
    if traced.causal and to_word > from_word:
        raise UserError(
            f"{words[to_word].text!r} (word {to_word}) stands after {words[from_word].text!r} (word {from_word}).",
            "This model reads from left to right, so a word can only look at earlier words.",
            "Swap the two words, or choose a model that reads both ways.",
        )
    return from_word, to_word


def heads_for_link(
    traced: AttentionTrace, query: str | int, key: str | int, profile: OffsetProfile
) -> tuple[HeadLink, ...]:
    """Every head of a trace by its weight on one link, the strongest first. Raises UserError as ``find_link``."""
    from_word, to_word = find_link(traced, query, key)
    rows = word_weights(traced)[:, :, from_word]  # (layer, head, word)
    weights = rows[..., to_word]
    ranks = 1 + (rows > weights[..., None]).sum(axis=-1)
    expected = profile.at(to_word - from_word)
    order = np.argsort(-weights, axis=None, kind="stable")
    return tuple(
        HeadLink(
            layer=layer,
            head=head,
            kv_head=traced.layout.kv_head_of(head),
            weight=float(weights[layer, head]),
            rank=int(ranks[layer, head]),
            positional=float(expected[layer, head]),
        )
        for layer, head in (divmod(int(flat), weights.shape[1]) for flat in order)
    )


def rank_heads_for_link(
    model: LoadedModel | str, text: str, query: str | int, key: str | int, *, start: str | None = None
) -> tuple[HeadLink, ...]:
    """Every (layer, head) ranked by how much ``query`` looks at ``key``, the strongest first.

    ``query`` and ``key`` are words that occur once, or word numbers (from 0, punctuation counts, special tokens do
    not). ``start`` is a special token put before a decoder's text, as in ``trace``. Raises UserError for a word not
    found or not unique, one word twice, and a key after the query in a model that reads left to right.
    """
    from attention.models import load_model
    from attention.probes import offset_profile
    from attention.tracing import trace

    loaded = load_model(model) if isinstance(model, str) else model
    traced = trace(loaded, text, start=start)
    find_link(traced, query, key)  # before the profile, which may take seconds to measure
    return heads_for_link(traced, query, key, offset_profile(loaded))


def profile_of(rows: Any, n_layers: int, n_heads: int, reach: int = 16) -> OffsetProfile:
    """The mean word-to-word weight at each distance, over ``rows``: an iterable of (layer, head, word, word)."""
    sums = np.zeros((n_layers, n_heads, 2 * reach + 1))
    counts = np.zeros(2 * reach + 1, dtype=np.int64)
    for weights in rows:
        for offset in range(-reach, reach + 1):
            cells = np.diagonal(weights, offset=offset, axis1=-2, axis2=-1)
            sums[..., reach + offset] += cells.sum(axis=-1, dtype=np.float64)
            counts[reach + offset] += cells.shape[-1]
    return OffsetProfile(sums / np.maximum(counts, 1), counts)
