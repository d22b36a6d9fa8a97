"""Render a request as a process to execute: apply its set-up steps, its hooks and its engine.

`engine_invocation` does all of it; `apply_hooks` applies the hooks that an EDF enables, and each changes the
request. A hook that only a site can provide is a `SiteHook`, which adds a note.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..edf.gate import PREFIX as GATE_PREFIX
from ..edf.model import Edf, Mount, shortened
from ..edf.rules_hooks import HOOKS
from ..engines.host import Host
from ..engines.protocol import (
    ContainerRequest,
    Engine,
    Invocation,
    check_values,
    host_value_notes,
    protected_variable_notes,
)
from ..engines.setup import with_setup
from ..engines.srun import ContainerEngine, Pyxis
from ..model import GipfelError, one_line, pluralize
from ..runtime.model import Runtime
from ..staged import ANNOTATION as STAGE_PREFIX
from ..staged import OBJECTS, StagedPath, staged_paths
from ..storage_classes import node_stores
from .libraries import AwsOfiNccl, Dcgm
from .protocol import Hook, HookContext, HookResult, Node
from .ssh import Ssh

_MAX_NOTES = 100
_MAX_NOTE_LENGTH = 500
_PREFIX = "com.hooks."
#: The engine whose site has its own hooks.
_CONTAINER_ENGINE = "ce"
#: Engines that pass all annotations to the site's hooks.
_FORWARDS_ANNOTATIONS = frozenset((_CONTAINER_ENGINE, "pyxis"))
_MAX_NAME_LENGTH = 60
_MAX_LISTED = 5


@dataclass(frozen=True)
class SiteHook:
    """A hook that only the site can provide; its reason completes the note."""

    name: str
    reason: str

    def apply(
        self,
        request: ContainerRequest,
        settings: Mapping[str, str],  # noqa: ARG002
        context: HookContext,
        node: Node,  # noqa: ARG002
    ) -> HookResult:
        """Return the request unchanged, with a note that gives the reason."""
        note = f"com.hooks.{self.name} is left to the site in the engine {context.engine}: {self.reason}."
        return HookResult(request=request, notes=(note,))


SITE_HOOKS = (
    SiteHook(
        "cxi",
        "a host's libfabric can't be mounted in general, so the image must contain one for Slingshot",
    ),
    SiteHook("netstack", "network stacks are directories of the site, so the image must contain its own"),
    SiteHook(
        "nvidia_cuda_mps",
        "the MPS control daemon must run before the container starts and decides who shares a GPU",
    ),
    SiteHook(
        "slurm",
        "Slurm's programs must match the site's daemons; gipfel submit does not need them in the image",
    ),
    SiteHook("parallax_imagestore_create", "the image store belongs to Sarus"),
)

HOOK_INSTANCES: tuple[Hook, ...] = (Ssh(), Dcgm(), AwsOfiNccl(), *SITE_HOOKS)


def engine_invocation(
    request: ContainerRequest, engine: Engine, *, python: str | Sequence[str], runtime: Runtime | None = None
) -> Invocation:
    """Render a request as a process to execute: set-up steps first, then hooks, then the engine.

    Parameters
    ----------
    python
        A Python of the host, 3.11 or newer, as a path or as the first words of an argv.
    runtime
        The runtime that is mounted into the container, for hooks that run programs there.

    Returns
    -------
    Invocation
        Its notes list what the hooks and the engine do not support.

    Raises
    ------
    GipfelError
        The engine can't run this EDF on this machine.
    """
    # Before mounts are compared with staged files: a path with NUL is an error of the operating system there.
    check_values(request)
    _check_special_mounts(request.edf, engine.name)
    copies: tuple[str, ...] = ()
    if not request.render_only:
        request, copies = use_copies(request, staged_paths(node_stores(os.environ)))
    protected = () if engine.name == ContainerEngine.name else protected_variable_notes(request)
    host_values = () if engine.name == ContainerEngine.name else host_value_notes(request)
    hooked = apply_hooks(with_setup(request), engine=engine.name, runtime=runtime)
    invocation = engine.render(hooked.request, python=python)
    notes = (*copies, *protected, *host_values, *hooked.notes, *invocation.notes)
    return invocation.model_copy(update={"notes": _limited(notes)})


def use_copies(
    request: ContainerRequest, staged: Iterable[tuple[str, StagedPath]]
) -> tuple[ContainerRequest, tuple[str, ...]]:
    """Return the request with this node's copies of staged files as its mounts and image, and notes.

    A file that has changed since it was copied is used from its original path.
    """
    current = [each for _, each in staged if each.is_current()]
    objects = tuple(
        Mount(source=each.copy, destination=each.in_containers, flags=("ro",))
        for each in current
        if each.path.startswith(OBJECTS)
    )
    if objects and request.edf.image:
        request = request.model_copy(update={"mounts": (*request.mounts, *objects)})
    copies = {os.path.realpath(each.path): each for each in current if not each.path.startswith(OBJECTS)}
    if not copies:
        return request, ()
    image = request.edf.image or ""
    copy = copies.get(os.path.realpath(image)) if image.startswith("/") else None
    changes = {
        "mounts": tuple(_with_copies(request.edf.mounts, copies)),
        "image": copy.copy if copy else request.edf.image,
    }
    edf = request.edf.model_copy(update=changes)
    mounts = tuple(_with_copies(request.mounts, copies))
    used = {each.copy for each in copies.values()}
    count = len({edf.image, *(mount.source for mount in (*edf.mounts, *mounts))} & used)
    notes = (f"{pluralize(count, 'staged file')} of this node used instead of the shared ones.",)
    if not count:
        return request, ()
    return request.model_copy(update={"edf": edf, "mounts": mounts}), notes


def _with_copies(mounts: Iterable[Mount], copies: Mapping[str, StagedPath]) -> Iterator[Mount]:
    for mount in mounts:
        if mount.is_special:
            yield mount
            continue
        source = os.path.realpath(mount.source)
        if source in copies:
            flags = tuple(dict.fromkeys((*(each for each in mount.flags if each != "rw"), "ro")))
            yield mount.model_copy(update={"source": copies[source].copy, "flags": flags})
            continue
        yield mount
        if "sqsh" not in mount.flags:
            for path, each in copies.items():
                if path.startswith(source.rstrip("/") + "/"):
                    inside = f"{mount.destination.rstrip('/')}/{os.path.relpath(path, source)}"
                    yield Mount(source=each.copy, destination=inside, flags=("ro",))


def apply_hooks(
    request: ContainerRequest,
    *,
    engine: str,
    runtime: Runtime | None,
    node: Node | None = None,
    hooks: Sequence[Hook] = HOOK_INSTANCES,
) -> HookResult:
    """Apply the hooks that an EDF's annotations ``com.hooks.*`` enable, for engines without hooks.

    Parameters
    ----------
    engine
        The engine's name; ``ce`` has its own hooks, so no hook is applied.
    runtime
        The runtime that is mounted into the container, for hooks that run programs there.
    node
        The machine that runs the container; this one by default.
    """
    enabled = _enabled_hooks(request.edf.annotations)
    if engine == _CONTAINER_ENGINE:
        unknown = [name for name in enabled if name not in HOOKS]
        return HookResult(
            request=request,
            notes=tuple(
                f"Gipfel knows no hook {_printable(name)!r} of the Container Engine." for name in unknown
            ),
        )
    context = HookContext(engine=engine, runtime=runtime)
    node = node or Node()
    known = {hook.name: hook for hook in hooks}
    notes = [] if engine in _FORWARDS_ANNOTATIONS else [*_unused_annotations(request.edf.annotations, engine)]
    for name, settings in enabled.items():
        if name not in known:
            notes.append(
                f"com.hooks.{_printable(name)} is left to the site: the engine {engine} has no such hook."
            )
            continue
        result = known[name].apply(request, settings, context, node)
        request = result.request
        notes += result.notes
    return HookResult(request=request, notes=tuple(notes))


def _unused_annotations(annotations: Mapping[str, str], engine: str) -> Iterator[str]:
    """Yield one line about the annotations that belong to no hook."""
    others = [
        _printable(name)
        for name in sorted(annotations)
        if not name.startswith((_PREFIX, GATE_PREFIX, STAGE_PREFIX))
    ]
    if others:
        more = f" and {len(others) - _MAX_LISTED} more" if len(others) > _MAX_LISTED else ""
        yield f"The engine {engine} ignores the annotations {', '.join(others[:_MAX_LISTED])}{more}."


def _printable(name: str) -> str:
    """Return a name from an EDF on one line and shortened."""
    name = one_line(name)
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[:_MAX_NAME_LENGTH]}…"


def _enabled_hooks(annotations: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the settings of the enabled hooks, by name; only the exact text ``true`` enables a hook."""
    families: dict[str, dict[str, str]] = {}
    for key, value in sorted(annotations.items()):
        if key.startswith(_PREFIX):
            name, _, setting = key.removeprefix(_PREFIX).partition(".")
            families.setdefault(name, {})[setting] = value
    return {
        name: settings
        for name, settings in families.items()
        # The hook netstack has no setting "enabled": any setting enables it.
        if settings.get("enabled") == "true" or (name == "netstack" and settings)
    }


def _check_special_mounts(edf: Edf, engine: str) -> None:
    """Raise for mounts without a source if the engine would read them as files named tmpfs and umount."""
    special = next((mount for mount in edf.mounts if mount.is_special), None)
    if special and engine not in {ContainerEngine.name, Pyxis.name, Host.name}:
        raise GipfelError(
            f"The engine {engine} can't make the mount {special}.",
            f"Remove it, or choose the engine {ContainerEngine.name} or {Pyxis.name}.",
        )


def _limited(notes: Sequence[str]) -> tuple[str, ...]:
    """Limit the number and length of notes: an EDF may have thousands of flags."""
    limited = tuple(shortened(note, _MAX_NOTE_LENGTH) for note in notes[:_MAX_NOTES])
    omitted = len(notes) - len(limited)
    return (*limited, f"{omitted} more notes are not listed.") if omitted else limited
