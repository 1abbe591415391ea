"""A plain table that screen readers can walk: words are shown literally."""

from __future__ import annotations

import html
from collections.abc import Sequence

import streamlit as st

_STYLE = """<style>
.hs-table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.hs-table caption { text-align: start; padding-bottom: 0.4rem; opacity: 0.85; }
.hs-table th, .hs-table td { padding: 0.2rem 0.9rem 0.2rem 0; text-align: end; border-bottom: 1px solid #8884; }
.hs-table th:first-child, .hs-table td:first-child { text-align: start; }
.hs-table tr.hs-chosen { font-weight: 700; }
</style>"""


def table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None) -> None:
    """Place a table; ``chosen`` is the row printed bold."""
    head = "".join(f'<th scope="col">{html.escape(header)}</th>' for header in headers)
    body = "".join(_row(row, index == chosen) for index, row in enumerate(rows))
    st.html(
        f'{_STYLE}<div style="overflow-x:auto"><table class="hs-table"><caption>{html.escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(cells: Sequence[str], chosen: bool) -> str:
    first, *rest = (html.escape(cell) for cell in cells)
    mark = ' class="hs-chosen"' if chosen else ""
    return f'<tr{mark}><th scope="row" dir="auto">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
