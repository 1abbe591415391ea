"""The tools of this folder: a watched tab notices what it should and forgets what it must, servers end."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page

from benchmarks.server import AppServer
from tests.browser.conftest import Tab, Watch

PROVOCATIONS = [
    ("console.warn('hm')", "console", None),
    ("console.error('ouch')", "console", "console error: ouch"),
    ("setTimeout(() => { throw new Error('ow') })", "weberror", "script error: "),
    ("void fetch('http://example.invalid/x').catch(() => 0)", "requestfailed", "request to another host: http://ex"),
]


def test_a_watched_tab_notices_errors_and_foreign_hosts_but_no_warnings(browser: Browser, app_url: str) -> None:
    watch = Watch(lambda: {urlsplit(app_url).netloc})
    context = browser.new_context(bypass_csp=True)  # so that a foreign request is made at all
    watch.on(context)
    page = context.new_page()
    page.goto(f"{app_url}/_stcore/health")
    for script, event, fault in PROVOCATIONS:
        before = watch.faults()
        with context.expect_event(event):
            page.evaluate(script)
        new = [line for line in watch.faults() if line not in before]
        assert any(line.startswith(fault) for line in new) if fault else watch.faults() == []
    heard = watch.faults()
    watch.off(context)
    with context.expect_event("console"):
        page.evaluate("console.error('unheard')")
    assert "console error: unheard" not in [*heard, *watch.faults()]
    context.close()


def test_a_tab_that_was_used_before_is_as_good_as_new(browser: Browser, app_url: str) -> None:
    tab = Tab(browser, phone=False)
    page = tab.arrive(color_scheme="dark")
    page.goto(app_url)
    page.set_viewport_size({"width": 500, "height": 500})
    page.context.grant_permissions(["clipboard-read"])
    page.context.add_cookies([{"name": "left", "value": "behind", "url": app_url}])
    page.route("**/*", lambda route: route.abort())
    page.evaluate(
        "() => { localStorage.left = sessionStorage.left = window.left = 'behind'; history.pushState(0, '') }"
    )
    assert tab.forget()
    assert tab.arrive() is page
    page.goto(f"{app_url}/_stcore/health")
    seen = page.evaluate(
        """async () => ({
          width: innerWidth, history: history.length, dark: matchMedia('(prefers-color-scheme: dark)').matches,
          left: [localStorage.left, sessionStorage.left, window.left], cookie: document.cookie.includes('behind'),
          clipboard: (await navigator.permissions.query({ name: 'clipboard-read' })).state,
        })"""
    )
    assert seen == {
        "width": 1440,
        "history": 2,  # the empty page and this one
        "dark": False,
        "left": [None, None, None],
        "cookie": False,
        "clipboard": seen["clipboard"],
    }
    assert seen["clipboard"] != "granted"
    page.goto("about:blank")
    tab.context.close()


def test_a_tab_that_cannot_forget_is_not_used_again(browser: Browser, app_url: str) -> None:
    """Storage of two hosts is one too many, and a closed tab is gone."""
    for spoil in (
        lambda tab: tab.page.goto("file:///"),
        lambda tab: tab.page.close(),
        lambda tab: tab.context.new_page(),
    ):
        tab = Tab(browser, phone=True)
        tab.page.goto(f"{app_url}/_stcore/health")
        spoil(tab)
        assert not tab.forget()
        tab.context.close()


def test_a_tab_is_as_wide_as_a_desk_and_a_phone(page: Page, phone: Page) -> None:
    for tab, width in ((page, 1440), (phone, 390)):
        tab.set_content("<meta name='viewport' content='width=device-width, initial-scale=1'>")
        assert tab.evaluate("window.innerWidth") == width
    assert phone.evaluate("navigator.maxTouchPoints") > 0


def test_the_navigation_is_read_from_the_app(app_server: AppServer) -> None:
    pages = app_server.first_run()
    assert pages[0].path == ""
    assert pages[0].title == "Heads"
    assert len({link.path for link in pages}) == len(pages)
