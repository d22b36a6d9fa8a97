"""Checks, one file per family; README.md describes how to add one."""
