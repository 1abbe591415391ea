"""What an engine can be asked over the wire: each door's request, its answer, and how long it may take."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attention.atlas import HeadAtlas, ScoresRequest
from attention.links import HeadLink
from attention.muting import CopyEffect, CopyRequest, MutedEffect, MuteRequest
from attention.rung_views import LadderView, ViewRequest
from attention.rungs import LadderPoint, SweepRequest
from attention.tracing import AttentionTrace, Check, TraceRequest
from attention.wire import Nothing

if TYPE_CHECKING:
    from attention.engine import Engine

Say = Callable[[float], None]
# Seconds: a text through a model, beside others that wait; and measuring every head or rung of a large model.
QUICK, LONG = 120.0, 3600.0


@dataclass(frozen=True)
class LinkRequest:
    """A traced text and the two words of a link, each by its text or its number."""

    trace: TraceRequest
    from_word: str | int
    to_word: str | int

    @property
    def key(self) -> str:
        """Canonical JSON."""
        return json.dumps([self.trace.key, self.from_word, self.to_word], separators=(",", ":"))


@dataclass(frozen=True)
class Door:
    """One question: its request's type, its answer's type, the longest it may take in seconds, and who answers."""

    asks: type
    gives: Any
    seconds: float
    ask: Callable[[Engine, Any, Say], Any]


DOORS: dict[str, Door] = {
    "models": Door(Nothing, tuple[str, ...], QUICK, lambda engine, _, say: engine.models()),
    "trace": Door(TraceRequest, AttentionTrace, QUICK, lambda engine, asked, say: engine.trace(asked)),
    "verify": Door(TraceRequest, Check, QUICK, lambda engine, asked, say: engine.verify(asked)),
    "scores": Door(ScoresRequest, HeadAtlas, LONG, lambda engine, asked, say: engine.scores(asked, say)),
    "link": Door(
        LinkRequest,
        tuple[HeadLink, ...],
        QUICK,
        lambda engine, asked, say: engine.link(asked.trace, asked.from_word, asked.to_word),
    ),
    "muted": Door(MuteRequest, MutedEffect, QUICK, lambda engine, asked, say: engine.muted(asked)),
    "copied": Door(CopyRequest, CopyEffect, QUICK, lambda engine, asked, say: engine.copied(asked)),
    "sweep": Door(SweepRequest, tuple[LadderPoint, ...], LONG, lambda engine, asked, say: engine.sweep(asked, say)),
    "ladder_view": Door(ViewRequest, LadderView, LONG, lambda engine, asked, say: engine.ladder_view(asked, say)),
}
