"""The runtime: a notebook server with its own interpreter and libraries, mounted read-only into images."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .build import build_runtime
    from .model import Runtime, check_runtime

__all__ = ["Runtime", "build_runtime", "check_runtime"]


def __getattr__(name: str) -> object:
    # Lazy: rendering what would run in a container does not need the code that builds a runtime.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".build" if name == "build_runtime" else ".model", __name__), name)
