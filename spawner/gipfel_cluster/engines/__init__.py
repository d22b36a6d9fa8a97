"""Engines: render an EDF and a command as the argv that runs the command in the EDF's container."""

# Not imported from typing: for a sandbox that import takes as long as half of its own modules.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .choice import (
        available_engine_names,
        engine_exists,
        engine_for,
        engine_missing,
        engine_names,
        engine_pulls,
        engine_to_render,
        load_usable_edf,
        usable_engine,
    )
    from .protocol import ContainerRequest, Engine, Invocation

__all__ = [
    "ContainerRequest",
    "Engine",
    "Invocation",
    "available_engine_names",
    "engine_exists",
    "engine_for",
    "engine_missing",
    "engine_names",
    "engine_pulls",
    "engine_to_render",
    "load_usable_edf",
    "usable_engine",
]


def __getattr__(name: str) -> object:
    # Lazy, so that a sandbox starts without pydantic, which its Python may not have.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import choice, protocol  # noqa: PLC0415

    return getattr(protocol if name[0].isupper() else choice, name)
