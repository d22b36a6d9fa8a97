"""The server that is mounted into images: its own interpreter and libraries in one read-only directory."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .build import build_runtime
    from .model import Runtime, check_runtime

__all__ = ["Runtime", "build_runtime", "check_runtime"]


def __getattr__(name: str) -> object:
    # On demand: those who are shown what would run in a container need not load how a runtime is built.
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
