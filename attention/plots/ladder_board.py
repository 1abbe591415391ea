"""The ladder's one message: every rung of every way at once, so that moving a slider asks the server for nothing.

Layout, in this order (numbers little-endian):

    4 bytes   b"HSL1"
    4 bytes   uint32, length of the header
    header    JSON, UTF-8
    padding   zeros up to a multiple of 4
    body      uint16, attention weights in ten-thousandths: one map (query, key) after the other
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attention.absorb import reading_cost
from attention.errors import UserError
from attention.kv_working import readable
from attention.layout import HeadLayout
from attention.plots.scripts import CANVAS, script, style
from attention.rung_views import LadderView, RungView
from attention.rungs import LadderPoint, Rung, badge_of
from attention.sharing import LatentKV, ShareKV

_SCRIPT = (
    "ladder_board/view.js",
    "ladder_board/rungs.js",
    "ladder_board/memory.js",
    "ladder_board/build.js",
    "ladder_board/paint.js",
    "ladder_board/chart.js",
    "ladder_board/groups.js",
    "ladder_board/maps.js",
)
MAGIC = b"HSL1"
WEIGHT_STEPS = 10_000
SEQ_LEN = 1024
SHIPPED = "shipped"
# Ways in the order they are offered: id, the name on the page, and whether the chart draws it unasked.
SHARE_WAYS = (
    ("mean", "averaged", True),
    ("aligned", "aligned, then averaged", True),
    ("healed", "averaged, then healed", True),
    ("first", "first head kept", False),
    ("random", "drawn at random", False),
    ("mean-alike", "most alike averaged", False),
    ("aligned-alike", "most alike aligned, averaged", False),
)
LATENT_WAYS = (
    ("whitened", "latent", True),
    ("healed", "latent, then healed", True),
    ("plain", "latent of the weights alone", False),
    ("split", "latents of K and of V", False),
)


@dataclass(frozen=True)
class Measure:
    """What the chart's y axis says: the text measured on and the id quality carries, in words."""

    text: str
    title: str
    pieces: str


def rung_place(rung: Rung) -> tuple[str, str, str]:
    """Where a rung belongs: family ("share", "latent" or "shipped"), way, and the stop's key on its slider."""
    if rung is None:
        return SHIPPED, SHIPPED, SHIPPED
    if isinstance(rung, ShareKV):
        return "share", rung.how + ("-alike" if rung.groups == "by-similarity" else ""), str(rung.n_kv_heads)
    if rung.split is not None:
        return "latent", "split", f"{rung.split[0]}+{rung.split[1]}"
    way = "healed" if rung.healed else "whitened" if rung.whiten else "plain"
    return "latent", way, str(rung.rank)


def board_bytes(view: LadderView, points: Sequence[LadderPoint], measure: Measure, *, title: str) -> bytes:
    """One text on every rung, and the quality of every point measured, as one message.

    ``points`` may be empty: the chart then says that nothing was measured. ``title`` is the model's.
    """
    seen = {one.rung: one for one in view.rungs}
    measured = {point.what_if: point for point in points}
    layout = layout_of(view)
    header = {
        "title": title,
        "model": view.request.model,
        "kind": view.kind,
        "text": view.request.text,
        "start_token": view.request.start,
        "labels": view.labels,
        "layer": view.request.layer,
        "head": view.request.head,
        "n_layers": view.n_layers,
        "n_heads": view.n_heads,
        "n_kv_heads": view.n_kv_heads,
        "d_head": view.d_head,
        "full": seen[None].numbers,
        "compared_with": view.compared_with,
        "measure": _measure_facts(view.kind, measure),
        "seq_len": SEQ_LEN,
        "share_ways": SHARE_WAYS,
        "latent_ways": LATENT_WAYS,
        "rungs": [
            _rung_facts(rung, seen.get(rung), measured.get(rung), view, layout, measure.text)
            for rung in dict.fromkeys([*seen, *measured])
        ],
        "start": _start(view),
    }
    maps = [np.rint(one.weights.astype(float) * WEIGHT_STEPS).astype("<u2") for one in view.rungs]
    packed = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")
    head = MAGIC + len(packed).to_bytes(4, "little") + packed
    return b"".join([head.ljust(_padded(len(head)), b"\0"), *(one.tobytes() for one in maps)])


def read_board_bytes(message: bytes) -> tuple[dict[str, Any], npt.NDArray[np.float64]]:
    """Header and maps (map, query, key) as the browser sees them. Raises UserError for other bytes."""
    if message[:4] != MAGIC:
        raise UserError(
            f"These bytes start with {message[:4]!r}.", f"A ladder message starts with {MAGIC!r}.", "Build it again."
        )
    end = 8 + int.from_bytes(message[4:8], "little")
    header: dict[str, Any] = json.loads(message[8:end].decode("utf-8"))
    side = len(header["labels"])
    numbers = np.frombuffer(message, "<u2", offset=_padded(end)).reshape(-1, side, side)
    return header, numbers / WEIGHT_STEPS


def layout_of(view: LadderView) -> HeadLayout:
    """The shape arithmetic of a view's model; the width of a value head from what one token caches."""
    shipped = next(one for one in view.rungs if one.rung is None)
    d_head_v = shipped.numbers // view.n_kv_heads - view.d_head
    return HeadLayout(view.n_heads * view.d_head, view.n_heads, view.n_kv_heads, view.d_head, d_head_v)


def board_js() -> str:
    """The component's script, one ES module."""
    return script(*CANVAS, *_SCRIPT)


def board_css() -> str:
    """The component's style."""
    return style("canvas.css", "ladder_board.css")


def _measure_facts(kind: str, measure: Measure) -> dict[str, Any]:
    decoder = kind == "decoder"
    return {
        "name": "surprise" if decoder else "likeness",
        "axis": "surprise (perplexity), log" if decoder else "likeness (cosine) to the original",
        "log": decoder,
        "title": measure.title,
        "pieces": measure.pieces,
    }


def _rung_facts(
    rung: Rung,
    view: RungView | None,
    point: LadderPoint | None,
    whole: LadderView,
    layout: HeadLayout,
    text: str,
) -> dict[str, Any]:
    family, way, key = rung_place(rung)
    known = view or point
    assert known is not None
    size = 2 * whole.n_layers * known.numbers if point is None else point.bytes_per_token
    facts: dict[str, Any] = {
        "family": family,
        "way": way,
        "key": key,
        "numbers": known.numbers,
        "badge": badge_of(rung),
        "bytes": size,
        "readable": readable(size),
        "quality": _quality_facts(point, text),
        "map": None,
    }
    if view is not None:
        facts |= {
            "map": whole.rungs.index(view),
            "next": view.next_tokens,
            "written": [(step.token, step.probability) for step in view.written],
            "cosine": view.cosine,
            "similar": view.similar,
        }
    if isinstance(rung, LatentKV):
        cost = reading_cost(layout, rung.rank, SEQ_LEN, split=rung.split)
        facts["cost"] = {"rebuild": cost.flops_rebuild, "scores": cost.flops_scores}
    return facts


def _quality_facts(point: LadderPoint | None, text: str) -> dict[str, float] | None:
    if point is None:
        return None
    one = point.on(text)
    return {name: getattr(one, name) for name in ("value", "low", "high", "apart", "agreement")}


def _start(view: LadderView) -> dict[str, str]:
    """The page opens on the first step down that sharing heads allows, and on a latent of the same size."""
    fewest = [one for one in view.rungs if isinstance(one.rung, ShareKV)]
    if not fewest:
        return {"share": SHIPPED, "latent": SHIPPED}
    first = max(fewest, key=lambda one: one.numbers)
    return {"share": rung_place(first.rung)[2], "latent": str(first.numbers)}


def _padded(length: int) -> int:
    return -(-length // 4) * 4
