"""The engine's door on another machine: the same questions and answers, asked over HTTP.

Answers are read by type (``attention.wire``): a hostile server can lie about numbers, but cannot run code here, send
without end or keep anyone waiting without end.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from attention import reach, wire
from attention.atlas import HeadAtlas, ScoresRequest
from attention.doors import DOORS, Door, LinkRequest, Say
from attention.errors import UserError
from attention.jobs import Job, Jobs, stop_if_left
from attention.links import HeadLink
from attention.model_facts import BUNDLED, UNTRAINED
from attention.models import LoadedModel
from attention.muting import CopyEffect, CopyRequest, MutedEffect, MuteRequest
from attention.rung_views import LadderView, ViewRequest
from attention.rungs import LadderPoint, SweepRequest
from attention.settings import settings
from attention.single_flight import SingleFlight
from attention.tracing import AttentionTrace, Check, TraceRequest
from attention.turns import Turns

if TYPE_CHECKING:
    from attention.engine import Engine

CONNECT_SECONDS = 3.0
SILENCE_SECONDS = 10.0  # the server says every half second how far it is
ANSWER_BYTES = 2**30
TRIES = 2  # a connection that breaks is begun anew once: every question may be asked twice


class GoneError(Exception):
    """The shared engine did not answer, or not with an answer."""


class FaultError(GoneError):
    """The shared engine is there and failed at this one question."""


class RemoteEngine:
    """An ``Engine`` whose results are computed elsewhere; each distinct one is fetched once.

    ``address`` is ``http://host:port``. While it does not answer, ``local`` answers for the bundled models; for any
    other model a UserError says what happened. ``model`` is always ``local``'s: a torch module cannot be sent, and the
    pages that look into one (its start tokens, its weights, writing token by token) keep it in their own process. So
    app and server need the same model folders. What was fetched is kept until the app starts anew: after new weights
    under an old name, restart both.
    """

    def __init__(self, address: str, local: Engine, look: reach.Reach | None = None) -> None:
        self.address = address
        self.local = local
        self.reach = look or reach.default_reach
        self._answers = SingleFlight(settings().trace_mb * 2**20, lambda kept: kept[1])
        self._jobs = Jobs(Turns(settings().heavy_jobs))

    def models(self) -> tuple[str, ...]:
        """Ids that can be asked for, by the server's account; never kept."""
        if self.reach.may_try():
            try:
                found: tuple[str, ...] = self._fetched(
                    DOORS["models"], "models", wire.to_bytes(wire.Nothing()), _silent
                )[0]
            except GoneError:
                return self.local.models()
            return found
        return self.local.models()

    def model(self, model_id: str) -> LoadedModel:
        """The loaded model of this process. Raises UserError as ``load_model``."""
        return self.local.model(model_id)

    def trace(self, request: TraceRequest) -> AttentionTrace:
        """The trace of a request. Raises UserError as ``attention.trace`` does."""
        traced: AttentionTrace = self._ask("trace", request, request.model)
        return traced

    def verify(self, request: TraceRequest) -> Check:
        """The comparison with the model's own SDPA output, made by the server."""
        check: Check = self._ask("verify", request, request.model)
        return check

    def scores(self, request: ScoresRequest, progress: Say | None = None) -> HeadAtlas:
        """Every head's scores, label and evidence, as ``Engine.scores``."""
        atlas: HeadAtlas = self._ask("scores", request, request.model, progress or _silent)
        return atlas

    def link(self, request: TraceRequest, query: str | int, key: str | int) -> tuple[HeadLink, ...]:
        """Every head by its weight on one link of a traced text. Raises UserError as ``rank_heads_for_link``."""
        links: tuple[HeadLink, ...] = self._ask("link", LinkRequest(request, query, key), request.model)
        return links

    def muted(self, request: MuteRequest) -> MutedEffect:
        """What muting heads changes on one text. Raises UserError as ``muted_effect``."""
        effect: MutedEffect = self._ask("muted", request, request.model)
        return effect

    def copied(self, request: CopyRequest) -> CopyEffect:
        """What muting heads does to the loss on a repeated copy. Raises UserError as ``copy_effect``."""
        effect: CopyEffect = self._ask("copied", request, request.model)
        return effect

    def sweep(self, request: SweepRequest, say: Say | None = None) -> tuple[LadderPoint, ...]:
        """Quality on each rung. Raises UserError as ``ladder_sweep``."""
        points: tuple[LadderPoint, ...] = self._ask("sweep", request, request.model, say or _silent)
        return points

    def sweep_job(self, request: SweepRequest) -> AbstractContextManager[Job]:
        """``sweep`` in a thread of its own; when the last watcher leaves, the server is told to stop too."""
        return self._jobs.watch(request.key, lambda say: self.sweep(request, say))

    def ladder_view(self, request: ViewRequest, say: Say | None = None) -> LadderView:
        """One text on every rung. Raises UserError as ``attention.ladder_view.ladder_view``."""
        view: LadderView = self._ask("ladder_view", request, request.model, say or _silent)
        return view

    def view_job(self, request: ViewRequest) -> AbstractContextManager[Job]:
        """``ladder_view`` in a thread of its own, with its progress."""
        return self._jobs.watch(request.key, lambda say: self.ladder_view(request, say))

    def _ask(self, name: str, request: Any, model: str, say: Say | None = None) -> Any:
        """The server's answer, fetched once; this process's own where the server is away and the model is bundled."""
        door, tell, body = DOORS[name], say or _silent, wire.to_bytes(request)
        if len(body) > wire.QUESTION_BYTES:
            return door.ask(self.local, request, tell)  # which says by how much the text is too long
        if self.reach.may_try():
            try:
                return self._answers.get(f"{name} {request.key}", lambda: self._fetched(door, name, body, tell))[0]
            except GoneError:
                pass
        if model.removesuffix(UNTRAINED) not in {bundled.id for bundled in BUNDLED}:
            raise UserError(
                f"The shared engine does not answer, and {model} is only there.",
                f"Meanwhile there are {' and '.join(bundled.id for bundled in BUNDLED)}.",
                "Choose one of these, or try again in a minute.",
            )
        return door.ask(self.local, request, tell)

    def _fetched(self, door: Door, name: str, body: bytes, say: Say) -> tuple[Any, int]:
        """The server's answer and its bytes. Raises UserError as the server did, GoneError without an answer."""
        try:
            data = self._data(door, name, body, say)
            answer = wire.decode(door.gives, data)
        except wire.WireError as error:
            self.reach.failed()
            raise GoneError(str(error)) from None
        except (UserError, FaultError):
            self.reach.answered()
            raise
        except GoneError:
            self.reach.failed()
            raise
        self.reach.answered()
        return answer, len(data)

    def _data(self, door: Door, name: str, body: bytes, say: Say) -> bytearray:
        """The answer's bytes; one connection that breaks is forgiven."""
        for attempt in range(1, TRIES + 1):
            try:
                with _posted(self.address, name, body, door.seconds) as response:
                    return _read_answer(response, say)
            except (OSError, http.client.HTTPException) as error:
                # Silence and refusal are not tried again: whoever waits has waited long enough.
                if attempt == TRIES or isinstance(error, TimeoutError | ConnectionRefusedError):
                    raise GoneError(type(error).__name__) from None
        raise AssertionError


def _silent(_: float) -> None:
    """Progress that nobody watches."""


@contextmanager
def _posted(address: str, name: str, body: bytes, seconds: float) -> Iterator[http.client.HTTPResponse]:
    """The response to a posted request. Whatever happens inside, the connection is cut after ``seconds``."""
    parts = urlsplit(address)
    of_scheme = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = of_scheme(parts.hostname or "", parts.port, timeout=CONNECT_SECONDS)
    held: list[socket.socket] = []  # http.client forgets its socket where the server means to close it
    watchdog = threading.Timer(seconds, lambda: _cut(held[0] if held else connection.sock))
    watchdog.daemon = True
    watchdog.start()
    try:
        connection.connect()
        held.append(connection.sock)
        held[0].settimeout(SILENCE_SECONDS)
        connection.request("POST", f"/v1/{name}", body, {"Content-Type": "application/octet-stream"})
        yield connection.getresponse()
    finally:
        watchdog.cancel()
        _cut(held[0] if held else connection.sock)  # closing alone leaves it open while its response is referred to
        connection.close()


def _cut(sock: socket.socket | None) -> None:
    """End a connection under its reader, who then sees it break."""
    if sock is not None:
        with suppress(OSError):  # it may have ended by itself meanwhile
            sock.shutdown(socket.SHUT_RDWR)


def _read_answer(response: http.client.HTTPResponse, say: Callable[[float], None]) -> bytearray:
    """The payload of the answer's frame, progress going to ``say``. Raises the UserError sent, GoneError on a fault."""
    if response.status != 200:
        raise GoneError(f"status {response.status}")
    while True:
        kind, size = wire.FRAME.unpack(_exactly(response, wire.FRAME.size))
        if size > ANSWER_BYTES:
            raise GoneError("an answer too large")
        payload = _exactly(response, size)
        stop_if_left()
        if kind == wire.ANSWER:
            return payload
        if kind == wire.MISTAKE:
            raise wire.mistake_from_bytes(payload)
        if kind == wire.FAULT:
            raise FaultError
        if kind != wire.PROGRESS or size != wire.SHARE.size:
            raise wire.WireError("not a frame")
        say(min(1.0, max(0.0, wire.SHARE.unpack(payload)[0])))


def _exactly(response: http.client.HTTPResponse, size: int) -> bytearray:
    """The next ``size`` bytes, straight into the place they stay. Raises ConnectionError when there are fewer."""
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        got = response.readinto(view[at:])
        if not got:
            raise ConnectionResetError
        at += got
    return data
