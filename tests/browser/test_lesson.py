"""The lesson in Chromium, by keyboard alone: nine parts, each played with in place, and the same on a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from benchmarks.chromium import wait_until_drawn
from pages.learn.lesson_text import parts
from tests.browser.looks import MAIN, overflow, violations

LONGEST = 40_000  # milliseconds; the machine may be busy with other tests
CHARTS = (1, 3, 4, 5, 6, 7)


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Expectations wait as long as a busy machine needs."""
    expect.set_options(timeout=LONGEST)
    yield
    expect.set_options(timeout=5_000)


def go(page: Page, url: str, query: str = "") -> None:
    page.goto(f"{url}/lesson{query}")
    expect(page.locator(".hs-n-title")).to_be_visible()
    wait_until_drawn(page, 90)


def wait_until_idle(page: Page) -> None:
    expect(page.locator("[data-testid=stApp]")).to_have_attribute("data-test-script-state", "notRunning")


def address(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def at_part(page: Page, number: int) -> None:
    """The part is there, its heading has the focus, and its figure is drawn."""
    heading = page.locator(".hs-n-title")
    expect(heading).to_have_text(parts()[number - 1].title)
    expect(heading).to_be_focused()
    wait_until_idle(page)
    if number in CHARTS:
        expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    assert address(page).get("n_part", "1") == str(number)


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the focus is inside what the selector names."""
    for _ in range(40):
        if page.evaluate("(name) => Boolean(document.activeElement?.closest(name))", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {selector}")


def test_a_keyboard_is_enough_for_all_nine_parts(page: Page, app_url: str) -> None:
    go(page, app_url)
    expect(page.get_by_text("Keys: N goes on, B goes back.")).to_be_visible()
    assert violations(page) == []
    tab_to(page, ".st-key-n_word")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("What “were” blends")).to_be_visible()
    page.keyboard.press("n")
    at_part(page, 2)
    tab_to(page, ".st-key-n_heads")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("6 × 4 = 24")).to_be_visible()
    wait_until_idle(page)
    assert address(page)["n_heads"] == "6"
    page.keyboard.press("n")
    at_part(page, 3)
    tab_to(page, ".st-key-n_layer")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("Layer 2 of MiniLM")).to_be_visible()
    for number in (4, 5):
        page.keyboard.press("n")
        at_part(page, number)
    tab_to(page, ".st-key-n_tokens")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("The cache so far: 630 KiB for 14 tokens")).to_be_visible()
    page.keyboard.press("n")
    at_part(page, 6)
    page.keyboard.press("b")
    at_part(page, 5)
    page.keyboard.press("n")
    at_part(page, 6)
    tab_to(page, ".st-key-n_kv")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_text("16 K/V heads: 2 GiB at 8,192 tokens, 2x less than 4 GiB")).to_be_visible()
    assert violations(page) == []
    for number in (7, 8, 9):
        page.keyboard.press("n")
        at_part(page, number)
    with page.expect_popup() as opened:
        tab_to(page, ".hs-n-breath a")
        page.keyboard.press("Enter")
    expect(opened.value.get_by_role("navigation").or_(opened.value.locator("header")).first).to_be_visible()
    assert address(opened.value) == {"v.layer": "1", "v.head": "3", "v.query": "6"}
    opened.value.close()


def test_a_phone_reads_it_without_sideways_scrolling(visitor: Callable[..., Page], app_url: str) -> None:
    phone = visitor(phone=True, color_scheme="dark")
    for number in (2, 6):
        go(phone, app_url, f"?n_part={number}")
        assert overflow(phone) == []
        assert violations(phone, MAIN) == []
    phone.get_by_role("button", name="Next: ").click()
    expect(phone.locator(".hs-n-title")).to_have_text(parts()[6].title)
