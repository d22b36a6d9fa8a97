"""Figures as plain dictionaries for plotly, the same in every view, and PNG images of them."""
