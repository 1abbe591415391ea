"""Engine: the one door the pages knock on. One frozen request in, one NumPy-only picklable result out."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from attention.atlas import HeadAtlas, ScoresRequest
from attention.atlas_build import atlas_of
from attention.jobs import Job, Jobs
from attention.ladder import ladder_sweep
from attention.ladder_view import ladder_view
from attention.links import HeadLink, find_link, heads_for_link
from attention.model_facts import list_models
from attention.models import LoadedModel, load_model
from attention.muting import (
    CopyEffect,
    CopyRequest,
    MutedEffect,
    MuteRequest,
    Outcome,
    copy_effect,
    effect_between,
    outcome,
)
from attention.probes import offset_profile
from attention.remote import RemoteEngine
from attention.rung_views import LadderView, ViewRequest
from attention.rungs import LadderPoint, SweepRequest, shipped_points
from attention.settings import settings
from attention.single_flight import SingleFlight
from attention.tracing import AttentionTrace, Check, TraceRequest, trace
from attention.turns import Turns

log = logging.getLogger("headscope")
ATLAS_BYTES = 32 * 2**20
OUTCOME_BYTES = 64 * 2**20
VIEW_BYTES = 32 * 2**20


class Engine:
    """Traces and head findings for all sessions of this process, each distinct one computed once.

    ``trace_mb`` bounds what is kept (MiB). ``run`` makes a trace that is not kept yet. Requests are logged by the
    hash of their key, never with text.
    """

    def __init__(
        self,
        trace_mb: int | None = None,
        run: Callable[[LoadedModel, TraceRequest], AttentionTrace] | None = None,
    ) -> None:
        self._run = run or _run
        megabytes = settings().trace_mb if trace_mb is None else trace_mb
        self._traces = SingleFlight(megabytes * 2**20, lambda traced: traced.nbytes)
        self._verified = SingleFlight(2**20, lambda _: 1024)
        self._atlases = SingleFlight(ATLAS_BYTES, lambda atlas: atlas.nbytes)
        self._outcomes = SingleFlight(OUTCOME_BYTES, lambda found: found.nbytes)
        self._views = SingleFlight(VIEW_BYTES, lambda view: view.nbytes)
        self._sweeps = SingleFlight(2**20, lambda points: 1024 * len(points))
        self._jobs = Jobs(Turns(settings().heavy_jobs))

    def models(self) -> tuple[str, ...]:
        """Ids that can be asked for."""
        return list_models()

    def model(self, model_id: str) -> LoadedModel:
        """The loaded model; its module belongs to everyone, so look, never change."""
        return load_model(model_id)

    def trace(self, request: TraceRequest) -> AttentionTrace:
        """The trace of a request. Raises UserError as ``attention.trace`` does."""
        loaded = load_model(request.model)
        full = replace(request, revision=loaded.revision)
        return self._traces.get(full.key, lambda: _logged(self._run, loaded, full))

    def verify(self, request: TraceRequest) -> Check:
        """The comparison with the model's own SDPA output, once per distinct trace."""
        traced = self.trace(request)
        return self._verified.get(traced.request.key, traced.verify)

    def scores(self, request: ScoresRequest, progress: Callable[[float], None] | None = None) -> HeadAtlas:
        """Every head's scores, label and evidence: as shipped for a bundled model, else measured now.

        ``progress`` is called with the share done, 0 to 1, by whoever measures; those who ask meanwhile wait for the
        same result. Raises UserError for a model that cannot be traced.
        """
        loaded = load_model(request.model)
        full = replace(request, revision=loaded.revision)
        return self._atlases.get(full.key, lambda: atlas_of(loaded, progress))

    def link(self, request: TraceRequest, query: str | int, key: str | int) -> tuple[HeadLink, ...]:
        """Every head by its weight on one link of a traced text. Raises UserError as ``rank_heads_for_link``."""
        traced = self.trace(request)
        find_link(traced, query, key)  # before the profile, which may take seconds to measure
        return heads_for_link(traced, query, key, offset_profile(load_model(request.model)))

    def muted(self, request: MuteRequest) -> MutedEffect:
        """What muting heads changes on one text. Raises UserError as ``muted_effect``."""
        loaded = load_model(request.model)
        full = replace(request, heads=tuple(sorted(set(request.heads))), revision=loaded.revision)
        before, after = (self._outcome(loaded, replace(full, heads=heads)) for heads in ((), full.heads))
        return effect_between(loaded, full, before, after)

    def _outcome(self, loaded: LoadedModel, request: MuteRequest) -> Outcome:
        one = request if request.heads else replace(request, how="zero")  # nothing muted, in whichever way
        return self._outcomes.get(
            one.key, lambda: outcome(loaded, one.text, one.heads, one.how, start=one.start, others=one.others)
        )

    def copied(self, request: CopyRequest) -> CopyEffect:
        """What muting heads does to the loss on a repeated copy. Raises UserError as ``copy_effect``."""
        loaded = load_model(request.model)
        full = replace(request, heads=tuple(sorted(set(request.heads))), revision=loaded.revision)
        return self._outcomes.get(
            full.key, lambda: copy_effect(loaded, full.heads, full.how, start=full.start, seed=full.seed)
        )

    def sweep(self, request: SweepRequest, say: Callable[[float], None] | None = None) -> tuple[LadderPoint, ...]:
        """Quality on each rung: as shipped where it was measured ahead, else measured now.

        ``say`` is called with the share done, 0 to 1. Raises UserError as ``ladder_sweep``.
        """
        return self._sweep(request, say or _silent)

    def sweep_job(self, request: SweepRequest) -> AbstractContextManager[Job]:
        """``sweep`` in a thread of its own; equal requests share it, and it stops when the last one leaves."""
        return self._jobs.watch(request.key, lambda say: self._sweep(request, say))

    def _sweep(self, request: SweepRequest, say: Callable[[float], None]) -> tuple[LadderPoint, ...]:
        loaded = load_model(request.model)
        known = shipped_points(loaded.id, loaded.revision, request.rungs)
        if known is not None:
            return known
        full = replace(request, revision=loaded.revision)
        points: tuple[LadderPoint, ...] = self._sweeps.get(full.key, lambda: ladder_sweep(loaded, full.rungs, say=say))
        return points

    def ladder_view(self, request: ViewRequest, say: Callable[[float], None] | None = None) -> LadderView:
        """One text on every rung, ``say`` told the share done. Raises UserError as ``ladder_view.ladder_view``."""
        return self._view(request, say or _silent)

    def view_job(self, request: ViewRequest) -> AbstractContextManager[Job]:
        """``ladder_view`` in a thread of its own, with its progress."""
        return self._jobs.watch(request.key, lambda say: self._view(request, say))

    def _view(self, request: ViewRequest, say: Callable[[float], None]) -> LadderView:
        loaded = load_model(request.model)
        full = replace(request, revision=loaded.revision)
        view: LadderView = self._views.get(
            full.key,
            lambda: ladder_view(loaded, full.text, full.layer, full.head, start=full.start, say=say),
        )
        return view


def _silent(_: float) -> None:
    """Progress that nobody watches."""


def _run(loaded: LoadedModel, request: TraceRequest) -> AttentionTrace:
    traced: AttentionTrace = trace(
        loaded,
        request.text,
        pair=request.pair,
        start=request.start,
        keep=request.keep,
        layer=request.layer,
        what_if=request.what_if,
    )
    return traced


def _logged(
    run: Callable[[LoadedModel, TraceRequest], AttentionTrace], loaded: LoadedModel, request: TraceRequest
) -> AttentionTrace:
    result = run(loaded, request)
    log.info("trace %s %.0f ms", hashlib.sha256(request.key.encode()).hexdigest()[:12], result.seconds * 1000)
    return result


_default: list[Engine | RemoteEngine] = []
_default_lock = threading.Lock()


def default_engine() -> Engine | RemoteEngine:
    """The engine of this process, made by whoever asks first: the one HEADSCOPE_ENGINE names, else one of its own."""
    with _default_lock:
        if not _default:
            own, address = Engine(), settings().engine
            _default.append(RemoteEngine(address, own) if address else own)
        return _default[0]
