"""Watch it write, in Chromium: stepping, writing live, stopping, leaving, a phone, both themes."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from benchmarks.chromium import wait_until_drawn

PATIENCE = 120_000  # ms; two cores, many tests


def opened(page: Page, url: str, query: str = "") -> None:
    page.goto(f"{url}/write{query}")
    expect(answer(page)).to_be_visible(timeout=PATIENCE)
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible(timeout=PATIENCE)
    wait_until_drawn(page)


def answer(page: Page) -> Locator:
    return page.locator("h2.hs-w-answer")


def sees(page: Page, words: str) -> None:
    expect(answer(page)).to_contain_text(words, timeout=PATIENCE)


def run_live(page: Page) -> None:
    page.get_by_role("button", name="Run live").click()
    expect(page.get_by_text(re.compile(r"Writing token \d+ of at most"))).to_be_visible(timeout=PATIENCE)


def test_it_opens_on_the_recording_and_steps_by_button_and_by_key(page: Page, app_url: str) -> None:
    opened(page, app_url)
    sees(page, "49 tokens cached: 2,205 KiB measured = 49 × 45 KiB by formula. At 16 bit: 1,102.5 KiB.")
    expect(page.get_by_text("Recorded on")).to_be_visible()
    expect(page.locator(".hs-w-said")).to_have_text(
        "fox looks at decided: 85 %, which followed “fox” before. Then the model writes did."
    )
    page.get_by_role("button", name="Back", exact=True).click()
    sees(page, "48 tokens cached: 2,160 KiB measured")
    expect(page).to_have_url(re.compile("w_step=38"))
    page.locator("input[type=range]").first.focus()
    page.keyboard.press("ArrowLeft")
    sees(page, "47 tokens cached")
    page.reload()
    sees(page, "47 tokens cached")
    page.get_by_role("button", name="Next", exact=True).click()
    sees(page, "48 tokens cached")


def test_it_writes_live_and_stop_keeps_what_is_written(page: Page, app_url: str) -> None:
    opened(page, app_url, "?w_tokens=96&w_prompt=One+day+the+little+cat")
    run_live(page)
    expect(page.get_by_text(re.compile(r"Writing token ([3-9]|\d\d) of at most 96"))).to_be_visible(timeout=PATIENCE)
    page.get_by_role("button", name="Stop").click()
    said = page.get_by_text(re.compile(r"Computed just now.*Stopped after \d+ of 96 tokens"))
    expect(said).to_be_visible(timeout=PATIENCE)
    found = re.search(r"Stopped after (\d+) of 96", said.inner_text())
    assert found is not None
    written = int(found[1])
    assert 3 <= written < 96
    cached = 6 + written - 1  # <|endoftext|> and five words stand before the first new token
    sees(page, f"{cached} tokens cached: {cached * 45:,} KiB measured = {cached} × 45 KiB by formula.")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    page.get_by_role("button", name="Back to the recording").click()
    sees(page, "49 tokens cached")


def test_who_leaves_stops_writing(visitor: Callable[..., Page], app_url: str) -> None:
    leaving, staying = visitor(), visitor()
    for page in (leaving, staying):  # both before either writes: 96 tokens last only seconds on a quiet machine
        opened(page, app_url, "?w_tokens=96")
    run_live(leaving)
    run_live(staying)
    together = staying.get_by_text("One other is writing too: you take turns, token by token.")
    expect(together).to_be_visible(timeout=PATIENCE)
    leaving.close()
    alone = staying.get_by_text(re.compile(r"Writing token \d+ of at most 96\.$"))
    expect(alone).to_be_visible(timeout=PATIENCE)
    last = re.search(r"token (\d+)", alone.inner_text())
    assert last is not None
    assert int(last[1]) < 96  # the other had as many to write and began earlier: it cannot simply have ended
    staying.get_by_role("button", name="Stop").click()
    expect(staying.get_by_text("Computed just now")).to_be_visible(timeout=PATIENCE)


def test_a_phone_scrolls_down_only(phone: Page, app_url: str) -> None:
    opened(phone, app_url)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    text = phone.locator("p.hs-w-text").bounding_box()
    assert text is not None
    assert text["x"] + text["width"] <= 390
    for name in ("Back", "Next"):
        box = phone.get_by_role("button", name=name, exact=True).bounding_box()
        assert box is not None
        assert box["height"] >= 24
    phone.get_by_role("button", name="Back", exact=True).tap()
    sees(phone, "48 tokens cached")
