"""What a visitor sees. Streamlit only: pages read widgets, ask the engine and place figures."""
