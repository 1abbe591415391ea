"""Traces that wait at the same time and are about equally long go through the model together.

Measured on the two bundled models (one thread, eight texts, processor time a text, one by one over together): 2.3 to
2.5 times at 16 tokens, 1.3 to 1.5 at 64, 1.1 at 128. So ``MOST_TOKENS`` ends a group where there is little left to
gain. Results equal those of each text alone to float32 rounding (the padded-batch tests of ``tracing``).
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from attention.models import LoadedModel
from attention.settings import settings
from attention.tokens import clean_text, encode
from attention.tracing import AttentionTrace, TraceRequest, trace

MOST_TOKENS = 512  # of a group, its padding included
LONGER_BY = 1.25  # than the shortest of its group: padding is computed and thrown away


@dataclass(eq=False)
class Waiting:
    """One trace waiting for its turn, and how many tokens it has; None where nobody waited beside it."""

    loaded: LoadedModel
    request: TraceRequest
    n_tokens: int | None
    result: Future[AttentionTrace] = field(default_factory=Future)

    def goes_with(self, other: Waiting) -> bool:
        """Whether both ask for the same but for the text."""
        return self.loaded is other.loaded and replace(self.request, text="") == replace(other.request, text="")


class Batches:
    """Traces asked for by many threads, run group by group. ``sizes`` counts the groups by how many were in them."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self.sizes: dict[int, int] = {}

    def trace(self, loaded: LoadedModel, request: TraceRequest) -> AttentionTrace:
        """The trace of a request. Raises UserError as ``attention.trace`` does."""
        busy = self._turn.locked()  # counting costs a tenth of a trace: alone, a text need not be counted
        mine = Waiting(loaded, request, _count(loaded, request) if busy else None)
        with self._lock:
            self._waiting.append(mine)
        while not mine.result.done():
            with self._turn:  # whoever gets it runs the group of the longest waiting, perhaps not its own
                if not mine.result.done():
                    self._run(self._next())
        return mine.result.result()

    def _next(self) -> list[Waiting]:
        """The longest waiting and those that may go with it, in the order they came."""
        with self._lock:
            first = self._waiting[0]
            group = [first]
            for one in self._waiting[1:]:
                if one.goes_with(first) and _fit([other.n_tokens for other in (*group, one)]):
                    group.append(one)
            self._waiting = [one for one in self._waiting if one not in group]
        self.sizes[len(group)] = self.sizes.get(len(group), 0) + 1
        return group

    def _run(self, group: list[Waiting]) -> None:
        try:
            traces = _together(group)
        except Exception as error:
            if len(group) == 1:
                group[0].result.set_exception(error)
                return
            for one in group:  # whose fault it was shows when each runs alone
                self._run([one])
            return
        for one, traced in zip(group, traces, strict=True):
            one.result.set_result(traced)


def _fit(lengths: list[int | None]) -> bool:
    """Whether texts of these lengths gain by running together."""
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        return False
    return max(known) * len(known) <= MOST_TOKENS and max(known) <= LONGER_BY * min(known)


def _count(loaded: LoadedModel, request: TraceRequest) -> int:
    """How many tokens the model will read. Raises UserError for text or start it cannot take."""
    most = settings().max_chars
    pair = None if request.pair is None else clean_text(request.pair, most, what="second sentence")
    limit = min(settings().max_tokens, loaded.max_positions)
    text = clean_text(request.text, most)
    return len(encode(loaded.tokenizer, text, pair=pair, start=request.start, max_tokens=limit).ids)


def _together(group: list[Waiting]) -> list[AttentionTrace]:
    asked = group[0].request
    traces: list[AttentionTrace] = trace(
        group[0].loaded,
        [one.request.text for one in group],
        pair=asked.pair,
        start=asked.start,
        keep=asked.keep,
        layer=asked.layer,
        what_if=asked.what_if,
    )
    return traces
