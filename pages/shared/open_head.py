"""A link that opens one head on the Heads page, without loading the app again."""

from __future__ import annotations

import streamlit as st

_CSS = """
:host { display: block; }
a { color: var(--st-link-color); font: inherit; font-weight: 600; text-decoration: underline;
  text-underline-offset: 0.15em; display: inline-block; padding: 0.15rem 0; }
a:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
"""

# The address is the page's own with the head added, so model and sentence go along. Streamlit hears popstate and
# changes the page in place; a middle click opens the same address in a new tab.
_JS = """
export default function ({ data, parentElement }) {
  let link = parentElement.querySelector("a");
  if (!link) {
    link = document.createElement("a");
    parentElement.append(link);
  }
  const address = () => {
    const search = new URLSearchParams(location.search);
    for (const name of [...search.keys()]) if (name.startsWith("v.")) search.delete(name);
    for (const [name, value] of Object.entries(data.asked)) search.set(name, value);
    return `${new URL(".", location.href).pathname}?${search}`;
  };
  link.textContent = data.label;
  link.href = address();
  link.onpointerenter = link.onfocus = () => { link.href = address(); };
  link.onclick = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    history.pushState({}, "", address());
    dispatchEvent(new PopStateEvent("popstate", { state: {} }));
  };
}
"""

_component = st.components.v2.component("headscope_open_head", css=_CSS, js=_JS)


def open_head(
    label: str, layer: int, head: int, *, key: str, query: int | None = None, text: str | None = None
) -> None:
    """Place the link. ``query`` is a token's position; ``text`` another sentence than the bar's."""
    asked = {"v.layer": str(layer), "v.head": str(head)}
    if query is not None:
        asked["v.query"] = str(query)
    if text is not None:
        asked["text"] = text
    _component(key=key, data={"label": label, "asked": asked}, width="content")
