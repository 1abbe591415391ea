"""The class plan: ten stops with minutes, the question to ask, and a link that is the slide."""

from __future__ import annotations

import html

import streamlit as st

from attention.quiz import class_plan
from pages.learn.quiz_parts import address, link_html


def show() -> None:
    """The stops in order. Each link opens its page in exactly the state the class should see."""
    slides = class_plan()
    total = sum(slide.minutes for slide in slides)
    items = "".join(
        f"<li><b>{html.escape(slide.title)}</b>, {slide.minutes} minutes<br>Ask: {html.escape(slide.ask)}<br>"
        f"{link_html(slide.link, note=False)} · "
        f'<a class="hs-q-link" data-hs-go href="{html.escape(address(slide.link))}">Show here</a></li>'
        for slide in slides
    )
    st.html(
        f"<h2 class='hs-q-text'>A class of {total} minutes in {len(slides)} links</h2>"
        "<p class='hs-q-small'>Each link is a slide and opens in a new tab. “Show here” takes this window there, and "
        "the room that follows it.<br>Who is lost presses it again: the page comes back as the class sees it. In a "
        "room the key f does so.<br>Let everybody answer before you touch anything.</p>"
        f"<ol class='hs-q-plan'>{items}</ol>"
    )
