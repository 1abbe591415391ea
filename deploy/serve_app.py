"""The shared engine, served by Ray Serve: ``python -m deploy.serve_app --port 8600 --replicas 2``.

One process listens for questions (``deploy.door``) and hands each to a replica (``deploy.replica``), a process of its
own that holds models. Ray itself stays on this machine: its ports listen on 127.0.0.1, every call between its
processes carries a token made at the start, it has no dashboard, reports nothing, and its memory is bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import uvicorn

from attention.model_facts import list_models
from deploy.door import Answers, door_app

STORE_BYTES = 512 * 2**20  # of the memory Ray's processes pass results through
ONGOING = 64  # questions one replica may hold at once: those that wait are what groups are made of
CONNECTIONS = 512
STARTS = 3
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for "this machine only": it then binds 127.0.0.1
    "RAY_LOG_TO_STDERR": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_AUTH_MODE": "token",
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
MISSING = "The shared engine needs Ray, which is not installed here. Run: make engine"


def main(arguments: Sequence[str] | None = None) -> int:
    """Start Ray and its replicas, then answer until stopped (Ctrl+C or SIGTERM)."""
    chosen = _options(arguments)
    os.environ.update(QUIET | {"RAY_AUTH_TOKEN": secrets.token_hex(32)})
    os.environ.pop("RAY_ADDRESS", None)  # never join somebody else's cluster
    try:
        import ray
    except ImportError:
        print(MISSING, file=sys.stderr)
        return 1
    folder = tempfile.mkdtemp(prefix="hsray")
    try:
        answers = Answers(_started(chosen, folder), (ray.exceptions.RayActorError,))
        server = uvicorn.Server(
            uvicorn.Config(
                door_app(answers),
                host=chosen.host,
                port=chosen.port,
                access_log=False,
                log_level="warning",
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=2,
            )
        )
        print(f"The shared engine listens on http://{chosen.host}:{chosen.port}; Ctrl+C here stops it.", flush=True)
        with suppress(KeyboardInterrupt, SystemExit):  # what Ctrl+C and SIGTERM become once all connections are closed
            asyncio.run(server.serve())
        return 0 if server.started else 1
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _started(chosen: argparse.Namespace, folder: str) -> Any:
    """Start Ray with its files in ``folder`` and the replicas; gives the function that asks one of them."""
    import ray
    from ray import serve

    from deploy.replica import Replica

    _patient(
        ray,
        address="local",
        num_cpus=chosen.cpus,
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
        _system_config={"automatic_object_spilling_enabled": False},  # results hold texts: never to disk
    )
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled")
    engine = serve.deployment(
        Replica,
        name="engine",
        num_replicas=chosen.replicas,
        max_ongoing_requests=ONGOING,
        ray_actor_options={"num_cpus": min(1.0, chosen.cpus / chosen.replicas)},
        health_check_period_s=2,
        graceful_shutdown_timeout_s=2,
    )
    handle = serve.run(engine.bind(chosen.models), name="headscope", route_prefix=None)

    async def ask(name: str, body: bytes) -> AsyncGenerator[tuple[bytes, Any]]:
        items = handle.options(stream=True).answer.remote(name, body)
        try:
            async for item in items:
                yield item
        finally:
            items.cancel()  # nothing where it has ended; else the replica learns that nobody waits

    return ask


def _patient(ray: Any, **given: Any) -> None:
    """Start Ray; its parts have 30 s to find each other, which a busy machine may miss once."""
    for attempt in range(1, STARTS + 1):
        try:
            ray.init(**given)
        except Exception:  # Ray raises a plain one
            ray.shutdown()
            if attempt == STARTS:
                raise
        else:
            return


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.serve_app", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; there is no password")
    parser.add_argument("--port", type=int, default=8600)
    parser.add_argument("--replicas", type=int, default=1, help="processes that hold models; each keeps one core busy")
    parser.add_argument("--cpus", type=int, default=2, help="cores the replicas share")
    parser.add_argument("--models", nargs="*", default=list_models(), help="loaded at the start; all that are listed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
