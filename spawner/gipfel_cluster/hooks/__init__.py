"""Hooks: what the annotations of an EDF ask for, done where the engine has no hooks of its own.

`engine_invocation` is the one way from a request to what is executed: set-up steps, hooks, engine.
"""

# Not from typing, which is slow to load: a command waits for `gipfel_cluster.hooks.inside.start`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .invocation import apply_hooks, engine_invocation
    from .protocol import Hook, HookResult

__all__ = ["Hook", "HookResult", "apply_hooks", "engine_invocation"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import invocation, protocol  # noqa: PLC0415

    return getattr(protocol if name.startswith("Hook") else invocation, name)
