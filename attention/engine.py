"""Engine: the one door the pages knock on. One frozen request in, one NumPy-only picklable result out."""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import replace

from attention.model_facts import list_models
from attention.models import LoadedModel, load_model
from attention.settings import settings
from attention.single_flight import SingleFlight
from attention.tracing import AttentionTrace, Check, TraceRequest, trace

log = logging.getLogger("headscope")


class Engine:
    """Traces for all sessions of this process, each distinct one computed once.

    ``trace_mb`` bounds what is kept (MiB). Requests are logged by the hash of their key,
    never with text.
    """

    def __init__(self, trace_mb: int | None = None) -> None:
        megabytes = settings().trace_mb if trace_mb is None else trace_mb
        self._traces = SingleFlight(megabytes * 2**20, lambda traced: traced.nbytes)
        self._verified = SingleFlight(2**20, lambda _: 1024)

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
        return self._traces.get(full.key, lambda: _traced(loaded, full))

    def verify(self, request: TraceRequest) -> Check:
        """The comparison with the model's own SDPA output, once per distinct trace."""
        traced = self.trace(request)
        return self._verified.get(traced.request.key, traced.verify)


def _traced(loaded: LoadedModel, request: TraceRequest) -> AttentionTrace:
    result = trace(
        loaded,
        request.text,
        pair=request.pair,
        start=request.start,
        keep=request.keep,
        layer=request.layer,
        what_if=request.what_if,
    )
    log.info("trace %s %.0f ms", hashlib.sha256(request.key.encode()).hexdigest()[:12], result.seconds * 1000)
    return result


_default: list[Engine] = []
_default_lock = threading.Lock()


def default_engine() -> Engine:
    """The engine of this process, made by whoever asks first."""
    with _default_lock:
        if not _default:
            _default.append(Engine())
        return _default[0]
