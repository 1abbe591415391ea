"""What holds on every page, tab by tab and in both themes: axe finds nothing, one heading, short sentences."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from benchmarks.chromium import wait_until_drawn
from pages.shared.site import PAGES
from tests.browser.looks import overflow, violations

LONGEST_SENTENCE = 25  # words
PATIENCE = 60_000  # milliseconds; the machine may be busy with other tests
# Every place of a page that looks different, as its link; the first is the page as it opens.
PLACES = {
    "": ("", "?tab=Why+this+number%3F"),
    "finder": ("", "?f_tab=All+heads", "?f_tab=Mute+heads&f_mute=L0H2"),
    "shapes": ("", "?s_tab=Cost%3A+MHA+against+GQA", "?s_tab=Break+it"),
    "pytorch": ("",),
    "write": ("",),
    "cache": ("", "?c_tab=Choose+n_kv", "?c_tab=Sharing+and+windows"),
    "ladder": ("",),
    "lesson": tuple(f"?n_part={part}" for part in range(1, 10)),
    "quiz": ("", "?q_tab=Class+plan"),
}
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


def faults(page: Page) -> list[str]:
    """Everything this file minds, on the page as it stands."""
    headings = page.locator("h1").count()
    return [
        *violations(page),
        *overflow(page),
        *([] if headings == 1 else [f"{headings} first headings"]),
        *(f"too long: {sentence}" for sentence in too_long(page)),
    ]


def lasting(page: Page) -> list[str]:
    """The faults that are still there when the page has come to rest: while a theme turns, old and new stand mixed."""
    found: list[str] = []
    for _ in range(3):
        wait_until_drawn(page)
        found = faults(page)
        if not found:
            break
    return found


def test_no_page_is_left_out() -> None:
    assert list(PLACES) == [page.path for page in PAGES]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path or "heads")
def test_every_place_of_a_page_in_both_themes(path: str, visitor: Callable[..., Page], app_url: str) -> None:
    page = visitor(reduced_motion="reduce")
    found: dict[str, list[str]] = {}
    for at, place in enumerate(PLACES[path]):
        schemes = ("light", "dark") if at % 2 == 0 else ("dark", "light")
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            if scheme == schemes[0]:
                page.goto(f"{app_url}/{path}{place}")
            page.locator(f"body[data-hs-theme='{scheme}']").wait_for(state="attached", timeout=PATIENCE)
            found[f"{path}{place} {scheme}"] = lasting(page)
    told = [f"{place}: {fault}" for place, faults_there in found.items() for fault in faults_there]
    assert not told, "\n".join(told)
