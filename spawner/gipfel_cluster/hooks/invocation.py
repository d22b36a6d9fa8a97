"""From a request to what is executed: its set-up steps, its hooks, its engine.

`engine_invocation` does all of it; `apply_hooks` finds out which hooks an EDF asks for, and each changes the
request. A hook that only a site can have is a `SiteHook`, which adds a note.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..edf.model import Edf, shortened
from ..edf.rules_hooks import HOOKS
from ..engines.host import Host
from ..engines.protocol import ContainerRequest, Engine, Invocation
from ..engines.setup import with_setup
from ..engines.srun import ContainerEngine, Pyxis
from ..engines.variables import host_place_notes, refused_notes
from ..model import GipfelError, one_line
from ..runtime.model import Runtime
from .dcgm import Dcgm
from .nccl import AwsOfiNccl
from .protocol import Hook, HookContext, HookResult, HostNode, Node
from .ssh import Ssh

_MOST_NOTES = 100
_LONGEST_NOTE = 500
_PREFIX = "com.hooks."
#: The Container Engine has hooks of its own, and a site can give Pyxis some.
_OWN_HOOKS = "ce"
#: Pyxis hands every annotation on to the hooks that its site may have.
_PASSES_ON = frozenset((_OWN_HOOKS, "pyxis"))
_LONGEST = 60
_NAMED = 5


@dataclass(frozen=True)
class SiteHook:
    """A hook that nothing is done for; its reason ends a sentence that begins with its name."""

    name: str
    reason: str

    def apply(
        self,
        request: ContainerRequest,
        settings: Mapping[str, str],  # noqa: ARG002
        where: HookContext,
        node: Node,  # noqa: ARG002
    ) -> HookResult:
        """Add the note why the site must do it."""
        note = f"com.hooks.{self.name} is left to the site in the engine {where.engine}: {self.reason}."
        return HookResult(request=request, notes=(note,))


SITE_HOOKS = (
    SiteHook(
        "cxi", "a host's libfabric can't be bound in general, so the image must bring one for Slingshot"
    ),
    SiteHook("netstack", "network stacks are directories of the site's, so the image must bring its own"),
    SiteHook(
        "nvidia_cuda_mps",
        "the MPS control daemon has to run before the container does and decides who shares a GPU",
    ),
    SiteHook(
        "slurm", "Slurm's programs must match the site's daemons; gipfel submit needs none in the image"
    ),
    SiteHook("parallax_imagestore_create", "the image store is Sarus's"),
)

HOOK_INSTANCES: tuple[Hook, ...] = (Ssh(), Dcgm(), AwsOfiNccl(), *SITE_HOOKS)


def engine_invocation(
    request: ContainerRequest, engine: Engine, *, python: str | Sequence[str], runtime: Runtime | None = None
) -> Invocation:
    """Turn a request into what is executed: its set-up steps first, then its hooks, then the engine.

    Parameters
    ----------
    python
        A Python of the host, 3.11 or newer, as a path or as the first words of an argv.
    runtime
        What is mounted into the container, for hooks that run something there.

    Returns
    -------
    Invocation
        With what the hooks and the engine can't honour in its notes.

    Raises
    ------
    GipfelError
        The engine can't run this EDF on this machine.
    """
    _refuse_special(request.edf, engine.name)
    refused = () if engine.name == ContainerEngine.name else refused_notes(request)
    places = () if engine.name == ContainerEngine.name else host_place_notes(request)
    hooked = apply_hooks(with_setup(request), engine=engine.name, runtime=runtime)
    invocation = engine.render(hooked.request, python=python)
    notes = (*refused, *places, *hooked.notes, *invocation.notes)
    return invocation.model_copy(update={"notes": _readable(notes)})


def apply_hooks(
    request: ContainerRequest,
    *,
    engine: str,
    runtime: Runtime | None,
    node: Node | None = None,
    hooks: Sequence[Hook] = HOOK_INSTANCES,
) -> HookResult:
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
    asked = _enabled_hooks(request.edf.annotations)
    if engine == _OWN_HOOKS:
        unknown = [name for name in asked if name not in HOOKS]
        return HookResult(
            request=request,
            notes=tuple(
                f"The Container Engine has no hook {_shown(name)!r} known to Gipfel." for name in unknown
            ),
        )
    where = HookContext(engine=engine, runtime=runtime)
    node = node or HostNode()
    known = {hook.name: hook for hook in hooks}
    notes = [] if engine in _PASSES_ON else [*_unused_annotations(request.edf.annotations, engine)]
    for name, settings in asked.items():
        if name not in known:
            notes.append(
                f"com.hooks.{_shown(name)} is left to the site: the engine {engine} has no such hook."
            )
            continue
        done = known[name].apply(request, settings, where, node)
        request = done.request
        notes += done.notes
    return HookResult(request=request, notes=tuple(notes))


def _unused_annotations(annotations: Mapping[str, str], engine: str) -> Iterator[str]:
    """Yield one line about the annotations that belong to no hook."""
    others = [_shown(name) for name in sorted(annotations) if not name.startswith(_PREFIX)]
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        yield f"The engine {engine} has no use for the annotations {', '.join(others[:_NAMED])}{more}."


def _shown(name: str) -> str:
    """Return a user's name for something, shortened to a part of one line."""
    name = one_line(name)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"


def _enabled_hooks(annotations: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the settings of the enabled hooks, by name; only the very word ``true`` enables a hook."""
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


def _refuse_special(edf: Edf, engine: str) -> None:
    """Refuse mounts without a source where they would be taken for files named tmpfs and umount."""
    special = next((mount for mount in edf.mounts if mount.is_special), None)
    if special and engine not in {ContainerEngine.name, Pyxis.name, Host.name}:
        raise GipfelError(
            f"The engine {engine} can't make the mount {special}.",
            f"Take it out, or choose the engine {ContainerEngine.name} or {Pyxis.name}.",
        )


def _readable(notes: Sequence[str]) -> tuple[str, ...]:
    """Return a readable number of notes of a readable length: an EDF may have thousands of flags."""
    kept = tuple(shortened(note, _LONGEST_NOTE) for note in notes[:_MOST_NOTES])
    left = len(notes) - len(kept)
    return (*kept, f"There are {left} more notes like these.") if left else kept
