"""The tools of this folder: a watched tab notices what it should, the theme follows the browser, servers end."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from benchmarks.chromium import wait_until_drawn
from benchmarks.server import AppServer
from tests.browser.conftest import Watch


@pytest.fixture
def provoked(browser: Browser, app_url: str) -> Callable[[str], list[str]]:
    """Runs a script in a watched page; the faults it caused."""

    def provoke(script: str) -> list[str]:
        watch = Watch()
        context = browser.new_context()
        watch.on(context, lambda: {urlsplit(app_url).netloc})
        tab = context.new_page()
        tab.goto(app_url)
        wait_until_drawn(tab)
        assert watch.faults() == []
        with context.expect_event(
            "console" if "console" in script else "weberror" if "throw" in script else "requestfailed"
        ):
            tab.evaluate(script)
        context.close()
        return watch.faults()

    return provoke


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("console.error('ouch')", "console error: ouch"),
        ("setTimeout(() => { throw new Error('ow') })", "script error: "),
        ("void fetch('http://example.invalid/x').catch(() => 0)", "request to another host: http://example.invalid/x"),
    ],
)
def test_a_watched_tab_notices(provoked: Callable[[str], list[str]], script: str, fault: str) -> None:
    assert any(line.startswith(fault) for line in provoked(script))


def test_a_warning_is_not_a_fault(provoked: Callable[[str], list[str]]) -> None:
    assert provoked("console.warn('hm')") == []


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(253, 253, 252)"), ("dark", "rgb(21, 23, 26)")])
def test_the_theme_follows_the_browser(
    open_context: Callable[..., BrowserContext], app_url: str, scheme: str, ground: str
) -> None:
    tab = open_context(color_scheme=scheme).new_page()
    tab.goto(app_url)
    wait_until_drawn(tab)
    colour = "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"
    assert tab.evaluate(colour) == ground


def test_a_tab_is_as_wide_as_a_desk_and_a_phone(page: Page, phone: Page, app_url: str) -> None:
    for tab, width in ((page, 1440), (phone, 390)):
        tab.goto(app_url)
        assert tab.evaluate("window.innerWidth") == width
    assert phone.evaluate("navigator.maxTouchPoints") > 0


def test_the_navigation_is_read_from_the_app(app_server: AppServer) -> None:
    pages = app_server.first_run()
    assert pages[0].path == ""
    assert pages[0].title == "Heads"
    assert len({link.path for link in pages}) == len(pages)


def test_a_fresh_server_ends_when_asked(fresh_server: Callable[..., AppServer], page: Page) -> None:
    server = fresh_server()
    page.goto(server.url)
    wait_until_drawn(page)
    page.close()
    assert server.process.poll() is None
    server.stop()
    assert server.process.poll() is not None
