"""One visitor with bad intentions on a machine without a network: a program of its own, run by test_offline.py.

``python -m tests.browser.offline_journey <empty folder> <folder of converted weights>`` inside new network and mount
namespaces. The checkout becomes read-only, HOME and TMPDIR lie in the empty folder; what was seen is printed as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

ROOT = Path(__file__).resolve().parents[2]
MARK = "seven quilted zebras"
PAYLOAD = (
    f"{MARK} <img src=x onerror=window.__pwned=1><script>window.__pwned=1</script><svg onload=window.__pwned=1></svg>"
    "<iframe src=javascript:window.__pwned=1></iframe> [x](javascript:window.__pwned=1) \u202egnp.exe"
)
# In every page, before its own scripts: keeps what the policy refuses.
LISTEN = """window.__refused = [];
addEventListener('securitypolicyviolation', (e) => window.__refused.push(`${e.violatedDirective} ${e.blockedURI}`));"""
# Elements that only the payload can have made, those in the shadow of components included.
MADE = """() => {
  const wanted = 'img[src="x"], [onerror], [onload], iframe[src^="javascript"], a[href^="javascript"]';
  const inside = (root) => [...root.querySelectorAll(wanted)].map((one) => one.outerHTML.slice(0, 100))
    .concat(...[...root.querySelectorAll('*')].filter((one) => one.shadowRoot).map((one) => inside(one.shadowRoot)));
  return inside(document);
}"""
# Read by the server's Python at its start: writes down every address it turns to that is not this machine's own.
HOOK = """import os, sys
def note(event, given):
    if event in ('socket.connect', 'socket.sendto', 'socket.getaddrinfo'):
        host = given[1][0] if event != 'socket.getaddrinfo' and isinstance(given[1], tuple) else given[0]
        if isinstance(host, (str, bytes)) and str(host) not in ('127.0.0.1', '::1', 'localhost', '0.0.0.0', ''):
            with open(os.environ['HEADSCOPE_TEST_TURNED_TO'], 'a') as file:
                file.write(f'{event} {host}\\n')
sys.addaudithook(note)
"""
CONTROL = """() => document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.__pwned = 1">')"""


def main(folder: Path, weights: Path) -> dict[str, Any]:
    """Shut the machine in, start the app, visit every page."""
    for command in (["ip", "link", "set", "lo", "up"], ["mount", "--bind", ROOT, ROOT]):
        subprocess.run(command, check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", ROOT], check=True)
    home, temporary = folder / "home", folder / "tmp"
    models = home / ".cache" / "headscope" / "v1" / "models"
    for new in (temporary, models):
        new.mkdir(parents=True)
    for one in weights.iterdir():
        if one.is_dir() and not one.name.startswith("."):
            (models / one.name).symlink_to(one)
    hook = folder / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    turned_to = folder / "turned_to"
    turned_to.touch()
    before = files_in(folder)
    from benchmarks.server import start_app

    os.chdir(ROOT)
    environ = {"HOME": str(home), "TMPDIR": str(temporary), "HEADSCOPE_CACHE": "", "OMP_NUM_THREADS": "1"}
    environ |= {"PYTHONPATH": str(hook), "HEADSCOPE_TEST_TURNED_TO": str(turned_to), "PYTHONDONTWRITEBYTECODE": "1"}
    server = start_app(environ)
    try:
        pages = server.first_run()
        until_quiet(server)
        stranger = as_a_stranger(server.url)
        lost = outgoing()
        seen = visited(server.url, [page.path for page in pages])
    finally:
        code = server.stop(60)
    return {
        **seen,
        "written": sorted(files_in(folder) - before),
        "log": server.log(),
        "code": code,
        "lost": lost,
        "stranger": stranger,
        "turned_to": turned_to.read_text().split("\n")[:-1],
        "hooked": control_of(environ),
    }


def visited(url: str, paths: list[str]) -> dict[str, Any]:
    """Each page once, by a hostile link and with hostile words in its boxes."""
    from playwright.sync_api import sync_playwright

    from benchmarks.chromium import DRAWN, launch
    from tests.page_links import BOUND

    asked: list[str] = []
    errors: list[str] = []
    pages: dict[str, Any] = {}
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(LISTEN)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        for path in paths:
            reply = page.goto(f"{url}/{path}?{urlencode(dict.fromkeys(BOUND[path], PAYLOAD))}")
            assert reply is not None
            page.wait_for_function(DRAWN, timeout=120_000)
            boxes = page.get_by_test_id("stMain").locator("input[type=text]:visible, textarea:visible").all()[:2]
            filled = 0
            for box in boxes:
                if box.is_editable() and box.get_attribute("role") != "combobox":
                    box.fill(PAYLOAD)
                    box.press("Control+Enter")
                    filled += 1
                    page.wait_for_function(DRAWN, timeout=120_000)
            pages[path] = {
                "headers": {name: value for name, value in reply.headers.items() if "-" in name},
                "pwned": page.evaluate("() => window.__pwned ?? null"),
                "made": page.evaluate(MADE),
                "refused": page.evaluate("() => window.__refused"),
                "filled": filled,
                "text": page.locator("body").inner_text(),
            }
        page.evaluate(CONTROL)
        page.wait_for_function("() => window.__refused.some((one) => one.startsWith('script-src-attr'))")
        control = {"made": page.evaluate(MADE), "pwned": page.evaluate("() => window.__pwned ?? null")}
        chromium.close()
    own = urlsplit(url).netloc
    foreign = [one for one in asked if urlsplit(one).scheme in {"http", "https", "ws"} and urlsplit(one).netloc != own]
    return {"pages": pages, "control": control, "foreign": foreign, "errors": errors, "asked": len(asked)}


def as_a_stranger(url: str) -> list[int]:
    """What another site's page is answered when it connects, and when it fetches."""
    from urllib.request import ProxyHandler, Request, build_opener

    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect
    from websockets.typing import Origin, Subprotocol

    origin, answers = Origin("https://stranger.example"), []
    try:
        address = url.replace("http://", "ws://") + "/_stcore/stream"
        with connect(address, subprotocols=[Subprotocol("streamlit")], origin=origin, proxy=None):
            answers.append(101)
    except InvalidStatus as refusal:
        answers.append(refusal.response.status_code)
    request = Request(f"{url}/_stcore/health", headers={"Origin": origin})
    with build_opener(ProxyHandler({})).open(request, timeout=10) as reply:
        answers.append(len(reply.headers.get_all("Access-Control-Allow-Origin") or []))
    return answers


def control_of(environ: dict[str, str]) -> bool:
    """Whether the hook and the count of packets do notice a program that turns to another host."""
    before, file = outgoing(), Path(environ["HEADSCOPE_TEST_TURNED_TO"])
    program = "import socket; s = socket.socket(); s.settimeout(1); s.connect_ex(('192.0.2.1', 9))"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **environ}, check=True)
    return outgoing() > before and "192.0.2.1" in file.read_text()


def until_quiet(server: Any, seconds: float = 120) -> None:
    """Wait until the server has loaded all it loads at its start."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while "preload ended" not in server.log():
        assert time.monotonic() < end, server.log()
        pause.wait(0.2)


def outgoing() -> int:
    """Packets in this namespace that had nowhere to go, look-ups of names included. (Chromium itself sends some.)"""
    ip = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Ip:")]
    ip6 = dict(line.split() for line in Path("/proc/net/snmp6").read_text().splitlines())
    return int(dict(zip(*ip, strict=True))["OutNoRoutes"]) + int(ip6.get("Ip6OutNoRoutes", 0))


def files_in(folder: Path) -> set[str]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
