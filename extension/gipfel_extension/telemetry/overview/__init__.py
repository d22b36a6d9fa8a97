"""Lowest, mean and highest values per stretch of time: what a picture of a long run is drawn from."""
