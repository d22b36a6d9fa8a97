"""The list of engines, and the choice of the engine for an EDF."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..edf import Edf, EdfError, check_local, load_edf
from ..model import GipfelError
from .apptainer import Apptainer
from .bubblewrap import Bubblewrap
from .host import Host
from .podman import Podman
from .protocol import Engine
from .srun import ContainerEngine, Pyxis

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The entry point group for engines in other packages; each entry is a callable that returns an `Engine`.
ENTRY_POINTS = "gipfel.engines"

#: The engines of this package; the first one is the default for EDFs with an image.
_ENGINES: Mapping[str, Callable[[], Engine]] = {
    "bubblewrap": Bubblewrap,
    "podman": Podman,
    "apptainer": Apptainer,
    "ce": ContainerEngine,
    "pyxis": Pyxis,
    "host": Host,
}


def engine_names() -> tuple[str, ...]:
    """List the engines of this package, then those of installed packages."""
    return (*_ENGINES, *sorted(_installed().keys() - _ENGINES.keys()))


def engine_exists(name: str) -> bool:
    """Return whether an engine of this name exists."""
    return name in _ENGINES or name in _installed()


def available_engine_names() -> tuple[str, ...]:
    """List the engines that this machine can run, for a form that offers a choice."""
    return tuple(name for name in engine_names() if _load(name).unavailable_reason() is None)


def engine_missing(name: str) -> str | None:
    """Return in one line why this machine can't run an engine, or None; ``name`` is one of `engine_names`."""
    try:
        return _load(name).unavailable_reason()
    except GipfelError as error:
        return str(error)


def engine_for(edf: Edf, preferred: str = "") -> Engine:
    """Return the engine for an EDF: `Host` without an image, else the preferred one.

    Parameters
    ----------
    preferred
        The name of an engine; empty for the default.

    Raises
    ------
    GipfelError
        No engine has this name, or the EDF has an image and the engine can't run one.
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
    return _load(preferred or Bubblewrap.name)


def usable_engine(edf: Edf, preferred: str) -> Engine:
    """Return the engine of `engine_for` if this machine can run it.

    Raises
    ------
    GipfelError
        As for `engine_for`, or the engine can't run on this machine.
    """
    engine = engine_for(edf, preferred)
    if missing := engine.unavailable_reason():
        raise GipfelError(missing, "Install it on the node, or choose an EDF without an image.")
    return engine


def load_usable_edf(
    name: str,
    engine: str,
    *,
    environment: Mapping[str, str],
    directory: Path,
    job_variables: bool = False,
) -> Edf:
    """Return an EDF as `load_edf` does, after a check that it can be used on this machine.

    Parameters
    ----------
    engine
        The name of the engine for an image; empty for the default.

    Raises
    ------
    EdfError
        The EDF is not found, has errors, or can't be used here.
    """
    edf = load_edf(name, environment=environment, directory=directory, job_variables=job_variables)
    diagnostics = check_local(edf, pulls=engine_pulls(engine))
    if errors := tuple(each for each in diagnostics if each.severity == "error"):
        raise EdfError(errors)
    return edf


def engine_to_render(edf: Edf, preferred: str = "") -> Engine:
    """Return the engine for ``gipfel edf render``: as `engine_for`, but ``ce`` also without an image.

    Raises
    ------
    GipfelError
        As for `engine_for`.
    """
    if preferred == ContainerEngine.name and not edf.image:
        return ContainerEngine()
    return engine_for(edf, preferred)


def engine_pulls(preferred: str = "") -> bool:
    """Return whether an engine fetches images from a registry; assumed for engines of other packages.

    Parameters
    ----------
    preferred
        As for `engine_for`.
    """
    return (preferred or Bubblewrap.name) not in {Bubblewrap.name, Host.name}


def _installed() -> dict[str, "EntryPoint"]:
    # Lazy: importing this takes longer than everything else here.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load(name: str) -> Engine:
    if name in _ENGINES:
        return _ENGINES[name]()
    point = _installed()[name]
    try:
        engine: Engine = point.load()()
    except Exception as error:
        raise GipfelError(
            f"The engine {name} can't be loaded from {point.value}: {error}.", "Reinstall its package."
        ) from error
    return engine
