"""Command line of Gipfel: the ``gipfel`` command."""

from .main import main

__all__ = ["main"]
