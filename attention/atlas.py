"""The atlas: every head of a model with its label and what the label rests on.

``python -m attention.atlas`` measures the bundled models and writes ``assets/atlas_<model>.json``; reading such a
file takes no torch. Most heads have no label, and that is a result too.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention.layout import HeadLayout
from attention.links import OffsetProfile
from attention.model_facts import ModelCard
from attention.patterns import ASSETS, sentences
from attention.trials import Evidence

COMMAND = "python -m attention.atlas"
UNCLEAR = "unclear"
# What the figures depend on; the models and their arithmetic have hashes and tests of their own.
CODE = ("atlas_build", "formulas", "importance", "links", "muting", "probes", "trials")
DIGITS = 5


@dataclass(frozen=True)
class ScoresRequest:
    """Everything an atlas depends on. ``key`` is the only thing any cache may use."""

    model: str
    revision: str = ""

    @property
    def key(self) -> str:
        """Canonical JSON."""
        return json.dumps(asdict(self) | {"sentences": sentences_sha256()}, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class NamedScore:
    """One number a head: ``values`` (layer, head). ``rows`` says which queries counted, ``n`` how many texts."""

    name: str
    title: str
    values: NDArray[np.float64]
    unit: str
    formula: str
    source: str
    rows: str
    n: int


@dataclass(frozen=True)
class HeadScores:
    """All named scores of one model. NumPy only, read-only, picklable."""

    model: ModelCard
    scores: tuple[NamedScore, ...]

    def __getitem__(self, name: str) -> NamedScore:
        return next(score for score in self.scores if score.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that can be asked for."""
        return tuple(score.name for score in self.scores)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held."""
        return sum(score.values.nbytes for score in self.scores)


@dataclass(frozen=True)
class Cell:
    """One weight between two words of a sentence, by their numbers."""

    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Example:
    """A sentence of ours (``sentences()[kind][index]``) and a head's strongest cells in it, the strongest first."""

    kind: str
    index: int
    cells: tuple[Cell, ...]

    @property
    def text(self) -> str:
        """The sentence."""
        return str(sentences()[self.kind][self.index]["text"])


@dataclass(frozen=True)
class MuteNumber:
    """What muting this head alone (zeros in its place) does, as a mean over ``n`` held-out texts.

    Decoders: loss on the second copy of random tokens, in nats. Encoders: cosine similarity of a sentence's embedding
    with its own unmuted one, 1 before. ``error`` is the standard error of the mean change; ``always`` is True when the
    figure moved the harmful way (loss up, similarity down) in every single text.
    """

    before: float
    after: float
    n: int
    error: float
    always: bool

    @property
    def change(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def raises(self) -> bool:
        """Whether the figure rose by more than two standard errors."""
        return self.change > 2 * self.error


@dataclass(frozen=True)
class AtlasRow:
    """One head. ``label`` is a job's id or "unclear"; ``evidence`` holds the jobs it passed, the best first: the one
    furthest above the best single distance.

    A head without a job, resting or unclear, shows last the one it came closest to, with ``passed`` False. ``muting``
    is None for a head that was not muted.
    """

    layer: int
    head: int
    kv_head: int
    label: str
    title: str
    evidence: tuple[Evidence, ...]
    scores: Mapping[str, float]
    muting: MuteNumber | None
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class TrialResult:
    """How one job went over all heads. ``layer``, ``head`` and ``best`` are the head the select half likes best."""

    id: str
    title: str
    n_passed: int
    layer: int
    head: int
    best: Evidence


@dataclass(frozen=True)
class GroupEffect:
    """Loss on the second copy (nats, mean over ``n`` texts) with a group of heads muted."""

    title: str
    heads: tuple[tuple[int, int], ...]
    how: str
    start: str | None
    before: float
    after: float
    n: int


@dataclass(frozen=True)
class PruningPoint:
    """The model with ``n_muted`` heads silent: mean loss in nats and the share of cases right, on held-out sentences.

    ``random_loss`` is what muting as many heads in random order gives, a mean over several seeded orders.
    """

    n_muted: int
    loss: float
    right: float
    random_loss: float


@dataclass(frozen=True)
class PruningCurve:
    """Heads muted from the least important on, importance measured anew at every step on the other half.

    ``measure`` says what the loss is about; ``n_texts`` counts the held-out sentences. A rise of the loss by
    ``tolerance`` of its own size is not yet called a loss of quality.
    """

    points: tuple[PruningPoint, ...]
    order: tuple[tuple[int, int], ...]
    n_texts: int
    measure: str
    tolerance: float = 0.05

    @property
    def n_free(self) -> int:
        """The most heads found silent at once with the held-out loss within ``tolerance`` of the whole model's."""
        limit = self.points[0].loss * (1 + self.tolerance)
        return max(point.n_muted for point in self.points if point.loss <= limit)


@dataclass(frozen=True)
class HeadAtlas:
    """Every head of one model with its label and evidence. NumPy only, picklable.

    ``made`` says how: command, hashes of code, weights and sentences, versions. ``profile`` is each head's mean
    weight by distance alone. ``groups`` is empty and ``pruning`` None where they were not measured.
    """

    model: ModelCard
    made: Mapping[str, str]
    scores: HeadScores
    profile: OffsetProfile
    rows: tuple[AtlasRow, ...]
    trials: tuple[TrialResult, ...]
    groups: tuple[GroupEffect, ...]
    pruning: PruningCurve | None

    def row(self, layer: int, head: int) -> AtlasRow:
        """The row of one head."""
        return self.rows[layer * self.model.layout.n_heads + head]

    @property
    def labels(self) -> dict[str, int]:
        """How many heads carry each label, the most frequent first; "unclear" is last."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.label] = counts.get(row.label, 0) + 1
        return dict(sorted(counts.items(), key=lambda pair: (pair[0] == UNCLEAR, -pair[1], pair[0])))

    @property
    def nbytes(self) -> int:
        """Bytes held, the rows reckoned at what they take as text."""
        return self.scores.nbytes + self.profile.nbytes + 4096 * len(self.rows)


def atlas_file(model_id: str) -> Path:
    """Where the shipped atlas of a bundled model lies."""
    return ASSETS / f"atlas_{model_id}.json"


def shipped_atlas(model_id: str, revision: str) -> HeadAtlas | None:
    """The atlas that comes with the app, or None when there is none for these very weights and sentences."""
    path = atlas_file(model_id)
    if not path.is_file():
        return None
    atlas = _read(path, path.stat().st_mtime_ns)
    fits = atlas.made["weights_sha256"] == revision and atlas.made["sentences_sha256"] == sentences_sha256()
    return atlas if fits else None


@lru_cache(maxsize=8)
def _read(path: Path, mtime_ns: int) -> HeadAtlas:
    return from_json(json.loads(path.read_text(encoding="utf-8")))


def sentences_sha256() -> str:
    """SHA-256 of the sentences every figure was measured on."""
    return hashlib.sha256((ASSETS / "sentences.json").read_bytes()).hexdigest()


def code_sha256() -> str:
    """SHA-256 of the measuring code's meaning: its syntax trees, so that comments and docstrings may change."""
    digest = hashlib.sha256()
    for name in CODE:
        tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and _is_docstring(body[0]):
                body[0] = ast.Pass()
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def to_json(atlas: HeadAtlas) -> dict[str, Any]:
    """The atlas as plain JSON values, numbers rounded to ``DIGITS`` decimals."""
    scores = [_plain(score) | {"values": _rounded(score.values)} for score in atlas.scores.scores]
    return {
        "made": dict(atlas.made),
        "model": asdict(atlas.model),
        "scores": scores,
        "profile": {"means": _rounded(atlas.profile.means), "counts": atlas.profile.counts.tolist()},
        "trials": [_plain(trial) for trial in atlas.trials],
        "groups": [_plain(group) for group in atlas.groups],
        "pruning": None if atlas.pruning is None else _plain(atlas.pruning),
        "rows": [{key: value for key, value in _plain(row).items() if key != "scores"} for row in atlas.rows],
    }


def from_json(data: Mapping[str, Any]) -> HeadAtlas:
    """The atlas written by ``to_json``."""
    card = ModelCard(**data["model"] | {"layout": HeadLayout(**data["model"]["layout"])})
    scores = tuple(NamedScore(**score | {"values": frozen(score["values"])}) for score in data["scores"])
    profile = OffsetProfile(frozen(data["profile"]["means"]), np.array(data["profile"]["counts"], dtype=np.int64))
    return HeadAtlas(
        model=card,
        made=dict(data["made"]),
        scores=HeadScores(card, scores),
        profile=profile,
        rows=tuple(_row(row, scores) for row in data["rows"]),
        trials=tuple(TrialResult(**trial | {"best": Evidence(**trial["best"])}) for trial in data["trials"]),
        groups=tuple(GroupEffect(**group | {"heads": _pairs(group["heads"])}) for group in data["groups"]),
        pruning=_curve(data["pruning"]),
    )


def frozen(values: Any) -> NDArray[np.float64]:
    """A read-only float64 array."""
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


def scores_at(scores: tuple[NamedScore, ...], layer: int, head: int) -> dict[str, float]:
    """One head's named scores."""
    return {score.name: float(score.values[layer, head]) for score in scores}


def _row(row: Mapping[str, Any], scores: tuple[NamedScore, ...]) -> AtlasRow:
    examples = tuple(
        Example(one["kind"], one["index"], tuple(Cell(**cell) for cell in one["cells"])) for one in row["examples"]
    )
    return AtlasRow(
        **dict(row)
        | {
            "evidence": tuple(Evidence(**one) for one in row["evidence"]),
            "scores": scores_at(scores, row["layer"], row["head"]),
            "muting": None if row["muting"] is None else MuteNumber(**row["muting"]),
            "examples": examples,
        }
    )


def _curve(data: Mapping[str, Any] | None) -> PruningCurve | None:
    if data is None:
        return None
    points = tuple(PruningPoint(**point) for point in data["points"])
    return PruningCurve(**dict(data) | {"points": points, "order": _pairs(data["order"])})


def _pairs(heads: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(layer), int(head)) for layer, head in heads)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value


def _rounded(values: NDArray[np.floating[Any]]) -> list[Any]:
    return list(np.round(values, DIGITS).tolist())


def main(wanted: Sequence[str] = ()) -> None:
    """Measure the bundled models (or those named) and write each one's atlas beside the other assets."""
    from attention.atlas_build import build_atlas
    from attention.model_facts import BUNDLED
    from attention.models import load_model

    for bundled in (one for one in BUNDLED if not wanted or one.id in wanted):
        print(f"Measuring every head of {bundled.id}…", flush=True)
        atlas = build_atlas(load_model(bundled.id), thorough=True, progress=_say)
        lines = json.dumps(to_json(atlas), ensure_ascii=False, separators=(",", ":")).replace(
            '},{"layer"', '},\n{"layer"'
        )
        atlas_file(bundled.id).write_text(lines + "\n", encoding="utf-8")
        print(f"\r{atlas_file(bundled.id).name}: {atlas.labels}", flush=True)


def _say(share: float) -> None:
    print(f"\r{share:4.0%}", end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
