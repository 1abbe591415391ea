"""What holds on every page, tab by tab and in both themes: axe finds nothing, one heading, short sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from benchmarks.chromium import wait_until_drawn
from pages.learn.lesson_text import parts
from pages.shared.site import PAGES
from tests.browser.looks import MAIN, overflow, violations

LONGEST_SENTENCE = 25  # words
PATIENCE = 60_000  # milliseconds; the machine may be busy with other tests
# How many tabs each page has, so that none is missed; the lesson has parts instead.
TABS = {"": 7, "finder": 3, "shapes": 3, "pytorch": 0, "write": 0, "cache": 7, "ladder": 5, "lesson": 0, "quiz": 2}
PANEL = {"include": [["[role=tabpanel]"]]}
GROUND = "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"
GROUNDS = {"light": "rgb(253, 253, 252)", "dark": "rgb(21, 23, 26)"}
# The words a reader sees as sentences: not the axes of charts, code, tables, headings or the text under study.
SENTENCES = """() => {
  const skipped = 'script, style, svg, code, pre, table, h1, h2, h3, textarea, canvas, [aria-hidden=true], [hidden]';
  const found = [];
  const walk = (root) => {
    for (const node of root.querySelectorAll('p, li, [role=status], .stCaptionContainer')) {
      if (node.closest(skipped) || node.querySelector('p, li') || !node.checkVisibility()) continue;
      found.push(node.innerText.trim());
    }
    for (const node of root.querySelectorAll('*')) if (node.shadowRoot) walk(node.shadowRoot);
  };
  walk(document);
  return [...new Set(found)];
}"""


def too_long(page: Page) -> list[str]:
    """Sentences of more words than anybody reads at once; a quoted text counts as one word."""
    texts = [re.sub(r"“[^”]*”", "it", text) for text in page.evaluate(SENTENCES)]
    sentences = [part for text in texts for part in re.split(r"(?<=[.!?:;])\s+|\n", text)]
    return [part for part in sentences if len(part.split()) > LONGEST_SENTENCE]


def faults(page: Page, within: dict[str, Any] | None = None) -> list[str]:
    """Everything this file minds, on the page as it stands; axe looks at the named parts alone if there are any."""
    headings = page.locator("h1").count()
    return [
        *violations(page, within),
        *overflow(page),
        *([] if headings == 1 else [f"{headings} first headings"]),
        *(f"too long: {sentence}" for sentence in too_long(page)),
    ]


def pale(page: Page, within: dict[str, Any] | None = None) -> list[str]:
    """Of all that is minded, what depends on the theme."""
    return violations(page, within, rule="color-contrast")


def lasting(page: Page, look: Callable[..., list[str]], within: dict[str, Any] | None) -> list[str]:
    """The faults that are still there when the page has come to rest: while a theme turns, old and new stand mixed."""
    found: list[str] = []
    for _ in range(3):
        wait_until_drawn(page)
        found = look(page, within)
        if not found:
            break
    return found


def places(page: Page, path: str) -> Iterator[str]:
    """Goes through the tabs of a page or the parts of the lesson; the name of each one reached."""
    if path == "lesson":
        yield from lesson_parts(page)
    tabs = page.get_by_role("tab")
    expect(tabs).to_have_count(TABS[path], timeout=PATIENCE)
    for tab in tabs.all():
        tab.click()
        yield tab.inner_text()
    if not TABS[path]:
        yield "the page"


def lesson_parts(page: Page) -> Iterator[str]:
    for at, part in enumerate(parts()):
        if at:
            page.keyboard.press("n")
        expect(page.locator(".hs-n-title")).to_have_text(part.title, timeout=PATIENCE)
        yield part.title


def test_no_page_is_left_out() -> None:
    assert list(TABS) == [page.path for page in PAGES]


@pytest.mark.parametrize("path", TABS, ids=lambda path: path or "heads")
def test_every_place_of_a_page_in_both_themes(path: str, visitor: Callable[..., Page], app_url: str) -> None:
    page = visitor(reduced_motion="reduce")
    page.goto(f"{app_url}/{path}")
    found: list[str] = []
    for scheme, look in (("light", faults), ("dark", pale)):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.locator(f"body[data-hs-theme='{scheme}']").wait_for(state="attached", timeout=PATIENCE)
        within = None  # all of the page first; of the other tabs what they change
        for place in places(page, path):
            found += [f"{place}, {scheme}: {fault}" for fault in lasting(page, look, within)]
            within = PANEL if TABS[path] else MAIN
        assert page.evaluate(GROUND) == GROUNDS[scheme]
        if path == "lesson":
            page.goto(f"{app_url}/lesson")
    assert not found, "\n".join(found)


def test_the_glossary_opens_by_keyboard_with_the_words_of_the_page(page: Page, app_url: str) -> None:
    page.goto(f"{app_url}/shapes")
    wait_until_drawn(page)
    page.get_by_role("button", name="Glossary").focus()
    page.keyboard.press("Enter")
    glossary = page.locator(".hs-glossary")
    expect(glossary.locator("h2").first).to_have_text("On this page", timeout=PATIENCE)
    expect(glossary.locator("dt").get_by_text("permute", exact=True)).to_be_visible()
    assert violations(page, {"include": [['[data-testid="stPopoverBody"]']]}) == []
    page.keyboard.press("Escape")
    expect(glossary).to_be_hidden()


@pytest.mark.parametrize(
    ("place", "box", "name"),
    [
        ("write", "Prompt", "w_prompt"),
        ("cache?c_tab=Paste+a+config", "A model's config.json", "c_config"),
        ("?detail=Two+sentences", "Second sentence", "compare"),
    ],
)
def test_what_follows_a_text_too_long_for_a_link_is_in_the_address_again(
    page: Page, app_url: str, place: str, box: str, name: str
) -> None:
    page.goto(f"{app_url}/{place}")
    wait_until_drawn(page)
    for text, told in (("Birds sing.", "Birds+sing."), ("ü " * 900, ""), ("Cats sleep.", "Cats+sleep.")):
        page.get_by_role("textbox", name=box).fill(text)
        page.get_by_role("textbox", name=box).press("Control+Enter")
        address = re.compile(rf"[?&]{name}={re.escape(told)}") if told else re.compile(rf"^(?!.*{name}=)")
        expect(page).to_have_url(address, timeout=PATIENCE)
        expect(page.get_by_role("textbox", name=box)).to_have_value(text)
