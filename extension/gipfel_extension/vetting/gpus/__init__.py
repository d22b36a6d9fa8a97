"""Readings of a node's GPUs as plain values; needs nothing but NVML's Python module."""
