"""What every page is asked in every size and colour scheme: is it readable for everybody, does it scroll sideways."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

# axe's way to name parts of a page. The page's own part leaves Streamlit's navigation around it out.
MAIN = {"include": [["[data-testid=stMain]"]]}


def violations(page: Page, parts: dict[str, Any] | None = None, rule: str = "") -> list[str]:
    """What axe-core finds in the whole page, or in the parts named as axe names them; of one rule if named."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate(
        """([parts, rule]) => axe.run(parts ?? document, {
          resultTypes: ['violations'], ...(rule ? { runOnly: { type: 'rule', values: [rule] } } : {})
        }).then((told) => told.violations)""",
        [parts, rule],
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
