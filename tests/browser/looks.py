"""What every page is asked in every size and colour scheme: is it readable for everybody, does it scroll sideways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

from benchmarks.chromium import wait_until_drawn

# axe's way to name parts of a page. The page's own part leaves Streamlit's navigation around it out.
MAIN = {"include": [["[data-testid=stMain]"]]}


def violations(page: Page, parts: dict[str, Any] | None = None) -> list[str]:
    """What axe-core finds in the whole page, or in the parts named as axe names them."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate(
        "(parts) => axe.run(parts ?? document, { resultTypes: ['violations'] }).then((told) => told.violations)", parts
    )
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary'][:300]}" for rule in found for node in rule["nodes"]
    ]


def overflow(page: Page) -> list[str]:
    """Whatever makes the page scroll sideways."""
    return page.evaluate(
        """() => ['html', 'body', '[data-testid="stMain"]', '[data-testid="stMainBlockContainer"]']
        .map((name) => [name, document.querySelector(name)])
        .filter(([, node]) => node.scrollWidth > node.clientWidth + 1)
        .map(([name, node]) => `${name} ${node.scrollWidth} > ${node.clientWidth}`)"""
    )


def both_schemes(page: Page) -> Iterator[str]:
    """Show the page dark, then light, without loading it again; it begins as the first."""
    for scheme, ground in (("dark", "rgb(21, 23, 26)"), ("light", "rgb(253, 253, 252)")):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(
            "(ground) => getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor === ground",
            arg=ground,
        )
        wait_until_drawn(page)
        yield scheme
