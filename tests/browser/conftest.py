"""Chromium and the real app for the tests in this folder.

Every page a test opens is watched: an error in the browser's console, an
exception in a script and a request to any other host each fail the test.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Frame,
    Page,
    Request,
    WebError,
    sync_playwright,
)

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
    """What went wrong in the pages of one test. A test that provokes an error on purpose clears the list it expects."""

    hosts: Callable[[], set[str]]
    own_hosts: set[str] = field(default_factory=set)  # that this test answers for by itself
    console_errors: list[str] = field(default_factory=list)
    page_errors: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)

    def on(self, context: BrowserContext) -> None:
        """Listen to every page of the context, those it opens later included."""
        context.on("console", self._hear)
        context.on("weberror", self._note)
        context.on("request", self._look_at)

    def off(self, context: BrowserContext) -> None:
        """Stop listening to a context that lives on."""
        context.remove_listener("console", self._hear)
        context.remove_listener("weberror", self._note)
        context.remove_listener("request", self._look_at)

    def _hear(self, line: ConsoleMessage) -> None:
        url = line.location["url"]
        if line.type == "error" and not PROBE.fullmatch(urlsplit(url).path):
            self.console_errors.append(f"{line.text} {url}".strip())

    def _note(self, error: WebError) -> None:
        self.page_errors.append(str(error.error))

    def _look_at(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in {"http", "https", "ws", "wss"} and parts.netloc not in self.hosts() | self.own_hosts:
            self.foreign_requests.append(request.url)

    def faults(self) -> list[str]:
        """One line per fault."""
        return [
            *(f"console error: {text}" for text in self.console_errors),
            *(f"script error: {text}" for text in self.page_errors),
            *(f"request to another host: {url}" for url in self.foreign_requests),
        ]


class Tab:
    """A tab that outlives a test. A new one compiles all of Streamlit's and Plotly's scripts again: seconds a page."""

    def __init__(self, browser: Browser, phone: bool) -> None:
        self.phone = phone
        options = {"viewport": PHONE, "has_touch": True, "is_mobile": True} if phone else {"viewport": DESKTOP}
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self._devtools = self.context.new_cdp_session(self.page)
        self._origins: set[str] = set()
        self.page.on("framenavigated", self._remember)

    def _remember(self, frame: Frame) -> None:
        parts = urlsplit(frame.url)
        if frame.parent_frame is None and parts.scheme in {"http", "https", "file"}:
            self._origins.add(f"{parts.scheme}://{parts.netloc}")

    def arrive(self, **media: Any) -> Page:
        """The page as a new visitor has it, with Playwright's emulated media."""
        self.page.set_viewport_size(PHONE if self.phone else DESKTOP)
        self.page.emulate_media(**{"color_scheme": "light", "reduced_motion": "no-preference", **media})
        return self.page

    def forget(self) -> bool:
        """Forget address, history, storage, cookies, permissions and routes; False when not all of it can be."""
        if self.page.is_closed() or self.context.pages != [self.page] or len(self._origins) > 1:
            return False
        if self._origins:  # what still runs must not write after this
            self.page.evaluate(
                "() => { localStorage.clear(); sessionStorage.clear(); Storage.prototype.setItem = () => {}; }"
            )
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)
        self.page.unroute_all()
        self.context.unroute_all()
        self.context.clear_cookies()
        self.context.clear_permissions()
        self._devtools.send("Page.resetNavigationHistory")
        self._origins.clear()
        return True


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


@pytest.fixture(scope="module")
def serve_module(pytestconfig: pytest.Config) -> Iterator[Callable[..., AppServer]]:
    """Starts servers that some tests of one module share."""
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


@pytest.fixture(scope="package")
def idle_tabs(browser: Browser) -> list[Tab]:
    """Tabs no test is using, as good as new."""
    return []


@pytest.fixture
def watch(pytestconfig: pytest.Config) -> Iterator[Watch]:
    """The faults of the pages this test opened; one that is left at the end fails it."""
    watch = Watch(lambda: {urlsplit(server.url).netloc for server in pytestconfig.stash[SERVERS]})
    yield watch
    faults = watch.faults()
    if faults:
        pytest.fail("The page did not stay clean:\n" + "\n".join(faults), pytrace=False)


@pytest.fixture
def visitor(browser: Browser, idle_tabs: list[Tab], watch: Watch) -> Iterator[Callable[..., Page]]:
    """Call it for the watched tab of one more visitor: ``phone=True`` is touched, ``color_scheme="dark"`` looks so.

    The tab has been used before but remembers nothing; every visitor has cookies and storage of their own.
    """
    used: list[Tab] = []

    def arrive(phone: bool = False, **media: Any) -> Page:
        tab = next((tab for tab in idle_tabs if tab.phone is phone), None)
        if tab is None:
            tab = Tab(browser, phone)
        else:
            idle_tabs.remove(tab)
        used.append(tab)
        watch.on(tab.context)
        return tab.arrive(**media)

    yield arrive
    for tab in used:
        clean = tab.forget()
        watch.off(tab.context)
        if clean:
            idle_tabs.append(tab)
        else:
            tab.context.close()


@pytest.fixture
def open_context(browser: Browser, watch: Watch) -> Iterator[Callable[..., BrowserContext]]:
    """Call it for a watched context with Playwright's own options. Its first page is slow: prefer ``visitor``."""
    contexts: list[BrowserContext] = []

    def open_one(**options: Any) -> BrowserContext:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        watch.on(context)
        contexts.append(context)
        return context

    yield open_one
    for context in contexts:
        context.close()


@pytest.fixture
def page(visitor: Callable[..., Page]) -> Page:
    """A tab of 1440 × 900."""
    return visitor()


@pytest.fixture
def phone(visitor: Callable[..., Page]) -> Page:
    """A tab of 390 × 844 that is touched, not clicked."""
    return visitor(phone=True)


def _serving(config: pytest.Config) -> Iterator[Callable[..., AppServer]]:
    mine: list[AppServer] = []

    def serve_one(environ: dict[str, str] | None = None) -> AppServer:
        server = start_app(environ)
        mine.append(server)
        config.stash[SERVERS].append(server)
        return server

    yield serve_one
    for server in mine:
        assert server.process.poll() is None, "the server ended by itself"
        assert server.stop(timeout=60) != -signal.SIGKILL, "the server did not end when asked"
        config.stash[SERVERS].remove(server)
        server.log_path.unlink(missing_ok=True)
