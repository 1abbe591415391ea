"""A plain table that screen readers can walk: words are shown literally."""

from __future__ import annotations

import html
from collections.abc import Sequence

import streamlit as st

# Cells longer than this wrap; shorter ones (numbers) stay on one line and the table scrolls sideways instead.
MOST_LETTERS = 30
_STYLE = """<style>
.hs-table-box { overflow-x: auto; container-type: inline-size; }
/* A shadow at the side says that there is more; it goes when the end is reached, and is not there when all fits. */
@supports (animation-timeline: scroll(self inline)) {
  .hs-table-box { animation: hs-more linear both; animation-timeline: scroll(self inline); }
  @keyframes hs-more { from { box-shadow: inset -16px 0 12px -12px #8889; } to { box-shadow: none; } }
}
.hs-table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 !important;
  min-width: min(100%, 24rem); }
.hs-table caption { text-align: start; caption-side: top; padding-bottom: 0.4rem; opacity: 0.85; }
.hs-table caption span { display: block; position: sticky; left: 0; max-width: 100cqi; }
.hs-table th, .hs-table td { padding: 0.25rem 1rem 0.25rem 0; text-align: start; border: 0; vertical-align: top;
  border-bottom: 1px solid #8884; }
.hs-table td, .hs-table th[scope="row"] { white-space: nowrap; }
.hs-table td.hs-words { white-space: normal; min-width: 13rem; }
.hs-table tr.hs-chosen > * { font-weight: 700; }
</style>"""


def table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None) -> None:
    """Place a table that scrolls sideways, by keyboard too, where it is wider than the page.

    ``chosen`` is the row printed bold.
    """
    head = "".join(f'<th scope="col">{html.escape(header)}</th>' for header in headers)
    body = "".join(_row(row, index == chosen) for index, row in enumerate(rows))
    label = html.escape(caption)
    st.html(
        f'{_STYLE}<div class="hs-table-box" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="hs-table"><caption><span>{label}</span></caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(cells: Sequence[str], chosen: bool) -> str:
    first, *rest = cells
    mark = ' class="hs-chosen"' if chosen else ""
    others = "".join(
        f"<td{' class=hs-words' if len(cell) > MOST_LETTERS else ''}>{html.escape(cell)}</td>" for cell in rest
    )
    return f'<tr{mark}><th scope="row" dir="auto">{html.escape(first)}</th>{others}</tr>'
