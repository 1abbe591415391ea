"""One replica of the shared engine: a process that holds models and answers questions that came over the wire."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from attention import wire
from attention.errors import UserError
from attention.settings import settings

log = logging.getLogger("headscope")
THREADS = 64
LOOK_SECONDS = 0.2  # between two looks at how far a question's work is
Item = tuple[bytes, Any]  # a frame's letter and its content

STRANGE = UserError(
    "The question cannot be read by the engine.",
    "App and engine must be of the same version.",
    "Tell whoever runs this server.",
)


class Replica:
    """Answers as an ``Engine`` does. Traces that wait together and are about equally long run together.

    ``models`` are loaded before the first question, others when they are asked for.
    """

    def __init__(self, models: Sequence[str] = ()) -> None:
        keep_to_this_machine()
        from attention.batching import Batches
        from attention.engine import Engine
        from attention.models import load_model
        from attention.turns import Turns

        self._engine = Engine(run=Batches().trace)
        self._pool = ThreadPoolExecutor(THREADS)
        self._heavy = Turns(settings().heavy_jobs)
        for model in models:
            load_model(model)

    async def answer(self, name: str, body: bytes) -> AsyncIterator[Item]:
        """The answer's frames: how far it is, then the parts of an answer, a mistake, or a fault without words."""
        work = Work()
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._item, name, body, work)
        said = 0.0
        try:
            while not (await asyncio.wait({future}, timeout=LOOK_SECONDS))[0]:
                if work.share != said:
                    said = work.share
                    yield wire.PROGRESS, said
            yield future.result()
        finally:
            work.left.set()  # whoever asked has the answer or is gone

    def _item(self, name: str, body: bytes, work: Work) -> Item:
        try:
            return wire.ANSWER, wire.encode(self._answer(name, body, work))
        except UserError as error:
            return wire.MISTAKE, wire.mistake_to_bytes(error)
        except wire.WireError:
            return wire.MISTAKE, wire.mistake_to_bytes(STRANGE)
        except Exception as error:  # told without its words, which may quote the text
            log.error("%s failed: %s", name, type(error).__name__)  # noqa: TRY400
            return wire.FAULT, b""

    def _answer(self, name: str, body: bytes, work: Work) -> Any:
        from attention.doors import DOORS, LONG
        from attention.jobs import stoppable

        if name not in DOORS:
            raise wire.WireError("no such door")
        door = DOORS[name]
        asked = wire.decode(door.asks, body)
        with stoppable(work.left.is_set):
            if door.seconds < LONG:
                return door.ask(self._engine, asked, work.say)
            with self._heavy:
                return door.ask(self._engine, asked, work.say)


class Work:
    """One question being worked on: the ``share`` done, and whether whoever asked has ``left``."""

    def __init__(self) -> None:
        self.share = 0.0
        self.left = threading.Event()

    def say(self, share: float) -> None:
        """Note progress; the work itself stops at its next forward pass once nobody waits."""
        self.share = share


def keep_to_this_machine() -> None:
    """Let the replica's own gRPC server listen on this machine only.

    Ray Serve 2.60 opens it on every network interface, and what it receives it unpickles. No public setting changes
    that; ``serve_app`` also has every call signed with a token.
    """
    from ray.serve._private import replica

    original = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, address: original(server, address.replace("[::]", "127.0.0.1"))
