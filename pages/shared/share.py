"""The Share button: copies the address of this very page, with everything the browser itself added to it."""

from __future__ import annotations

import streamlit as st

# The button has its name before the script runs.
_HTML = """<button type="button" id="share">Share</button><span id="said" role="status" aria-live="polite"></span>"""

_CSS = """
:host { display: block; }
button { font: inherit; color: var(--st-text-color); background: var(--st-background-color);
  border: 1px solid var(--st-border-color); border-radius: var(--st-button-radius, 0.5rem);
  min-height: 2.5rem; padding: 0.25rem 0.75rem; cursor: pointer; white-space: nowrap; }
button:hover, button:focus-visible { color: var(--st-primary-color); border-color: var(--st-primary-color); }
button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 1px; }
button[disabled] { opacity: 0.5; cursor: not-allowed; }
#said { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
"""

_JS = """
export default function ({ data, parentElement }) {
  const button = parentElement.querySelector("#share");
  const said = parentElement.querySelector("#said");
  const rest = "Share";
  button.textContent = rest;
  button.disabled = data.disabled;
  button.title = data.disabled
    ? "The sentence is too long for a link. Download the page's files instead."
    : "Copy a link that shows exactly this page.";
  let timer = 0;
  const say = (words) => {
    button.textContent = words;
    said.textContent = words;
    clearTimeout(timer);
    timer = setTimeout(() => { button.textContent = rest; }, 2000);
  };
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      say("Link copied");
    } catch (refused) {
      // Without https browsers refuse the clipboard: show the link, selected, to copy by hand.
      window.prompt("Copy this link:", location.href);
    }
  };
  return () => clearTimeout(timer);
}
"""

_component = st.components.v2.component("headscope_share", html=_HTML, css=_CSS, js=_JS)


def share_button(disabled: bool) -> None:
    """Place the button. ``disabled``: the sentence is too long for a link."""
    _component(key="share", data={"disabled": disabled}, width="content")
