"""Mounts present mode and the class menu on every page. They live in the browser; only the toggle reruns a page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from attention.plots.scripts import ELEMENTS, script, style
from pages.shared.site import PAGES, base_path

ASSETS = Path(__file__).resolve().parents[2] / "assets"
# What the settings bar of one page hands to the next while slides go on from page to page.
CARRIED = ("text", "model", "start")


_present = st.components.v2.component("headscope_present", js=script("present.js"), isolate_styles=False)
_room = st.components.v2.component("headscope_room", css=style("room.css"), js=script(*ELEMENTS, "room.js"))


def present_mode() -> None:
    """The toggle behind ``?present=true``, out of sight, and the frame that presses it; key ``p``."""
    st.html(ASSETS / "present.css")
    on = st.toggle("Present this page", key="present", bind="query-params", persist_state="session")
    pages = [{"path": page.path, "title": page.title} for page in PAGES]
    theme = str(st.context.theme.type or "light")
    data = {"on": on, "theme": theme, "base": base_path(), "pages": pages, "carried": list(CARRIED)}
    _present(key="presenting", data=data, on_theme_change=_run_again)


def _run_again() -> None:
    """Naming a callback is enough: the page runs again, in the browser's new theme."""


def class_menu() -> None:
    """The menu in the corner: present, open a room, join one."""
    _room(key="room", data={"base": base_path()})
