"""Figures as plain dictionaries that plotly draws, the same in every view, and images of them."""
