"""The PyTorch page in Chromium, on the real app: measured on arrival, kept in the link, readable on a phone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.looks import MAIN, overflow, violations

LONGEST = 90_000  # milliseconds; the machine may be busy with other tests
COPIED = "mha(query=x, key=x, value=x, is_causal=True)"
MEASURED = re.compile(r"^Four ways, one answer: largest difference 0\.0000\d+\. (The fused one|The server is too busy)")


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Expectations wait as long as a busy machine needs."""
    expect.set_options(timeout=LONGEST)
    yield
    expect.set_options(timeout=5_000)


def headline(page: Page) -> Locator:
    return page.locator("h2.hs-answer")


def go(page: Page, url: str, query: str = "") -> None:
    page.goto(f"{url}/pytorch{query}")
    expect(page.locator(".js-plotly-plot .main-svg").nth(2)).to_be_visible()
    wait_until_idle(page)


def wait_until_idle(page: Page) -> None:
    expect(page.locator("[data-testid=stApp]")).to_have_attribute("data-test-script-state", "notRunning")


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()


def address(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def test_the_answer_and_both_charts_are_on_the_first_screen(page: Page, app_url: str) -> None:
    go(page, app_url)
    expect(headline(page)).to_have_text(MEASURED)
    for chart in page.locator(".js-plotly-plot").all():
        box = chart.bounding_box()
        assert box is not None
        assert box["y"] > 0
        assert box["y"] + box["height"] <= 900
    expect(page.locator(".js-plotly-plot").first).to_contain_text("fused: FLASH_ATTENTION")
    assert overflow(page) == []
    assert "Traceback" not in page.locator("body").inner_text()


def test_settings_live_in_the_link_and_reach_the_code(page: Page, app_url: str) -> None:
    go(page, app_url)
    choose(page, "n_heads", "4")
    expect(page.get_by_text("n_kv_heads is now 4: 8 no longer fits.")).to_be_visible()
    choose(page, "n_kv_heads", "2")
    choose(page, "seq_len", "128")
    page.get_by_test_id("stCheckbox").get_by_text("causal").click()
    setup = page.locator("[data-testid=stCode]").filter(has_text="batch_size, seq_len")
    expect(setup).to_contain_text("batch_size, seq_len, d_model = 1, 128, 256")
    expect(setup).to_contain_text("n_heads, n_kv_heads, d_head = 4, 2, 64")
    expect(setup).not_to_contain_text("mask")
    expect(headline(page)).to_have_text(MEASURED)
    wait_until_idle(page)
    assert address(page) == {"p_heads": "4", "p_kv": "2", "p_seq": "128", "p_causal": "false"}
    said = headline(page).inner_text()
    page.reload()
    expect(headline(page)).to_have_text(said)  # kept, not measured anew
    expect(page.get_by_text("128 tokens, 4 query heads, 2 K/V heads")).to_be_visible()


def test_a_large_size_is_measured_on_request(page: Page, app_url: str) -> None:
    go(page, app_url, "?p_seq=1024&p_heads=4&p_kv=4")
    expect(headline(page)).to_have_text("1,024 tokens: not measured yet. This takes some seconds: press Measure.")
    # A quiet machine is done within a second: whoever looks now and then may miss the bar.
    page.evaluate(
        """() => new MutationObserver(() => {
          if (document.querySelector("[role=progressbar]")?.checkVisibility()) window.sawProgress = true;
        }).observe(document.body, { subtree: true, childList: true })"""
    )
    page.get_by_role("button", name="Measure", exact=True).click()
    expect(page.get_by_role("button", name="Measure again")).to_be_visible()
    assert page.evaluate("window.sawProgress")
    expect(headline(page)).to_have_text(MEASURED)
    expect(page.locator(".js-plotly-plot").nth(1)).to_contain_text("1,024")


def test_leaving_frees_the_turn_for_the_next_visitor(page: Page, visitor: Callable[..., Page], app_url: str) -> None:
    go(page, app_url, "?p_seq=2048&p_heads=2&p_kv=2")
    page.get_by_role("button", name="Measure", exact=True).click()
    expect(page.get_by_text("Running ")).to_be_visible()
    page.close()
    other = visitor()
    go(other, app_url, "?p_seq=64&p_heads=2&p_kv=1")
    expect(headline(other)).to_have_text(MEASURED)
    other.goto(f"{app_url}/pytorch?p_seq=2048&p_heads=2&p_kv=2")
    expect(headline(other)).to_contain_text("not measured yet")


def test_the_copied_snippet_copies(page: Page, app_url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    go(page, app_url)
    block = page.locator("[data-testid=stCode]").filter(has_text=COPIED)
    block.hover()
    block.get_by_role("button").click()
    page.wait_for_function("async (text) => (await navigator.clipboard.readText()).trim() === text", arg=COPIED)
    error = page.locator("[data-testid=stCode]").filter(has_text="RuntimeError: Need attn_mask")
    expect(error).to_have_count(1)


def test_a_phone_shows_it_without_sideways_scrolling(phone: Page, app_url: str) -> None:
    go(phone, app_url)
    expect(headline(phone)).to_have_text(MEASURED)
    assert overflow(phone) == []
    wide = phone.evaluate(
        """() => [...document.querySelectorAll('[data-testid=stCode], .js-plotly-plot .annotation-text, h2, h3')]
        .filter((node) => node.getBoundingClientRect().right > innerWidth + 1).map((node) => node.textContent)"""
    )
    assert wide == []
    assert violations(phone, MAIN) == []  # the phone's menu is Streamlit's own
    choose(phone, "seq_len", "256")
    expect(phone.get_by_text("256 tokens, 8 query heads")).to_be_visible()
