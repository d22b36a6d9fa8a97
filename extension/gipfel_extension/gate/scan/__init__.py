"""Scan targets of any kind: files, directories and images."""
