"""Every visit starts here: page settings and the navigation. Pages not built yet are absent."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from attention.reach import notice
from pages.shared.bar import draw_bar, has_bar
from pages.shared.glossary import glossary
from pages.shared.link_values import mend_link
from pages.shared.present import class_menu, present_mode
from pages.shared.site import navigation

ASSETS = Path(__file__).resolve().parents[1] / "assets"

st.set_page_config(
    page_title="Headscope",
    page_icon=str(ASSETS / "icon.png"),
    layout="wide",
    initial_sidebar_state="collapsed",
)
st.html(ASSETS / "app.css")
st.logo(str(ASSETS / "wordmark.svg"), size="large", link=None)
mend_link()
present_mode()
class_menu()

chosen = st.navigation(navigation(), position="top")
glossary(chosen.url_path)
if has_bar(chosen.url_path):
    draw_bar()
remark = st.container()
chosen.run()
if notice():  # known only once the page has asked the engine
    remark.info(notice(), icon=":material/info:")
