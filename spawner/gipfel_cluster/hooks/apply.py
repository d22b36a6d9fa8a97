"""Which hooks an EDF asks for, and who does them."""

from collections.abc import Iterator, Mapping, Sequence

from ..edf.lint.hooks import HOOKS
from ..engines.protocol import ContainerRequest
from ..model import one_line
from ..runtime.model import Runtime
from .aws_ofi_nccl import AwsOfiNccl
from .dcgm import Dcgm
from .node import HostNode, Node
from .protocol import Hook, Hooked, Surroundings
from .site import SITE_HOOKS
from .ssh import Ssh

_PREFIX = "com.hooks."
#: The Container Engine has hooks of its own, and a site can give Pyxis some.
_OWN_HOOKS = "ce"
#: Pyxis hands every annotation on to the hooks that its site may have.
_PASSES_ON = frozenset((_OWN_HOOKS, "pyxis"))
_LONGEST = 60
_NAMED = 5

HOOKS_HERE: tuple[Hook, ...] = (Ssh(), Dcgm(), AwsOfiNccl(), *SITE_HOOKS)


def apply_hooks(
    request: ContainerRequest,
    *,
    engine: str,
    runtime: Runtime | None,
    node: Node | None = None,
    hooks: Sequence[Hook] = HOOKS_HERE,
) -> Hooked:
    """Do what the annotations ``com.hooks.*`` of an EDF ask for, where the engine has no hooks.

    Parameters
    ----------
    engine
        ``ce`` passes annotations on itself; there the hooks are the site's.
    runtime
        What is mounted into the container, for what has to run in it.
    node
        The machine that runs the container; this one if not given.
    """
    asked = _asked(request.edf.annotations)
    if engine == _OWN_HOOKS:
        unknown = [name for name in asked if name not in HOOKS]
        return Hooked(
            request=request,
            notes=tuple(
                f"The Container Engine has no hook {_shown(name)!r} that we know of." for name in unknown
            ),
        )
    where = Surroundings(engine=engine, runtime=runtime)
    node = node or HostNode()
    known = {hook.name: hook for hook in hooks}
    notes = [] if engine in _PASSES_ON else [*_others(request.edf.annotations, engine)]
    for name, settings in asked.items():
        if name not in known:
            notes.append(
                f"com.hooks.{_shown(name)} is the site's business: the engine {engine} has no such hook."
            )
            continue
        done = known[name].apply(request, settings, where, node)
        request = done.request
        notes += done.notes
    return Hooked(request=request, notes=tuple(notes))


def _others(annotations: Mapping[str, str], engine: str) -> Iterator[str]:
    """One line about the annotations that are none of a hook's."""
    others = [_shown(name) for name in sorted(annotations) if not name.startswith(_PREFIX)]
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        yield f"The engine {engine} has no use for the annotations {', '.join(others[:_NAMED])}{more}."


def _shown(name: str) -> str:
    """A name that somebody invented, as it may stand in a line that people read."""
    name = one_line(name)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"


def _asked(annotations: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The families that are on, in alphabetical order; only the very word ``true`` switches a hook on."""
    families: dict[str, dict[str, str]] = {}
    for key, value in sorted(annotations.items()):
        if key.startswith(_PREFIX):
            name, _, setting = key.removeprefix(_PREFIX).partition(".")
            families.setdefault(name, {})[setting] = value
    return {
        name: settings
        for name, settings in families.items()
        # The network stack is chosen, not switched on.
        if settings.get("enabled") == "true" or (name == "netstack" and settings)
    }
