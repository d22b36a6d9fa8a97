"""Which engine runs an EDF."""

from collections.abc import Callable, Mapping, Sequence

from ..edf.model import Edf
from ..model import GipfelError
from .bubblewrap import Bubblewrap
from .host import Host
from .protocol import ContainerRequest, Engine, Invocation

_ENGINES: Mapping[str, Callable[[], Engine]] = {"bubblewrap": Bubblewrap, "host": Host}


def engine_names() -> tuple[str, ...]:
    """List the engines that there are."""
    return tuple(_ENGINES)


def engine_for(edf: Edf, preferred: str = "") -> Engine:
    """Choose the engine for an EDF: the host where it has no image, else the preferred one.

    Parameters
    ----------
    preferred
        A name; empty for the first engine that can run images here.

    Raises
    ------
    GipfelError
        There is no engine of this name, or the EDF has an image and the engine can't run one.
    """
    if preferred and preferred not in _ENGINES:
        raise GipfelError(
            f"There is no engine {preferred!r}.", f"Choose one of {', '.join(sorted(_ENGINES))}."
        )
    if not edf.image:
        return Host()
    if preferred == Host.name:
        raise GipfelError(
            f"The EDF {edf.name!r} has an image, which the host engine can't run.",
            "Choose the bubblewrap engine, or an EDF without an image.",
        )
    return _ENGINES[preferred or Bubblewrap.name]()


def engine_invocation(
    edf: Edf,
    command: Sequence[str],
    *,
    engine: str = "",
    environment: Mapping[str, str],
    python: str | Sequence[str],
    scratch: str,
) -> Invocation:
    """Say what would be executed to run a command in an EDF, as ``gipfel edf render`` shows it.

    Raises
    ------
    GipfelError
        There is no such engine, or it can't run this EDF on this machine.
    """
    request = ContainerRequest(
        edf=edf, command=tuple(command), environment=dict(environment), scratch=scratch
    )
    return engine_for(edf, engine).render(request, python=python)
