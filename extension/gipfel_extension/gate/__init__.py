"""Scan models, notebooks and packages before they are loaded; nothing in them is executed."""
