"""The engines that there are, and the one for an EDF."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..edf.model import Edf
from ..model import GipfelError
from .apptainer import Apptainer
from .bubblewrap import Bubblewrap
from .host import Host
from .podman import Podman
from .protocol import Engine
from .srun import ContainerEngine, Pyxis

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
    """Return whether there is an engine of this name."""
    return name in _ENGINES or name in _installed()


def available_engine_names() -> tuple[str, ...]:
    """List the engines that this machine can run, for a form that offers a choice."""
    return tuple(name for name in engine_names() if _made(name).missing() is None)


def engine_missing(name: str) -> str | None:
    """Return in one line why this machine can't run an engine, or None; ``name`` is one of `engine_names`."""
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


def engine_to_render(edf: Edf, preferred: str = "") -> Engine:
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
