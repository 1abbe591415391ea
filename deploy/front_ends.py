"""N processes of the app behind HAProxy, on this machine: ``python -m deploy.front_ends --processes 2 --port 8501``.

``--print`` only writes the HAProxy configuration, for a server that starts things its own way (systemd, say).
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server import AppServer, start_app

TEMPLATE = Path(__file__).with_name("haproxy.cfg")
COOKIE = "headscope_process"
MISSING = (
    "Several processes need HAProxy in front of them, and none was found. Install it (on Debian or Ubuntu: "
    "apt-get install haproxy; on a Mac: brew install haproxy), or run one process: make app."
)
LONGEST_START = 60.0
LOOK_EVERY = 2.0  # seconds between two looks at whether all processes live


class FrontEndError(RuntimeError):
    """The front ends cannot be started; the message says why and what to do."""


@dataclass(frozen=True)
class FrontEnds:
    """What runs: the proxy, and the app's processes in the order of their names app1, app2, …"""

    url: str
    proxy: subprocess.Popen[bytes]
    proxy_log: Path
    processes: list[AppServer]
    environ: Mapping[str, str]

    def named(self, name: str) -> AppServer:
        """The process a cookie names, for example ``app2``."""
        return self.processes[int(name.removeprefix("app")) - 1]

    def log(self) -> str:
        """What the proxy has written so far."""
        return self.proxy_log.read_text(errors="replace")

    def restart_dead(self) -> list[str]:
        """Start every process that has ended again, where the proxy looks for it; their names."""
        names = []
        for at, server in enumerate(self.processes):
            if server.process.poll() is not None:
                self.processes[at] = start_app(self.environ, port=int(server.url.rpartition(":")[2]))
                server.log_path.unlink(missing_ok=True)
                names.append(f"app{at + 1}")
        return names


def configuration(addresses: Sequence[str], bind: str, certificate: Path | None = None) -> str:
    """HAProxy's configuration for app processes at ``addresses`` (``host:port``), listening at ``bind``.

    With ``certificate`` (PEM: chain and key in one file) people connect by TLS, and the cookie is sent so only.
    """
    names = [f"app{number}" for number in range(1, len(addresses) + 1)]
    pages = [f"    server {name} {at} cookie {name}" for name, at in zip(names, addresses, strict=True)]
    rooms = [
        f"    server {name} {at}{' backup' if spare else ''}"
        for spare, (name, at) in enumerate(zip(names, addresses, strict=True))
    ]
    filled = {
        "@BIND@": f"bind {bind}" + (f" ssl crt {certificate} alpn http/1.1" if certificate else ""),
        "@SECURE@": " secure" if certificate else "",
        "@PAGE_SERVERS@": "\n".join(pages),
        "@FILE_SERVERS@": "\n".join(f"    server {name} {at}" for name, at in zip(names, addresses, strict=True)),
        "@ROOM_SERVERS@": "\n".join(rooms),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for mark, value in filled.items():
        text = text.replace(mark, value)
    return text


@contextmanager
def front_ends(
    processes: int,
    port: int,
    host: str = "127.0.0.1",
    certificate: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[FrontEnds]:
    """Start ``processes`` and the proxy, wait until all answer, end all with the block.

    ``environ`` adds to the processes' environment.
    Raises FrontEndError when HAProxy is missing or does not start or the port is taken, RuntimeError when a process
    does not start.
    """
    program = find_haproxy()
    _refuse_taken(host, port)
    # Streamlit signs its cookies; who is moved to another process must be believed there too.
    environ = {"STREAMLIT_SERVER_COOKIE_SECRET": secrets.token_hex(32), **(environ or {})}
    with ExitStack() as stack:
        started: list[AppServer] = []
        stack.callback(_end, started)
        with ThreadPoolExecutor(processes) as pool:
            begun = [pool.submit(start_app, environ) for _ in range(processes)]
        started += [one.result() for one in begun if one.exception() is None]
        for one in begun:
            one.result()  # raises what kept a process from starting, now that those that did start will be ended
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headscope-haproxy-")))
        addresses = [server.url.removeprefix("http://") for server in started]
        written = folder / "haproxy.cfg"
        written.write_text(configuration(addresses, f"{host}:{port}", certificate), encoding="utf-8")
        log = folder / "haproxy.log"
        with log.open("wb") as out:
            proxy = subprocess.Popen(
                [program, "-db", "-f", written], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        stack.callback(_end_proxy, proxy)
        scheme = "https" if certificate else "http"
        ends = FrontEnds(f"{scheme}://{host}:{port}", proxy, log, started, environ)
        _wait_for_proxy(ends, host, port)
        yield ends


def find_haproxy(install: bool = False) -> str:
    """The program's path; with ``install``, apt is tried first as root. Raises FrontEndError when there is none."""
    # Debian keeps it in sbin, which is not on everybody's path.
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which("haproxy", path=path)
    if found is None and install and shutil.which("apt-get") and getattr(os, "geteuid", lambda: 1)() == 0:
        print("Installing HAProxy with apt (once)…", file=sys.stderr, flush=True)
        for command in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", "haproxy"]):
            subprocess.run(["apt-get", *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
        found = shutil.which("haproxy", path=path)
    if found is None:
        raise FrontEndError(MISSING)
    return found


def own_address() -> str:
    """This machine's address in the network it would use to reach others; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address reserved for documentation (RFC 5737)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _refuse_taken(host: str, port: int) -> None:
    """HAProxy would share a port with another HAProxy, and half of the class would be in the other one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("" if host == "*" else host, port))
        except OSError as error:
            raise FrontEndError(
                f"Port {port} cannot be used ({error.strerror}). Stop what holds it, or choose another: "
                "make classroom PORT=8600"
            ) from error


def _wait_for_proxy(ends: FrontEnds, host: str, port: int) -> None:
    deadline = time.monotonic() + LONGEST_START
    pause = threading.Event()
    while time.monotonic() < deadline:
        if ends.proxy.poll() is not None:
            raise FrontEndError(f"HAProxy ended before it was ready (is port {port} free?). It said:\n{ends.log()}")
        with socket.socket() as probe:
            if probe.connect_ex((host if host not in {"*", "::"} else "127.0.0.1", port)) == 0:
                return
        pause.wait(0.05)
    raise FrontEndError(f"HAProxy did not open port {port}. It said:\n{ends.log()}")


def _end(processes: list[AppServer]) -> None:
    for server in processes:
        server.stop()
        server.log_path.unlink(missing_ok=True)


def _end_proxy(proxy: subprocess.Popen[bytes]) -> None:
    proxy.terminate()
    proxy.wait(10)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start everything and wait for Ctrl+C, or print the configuration."""
    parser = argparse.ArgumentParser(prog="python -m deploy.front_ends", description="Headscope behind HAProxy.")
    parser.add_argument("--processes", type=int, default=2, help="processes of the app; one per core is plenty")
    parser.add_argument("--port", type=int, default=8501, help="where people connect")
    parser.add_argument("--certificate", type=Path, help="PEM file with chain and key: people connect by https")
    parser.add_argument("--print", action="store_true", help="print the configuration for processes from port 8511 on")
    parser.add_argument("--find", action="store_true", help="only say where HAProxy is")
    parser.add_argument("--install", action="store_true", help="install HAProxy with apt where it is missing")
    chosen = parser.parse_args(arguments)
    if chosen.processes < 1:
        parser.error(f"--processes is {chosen.processes}; it takes a whole number from 1 up")
    if chosen.print:
        addresses = [f"127.0.0.1:{8511 + number}" for number in range(chosen.processes)]
        print(configuration(addresses, f"*:{chosen.port}", chosen.certificate))
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):  # each ends the children, also where a script started this one
        signal.signal(number, signal.default_int_handler)
    try:
        program = find_haproxy(chosen.install)
        if chosen.find:
            print(program)
            return 0
        with front_ends(chosen.processes, chosen.port, "*", chosen.certificate) as ends:
            _say_where(ends, chosen.port)
            return _watch(ends)
    except KeyboardInterrupt:
        print("\nAll processes have ended.")
        return 0
    except FrontEndError as error:
        print(error, file=sys.stderr)
        return 1


def _watch(ends: FrontEnds) -> int:
    """Until the proxy ends: start again what has died. The visitors are on the others meanwhile."""
    while True:
        try:
            return ends.proxy.wait(LOOK_EVERY)
        except subprocess.TimeoutExpired:
            for name in ends.restart_dead():
                print(f"{name} had ended and was started again.", flush=True)


def _say_where(ends: FrontEnds, port: int) -> None:
    scheme = ends.url.partition(":")[0]
    print(f"Ready: {len(ends.processes)} behind HAProxy. The link for the class: {scheme}://{own_address()}:{port}")
    print(f"On this machine: {scheme}://localhost:{port}. Ctrl+C here ends all.")
    logs = ", ".join(str(server.log_path) for server in ends.processes)
    print(f"The proxy's log: {ends.proxy_log}. The processes' logs: {logs}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
