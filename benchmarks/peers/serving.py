"""Any Streamlit program as a process of its own: ours and the peers start through the same few lines."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.server import LOCAL, ROOT, AppServer, free_port

ASK_EVERY = 0.02  # seconds between two questions whether it is up: small beside the seconds measured
OURS = ("run", "app.py")
HELLO = ("hello",)
NAIVE = ("run", "benchmarks/peers/naive.py")


@contextmanager
def streamlit_server(
    command: Sequence[str], environ: Mapping[str, str] | None = None, timeout: float = 120.0
) -> Iterator[AppServer]:
    """``streamlit <command>`` on a free port, healthy; it ends with the block.

    All run in the project's folder, so that all have the same .streamlit/config.toml.
    Raises RuntimeError with the server's words when it is not up in time.
    """
    port = free_port()
    handle, name = tempfile.mkstemp(prefix="headscope-bench-", suffix=".log")
    with os.fdopen(handle, "wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "streamlit", *command, "--server.headless", "true"),
                *("--server.port", str(port), "--server.address", "127.0.0.1"),
            ],
            cwd=ROOT,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    server = AppServer(process, f"http://127.0.0.1:{port}", Path(name))
    try:
        _wait(server, time.monotonic() + timeout)
        yield server
    finally:
        server.stop()
        server.log_path.unlink(missing_ok=True)


def _wait(server: AppServer, deadline: float) -> None:
    while not _is_up(server.url):
        if time.monotonic() > deadline or server.process.poll() is not None:
            raise RuntimeError(f"{server.url} did not come up. It said:\n{server.log()}")
        try:
            server.process.wait(ASK_EVERY)
        except subprocess.TimeoutExpired:
            continue


def _is_up(url: str) -> bool:
    try:
        with LOCAL.open(f"{url}/_stcore/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, http.client.HTTPException):
        return False
