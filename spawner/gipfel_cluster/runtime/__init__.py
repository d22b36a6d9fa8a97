"""The server that is mounted into images: its own interpreter, libraries and libc in one read-only folder."""

from .build import build_runtime
from .check import check_runtime
from .model import Runtime

__all__ = ["Runtime", "build_runtime", "check_runtime"]
