"""Sentences of an exact number of tokens, so that both sides of a comparison get the same work."""

from __future__ import annotations

import random
from collections.abc import Callable

# Two vocabularies without a word in common, each word one token in both bundled models: a page that shows
# a sentence of the one while a sentence of the other was there before has visibly changed.
ANIMALS = "the cat saw a small dog near our old house and it ran after him under that big tree"
MARKET = "we sold fresh bread with good coffee at every market this morning because people like warm food"
VOCABULARIES = (ANIMALS.split(), MARKET.split())


def text_of(count: Callable[[str], int], n_tokens: int, seed: int = 0) -> str:
    """A text of exactly ``n_tokens``, as ``count`` counts them; another seed, another text.

    Even and odd seeds draw from different vocabularies. Raises ValueError when no number of words fits.
    """
    draw = random.Random(seed)
    words = VOCABULARIES[seed % 2]
    chosen: list[str] = []
    missing = n_tokens - count("")
    while missing > 0:
        chosen += draw.choices(words, k=missing)
        missing = n_tokens - count(" ".join(chosen))
    text = " ".join(chosen)
    if count(text) != n_tokens:
        raise ValueError(f"No text of exactly {n_tokens} tokens was found; the nearest has {count(text)}.")
    return text


def counter(tokenizer: Callable[[str], dict[str, list[int]]]) -> Callable[[str], int]:
    """How many tokens a model's tokenizer makes of a text, those it adds itself included."""
    return lambda text: len(tokenizer(text)["input_ids"])
