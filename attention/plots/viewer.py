"""The head viewer's one message: a small header and one byte per attention weight.

Layout, in this order (numbers little-endian):

    4 bytes   b"HSV1"
    4 bytes   uint32, length of the header
    header    JSON, UTF-8
    padding   zeros up to a multiple of 8
    body      for each trace: tops, full heads, pooled heads (offsets from the body's start, in the header)

One byte per weight, ``b = round(255 * sqrt(w))``: the square root spends the 256 steps where small
weights live, so that ``(b / 255) ** 2`` is never further than 0.4 percentage points from ``w``.
Causal heads send the lower triangle (row q has q + 1 bytes). ``tops`` is one uint16 per row of a full
head, ``round(65535 * max(row))``, so that the percentage in the headline is exact.

When the heads need more than 4 MiB, every head is sent max-pooled to at most 30 x 30 ("pooled") and only
the chosen layers in full; the viewer asks for the others one at a time.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from attention.errors import UserError
from attention.plots.scripts import CANVAS, script, style

_SCRIPT = (
    "head_viewer/view.js",
    "head_viewer/rows.js",
    "head_viewer/memory.js",
    "head_viewer/build.js",
    "head_viewer/paint.js",
    "head_viewer/arcs.js",
    "head_viewer/map.js",
    "head_viewer/grid.js",
    "head_viewer/strip.js",
    "head_viewer/choose.js",
)
MAGIC = b"HSV1"
BYTE_LIMIT = 4 * 2**20
FILE_BYTE_LIMIT = 24 * 2**20
POOLED_SIDE = 30  # pixels a small map is drawn at; sent again with each layer fetched, so no larger than seen
SINK_MASS = 0.3
"""Mean mass that makes a column a sink: Gu et al. 2024, arXiv 2410.10781, epsilon = 0.3."""

Role = Literal["main", "twin", "compare"]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Cell = tuple[int, int, int]
"""Layer, head, query."""


class _Token(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def special(self) -> bool: ...


class _Layout(Protocol):
    @property
    def n_heads(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    def kv_head_of(self, query_head: int, /) -> int: ...


class _Model(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def kind(self) -> str: ...


class _Trace(Protocol):
    """What the viewer reads of an AttentionTrace; ``weights`` is float32 (layer, head, query, key)."""

    @property
    def tokens(self) -> Sequence[_Token]: ...
    @property
    def weights(self) -> Floats: ...
    @property
    def layout(self) -> _Layout: ...
    @property
    def causal(self) -> bool: ...
    @property
    def model(self) -> _Model: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True)
class Card:
    """One head with a job: where it is, which query word shows it, and the evidence in one line."""

    id: str
    title: str
    layer: int
    head: int
    query: int
    evidence: str


@dataclass(frozen=True)
class Average:
    """The heads ``((layer, head), ...)`` whose mean row of ``query`` shows what one head would have to blur."""

    heads: tuple[tuple[int, int], ...]
    query: int


@dataclass(frozen=True)
class ViewedTrace:
    """A trace and the part it plays: the main one, its untrained twin, or a sentence to compare with."""

    trace: _Trace
    role: Role = "main"


@dataclass(frozen=True)
class ViewerScene:
    """Everything the head viewer shows; the first trace is the main one.

    ``start`` is the (layer, head, query) shown first. ``checks`` are (name, value in words, passed).
    ``swap_label`` names the one-word change on offer, ``None`` hides it. ``full_layers`` are the layers
    to send in full when not all fit; ``None`` means the layer of ``start``.
    """

    traces: tuple[ViewedTrace, ...]
    cards: tuple[Card, ...] = ()
    average: Average | None = None
    start: Cell | None = None
    swap_label: str | None = None
    checks: tuple[tuple[str, str, bool], ...] = ()
    notices: tuple[str, ...] = ()
    hints: bool = False
    full_layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class DecodedTrace:
    """One trace read back from a message.

    ``heads`` maps (layer, head) to float32 (query, key) for heads sent in full, ``pooled`` is float32
    (layer, head, side, side) or ``None``, ``tops`` maps (layer, head) to float32 (query,), each row's maximum.
    """

    heads: dict[tuple[int, int], Floats]
    pooled: Floats | None
    tops: dict[tuple[int, int], Floats]


def viewer_bytes(scene: ViewerScene | _Trace) -> bytes:
    """The message ``assets/head_viewer/`` draws: header and one byte per weight, at most 4 MiB of weights.

    Raises UserError when weights are not (layer, head, query, key) or name a cell outside of it.
    """
    return _message(_as_scene(scene), BYTE_LIMIT)


def viewer_html(scene: ViewerScene | _Trace) -> str:
    """The viewer as one file that opens offline: style, script and weights inside, no network allowed.

    Holds as many layers in full as fit 24 MiB, nearest to the starting layer first.
    Raises UserError as ``viewer_bytes`` does.
    """
    scene = _as_scene(scene)
    message = _message(replace(scene, full_layers=_layers_by_distance(scene)), FILE_BYTE_LIMIT)
    title = html.escape(scene.traces[0].trace.text)
    style, script = viewer_css(), _standalone_script()
    policy = (
        f"default-src 'none'; script-src '{_csp_hash(script)}'; style-src '{_csp_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title} · Headscope</title>\n<style>{style}</style>\n</head>\n"
        f'<body class="hs-page">\n<main>\n<h1 dir="auto">{title}</h1>\n<div id="hs-mount"></div>\n'
        "<noscript>This picture is drawn by a script inside this file. Please allow scripts.</noscript>\n</main>\n"
        f'<script type="application/octet-stream" id="hs-data">{base64.b64encode(message).decode("ascii")}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def viewer_js() -> str:
    """The component's script, one ES module."""
    return script(*CANVAS, *_SCRIPT)


def viewer_css() -> str:
    """The component's style."""
    return style("canvas.css", "head_viewer.css")


def read_viewer_bytes(message: bytes) -> tuple[dict[str, Any], tuple[DecodedTrace, ...]]:
    """Header and traces of a message, as the viewer sees them.

    Raises UserError when the bytes are not a viewer message.
    """
    if message[:4] != MAGIC:
        raise UserError(
            f"These bytes start with {message[:4]!r}.", f"A viewer message starts with {MAGIC!r}.", "Build it again."
        )
    end = 8 + int.from_bytes(message[4:8], "little")
    header: dict[str, Any] = json.loads(message[8:end].decode("utf-8"))
    body = np.frombuffer(message, np.uint8, offset=_padded(end))
    return header, tuple(_read_trace(facts, body) for facts in header["traces"])


def quantise(weights: Floats) -> Bytes:
    """One byte per weight, ``round(255 * sqrt(w))``; NaN (a fully masked row) becomes 0. Same shape."""
    safe = np.nan_to_num(weights, nan=0.0, posinf=1.0, neginf=0.0)
    return np.rint(np.sqrt(np.clip(safe, 0.0, 1.0)) * np.float32(255)).astype(np.uint8)


def dequantise(values: Bytes) -> Floats:
    """The weight a byte stands for, ``(b / 255) ** 2``, float32. Same shape."""
    return np.square(values.astype(np.float32) / np.float32(255))


def max_pooled(weights: Floats) -> Floats:
    """Each head's map shrunk to at most 30 x 30 by taking the largest weight of each block.

    (layer, head, query, key) -> (layer, head, side, side), side = ceil(seq_len / ceil(seq_len / 30)).
    """
    seq_len = weights.shape[-1]
    block = -(-seq_len // POOLED_SIDE)
    edges = np.arange(0, seq_len, block)
    # Whole rows first, because they lie together in memory; fmax, because a fully masked row (NaN) hides no other.
    rows = [np.fmax.reduce(weights[..., start : start + block, :], axis=-2) for start in edges]
    return np.fmax.reduceat(np.stack(rows, axis=-2), edges, axis=-1)


def sink_columns(weights: Floats) -> npt.NDArray[np.bool_]:
    """Which keys are resting places by mass: mean over rows above 0.3 (Gu et al. 2024, arXiv 2410.10781).

    (layer, head, query, key) -> bool (layer, head, key). Texts under four tokens have none: there
    every key gets a third by chance.
    """
    if weights.shape[-1] < 4:
        return np.zeros((*weights.shape[:2], weights.shape[-1]), np.bool_)
    return _column_means(weights) > SINK_MASS


def _column_means(weights: Floats) -> Floats:
    """Each key's mean weight over all rows, fully masked rows counted as zero: (layer, head, key)."""
    means: Floats = weights.mean(axis=-2)
    if np.isnan(means).any():  # rare, and a copy of all weights takes a second at 512 tokens
        means = np.nan_to_num(weights).mean(axis=-2)
    return means


# Scene -> message


def _as_scene(scene: ViewerScene | _Trace) -> ViewerScene:
    if not isinstance(scene, ViewerScene):
        scene = ViewerScene(traces=(ViewedTrace(scene),))
    if not scene.traces:
        raise UserError("There is no trace to show.", "A scene holds one or two traces.", "Trace a sentence first.")
    for viewed in scene.traces:
        _require_shape(viewed.trace)
    main = scene.traces[0].trace
    if scene.start is None:
        scene = replace(scene, start=(0, 0, _first_word(main.tokens)))
    _require_cells(scene, main)
    return scene


def _first_word(tokens: Sequence[_Token]) -> int:
    return next((index for index, token in enumerate(tokens) if not token.special), 0)


def _require_shape(trace: _Trace) -> None:
    shape, seq_len, n_heads = trace.weights.shape, len(trace.tokens), trace.layout.n_heads
    if len(shape) != 4 or shape[0] < 1 or shape[1:] != (n_heads, seq_len, seq_len) or seq_len < 1:
        raise UserError(
            f"The weights have shape {tuple(shape)}.",
            f"Expected (layer, head, query, key) = (n_layers, {n_heads}, {seq_len}, {seq_len}).",
            "Pass the weights of one sentence, all layers and heads.",
        )


def _require_cells(scene: ViewerScene, main: _Trace) -> None:
    bounds = main.weights.shape[:3]
    for cell in (_start(scene), *_exact_cells(scene)):
        if any(not 0 <= index < bound for index, bound in zip(cell, bounds, strict=True)):
            raise UserError(
                f"There is no (layer, head, query) {cell}.",
                f"This trace has {bounds[0]} layers, {bounds[1]} heads and {bounds[2]} tokens, numbered from 0.",
                "Choose a cell inside.",
            )


def _start(scene: ViewerScene) -> Cell:
    return scene.start or (0, 0, 0)


def _exact_cells(scene: ViewerScene) -> list[Cell]:
    """The rows whose weights travel as decimals: those the cards and their average print."""
    cells = [(card.layer, card.head, card.query) for card in scene.cards]
    if scene.average:
        cells += [(layer, head, scene.average.query) for layer, head in scene.average.heads]
    return list(dict.fromkeys(cells))


def _layers_by_distance(scene: ViewerScene) -> tuple[int, ...]:
    layer = _start(scene)[0]
    return tuple(sorted(range(len(scene.traces[0].trace.weights)), key=lambda other: (abs(other - layer), other)))


def _message(scene: ViewerScene, limit: int) -> bytes:
    share = limit // len(scene.traces)
    traces: list[dict[str, Any]] = []
    blocks: list[bytes] = []
    for viewed in scene.traces:
        facts, trace_blocks = _packed(viewed, scene, share, sum(map(len, blocks)))
        traces.append(facts)
        blocks += trace_blocks
    header = json.dumps(_header(scene, traces), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    start = 8 + len(header)
    padding = b"\0" * (_padded(start) - start)
    return b"".join((MAGIC, len(header).to_bytes(4, "little"), header, padding, *blocks))


def _padded(length: int) -> int:
    return -(-length // 8) * 8


def _header(scene: ViewerScene, traces: list[dict[str, Any]]) -> dict[str, Any]:
    main = scene.traces[0].trace.weights
    return {
        "start": _start(scene),
        "swap": scene.swap_label,
        "hints": scene.hints,
        "notices": scene.notices,
        "cards": [vars(card) for card in scene.cards],
        "average": vars(scene.average) if scene.average else None,
        "checks": scene.checks,
        "exact": [[*cell, _decimals(main[cell])] for cell in _exact_cells(scene)],
        "traces": traces,
    }


def _decimals(row: Floats) -> list[float]:
    return [round(float(weight), 4) for weight in np.nan_to_num(row)]


def _packed(viewed: ViewedTrace, scene: ViewerScene, limit: int, offset: int) -> tuple[dict[str, Any], list[bytes]]:
    """Header facts and body blocks (tops, full heads, pooled heads) of one trace."""
    trace = viewed.trace
    full, pools = _choose_heads(trace, scene, limit)
    tops = [_tops(trace.weights[cell]) for cell in full]
    heads = [_head_bytes(trace.weights[cell], trace.causal) for cell in full]
    pooled = [quantise(max_pooled(trace.weights)).tobytes()] if pools else []
    facts = _trace_facts(viewed)
    facts["full"] = [[layer, head] for layer, head in full]
    facts["tops_at"] = offset
    facts["full_at"] = offset + sum(map(len, tops))
    facts["pooled_at"] = facts["full_at"] + sum(map(len, heads)) if pools else None
    end = b"\0" * (-sum(map(len, tops + heads + pooled)) % 2)
    return facts, [*tops, *heads, *pooled, end]


def _trace_facts(viewed: ViewedTrace) -> dict[str, Any]:
    trace = viewed.trace
    n_layers, n_heads = trace.weights.shape[:2]
    special = [index for index, token in enumerate(trace.tokens) if token.special]
    return {
        "role": viewed.role,
        "text": trace.text,
        "model": {"id": trace.model.id, "title": trace.model.title, "kind": trace.model.kind},
        "causal": bool(trace.causal),
        "n_layers": n_layers,
        "n_heads": n_heads,
        "n_kv_heads": trace.layout.n_kv_heads,
        "kv_of": [trace.layout.kv_head_of(head) for head in range(n_heads)],
        "labels": [token.label for token in trace.tokens],
        "special": special,
        "resting": _resting(trace.weights, special),
    }


def _resting(weights: Floats, special: list[int]) -> list[list[list[float]]]:
    """Per layer and head: the share of attention that rests, then the sink columns beyond the special tokens."""
    hidden = sink_columns(weights)
    hidden[..., special] = True
    shares = (_column_means(weights) * hidden).sum(axis=-1)
    hidden[..., special] = False
    return [
        [[round(float(share), 3), *np.flatnonzero(columns).tolist()] for share, columns in zip(*layer, strict=True)]
        for layer in zip(shares, hidden, strict=True)
    ]


def _choose_heads(trace: _Trace, scene: ViewerScene, limit: int) -> tuple[list[tuple[int, int]], bool]:
    """The heads to send in full, in order, and whether all heads are needed as thumbnails too."""
    n_layers, n_heads, seq_len, _ = trace.weights.shape
    each = _head_size(seq_len, trace.causal)
    everything = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    if each * len(everything) <= limit:
        return everything, False
    layer, head, _ = _start(scene)
    layers = [chosen for chosen in scene.full_layers or (layer,) if 0 <= chosen < n_layers]
    room = max(1, (limit - n_layers * n_heads * POOLED_SIDE**2) // each)
    nearest = sorted(range(n_heads), key=lambda other: (abs(other - head), other))
    wanted = [(chosen, other) for chosen in layers for other in nearest]
    return sorted(wanted[:room]), True


def _head_size(seq_len: int, causal: bool) -> int:
    return seq_len * (seq_len + 1) // 2 if causal else seq_len * seq_len


def _head_bytes(weights: Floats, causal: bool) -> bytes:
    values = quantise(weights)
    return (values[_lower_triangle(len(values))] if causal else values).tobytes()


@cache
def _lower_triangle(seq_len: int) -> npt.NDArray[np.bool_]:
    return np.tri(seq_len, dtype=np.bool_)


def _tops(weights: Floats) -> bytes:
    tops = np.clip(np.nan_to_num(weights).max(axis=-1), 0.0, 1.0)
    return np.rint(tops * 65535).astype("<u2").tobytes()


# Message -> arrays


def _read_trace(facts: dict[str, Any], body: Bytes) -> DecodedTrace:
    seq_len, causal = len(facts["labels"]), facts["causal"]
    full = [(int(layer), int(head)) for layer, head in facts["full"]]
    size = _head_size(seq_len, causal)
    tops = body[facts["tops_at"] : facts["full_at"]].view("<u2").reshape(len(full), seq_len)
    heads = body[facts["full_at"] : facts["full_at"] + size * len(full)].reshape(len(full), size)
    return DecodedTrace(
        heads={cell: _unpacked(values, seq_len, causal) for cell, values in zip(full, heads, strict=True)},
        pooled=_read_pooled(facts, body, seq_len),
        tops={cell: (row / 65535).astype(np.float32) for cell, row in zip(full, tops, strict=True)},
    )


def _unpacked(values: Bytes, seq_len: int, causal: bool) -> Floats:
    if not causal:
        return dequantise(values).reshape(seq_len, seq_len)
    square = np.zeros((seq_len, seq_len), np.float32)
    square[_lower_triangle(seq_len)] = dequantise(values)
    return square


def _read_pooled(facts: dict[str, Any], body: Bytes, seq_len: int) -> Floats | None:
    if facts["pooled_at"] is None:
        return None
    side = len(range(0, seq_len, -(-seq_len // POOLED_SIDE)))
    shape = (facts["n_layers"], facts["n_heads"], side, side)
    start = facts["pooled_at"]
    return dequantise(body[start : start + int(np.prod(shape))]).reshape(shape)


# The offline file


def _standalone_script() -> str:
    """The component as a plain inline script, followed by the call Streamlit would make."""
    module, exported = viewer_js(), "export default function headViewer("
    if module.count(exported) != 1:
        raise ValueError("The head viewer's script must export headViewer exactly once")
    return module.replace(exported, "function headViewer(") + (
        '\nconst packed = atob(document.getElementById("hs-data").textContent);\n'
        "headViewer({\n  data: Uint8Array.from(packed, (letter) => letter.charCodeAt(0)),\n"
        '  parentElement: document.getElementById("hs-mount"),\n});\n'
    )


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
