"""What the parts of the quick check share: style, theme, links to an exact page state, and where the focus goes."""

from __future__ import annotations

import html
from urllib.parse import quote, urlencode

import streamlit as st

from attention.errors import UserError
from attention.known_models import find_model
from attention.quiz import Link
from pages.cost.cache_inputs import model_label
from pages.shared.site import base_path

STYLE = """<style>
.hs-q-text { font-size: clamp(1.25rem, 2vw, 1.6rem); line-height: 1.3; font-weight: 600; margin: 0; padding: 0;
  max-width: 60rem; }
.hs-q-kind, .hs-q-small { font-size: 0.95rem; line-height: 1.45; margin: 0; max-width: 60rem; }
.hs-q-text, .hs-q-verdict, .hs-q-score { scroll-margin: 9rem 0 2rem; }
.hs-q-text:focus, .hs-q-verdict:focus, .hs-q-score:focus { outline: none; }
.hs-q-sentence { font-size: 1.1rem; margin: 0; }
ol.hs-q-dots { list-style: none; display: flex; flex-wrap: wrap; gap: 0.25rem; margin: 0 !important;
  padding: 0 !important; }
.hs-q-dots li { width: 1.5rem; height: 1.5rem; line-height: 1.4rem; text-align: center; border-radius: 0.3rem;
  border: 1px solid #8886; margin: 0 !important; padding: 0 !important; font-size: 0.85rem;
  font-variant-numeric: tabular-nums; }
.hs-q-dots li[aria-current] { border: 2px solid currentColor; font-weight: 700; line-height: 1.3rem; }
.hs-q-verdict { padding: 0.6rem 1rem; border-radius: 0.4rem; border: 1px solid #8886; max-width: 60rem; }
.hs-q-verdict p { margin: 0 0 0.35rem; font-size: 1.05rem; line-height: 1.45; overflow-wrap: anywhere; }
.hs-q-verdict p:first-child { font-size: 1.25rem; font-weight: 700; }
.hs-q-verdict p:last-child { margin: 0; }
.hs-q-yes { border-inline-start: 0.6rem solid var(--hs-q-green); }
.hs-q-no { padding-inline-start: 1.8rem; background:
  repeating-linear-gradient(45deg, var(--hs-q-red) 0 5px, transparent 5px 10px) left / 1rem 100% no-repeat; }
.hs-q-verdict { --hs-q-green: #0b7350; --hs-q-red: #8b0f1a; }
@media (prefers-color-scheme: dark) { .hs-q-verdict { --hs-q-green: #4fd1a1; --hs-q-red: #ff6b76; } }
.hs-q-link { font-weight: 600; text-decoration: underline; }
.hs-q-score { font-size: clamp(1.6rem, 3vw, 2.4rem); font-weight: 700; margin: 0; padding: 0; line-height: 1.2; }
ol.hs-q-plan { margin: 0 !important; padding-inline-start: 1.6rem !important; max-width: 60rem; }
.hs-q-plan li { margin: 0 0 0.7rem !important; padding-inline-start: 0.3rem !important; line-height: 1.45;
  font-size: 1.05rem; }
.hs-q-plan b { font-weight: 700; }
ul.hs-q-told { list-style: none; margin: 0 !important; padding: 0 !important; max-width: 60rem; }
.hs-q-told li { margin: 0 0 0.3rem !important; padding: 0 !important; display: flex; gap: 0.4rem; font-size: 1.05rem; }
.hs-q-told li span { flex: 0 0 1.2rem; font-weight: 700; }
.hs-q-verdict code { font-size: 0.95em; overflow-wrap: anywhere; }
[data-testid="stForm"] [role="radiogroup"] { gap: 0.5rem 1rem; }
/* While a paper is answered the boxes rest; their names stay readable. */
.st-key-q-bar [data-testid="stWidgetLabel"] * { color: #1f2328 !important; }
@media (prefers-color-scheme: dark) {
  .st-key-q-bar [data-testid="stWidgetLabel"] * { color: #e7e9ea !important; }
  [data-testid="stBaseButton-primaryFormSubmit"] { background: #1d4ed8; border-color: #1d4ed8; color: #fff; }
}
.st-key-q-steps { gap: 0.4rem; }
</style>"""

# What has just been asked for may come into the page later than this: wait for it, but not for ever.
_FOCUS = """
const PATIENCE = 10000;
const MEMORY = "__headscope_focus";

export default function ({ data, parentElement }) {
  const memory = parentElement[MEMORY] ?? (parentElement[MEMORY] = { at: null, stop: () => {} });
  if (memory.at === data.at) return () => memory.stop();
  memory.stop();
  memory.at = data.at;
  const page = parentElement.ownerDocument;
  const move = () => {
    const goal = page.querySelector(data.on);
    if (!goal || goal.dataset.at !== data.at) return;
    memory.stop();
    goal.focus();
  };
  const watcher = new MutationObserver(move);
  const timer = setTimeout(() => memory.stop(), PATIENCE);
  memory.stop = () => { watcher.disconnect(); clearTimeout(timer); };
  watcher.observe(page.body, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-at"] });
  move();
  return () => memory.stop();
}
"""
_focus = st.components.v2.component("headscope_focus", js=_FOCUS, isolate_styles=False)


def focus_on(selector: str, at: str) -> None:
    """Move the keyboard's focus to what has just appeared; ``at`` must be its ``data-at`` and differ each time."""
    _focus(key="q_focus", data={"on": selector, "at": at})


def theme() -> str:
    """Whether the visitor's page is light or dark."""
    return str(st.context.theme.type or "light")


def address(link: Link) -> str:
    """A link as the page it opens writes it: its own words for a model, and the path the app lies below."""
    state = [(name, _in_page_words(name, value)) for name, value in link.state]
    asked = urlencode(state, quote_via=quote, safe="")
    return f"{base_path()}/{link.path}" + (f"?{asked}" if asked else "")


def link_html(link: Link, *, note: bool = True) -> str:
    """The link, opened in a new tab so that the paper stays where it is; ``note`` says so beside it."""
    said = ' <span class="hs-q-small">(new tab)</span>' if note else ""
    return (
        f'<a class="hs-q-link" href="{html.escape(address(link))}" target="_blank">{html.escape(link.words)}</a>{said}'
    )


def _in_page_words(name: str, value: str) -> str:
    if name != "c_model":
        return value
    try:
        return model_label(find_model(value).name)
    except UserError:  # "My own sizes" is no model of the catalogue
        return value
