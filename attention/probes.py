"""Every head of a model tried on the same texts: plain sentences, and random tokens said twice.

``python -c "from attention import head_scores; print(head_scores('all-MiniLM-L6-v2')['previous'].values)"``
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from attention import formulas, kernel
from attention.atlas import HeadScores, NamedScore, frozen, shipped_atlas
from attention.importance import head_importance, importance_texts, value_lengths
from attention.links import OffsetProfile, profile_of, word_weights
from attention.models import LoadedModel, load_model
from attention.patterns import sentences
from attention.tracing import AttentionTrace, trace

COPY_TOKENS = 50
COPY_TEXTS = 4
# Ordinary pieces of a large vocabulary: its special tokens stand before 100, its rarest pieces after 20,000.
COPY_IDS = (100, 20_000)
KEEP_PROFILES = 8


@dataclass(frozen=True)
class RepeatedCopy:
    """Random tokens r, said twice: what a head that continues a pattern is caught with.

    ``ids`` (text, start + 2 · length). ``second`` are the positions of the second copy; only the loss on its tokens
    after the first counts, since nothing announces the first.
    """

    ids: torch.Tensor
    length: int
    start: int

    @property
    def second(self) -> NDArray[np.intp]:
        """Positions of the second copy's tokens."""
        return np.arange(self.start + self.length, self.start + 2 * self.length)


def repeated_copy(
    model: LoadedModel,
    seed: int = 0,
    *,
    start: str | None = None,
    length: int = COPY_TOKENS,
    n_texts: int = COPY_TEXTS,
    copied: bool = True,
) -> RepeatedCopy:
    """``n_texts`` rows of ``r + r``, r being ``length`` token numbers of ``torch.randint(100, 20000)`` at ``seed``.

    No start token unless ``start`` names one. Small vocabularies and short models take what they have.
    ``copied=False`` puts other random tokens where the second copy would be: the control in which nothing repeats.
    """
    vocabulary = int(model.model.config.get_text_config().vocab_size)
    low, high = COPY_IDS if vocabulary >= COPY_IDS[1] else (min(4, vocabulary - 1), vocabulary)
    begin = [] if start is None else [model.tokenizer.convert_tokens_to_ids(start)]
    length = min(length, (model.max_positions - len(begin)) // 2)
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(low, high, (n_texts, length), generator=generator)
    second = first if copied else torch.randint(low, high, (n_texts, length), generator=generator)
    front = torch.tensor([begin] * n_texts, dtype=torch.long).reshape(n_texts, len(begin))
    return RepeatedCopy(torch.cat([front, first, second], dim=1), length, len(begin))


def weights_on(model: LoadedModel, ids: torch.Tensor) -> NDArray[np.float32]:
    """Every head's weights on token numbers (text, seq_len): (layer, text, head, query, key)."""
    recorder = kernel.Recorder(n_layers=model.n_layers)
    with kernel.forward_slot, torch.inference_mode(), kernel.recording(recorder):
        model.model(input_ids=ids)
    assert recorder.weights is not None
    return np.asarray(recorder.weights.numpy())


def copy_scores(model: LoadedModel, probe: RepeatedCopy) -> dict[str, formulas.Floats]:
    """Mean over texts of each repeated-copy score: name -> (layer, head).

    ``induction`` and ``duplicate`` count the queries of the second copy, by position: the key is the token after,
    or at, the same place of the first copy. ``previous`` counts all rows but the first.
    """
    weights = weights_on(model, probe.ids)
    rows = {"induction": probe.second, "duplicate": probe.second, "previous": None}
    offsets = {"induction": 1 - probe.length, "duplicate": -probe.length, "previous": -1}
    found = {name: formulas.offset_weight(weights, offsets[name], rows[name]).mean(axis=1) for name in offsets}
    patterns = {
        name: np.stack([formulas.detection_pattern(name, text.numpy()) for text in probe.ids])
        for name in ("previous", "duplicate", "induction")
    }
    for measure in ("mul", "abs"):
        for name, ideal in patterns.items():
            each = [formulas.detector_score(weights[:, text], ideal[text], measure) for text in range(len(probe.ids))]
            found[f"{name}_{measure}"] = np.mean(each, axis=0)
    return found


def detect_heads(
    traced: AttentionTrace,
    pattern: formulas.Pattern,
    measure: Literal["mul", "abs"] = "mul",
    *,
    exclude_first: bool = False,
    exclude_current: bool = False,
) -> formulas.Floats:
    """How well each head of a trace matches an ideal map, as TransformerLens's detector scores it: (layer, head).

    See ``formulas.detector_score``; numbers compare with that library's for the same tokens.
    """
    ideal = formulas.detection_pattern(pattern, [token.id for token in traced.tokens])
    return formulas.detector_score(
        traced.weights, ideal, measure, exclude_first=exclude_first, exclude_current=exclude_current
    )


def plain_traces(model: LoadedModel, kind: str = "previous_word", half: str | None = None) -> list[AttentionTrace]:
    """Traces of our own sentences of one kind (and half), with the model's default start token."""
    texts = [item["text"] for item in sentences()[kind] if half in (None, item["half"])]
    return list(trace(model, texts, start=model.default_start))


def resting_places(traced: AttentionTrace) -> list[int]:
    """Positions that need no meaning to be looked at: the first token and every special one."""
    return [position for position, token in enumerate(traced.tokens) if position == 0 or token.special]


def plain_scores(traces: Iterable[AttentionTrace]) -> dict[str, formulas.Floats]:
    """Mean over texts of the scores that any text can give: name -> (layer, head)."""
    each: dict[str, list[formulas.Floats]] = {}
    for traced in traces:
        for name, values in _plain_scores_of(traced):
            each.setdefault(name, []).append(values)
    return {name: np.nanmean(np.stack(values), axis=0) for name, values in each.items()}


def _plain_scores_of(traced: AttentionTrace) -> Iterator[tuple[str, formulas.Floats]]:
    weights = traced.weights
    rows = inner_rows(len(traced.tokens))
    for name, offset in OFFSETS.items():
        yield name, formulas.offset_weight(weights, offset, rows)
        yield f"{name}_share", formulas.offset_share(weights, offset, rows)
    places = resting_places(traced)
    visible = [traced.visible(layer) for layer in range(len(weights))]
    mass = np.stack([formulas.sink_mass(maps, seen) for maps, seen in zip(weights, visible, strict=True)])
    yield "sink", mass[..., places].max(axis=-1)
    yield "entropy", formulas.entropy(weights[..., rows, :]).mean(axis=-1)
    spread = np.stack(
        [formulas.broadness(maps[:, rows], seen[rows]) for maps, seen in zip(weights, visible, strict=True)]
    )
    yield "broadness", np.nanmean(spread, axis=-1)


def inner_rows(n_tokens: int) -> NDArray[np.intp]:
    """Rows 2 … T-2: the edges, where special tokens and the first words stand, left out. All rows of a tiny text."""
    return np.arange(2, n_tokens - 1) if n_tokens > 3 else np.arange(n_tokens)


OFFSETS = {"previous": -1, "next": 1, "current": 0}
VOITA = "Voita et al. 2019, arXiv 1905.09418, section 5.1"
TRANSFORMER_LENS = "TransformerLens, head_detector.py"
# name -> title, unit, formula, source. Plain sentences first, then the repeated copy.
PLAIN: dict[str, tuple[str, str, str, str]] = {
    "previous": ("Previous token", "weight", "mean A[i, i-1]", VOITA),
    "next": ("Next token", "weight", "mean A[i, i+1]", VOITA),
    "current": ("The token itself", "weight", "mean A[i, i]", VOITA),
    "previous_share": (
        "Most on the previous token",
        "share of rows",
        "argmax of A[i] is i-1; positional: ≥ 90 %",
        VOITA,
    ),
    "next_share": ("Most on the next token", "share of rows", "argmax of A[i] is i+1; positional: ≥ 90 %", VOITA),
    "current_share": ("Most on itself", "share of rows", "argmax of A[i] is i; positional: ≥ 90 %", VOITA),
    "sink": (
        "Resting place",
        "weight",
        "largest mean column of the first and special tokens; a sink: > 0.3",
        "Gu et al. 2024, arXiv 2410.10781, section 3.2",
    ),
    "entropy": ("Entropy", "nats", "-Σ A ln A, mean over rows", "Shannon 1948"),
    "broadness": (
        "Broadness",
        "share of keys",
        "exp(entropy) / visible keys, mean over rows",
        "exp of Shannon's entropy",
    ),
}
COPY: dict[str, tuple[str, str, str, str]] = {
    "induction": (
        "Induction",
        "weight",
        "mean A[i, i-n+1] over the second copy of n tokens",
        "Olsson et al. 2022, arXiv 2209.11895",
    ),
    "duplicate": (
        "Same token before",
        "weight",
        "mean A[i, i-n] over the second copy of n tokens",
        "Wang et al. 2022, arXiv 2211.00593, section 3.1",
    ),
    "copy_previous": ("Previous token, random text", "weight", "mean A[i, i-1] over all rows", VOITA),
} | {
    f"{name}_{measure}": (f"Detector: {title} ({measure})", "score", formula, TRANSFORMER_LENS)
    for measure, formula in (("mul", "Σ A·P / Σ A"), ("abs", "1 - mean |A - P| · T"))
    for name, title in (("previous", "previous token"), ("duplicate", "same token"), ("induction", "induction"))
}
WEIGHED: dict[str, tuple[str, str, str, str]] = {
    "sink_by_length": (
        "Resting place, by what it adds",
        "share of length",
        "as the resting place, of ‖A[i, j] · v_j W_O‖ instead of A[i, j]",
        "Kobayashi et al. 2020, arXiv 2004.10102, section 3",
    ),
    "importance": (
        "Importance",
        "nats",
        "mean over texts of |d loss / d gate|, one backward pass",
        "Michel et al. 2019, arXiv 1905.10650, section 4.1",
    ),
}


def head_scores(model: LoadedModel | str, progress: Callable[[float], None] | None = None) -> HeadScores:
    """Every named score of every head, each with its formula and source.

    Plain scores are means over our 40 sentences without grammar labels (``previous_word``), rows 2 … T-2; the
    others over 4 texts of 50 random tokens said twice, without a start token. ``progress`` is called with the
    share done, 0 to 1. Raises UserError for a model that cannot be traced.
    """
    loaded = load_model(model) if isinstance(model, str) else model
    say = progress or (lambda _: None)
    traces = plain_traces(loaded)
    say(0.5)
    plain = plain_scores(traces)
    say(0.7)
    probe = repeated_copy(loaded)
    copied = copy_scores(loaded, probe)
    say(0.8)
    copied["copy_previous"] = copied.pop("previous")
    second = f"second copy of {probe.length} random tokens, no start token"
    rows = {"copy_previous": "all rows but the first, random tokens twice"}
    scores = [_named(name, facts, plain[name], "rows 2 … T-2", len(traces)) for name, facts in PLAIN.items()]
    scores += [
        _named(name, facts, copied[name], rows.get(name, second if "_" not in name else "all rows"), len(probe.ids))
        for name, facts in COPY.items()
    ]
    by_length = _sink_by_length(loaded, traces)
    if by_length is not None:
        scores.append(_named("sink_by_length", WEIGHED["sink_by_length"], by_length, "all rows", len(traces)))
    say(0.9)
    importance, n_texts = head_importance(loaded), len(importance_texts(loaded, "select"))
    scores.append(_named("importance", WEIGHED["importance"], importance, "each head's own output", n_texts))
    say(1.0)
    return HeadScores(loaded.card, tuple(scores))


def _sink_by_length(model: LoadedModel, traces: list[AttentionTrace]) -> formulas.Floats | None:
    """The resting place's share of what a head really adds, not of its weights; None where that cannot be told."""
    found = []
    for traced in traces:
        added = value_lengths(model, traced)
        if added is None:
            return None
        lengths = formulas.value_norms(traced.weights, added[..., None])
        shares = lengths / lengths.sum(axis=-1, keepdims=True)
        mass = [formulas.sink_mass(maps, traced.visible(layer)) for layer, maps in enumerate(shares)]
        found.append(np.stack(mass)[..., resting_places(traced)].max(axis=-1))
    return np.asarray(np.mean(found, axis=0))


def _named(name: str, facts: tuple[str, str, str, str], values: formulas.Floats, rows: str, n_texts: int) -> NamedScore:
    title, unit, formula, source = facts
    return NamedScore(name, title, frozen(values), unit, formula, source, rows, n_texts)


_profiles: OrderedDict[tuple[str, str], OffsetProfile] = OrderedDict()
_profiles_lock = threading.Lock()


def offset_profile(model: LoadedModel) -> OffsetProfile:
    """What each head gives a word by its distance alone, on our plain sentences; measured once a model and kept."""
    shipped = shipped_atlas(model.id, model.revision)
    if shipped is not None:
        return shipped.profile
    key = (model.id, model.revision)
    with _profiles_lock:
        if key not in _profiles:
            rows: Any = map(word_weights, plain_traces(model))
            _profiles[key] = profile_of(rows, model.n_layers, model.layout.n_heads)
            while len(_profiles) > KEEP_PROFILES:
                _profiles.popitem(last=False)
        return _profiles[key]
