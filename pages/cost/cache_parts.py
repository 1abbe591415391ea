"""Pieces the tabs of the KV cache page share: a chart with its table and its file, bytes as words, the working."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from attention.kv_working import Working, readable
from attention.plots.cache_charts import Chart, csv_text
from pages.shared.tables import table

MOST_ROWS = 60
MOST_LETTERS = 24  # a longer cell may break into lines
STYLE = """<style>
/* The spoken heading is taken out of the flow: as wide as the page it would make the page scroll sideways. */
[data-testid="stElementContainer"]:has(> [data-testid="stHtml"] > .hs-only-spoken) { width: 1px !important; }
.hs-answer { font-size: clamp(1.35rem, 2.4vw, 2.1rem); line-height: 1.25; margin: 0; font-weight: 400;
  overflow-wrap: anywhere; }
.hs-answer b { font-weight: 700; }
.hs-verdict { font-size: 1.5rem; font-weight: 700; margin: 0; line-height: 1.2; }
ul.hs-facts { margin: 0.5rem 0 0 !important; padding: 0 !important; list-style: none;
  font-variant-numeric: tabular-nums; }
.hs-facts li { margin: 0 !important; padding: 0.35rem 0 !important; border-top: 1px solid #8883; }
.hs-facts b { white-space: nowrap; }
.hs-note { font-size: 0.9rem; margin: 0; opacity: 0.85; line-height: 1.5; }
.hs-work { font-variant-numeric: tabular-nums; line-height: 1.6; margin: 0; padding-inline-start: 1.1rem; }
</style>"""


def draw(chart: Chart, key: str, name: str, work: Callable[[], None] | None = None) -> None:
    """A chart, its numbers as a table on request, and as a CSV file; ``work`` fills a "Show working" beside them."""
    st.plotly_chart(chart.figure, key=key, alt=chart.alt, config={"displayModeBar": False})
    with st.container(horizontal=True, vertical_alignment="center"):
        if work:
            with working_popover():
                work()
        with st.popover("As a table", type="tertiary"):
            shown = _thinned(chart.rows)
            left_out = (
                f" (every {-(-len(chart.rows) // MOST_ROWS)}th; the file has all)"
                if len(shown) < len(chart.rows)
                else ""
            )
            table(f"{name}{left_out}", chart.headers, [tuple(map(_cell, row)) for row in shown])
        csv_button(chart.headers, chart.rows, key)


def csv_button(headers: Sequence[str], rows: Sequence[Sequence[str | int | float]], key: str) -> None:
    """The same numbers, exact, as a file."""
    st.download_button(
        "CSV",
        lambda: csv_text(headers, rows),
        f"{key}.csv",
        "text/csv",
        key=f"{key}-csv",
        on_click="ignore",
        type="tertiary",
        help="The same numbers, exact, for a spreadsheet.",
    )


def small(text: str) -> None:
    """A smaller line of plain words, shown literally."""
    st.html(f'<p class="hs-note">{html.escape(text)}</p>')


def working_popover() -> Any:
    """The button under a number that opens its working."""
    return st.popover("Show working", type="tertiary", icon=":material/calculate:")


def listed(lines: Sequence[str]) -> None:
    """Lines of a working, shown literally."""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    st.html(f'<ul class="hs-work">{items}</ul>')


def show_working(working: Working) -> None:
    """The formula with this model's numbers, one line for each kind of layer, and their sum."""
    st.markdown("bytes = layers × numbers per token × bytes per number × tokens kept × users")
    listed([line.text for line in working.lines] + ([working.reason] if working.reason else []))
    st.markdown(f"Together **{working.total:,} bytes = {readable(working.total)}**.")


def style() -> str:
    """The page's styles; the words on a chosen model's label are dark where the accent is light."""
    ground = "#15171a" if theme() == "dark" else "#ffffff"
    return f"{STYLE}<style>.st-key-c_with span[title], .st-key-c_with span[title] ~ * {{ color: {ground}; }}</style>"


def theme() -> str:
    """Whether the visitor's page is light or dark."""
    return str(st.context.theme.type or "light")


def seconds(value: float) -> str:
    """A time a reader can compare: 13 µs, 9.9 ms, 1.2 s."""
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:,.1f} s"


def _thinned(rows: Sequence[tuple[str | int | float, ...]]) -> list[tuple[str | int | float, ...]]:
    return list(rows[:: -(-len(rows) // MOST_ROWS)]) if len(rows) > MOST_ROWS else list(rows)


def _cell(value: str | int | float) -> str:
    return value if isinstance(value, str) else f"{value:,}"
