"""The registry's web side: its API, and the operator's page."""
