"""Vetting run: an agent on every node, and a coordinator that gives them work and writes the report."""
