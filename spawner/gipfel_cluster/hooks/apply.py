"""Which hooks an EDF asks for, and who does them."""

from collections.abc import Mapping, Sequence

from ..edf.lint.hooks import HOOKS
from ..engines.protocol import ContainerRequest
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
            notes=tuple(f"The Container Engine has no hook {name!r} that we know of." for name in unknown),
        )
    where = Surroundings(engine=engine, runtime=runtime)
    node = node or HostNode()
    known = {hook.name: hook for hook in hooks}
    notes: list[str] = []
    for name, settings in asked.items():
        if name not in known:
            notes.append(f"com.hooks.{name} is the site's business: the engine {engine} has no such hook.")
            continue
        done = known[name].apply(request, settings, where, node)
        request = done.request
        notes += done.notes
    return Hooked(request=request, notes=tuple(notes))


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
