"""Chromium and the real app for the tests in this folder.

Every page a test opens is watched: an error in the browser's console, an
exception in a script and a request to any other host each fail the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from benchmarks.chromium import launch
from benchmarks.server import AppServer, start_app

DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
# Opened at /cache, Streamlit's own script first asks whether the app lives below /cache, and Chromium logs the 404.
PROBE = re.compile(r"/.+/_stcore/(health|host-config)")
SERVERS = pytest.StashKey[list[AppServer]]()
LOG_BEGINS = pytest.StashKey[dict[Path, int]]()


@dataclass
class Watch:
    """What went wrong in one browser context. A test that provokes an error on purpose clears the list it expects."""

    console_errors: list[str] = field(default_factory=list)
    page_errors: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)

    def on(self, context: BrowserContext, hosts: Callable[[], set[str]]) -> None:
        """Listen to every page of the context, those it opens later included."""
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.page_errors.append(str(error.error)))
        context.on("request", lambda request: self._look_at(request.url, hosts()))

    def _hear(self, line: ConsoleMessage) -> None:
        url = line.location["url"]
        if line.type == "error" and not PROBE.fullmatch(urlsplit(url).path):
            self.console_errors.append(f"{line.text} {url}".strip())

    def _look_at(self, url: str, hosts: set[str]) -> None:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https", "ws", "wss"} and parts.netloc not in hosts:
            self.foreign_requests.append(url)

    def faults(self) -> list[str]:
        """One line per fault."""
        return [
            *(f"console error: {text}" for text in self.console_errors),
            *(f"script error: {text}" for text in self.page_errors),
            *(f"request to another host: {url}" for url in self.foreign_requests),
        ]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVERS] = []
    config.stash[LOG_BEGINS] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    servers = item.config.stash[SERVERS]
    item.config.stash[LOG_BEGINS] = {server.log_path: server.log_path.stat().st_size for server in servers}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if report.failed:
        for server in item.config.stash[SERVERS]:
            words = server.log(since=item.config.stash[LOG_BEGINS].get(server.log_path, 0))
            if words.strip():
                report.sections.append((f"what the server at {server.url} said", words[-8000:]))
    return report


@pytest.fixture(scope="session")
def serve(pytestconfig: pytest.Config) -> Iterator[Callable[..., AppServer]]:
    """Starts servers that live until the session ends."""
    yield from _serving(pytestconfig)


@pytest.fixture
def fresh_server(pytestconfig: pytest.Config) -> Iterator[Callable[..., AppServer]]:
    """Call it for a server that no page has been asked of yet; ``environ=`` adds settings. It ends with the test."""
    yield from _serving(pytestconfig)


@pytest.fixture(scope="session")
def app_server(serve: Callable[..., AppServer]) -> AppServer:
    """The app all tests of this process share; its first page has run once, so that no test pays for a cold start."""
    server = serve()
    server.first_run()
    return server


@pytest.fixture(scope="session")
def app_url(app_server: AppServer) -> str:
    """The shared app's address, without a slash at the end."""
    return app_server.url


# Of this folder only, not of the session: while Playwright runs, asyncio.run() fails in the same thread, and the
# tests outside this folder may need it.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium; contexts keep tests apart."""
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()


@pytest.fixture
def watch() -> Watch:
    """The faults of the pages this test opened."""
    return Watch()


@pytest.fixture
def open_context(
    browser: Browser, watch: Watch, pytestconfig: pytest.Config
) -> Iterator[Callable[..., BrowserContext]]:
    """Call it for a watched context with Playwright's own options, for example ``color_scheme="dark"``."""
    contexts: list[BrowserContext] = []

    def hosts() -> set[str]:
        return {urlsplit(server.url).netloc for server in pytestconfig.stash[SERVERS]}

    def open_one(**options: Any) -> BrowserContext:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        watch.on(context, hosts)
        contexts.append(context)
        return context

    yield open_one
    for context in contexts:
        context.close()
    faults = watch.faults()
    if faults:
        pytest.fail("The page did not stay clean:\n" + "\n".join(faults), pytrace=False)


@pytest.fixture
def page(open_context: Callable[..., BrowserContext]) -> Page:
    """A tab of 1440 × 900."""
    return open_context().new_page()


@pytest.fixture
def phone(open_context: Callable[..., BrowserContext]) -> Page:
    """A tab of 390 × 844 that is touched, not clicked."""
    return open_context(viewport=PHONE, has_touch=True, is_mobile=True).new_page()


def _serving(config: pytest.Config) -> Iterator[Callable[..., AppServer]]:
    mine: list[AppServer] = []

    def serve_one(environ: dict[str, str] | None = None) -> AppServer:
        server = start_app(environ)
        mine.append(server)
        config.stash[SERVERS].append(server)
        return server

    yield serve_one
    for server in mine:
        server.stop()
        config.stash[SERVERS].remove(server)
        server.log_path.unlink(missing_ok=True)
