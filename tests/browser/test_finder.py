"""Head finder in Chromium: from two words to a head on the Heads page; mute, see the change, unmute; looks."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from benchmarks.chromium import wait_until_drawn
from tests.browser.looks import MAIN, overflow, violations

PATIENCE = 120_000  # ms; two cores, many tests
# The bits Plotly was given: one text for the bars before muting, one for those after.
BARS = """() => [...document.querySelectorAll('.st-key-f-similar .js-plotly-plot')].flatMap(
  (plot) => plot.data.map((side) => side.x.bdata))"""


def opened(page: Page, url: str, query: str = "") -> None:
    page.goto(f"{url}/finder{query}")
    expect(answer(page)).to_be_visible(timeout=PATIENCE)
    wait_until_drawn(page)


def answer(page: Page) -> Locator:
    return page.locator("h2.hs-f-answer")


def sees(page: Page, words: str | re.Pattern[str]) -> None:
    expect(answer(page)).to_have_text(words, timeout=PATIENCE)
    wait_until_drawn(page)


def bars(page: Page, same: bool) -> list[str]:
    """Both sides' bits, once they are on the screen and alike, or not."""
    ready = f"(same) => {{ const sides = ({BARS})(); return sides.length === 2 && (sides[0] === sides[1]) === same; }}"
    page.wait_for_function(ready, arg=same, timeout=PATIENCE)
    return page.evaluate(BARS)


def test_from_two_words_to_the_head_on_the_heads_page(page: Page, app_url: str) -> None:
    opened(page, app_url)
    sees(page, "they looks at cats: 57 % in layer 3, head 1")
    page.get_by_role("button", name="she → Alice").click()
    sees(page, "she looks at Alice: 70 % in layer 1, head 3")
    key_row = page.locator(".st-key-f_key")
    key_row.get_by_text("fed", exact=True).click()
    sees(page, re.compile("^she looks at fed: "))
    expect(page).to_have_url(re.compile("f_key=fed"))
    key_row.get_by_text("Alice", exact=True).click()
    sees(page, "she looks at Alice: 70 % in layer 1, head 3")
    said = page.locator(".hg-said")
    page.locator(".hg-cell[tabindex='0']").focus()
    for name in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(name)
    link = page.get_by_role("link", name="Open L2 H4 in Heads").first
    expect(link).to_be_visible(timeout=PATIENCE)
    expect(said).to_have_text(re.compile("^Layer 2, head 4: she looks at Alice with 56 %"))
    expect(page.locator(".hg-cell:focus")).to_have_attribute("aria-pressed", "true")
    link.click()
    where = page.get_by_role("region", name="Head viewer").get_by_text("Layer 2, head 4 (numbered from 0)")
    expect(where).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_role("textbox", name="Sentence")).to_have_value("Alice fed the cats because she was kind.")
    expect(page).to_have_url(re.compile(r"/\?.*v\.layer=2&v\.head=4&v\.query=6"))
    expect(page.locator(".hs-headline, .hs-where").filter(has_text="Layer 2, head 4").first).to_be_visible()


def test_mute_watch_the_change_unmute_and_nothing_is_left(page: Page, app_url: str) -> None:
    opened(page, app_url, "?f_tab=Mute+heads&f_mute=")
    sees(page, re.compile("^No head is muted"))
    before, after = bars(page, same=True)
    assert before == after
    cell = page.locator(".hg-cell").nth(5 * 12 + 11)
    cell.click()
    sees(page, re.compile("^With 1 head muted"))
    expect(cell).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile(r"f_mute=L5\+H11"))
    still, changed = bars(page, same=False)
    assert still == before
    page.reload()
    sees(page, re.compile("^With 1 head muted"))
    assert bars(page, same=False) == [still, changed]
    page.get_by_role("button", name="Unmute all").click()
    sees(page, re.compile("^No head is muted"))
    expect(page.get_by_text("identical to before, bit for bit")).to_be_visible()
    assert bars(page, same=True) == [before, before]


def test_a_phone_reads_every_tab(visitor: Callable[..., Page], app_url: str) -> None:
    page = visitor(phone=True, color_scheme="dark")
    opened(page, app_url)
    for tab in ("All heads", "Mute heads", "Find by two words"):
        page.get_by_role("tab", name=tab).tap()
        wait_until_drawn(page)
        assert overflow(page) == []
        assert violations(page, MAIN) == [], tab
    for place in (0, 1):
        box = page.locator(".st-key-f-five > div").nth(place).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
    size = page.locator(".hg-cell").first.bounding_box()
    assert size is not None
    assert size["height"] >= 24
