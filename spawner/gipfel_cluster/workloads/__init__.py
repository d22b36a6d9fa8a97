"""Workloads: what users start and what outlives its starter, one directory each, whatever its kind."""
