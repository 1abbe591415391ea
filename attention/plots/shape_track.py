"""The Shapes page's one message: every tensor of a run, the rules that join them, and the program that makes them.

Layout, in this order (numbers little-endian):

    4 bytes   b"HST1"
    4 bytes   uint32, length of the header
    header    JSON, UTF-8
    padding   zeros up to a multiple of 4
    body      float32 arrays in C order, at the offsets the header names

Where an element comes from is sent as rules (``attention.provenance.Link``), a few hundred bytes for any
size, so that the browser lights another element without asking.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from attention.errors import UserError
from attention.listings import Flavour, code_listing, line_of
from attention.multihead import Step, StepTrace
from attention.plots.scripts import CANVAS, script, style

_SCRIPT = (
    "shape_track/view.js",
    "shape_track/provenance.js",
    "shape_track/words.js",
    "shape_track/memory.js",
    "shape_track/build.js",
    "shape_track/show.js",
    "shape_track/blocks.js",
    "shape_track/act.js",
    "shape_track/guess.js",
)
MAGIC = b"HST1"
BYTE_LIMIT = 4 * 2**20
LETTERS = ("Q", "K", "V")
TITLES = {
    "1": "project",
    "2": "split",
    "3": "permute",
    "3½": "rotate",
    "4": "scores",
    "5": "weights @ V",
    "6": "concat",
    "7": "W_o",
}
# Which concept's colour a tensor carries: what the heads gather is made of values.
ROLES = {"Q": "query", "K": "key", "V": "value", "heads_out": "value", "concat": "value", "output": "output"}


def track_bytes(
    trace: StepTrace,
    *,
    source: str,
    seed: int = 0,
    tokens: Sequence[str] = (),
    remarks: Sequence[str] = (),
    code_note: str = "",
) -> bytes:
    """A run as one message for the shape track.

    ``source`` says in words where the numbers come from; ``seed`` is the listing's. ``tokens`` are one label per
    token where there is a text; ``remarks`` are sentences to print beside the run's own, ``code_note`` one about
    the program.
    Raises UserError for a batch (the track draws one sequence) and for a run over 4 MiB.
    """
    if trace.sizes.lead:
        raise UserError("x has a batch axis.", "The track draws one sequence.", "Pass x[0].")
    body = _Body()
    header = {
        "source": source,
        "letters": LETTERS,
        "causal": trace.sizes.causal,
        "sizes": {"seq_len": trace.sizes.seq_len, **_layout_facts(trace)},
        "stops": [[number, TITLES[number]] for number in dict.fromkeys(step.number for step in trace.steps)],
        "inputs": [_input_facts(step) for step in trace.inputs],
        "tensors": [_facts(step, body) for step in trace.steps],
        "code": {flavour: _program(trace, flavour, seed) for flavour in get_args(Flavour)},
        "start": _start(trace),
        "tokens": list(tokens),
        "notes": [*trace.notes, *remarks],
        "code_note": code_note,
    }
    packed = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")
    begin = _padded(8 + len(packed))
    if begin + body.size > BYTE_LIMIT:
        raise UserError(
            f"The tensors of this run need {(begin + body.size) / 2**20:.1f} MiB.",
            f"At most {BYTE_LIMIT // 2**20} MiB are drawn.",
            "Use a shorter text or smaller sizes.",
        )
    head = MAGIC + len(packed).to_bytes(4, "little") + packed
    return b"".join([head.ljust(begin, b"\0"), *body.parts])


def read_track_bytes(message: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.float32]]]:
    """Header and arrays, by key, of a message, as the browser sees them. Raises UserError for other bytes."""
    if message[:4] != MAGIC:
        raise UserError(
            f"These bytes start with {message[:4]!r}.", f"A track message starts with {MAGIC!r}.", "Build it again."
        )
    end = 8 + int.from_bytes(message[4:8], "little")
    header: dict[str, Any] = json.loads(message[8:end].decode("utf-8"))
    begin = _padded(end)
    arrays = {
        facts["key"]: np.frombuffer(
            message, "<f4", count=int(np.prod(facts["shape"])), offset=begin + facts["at"]
        ).reshape(facts["shape"])
        for facts in header["tensors"]
    }
    return header, arrays


def track_js() -> str:
    """The component's script, one ES module."""
    return script(*CANVAS, *_SCRIPT)


def track_css() -> str:
    """The component's style."""
    return style("canvas.css", "shape_track.css")


class _Body:
    """The arrays one after the other; equal bytes are sent once (a reshape writes no new numbers)."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self._places: dict[bytes, int] = {}

    def add(self, array: npt.NDArray[Any]) -> int:
        """The offset of the array's float32 numbers in the body, in bytes."""
        numbers = np.ascontiguousarray(array, dtype="<f4").tobytes()
        if numbers not in self._places:
            self._places[numbers] = self.size
            self.parts.append(numbers)
            self.size += len(numbers)
        return self._places[numbers]


def _facts(step: Step, body: _Body) -> dict[str, Any]:
    finite = step.array[np.isfinite(step.array)].astype(np.float32)
    return {
        "key": step.key,
        "number": step.number,
        "name": step.name,
        "symbol": step.symbol,
        "role": ROLES.get(step.symbol, "weights"),
        "axes": step.axes,
        "shape": step.shape,
        "sentence": step.sentence,
        "memory": _memory(step),
        "line": {flavour: line_of(step, flavour) for flavour in get_args(Flavour)},
        "links": [
            [link.source, [[rule.kind, rule.a, rule.b, rule.width] for rule in link.rules], link.gate]
            for link in step.links
        ],
        "at": body.add(step.array),
        "range": [float(finite.min()), float(finite.max())] if finite.size else [0.0, 0.0],
    }


def _memory(step: Step) -> str:
    """Whether numbers were written or only re-addressed, and how far apart neighbours lie (strides in elements)."""
    strides = f"strides {tuple(step.strides)}"
    if step.copied:
        return f"New numbers in memory, {strides}."
    order = "in order" if step.contiguous else "no longer in order: reshape would copy"
    return f"No number moved in memory: {strides}, {order}."


def _input_facts(step: Step) -> dict[str, Any]:
    return {"key": step.symbol, "symbol": step.symbol, "axes": step.axes, "shape": step.shape}


def _layout_facts(trace: StepTrace) -> dict[str, int]:
    layout = trace.layout
    names = ("d_model", "n_heads", "n_kv_heads", "d_head", "q_per_kv")
    return {name: getattr(layout, name) for name in names}


def _program(trace: StepTrace, flavour: Flavour, seed: int) -> dict[str, Any]:
    """The listing and, for every step, the number of its line in it."""
    sizes = trace.sizes
    text = code_listing(
        sizes.layout,
        sizes.seq_len,
        flavour,
        causal=sizes.causal,
        rope=sizes.rope,
        biases=bool(sizes.biases),
        seed=seed,
    )
    lines = text.splitlines()
    places: dict[str, int] = {}
    for number in dict.fromkeys(step.number for step in trace.steps):
        title = next(at for at, line in enumerate(lines) if line.startswith(f"# {number} "))
        for offset, step in enumerate((step for step in trace.steps if step.number == number), start=1):
            places[step.key] = title + offset
    return {"text": text, "lines": places}


def _start(trace: StepTrace) -> dict[str, Any]:
    """The page opens on the permute of K, with an element of the last K head's third token."""
    step = trace.step("3.K")
    heads, seq_len, width = step.shape
    return {"step": "3.K", "letter": "K", "pick": ["3.K", [min(1, heads - 1), min(2, seq_len - 1), min(3, width - 1)]]}


def _padded(length: int) -> int:
    return -(-length // 4) * 4
