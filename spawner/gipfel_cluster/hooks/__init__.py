"""Hooks: apply the ``com.hooks.*`` annotations of an EDF for engines without hooks.

`engine_invocation` renders a request as a process to execute: it applies set-up steps, hooks and engine.
"""

# Not imported from typing, which is slow to load: a command waits for `gipfel_cluster.hooks.inside.start`.
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
