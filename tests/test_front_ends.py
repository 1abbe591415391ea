"""The proxy before several processes: HAProxy itself, with small servers that say their names in the app's place."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.server import free_port
from deploy.front_ends import COOKIE, FrontEndError, configuration, find_haproxy, front_ends, main

ROOM_ROUTES = ("open", "lead", "show", "close", "follow", "qr")
PATIENCE = 30.0


@dataclass
class Stub:
    """A server that answers every request with its name and the headers it got; it can be ended and begun again."""

    name: str
    port: int = field(default_factory=free_port)
    files_served: int = 0

    def begin(self) -> None:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                stub.files_served += "/static/" in self.path
                body = json.dumps({"name": stub.name, "headers": dict(self.headers)}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                if "/static/" in self.path:
                    self.send_header("cache-control", "public, immutable, max-age=31536000")
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # a proxy that has seen enough closes the connection
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Site:
    """The proxy's address, the servers behind it, and the proxy's log."""

    port: int
    stubs: list[Stub]
    log_path: Path

    def ask(
        self, path: str, method: str = "GET", cookie: str = "", headers: dict[str, str] | None = None
    ) -> tuple[dict[str, object], http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        sent = {"Connection": "close", **({"Cookie": f"{COOKIE}={cookie}"} if cookie else {}), **(headers or {})}
        connection.request(method, path, headers=sent)
        reply = connection.getresponse()
        body = reply.read()
        connection.close()
        assert reply.status == 200, body
        return json.loads(body), reply.headers

    def named(self, path: str, method: str = "GET", cookie: str = "") -> str:
        return str(self.ask(path, method, cookie)[0]["name"])

    def stub(self, name: str) -> Stub:
        return next(stub for stub in self.stubs if stub.name == name)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    stubs = [Stub(f"app{number}") for number in (1, 2, 3)]
    for stub in stubs:
        stub.begin()
    found = Site(free_port(), stubs, tmp_path / "log")
    written = tmp_path / "haproxy.cfg"
    written.write_text(configuration([f"127.0.0.1:{stub.port}" for stub in stubs], f"127.0.0.1:{found.port}"))
    with found.log_path.open("wb") as log:
        proxy = subprocess.Popen([find_haproxy(), "-db", "-f", written], stdout=log, stderr=subprocess.STDOUT)
    wait_for(lambda: _answers(found.port))
    yield found
    proxy.terminate()
    proxy.wait(PATIENCE)
    for stub in stubs:
        stub.end()


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    pytest.fail("It did not come to pass in time.")


def _answers(port: int) -> bool:
    try:
        http.client.HTTPConnection("127.0.0.1", port, timeout=1).connect()
    except OSError:
        return False
    return True


def test_visitors_from_one_address_are_spread_and_each_stays_where_they_are(site: Site) -> None:
    given = [site.ask("/")[1]["set-cookie"] for _ in range(6)]
    names = [cookie.partition("=")[2].partition(";")[0] for cookie in given]
    assert set(names) == {"app1", "app2", "app3"}
    assert all("HttpOnly" in cookie and "SameSite=Lax" in cookie for cookie in given)
    for name in names:
        assert {site.named("/_stcore/stream", cookie=name) for _ in range(3)} == {name}
        assert site.ask("/media/picture.png", cookie=name)[1]["set-cookie"] is None


def test_who_stays_with_a_process_that_dies_is_given_another_at_once(site: Site) -> None:
    site.stub("app2").end()
    body, headers = site.ask("/cache", cookie="app2")
    assert body["name"] in {"app1", "app3"}
    assert headers["set-cookie"].startswith(f"{COOKIE}={body['name']}")
    site.stub("app2").begin()  # the fixture ends it


def test_rooms_are_in_one_process_whatever_the_cookie_says(site: Site) -> None:
    asked = [(route, cookie) for route in ROOM_ROUTES for cookie in ("", "app2", "app3")]
    homes = {site.named(f"/room/{route}", "POST", cookie) for route, cookie in asked}
    below = {site.named(f"/lessons/room/{route}", "POST", cookie) for route, cookie in asked}
    assert homes == below
    assert len(homes) == 1
    assert site.named("/room/open?x", "GET", "app3") in homes  # a path decides, not what follows it
    assert site.named("/lesson", cookie="app3") == "app3"  # a page is no room


def test_rooms_move_when_their_process_dies_and_do_not_move_back(site: Site) -> None:
    home = site.named("/room/open", "POST")
    site.stub(home).end()
    new = site.named("/room/open", "POST")
    assert new != home
    wait_for(lambda: f"Server rooms/{home} is DOWN" in site.log_path.read_text())
    assert site.named("/room/open", "POST") == new
    site.stub(home).begin()
    wait_for(lambda: f"Server rooms/{home} is UP" in site.log_path.read_text())
    assert {site.named("/room/follow", "POST") for _ in range(4)} == {new}


def test_the_log_holds_no_query_string_and_no_address(site: Site) -> None:
    site.ask("/cache?text=my+secret+sentence", headers={"Referer": "http://here/?text=my+secret+sentence"})
    wait_for(lambda: "GET /cache 200" in site.log_path.read_text())
    log = site.log_path.read_text()
    assert "secret" not in log
    assert "127.0.0.1" not in log


def test_the_app_hears_who_asks_and_nobody_can_pretend(site: Site) -> None:
    forged = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}
    heard = site.ask("/", headers=forged)[0]["headers"]
    assert isinstance(heard, dict)
    names = {name.lower(): value for name, value in heard.items()}
    assert names["x-forwarded-for"] == "127.0.0.1"
    assert "x-forwarded-proto" not in names


def test_files_are_kept_at_the_proxy_and_belong_to_no_process(site: Site) -> None:
    path = "/static/js/index.js"
    first, headers = site.ask(path, cookie="app1")
    again = [site.ask(path, cookie=name)[0] for name in ("app2", "app3", "app1")]
    assert [body["name"] for body in again] == [first["name"]] * 3
    assert sum(stub.files_served for stub in site.stubs) == 1
    assert headers["set-cookie"] is None


def test_https_adds_what_only_https_may_promise(tmp_path: Path) -> None:
    plain = configuration(["127.0.0.1:1"], "*:80")
    safe = configuration(["127.0.0.1:1"], "*:443", tmp_path / "site.pem")
    assert f"bind *:443 ssl crt {tmp_path / 'site.pem'}" in safe
    assert 'attr "SameSite=Lax" secure' in safe
    assert " ssl crt " not in plain
    assert not [line for line in plain.splitlines() if line.strip().startswith("cookie") and "secure" in line]
    assert "@" not in "".join(line for line in safe.splitlines() if not line.lstrip().startswith("#"))


def test_the_printed_configuration_is_one_haproxy_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print", "--processes", "4", "--port", "8600"]) == 0
    printed = tmp_path / "haproxy.cfg"
    printed.write_text(capsys.readouterr().out)
    checked = subprocess.run([find_haproxy(), "-c", "-f", printed], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr
    assert sum("127.0.0.1:8514" in line for line in printed.read_text().splitlines()) == 3  # pages, files, rooms


def test_a_port_that_is_taken_is_refused_before_anything_starts(site: Site) -> None:
    with (
        pytest.raises(FrontEndError, match=f"Port {site.port} cannot be used"),
        front_ends(1, site.port),
    ):
        pytest.fail("It started beside the other one.")


def test_without_haproxy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(FrontEndError, match="apt-get install haproxy"):
        find_haproxy(install=True)
