"""Measuring attention for a page: one visitor at a time, each request once, and leaving the page ends it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from attention.layout import HeadLayout
from attention.step_plan import Sizes, plan_steps

D_MODEL = 256
SEQ_LENS = (64, 128, 256, 512, 1024, 2048)
SHORTEST = 32
MOST_RESULTS = 64
SMALL_FLOPS = 0.7e9  # a run of this many operations takes some hundredths of a second on one core
SMALL_SCORES = 2 * 2**20  # numbers in the scores of all heads
TIMING_SHARE = 0.7  # of the progress bar; the rest is memory
WAIT_SECONDS = 0.3
PRELOAD = "preload"  # the thread of attention/preload.py
FEWEST_RUNS = 3
UNSTEADY = 1.6
QUICK = {"runs": 7, "seconds_per_way": 0.2}
THOROUGH = {"runs": 7, "seconds_per_way": 1.0}

Report = Callable[[float, str], None]


@dataclass(frozen=True)
class Request:
    """Sizes of one measurement; d_model is always ``D_MODEL``."""

    batch_size: int
    seq_len: int
    n_heads: int
    n_kv_heads: int
    causal: bool

    @property
    def key(self) -> str:
        """What results are kept under."""
        return f"{self.batch_size}/{self.seq_len}/{self.n_heads}/{self.n_kv_heads}/{self.causal}"

    @property
    def layout(self) -> HeadLayout:
        """The heads' sizes."""
        return HeadLayout(D_MODEL, self.n_heads, self.n_kv_heads)

    @property
    def is_small(self) -> bool:
        """Small enough to be measured without being asked for."""
        flops = sum(step.flops for step in plan_steps(Sizes(self.layout, self.seq_len, self.batch_size)))
        return flops <= SMALL_FLOPS and self.batch_size * self.n_heads * self.seq_len**2 <= SMALL_SCORES

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """The lengths at which memory is measured: doubling up to this request's own."""
        return tuple(length for length in (SHORTEST, *SEQ_LENS) if length <= self.seq_len)


@dataclass(frozen=True)
class Measured:
    """A request's figures: a ``TimingResult`` and the ``MemoryPoint`` of each length."""

    timing: Any
    memory: tuple[Any, ...]

    @property
    def is_steady(self) -> bool:
        """Whether explicit and fused may be compared: several runs each, and their median near their fastest."""
        ways = [way for way in self.timing.ways if way.key in ("explicit", "fused")]
        return all(way.runs >= FEWEST_RUNS and way.median_seconds <= UNSTEADY * way.fastest_seconds for way in ways)


class Bench:
    """One measurement at a time, since two at once would spoil each other's figures; the latest results are kept."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._results: OrderedDict[str, Measured] = OrderedDict()

    def kept(self, request: Request) -> Measured | None:
        """The figures measured before, if they are still here."""
        return self._results.get(request.key)

    def measure(self, request: Request, report: Report, *, again: bool = False) -> Measured:
        """Wait for a turn, measure, keep.

        ``report`` is called with a share of the work (0..1) and a sentence, also while waiting; when it raises,
        as Streamlit's calls do once the visitor has left, the measurement ends there. A result that another visitor
        got for the same request while this one waited is taken over, unless ``again``. Raises UserError for sizes
        beyond the limits.
        """
        while not self._turn.acquire(timeout=WAIT_SECONDS):
            report(0.0, "Somebody else is measuring. Two at once would spoil both figures, so this one waits its turn")
        try:
            before = None if again else self.kept(request)
            return before or self._keep(request, _measured(request, report))
        finally:
            self._turn.release()

    def _keep(self, request: Request, measured: Measured) -> Measured:
        self._results[request.key] = measured
        self._results.move_to_end(request.key)
        while len(self._results) > MOST_RESULTS:
            self._results.popitem(last=False)
        return measured


def wait_for_preload(report: Report) -> None:
    """Until a server that has just been started has loaded its models: until then times would be wrong.

    Call it before anything that uses torch: a thread keeps the number of torch threads it began with.
    """
    for thread in threading.enumerate():
        while thread.name == PRELOAD and thread.is_alive():
            report(0.0, "The server has just started and is loading its models, which would spoil the figures")
            thread.join(WAIT_SECONDS)


@st.cache_resource
def bench() -> Bench:
    """The one bench of this server."""
    return Bench()


@st.cache_data(max_entries=1, show_spinner="Running the snippets…")
def traps() -> tuple[Any, ...]:
    """Every trap, run once in this process; ``traps.clear()`` makes the next call run them again."""
    from attention.timing import pytorch_traps

    return pytorch_traps()


def _measured(request: Request, report: Report) -> Measured:
    report(0.0, "Loading PyTorch")
    from attention.timing import memory_growth, time_attention

    timing = time_attention(
        request.layout,
        request.seq_len,
        request.batch_size,
        request.causal,
        memory=False,
        progress=lambda share, words: report(share * TIMING_SHARE, words),
        **(QUICK if request.is_small else THOROUGH),  # type: ignore[arg-type]
    )
    memory = memory_growth(
        request.layout,
        request.seq_lens,
        request.batch_size,
        request.causal,
        progress=lambda share, words: report(TIMING_SHARE + share * (1 - TIMING_SHARE), words),
    )
    return Measured(timing, memory)
