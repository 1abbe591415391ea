"""What stays while the parts change: where one is, the way on and back, and how a part's words are placed."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import streamlit as st

from pages.learn.lesson_text import Part, parts, words
from pages.learn.quiz_parts import address, focus_on
from pages.shared.errors import plain
from pages.shared.share import share_button

AT = "n_part"
_MOVED = "n_moved"
# The row of a part's controls and its figure; bound to the link like all controls of the lesson.
BOUND: Any = {"bind": "query-params", "persist_state": "session"}
STYLE = """<style>
@media (hover: none) { .hs-n-keys { display: none; } }
.hs-n-lead { font-size: 0.95rem; margin: 0; opacity: 0.85; }
.hs-n-title { font-size: clamp(1.4rem, 2.4vw, 1.9rem); line-height: 1.25; font-weight: 700; margin: 0; padding: 0; }
.hs-n-title:focus { outline: none; }
.hs-n-words p { font-size: 1.1rem; line-height: 1.55; margin: 0 0 0.8rem; max-width: 38rem; overflow-wrap: anywhere; }
.hs-n-said { font-size: 1rem; line-height: 1.45; margin: 0; }
ul.hs-n-on { margin: 0 !important; padding-inline-start: 1.2rem !important; max-width: 38rem; }
.hs-n-on li { margin: 0 0 0.3rem !important; line-height: 1.5; font-size: 1.05rem; padding: 0.1rem 0; }
.hs-n-on a { font-weight: 600; text-decoration: underline; }
ul.hs-n-names { list-style: none; display: flex; flex-wrap: wrap; gap: 0.35rem; margin: 0 !important;
  padding: 0 !important; font-variant-numeric: tabular-nums; }
.hs-n-names li { border: 1px solid #8886; border-radius: 0.3rem; padding: 0.05rem 0.45rem !important;
  margin: 0 !important; font-size: 0.95rem; }
.hs-n-breath li { font-size: 1.3rem; margin: 0 0 1rem !important; }
.hs-w-text { font-size: 1.12rem; line-height: 1.75; margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.hs-w-token { border-radius: 0.25rem; padding: 0.1rem 0; }
.hs-w-looks { outline: 2px solid; }
.hs-w-new { text-decoration: none; font-weight: 700; border-bottom: 3px solid currentColor; }
.st-key-n_bar { gap: 0.5rem 0.8rem; }
</style>"""

# Streamlit's shortcuts rest while any input has the focus; on a slider, where nobody types, the keys should work too.
_KEYS = """
export default function ({ data }) {
  const onKey = (event) => {
    const on = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || !on.matches?.('input[type="range"]')) return;
    const name = data.keys[event.key.toLowerCase()];
    if (name) document.querySelector(`.st-key-${name} button:not([disabled])`)?.click();
  };
  window.addEventListener("keydown", onKey);
  return () => window.removeEventListener("keydown", onKey);
}
"""
_keys = st.components.v2.component("headscope_lesson_keys", js=_KEYS, isolate_styles=False)


def bar() -> Part:
    """Draw where one is and the buttons beside it; the part to show. Keys: N and B."""
    every = parts()
    minutes = sum(part.minutes for part in every)
    _greet_unknown_part(len(every))
    lead, keys = words("lead", n=len(every), minutes=minutes), words("keys")
    st.html(f'<p class="hs-n-lead">{html.escape(lead)} <span class="hs-n-keys">{html.escape(keys)}</span></p>')
    with st.container(horizontal=True, vertical_alignment="center", key="n_bar"):
        before, after = st.empty(), st.empty()
        at = int(
            st.segmented_control(
                words("part"),
                [str(number) for number in range(1, len(every) + 1)],
                default="1",
                required=True,
                key=AT,
                label_visibility="collapsed",
                **BOUND,
            )
        )
        before.button(
            words("back"),
            key="n_back",
            icon=":material/chevron_left:",
            shortcut="B",
            disabled=at == 1,
            on_click=_go,
            args=(at - 1,),
        )
        after.button(
            words("next"),
            key="n_next",
            type="primary",
            icon=":material/chevron_right:",
            icon_position="right",
            shortcut="N",
            disabled=at == len(every),
            on_click=_go,
            args=(at + 1,),
        )
        share_button(disabled=False)
        _keys(key="n_keys", data={"keys": {"n": "n_next", "b": "n_back"}}, width=1, height=1)
    return every[at - 1]


def _greet_unknown_part(n: int) -> None:
    """A link may ask for a part there is not: say so, and show the first."""
    slot = st.empty()
    asked = st.query_params.get(AT)
    if asked is None or AT in st.session_state or asked in {str(number) for number in range(1, n + 1)}:
        return
    slot.info(plain(words("no_part", asked=asked[:20], n=n)))


def title(part: Part) -> None:
    """The part's heading, which gets the keyboard's focus after a step."""
    every = parts()
    at = every.index(part) + 1
    where = words("place", at=at, n=len(every), minutes=part.minutes)
    st.html(
        f'<p class="hs-n-lead" role="status">{html.escape(where)}</p>'
        f'<h2 class="hs-n-title" tabindex="-1" data-at="{at}">{html.escape(part.title)}</h2>'
    )
    if st.session_state.get(_MOVED):
        focus_on(".hs-n-title", str(at))


def paragraphs(part: Part, values: Mapping[str, Any]) -> None:
    """The part's words with their numbers, then where to go on."""
    st.html(
        f'<div class="hs-n-words">{part.told_html(values)}</div><p class="hs-n-said">{html.escape(words("onward"))} '
        f'<span class="hs-n-lead">{html.escape(words("new_tab"))}</span></p>'
        f'<ul class="hs-n-on">{_links(part, values)}</ul>'
    )


def links_only(part: Part, values: Mapping[str, Any]) -> None:
    """A part whose lines are its links, written large."""
    st.html(
        f'<div class="hs-n-words">{part.told_html(values)}</div>'
        f'<ul class="hs-n-on hs-n-breath">{_links(part, values)}</ul>'
    )


def _links(part: Part, values: Mapping[str, Any]) -> str:
    """Links to the exact page state that shows more. They open a new tab: the lesson stays where it is."""
    return "".join(
        f'<li><a href="{html.escape(address(link))}" target="_blank">{html.escape(link.words)}</a></li>'
        for link in part.onward(values)
    )


def said(text: str) -> None:
    """A line above or below a figure, shown literally."""
    st.html(f'<p class="hs-n-said" role="status">{html.escape(text)}</p>')


def foot(part: Part) -> None:
    """The way on for who has read to the end of the screen."""
    every = parts()
    at = every.index(part) + 1
    if at < len(every):
        st.button(
            words("next_named", title=every[at].title),
            key="n_on",
            icon=":material/arrow_forward:",
            on_click=_go,
            args=(at + 1,),
        )
    else:
        said(words("end"))
        st.button(words("again"), key="n_again", icon=":material/restart_alt:", on_click=_go, args=(1,))


def theme() -> str:
    """Whether the visitor's page is light or dark."""
    return str(st.context.theme.type or "light")


def _go(to: int) -> None:
    st.session_state[AT] = str(min(max(to, 1), len(parts())))
    st.session_state[_MOVED] = True
