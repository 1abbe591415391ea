"""Results in, Plotly figures and viewer bytes out. Imports plotly and numpy, never streamlit or torch."""
