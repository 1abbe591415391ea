"""``python -m benchmarks.logged run app.py``: Streamlit as always, but the engine says what it computes."""

from __future__ import annotations

import logging
import sys

from streamlit.web.cli import main

if __name__ == "__main__":
    logging.getLogger("headscope").setLevel(logging.INFO)
    logging.getLogger("headscope").addHandler(logging.StreamHandler())
    sys.argv[0] = "streamlit"
    main()
