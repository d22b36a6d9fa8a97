"""Workloads: launches, batch notebooks and other kinds, each with its state in a directory."""
