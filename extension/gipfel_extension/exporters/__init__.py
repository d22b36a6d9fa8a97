"""Runs in the forms of other systems: MLflow runs over HTTP, and RO-Crates."""
