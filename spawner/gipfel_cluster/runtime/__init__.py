"""The runtime: a notebook server with its own interpreter and libraries, mounted read-only into images."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .build import build_runtime
    from .model import Runtime, check_runtime

__all__ = ["Runtime", "build_runtime", "check_runtime"]


def __getattr__(name: str) -> object:
    # Lazy: rendering what would run in a container does not need the code that builds a runtime.
    if name == "Runtime":
        from .model import Runtime  # noqa: PLC0415

        return Runtime
    if name == "build_runtime":
        from .build import build_runtime  # noqa: PLC0415

        return build_runtime
    if name == "check_runtime":
        from .model import check_runtime  # noqa: PLC0415

        return check_runtime
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
