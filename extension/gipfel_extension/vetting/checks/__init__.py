"""Checks, a file for each family; README.md says how to add one."""
