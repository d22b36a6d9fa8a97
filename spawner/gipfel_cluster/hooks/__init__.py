"""Hooks: what the annotations of an EDF ask for, done where the engine has no hooks of its own."""

# Not from typing, which is slow to load: a command waits for `gipfel_cluster.hooks.inside.start`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .apply import apply_hooks
    from .protocol import Hook, Hooked

__all__ = ["Hook", "Hooked", "apply_hooks"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import apply, protocol  # noqa: PLC0415

    return getattr(apply if name == "apply_hooks" else protocol, name)
