"""What a model wrote, token by token, and what its cache weighed meanwhile: plain values that travel as JSON."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attention.errors import UserError

RECORDING = Path(__file__).resolve().parents[1] / "assets" / "recording.json"
# Weights travel as round(255·√w), one byte each: a small weight keeps more of its digits, none is off by over 0.4 %.
FULL = 255


@dataclass(frozen=True)
class Alternative:
    """A token that could have come next.

    ``probability`` is the model's own; ``chance`` that of being drawn under the temperature and
    top-k in force (1 or 0 when greedy).
    """

    text: str
    id: int
    probability: float
    chance: float


@dataclass(frozen=True, eq=False)
class GenerationStep:
    """One written token, and the cache of the ``n_cached`` tokens before it, from which it was chosen.

    ``cache_bytes`` is measured (the sum of the real tensors, ``cache_bytes_per_layer`` each layer's
    share); ``formula_bytes`` is the formula at the precision the model runs in,
    ``formula_bytes_16bit`` at 16 bits. ``attention_row`` float32 (n_cached,): where the last cached
    token looked in the head asked for, None when none was. ``row_bytes`` uint8 (layer, head, n_cached):
    the same for every head, as round(255·√w). ``seconds_with_cache``: the forward pass alone, without
    waiting for a turn; the first step's reads the whole prompt. ``ends``: the model says it is done.
    """

    token: str
    label: str
    id: int
    probability: float
    chance: float
    alternatives: tuple[Alternative, ...]
    n_cached: int
    cache_bytes: int
    formula_bytes: int
    formula_bytes_16bit: int
    cache_bytes_per_layer: tuple[int, ...]
    attention_row: npt.NDArray[np.float32] | None
    row_bytes: npt.NDArray[np.uint8]
    seconds_with_cache: float
    ends: bool

    def row(self, layer: int, head: int) -> npt.NDArray[np.float32]:
        """Weights of one head over the cached tokens, (n_cached,), each right to 0.4 percentage points."""
        return as_weights(self.row_bytes[layer, head])


@dataclass(frozen=True, eq=False)
class Run:
    """A whole text being written. ``recomputed``: (tokens, seconds of one forward pass without a cache).

    ``working`` shows the formula's factors for one token. ``recorded_on`` is a date for a recording, None for
    what was computed just now; ``machine`` says on what.
    """

    model: str
    title: str
    prompt: str
    start: str | None
    prompt_tokens: tuple[str, ...]
    prompt_labels: tuple[str, ...]
    prompt_ids: tuple[int, ...]
    temperature: float
    top_k: int | None
    seed: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    dtype: str
    working: str
    max_new_tokens: int
    machine: str
    steps: tuple[GenerationStep, ...] = ()
    recomputed: tuple[tuple[int, float], ...] = ()
    recorded_on: str | None = None

    @property
    def finished(self) -> bool:
        """Whether it was written to its end: as many tokens as asked for, or the model's own end."""
        return len(self.steps) == self.max_new_tokens or bool(self.steps and self.steps[-1].ends)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The text of every token, prompt and written."""
        return self.prompt_tokens + tuple(step.token for step in self.steps)

    @property
    def labels(self) -> tuple[str, ...]:
        """What a person reads for every token, prompt and written."""
        return self.prompt_labels + tuple(step.label for step in self.steps)

    @property
    def ids(self) -> tuple[int, ...]:
        """Vocabulary numbers of every token, prompt and written."""
        return self.prompt_ids + tuple(step.id for step in self.steps)


def as_bytes(weights: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """Weights from 0 to 1 as round(255·√w), same shape."""
    return np.rint(FULL * np.sqrt(weights)).astype(np.uint8)


def as_weights(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """What ``as_bytes`` packed, same shape, right to 0.4 percentage points."""
    return np.square(packed.astype(np.float32) / FULL)


def to_json(run: Run) -> str:
    """A run as JSON; the attention rows of all steps together as one compressed string."""
    facts = {f.name: getattr(run, f.name) for f in fields(run) if f.name != "steps"}
    rows = b"".join(step.row_bytes.tobytes() for step in run.steps)
    steps = [_step_facts(step) for step in run.steps]
    packed = base64.b64encode(zlib.compress(rows, 9)).decode()
    return json.dumps(facts | {"steps": steps, "rows": packed}, ensure_ascii=False, indent=0)


def from_json(text: str) -> Run:
    """The run that ``to_json`` wrote. Raises UserError when it is not one."""
    try:
        facts = json.loads(text)
        rows = np.frombuffer(zlib.decompress(base64.b64decode(facts.pop("rows"))), np.uint8)
        steps, at = [], 0
        for step in facts.pop("steps"):
            shape = (facts["n_layers"], facts["n_heads"], step["n_cached"])
            size = int(np.prod(shape))
            steps.append(_step(step, rows[at : at + size].reshape(shape)))
            at += size
        plain = {name: _tuples(value) for name, value in facts.items()}
        return Run(**plain, steps=tuple(steps))
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise UserError(
            "This is not a recording of a model writing.",
            "A recording is the JSON file that this program writes.",
            "Record it again.",
        ) from error


@lru_cache(maxsize=1)
def shipped_recording() -> Run:
    """The recording that comes with the program, read once."""
    return from_json(RECORDING.read_text(encoding="utf-8"))


def _step_facts(step: GenerationStep) -> dict[str, Any]:
    facts = {f.name: getattr(step, f.name) for f in fields(step) if f.name not in ("row_bytes", "attention_row")}
    return facts | {"alternatives": [asdict(one) for one in step.alternatives]}


def _step(facts: dict[str, Any], rows: npt.NDArray[np.uint8]) -> GenerationStep:
    alternatives = tuple(Alternative(**one) for one in facts.pop("alternatives"))
    plain = {name: _tuples(value) for name, value in facts.items()}
    return GenerationStep(**plain, alternatives=alternatives, attention_row=None, row_bytes=rows)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
