"""The real app as a process of its own, for tests, screenshots and benchmarks."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The app is on this machine: a proxy that the environment names must not be asked.
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class PageLink:
    """One page of the app's navigation: its title and its path after the host, ``""`` for the first page."""

    title: str
    path: str


@dataclass(frozen=True)
class AppServer:
    """A running app. ``url`` has no slash at the end; ``log_path`` gathers what the server prints."""

    process: subprocess.Popen[bytes]
    url: str
    log_path: Path

    def log(self, since: int = 0) -> str:
        """What the server printed, from byte ``since`` on."""
        return self.log_path.read_bytes()[since:].decode(errors="replace")

    def first_run(self, timeout: float = 180.0) -> tuple[PageLink, ...]:
        """Run the first page once over the websocket, as a browser would; the pages of its navigation.

        Raises TimeoutError when the run does not end in ``timeout`` seconds, and
        ConnectionError when the server closes the connection.
        """
        from streamlit.proto.BackMsg_pb2 import BackMsg
        from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
        from websockets.sync.client import connect
        from websockets.typing import Subprotocol

        begin = BackMsg()
        begin.rerun_script.query_string = ""
        pages: tuple[PageLink, ...] = ()
        deadline = time.monotonic() + timeout
        address = self.url.replace("http://", "ws://") + "/_stcore/stream"
        with connect(address, subprotocols=[Subprotocol("streamlit")], max_size=None, proxy=None) as stream:
            stream.send(begin.SerializeToString())
            while True:
                reply = stream.recv(timeout=max(0.0, deadline - time.monotonic()), decode=False)
                message = ForwardMsg.FromString(reply)
                kind = message.WhichOneof("type")
                if kind == "navigation":
                    pages = tuple(
                        PageLink(page.page_name, page.url_pathname)
                        for page in message.navigation.app_pages
                        if not page.is_hidden and not page.external_url
                    )
                if kind == "script_finished":
                    return pages

    def stop(self, timeout: float = 10.0) -> int:
        """Ask the server to end as Ctrl+C's sibling SIGTERM does, kill it if it will not; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def start_app(
    environ: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    port: int | None = None,
    module: str = "benchmarks.logged",
) -> AppServer:
    """Start the app on ``port``, a free one when None, and wait until it says that it is healthy.

    ``environ`` adds to this process's environment; ``module`` is what ``python -m``
    runs: by default Streamlit, with the engine's own lines in the log. Raises RuntimeError with the
    server's own words when it ends early or is not healthy after ``timeout`` seconds.
    """
    port = free_port() if port is None else port
    handle, name = tempfile.mkstemp(prefix="headscope-server-", suffix=".log")
    with os.fdopen(handle, "wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", module, "run", "app.py"),
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
        _wait_until_healthy(server, timeout)
    except BaseException:
        server.stop()
        raise
    return server


def free_port() -> int:
    """A port of this machine that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(server: AppServer, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if _is_healthy(server.url):
            return
        try:
            code = server.process.wait(0.1)  # the pause between two questions, cut short when the server ends
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError(f"The app ended with code {code} before it was ready. It said:\n{server.log()}")
    raise RuntimeError(f"The app was not ready after {timeout:.0f} seconds. It said:\n{server.log()}")


def _is_healthy(url: str) -> bool:
    try:
        with LOCAL.open(f"{url}/_stcore/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, http.client.HTTPException):
        return False
