"""Every visit starts here: page settings and the navigation. Pages not built yet are absent."""

from __future__ import annotations

import streamlit as st

st.set_page_config(page_title="Headscope", page_icon=":material/visibility:", layout="wide")

navigation = st.navigation(
    {"See": [st.Page("see/heads.py", title="Heads", default=True)]},
    position="top",
)
navigation.run()
