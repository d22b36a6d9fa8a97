"""Which engine runs an EDF, and how a request becomes what is executed."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..edf.model import Edf, shortened
from ..hooks import apply_hooks
from ..model import GipfelError
from ..runtime.model import Runtime
from .apptainer import Apptainer
from .bubblewrap import Bubblewrap
from .ce import ContainerEngine
from .host import Host
from .podman import Podman
from .protocol import ContainerRequest, Engine, Invocation
from .pyxis import Pyxis
from .setup import with_setup
from .values import host_place_notes, refused_notes

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_MOST_NOTES = 100
_LONGEST_NOTE = 500
#: The group of entry points by which a package brings engines: name, and a callable that gives an `Engine`.
ENTRY_POINTS = "gipfel.engines"

#: There whatever is installed; of those that run containers the first is what is taken unasked.
_ENGINES: Mapping[str, Callable[[], Engine]] = {
    "bubblewrap": Bubblewrap,
    "podman": Podman,
    "apptainer": Apptainer,
    "ce": ContainerEngine,
    "pyxis": Pyxis,
    "host": Host,
}


def engine_names() -> tuple[str, ...]:
    """List the engines that there are."""
    return (*_ENGINES, *sorted(_installed().keys() - _ENGINES.keys()))


def engine_exists(name: str) -> bool:
    """Tell whether there is an engine of this name."""
    return name in _ENGINES or name in _installed()


def engine_names_here() -> tuple[str, ...]:
    """List the engines that this machine can run, for a form that offers a choice."""
    return tuple(name for name in engine_names() if _made(name).missing() is None)


def engine_missing(name: str) -> str | None:
    """Say in one line why this machine can't run an engine, or None; ``name`` is one of `engine_names`."""
    try:
        return _made(name).missing()
    except GipfelError as error:
        return str(error)


def engine_for(edf: Edf, preferred: str = "") -> Engine:
    """Choose the engine for an EDF: the host where it has no image, else the preferred one.

    Parameters
    ----------
    preferred
        A name; empty for the engine that is taken unasked.

    Raises
    ------
    GipfelError
        There is no engine of this name, or the EDF has an image and the engine can't run one.
    """
    if preferred and not engine_exists(preferred):
        raise GipfelError(
            f"There is no engine {preferred!r}.", f"Choose one of {', '.join(sorted(engine_names()))}."
        )
    if not edf.image:
        return Host()
    if preferred == Host.name:
        raise GipfelError(
            f"The EDF {edf.name!r} has an image, which the host engine can't run.",
            "Choose the bubblewrap engine, or an EDF without an image.",
        )
    return _made(preferred or Bubblewrap.name)


def engine_to_show(edf: Edf, preferred: str = "") -> Engine:
    """Choose the engine that shows what would run: the Container Engine reads EDFs without an image, too.

    Raises
    ------
    GipfelError
        As of `engine_for`.
    """
    if preferred == ContainerEngine.name and not edf.image:
        return ContainerEngine()
    return engine_for(edf, preferred)


def engine_pulls(preferred: str = "") -> bool:
    """Return whether an engine fetches images from a registry; an installed one is asked when it runs.

    Parameters
    ----------
    preferred
        As for `engine_for`.
    """
    return (preferred or Bubblewrap.name) not in {Bubblewrap.name, Host.name}


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


def _refuse_special(edf: Edf, engine: str) -> None:
    """Refuse mounts without a source where they would be taken for files named tmpfs and umount."""
    special = next((mount for mount in edf.mounts if mount.is_special), None)
    if special and engine not in {ContainerEngine.name, Pyxis.name, Host.name}:
        raise GipfelError(
            f"The engine {engine} can't make the mount {special}.",
            f"Take it out, or choose the engine {ContainerEngine.name} or {Pyxis.name}.",
        )


def _readable(notes: Sequence[str]) -> tuple[str, ...]:
    """As many notes as are read, each as long as is read: an EDF may have thousands of flags."""
    kept = tuple(shortened(note, _LONGEST_NOTE) for note in notes[:_MOST_NOTES])
    left = len(notes) - len(kept)
    return (*kept, f"There are {left} more notes like these.") if left else kept


def _installed() -> dict[str, "EntryPoint"]:
    # On demand: looking for them takes longer than anything else here.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _made(name: str) -> Engine:
    if name in _ENGINES:
        return _ENGINES[name]()
    point = _installed()[name]
    try:
        engine: Engine = point.load()()
    except Exception as error:
        raise GipfelError(
            f"The engine {name} can't be loaded from {point.value}: {error}.", "Install its package again."
        ) from error
    return engine
