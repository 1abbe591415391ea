"""Maps of real heads for the quick check, measured once so that a question about them needs no model.

``python -m attention.quiz_maps`` measures them again and writes ``assets/quiz_maps.json``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention.written import as_bytes, as_weights

FILE = Path(__file__).resolve().parents[1] / "assets" / "quiz_maps.json"
COMMAND = "python -m attention.quiz_maps"
Head = tuple[int, int]
# Sentences with something to find, and heads that find it, rest or spread out: some for every question about maps.
SENTENCES: dict[str, tuple[str, ...]] = {
    "all-MiniLM-L6-v2": (
        "The wolves circled the horse, but they did not attack.",
        "Alice fed the cats because they were hungry.",
        "The old farmer sold three brown cows.",
    ),
    "SmolLM2-135M-Instruct": (
        "The cat sat on the mat that the dog chased.",
        "Anna met Paul in the park, and later Anna called him.",
    ),
}
HEADS: dict[str, tuple[Head, ...]] = {
    "all-MiniLM-L6-v2": (
        (0, 2), (0, 3), (0, 7), (1, 1), (1, 3), (1, 8), (2, 0), (2, 2), (2, 7), (3, 1), (3, 6), (4, 0), (4, 5), (5, 6),
        (5, 11),
    ),
    "SmolLM2-135M-Instruct": (
        (1, 2), (2, 2), (8, 1), (9, 4), (11, 6), (13, 8), (16, 0), (16, 5), (17, 4), (18, 7), (18, 8), (19, 4), (24, 3),
        (25, 2),
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class HeadMap:
    """One head's weights (query, key) float32 on one sentence, each right to 0.4 percentage points."""

    model: str
    text: str
    layer: int
    head: int
    labels: tuple[str, ...]
    special: tuple[bool, ...]
    causal: bool
    weights: NDArray[np.float32]

    @property
    def visible(self) -> NDArray[np.bool_]:
        """(query, key): where a query may look."""
        n_tokens = len(self.labels)
        return np.tri(n_tokens, dtype=bool) if self.causal else np.ones((n_tokens, n_tokens), dtype=bool)

    def place(self, label: str) -> int:
        """The last token with this label."""
        return len(self.labels) - 1 - self.labels[::-1].index(label)


@cache
def shipped_maps() -> tuple[HeadMap, ...]:
    """Every map that ships with the app, sentence by sentence."""
    return tuple(one for facts in shipped_facts()["sentences"] for one in _maps(facts))


@cache
def shipped_facts() -> dict[str, Any]:
    """The file as it lies there: the command, and for each sentence the model's weights hash and the maps."""
    facts: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return facts


def measured_facts(models: Sequence[Any]) -> dict[str, Any]:
    """The same measured now, with loaded models."""
    from attention.tracing import trace

    found = []
    for model in models:
        for text in SENTENCES[model.id]:
            traced = trace(model, text, start=model.default_start)
            weights = np.stack([traced.weights[head] for head in HEADS[model.id]])
            found.append(
                {
                    "model": model.id,
                    "revision": model.revision,
                    "text": text,
                    "causal": bool(traced.causal),
                    "labels": [token.label for token in traced.tokens],
                    "special": [bool(token.special) for token in traced.tokens],
                    "heads": [list(head) for head in HEADS[model.id]],
                    "weights": base64.b64encode(as_bytes(weights).tobytes()).decode(),
                }
            )
    return {"command": COMMAND, "sentences": found}


def unpacked(facts: dict[str, Any]) -> NDArray[np.uint8]:
    """A sentence's maps as stored, (head, query, key) of round(255·√w)."""
    n_tokens = len(facts["labels"])
    packed = np.frombuffer(base64.b64decode(facts["weights"]), np.uint8)
    return packed.reshape(len(facts["heads"]), n_tokens, n_tokens)


def _maps(facts: dict[str, Any]) -> list[HeadMap]:
    weights = as_weights(unpacked(facts))
    weights.setflags(write=False)
    return [
        HeadMap(
            facts["model"],
            facts["text"],
            layer,
            head,
            tuple(facts["labels"]),
            tuple(facts["special"]),
            facts["causal"],
            weights[place],
        )
        for place, (layer, head) in enumerate(facts["heads"])
    ]


def main() -> None:
    """Measure with both bundled models and write the file."""
    from attention.models import load_model

    facts = measured_facts([load_model(name) for name in SENTENCES])
    FILE.write_text(json.dumps(facts, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
