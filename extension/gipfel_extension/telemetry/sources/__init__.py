"""Sources of samples, by the names that people give to ``--source``.

Another package brings one by an entry point of the group :data:`ENTRY_POINTS`.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from ..sample import SourceError
from .protocol import (
    AbsentSource,
    Clock,
    EventSource,
    ProcessSource,
    Source,
    SourceRequest,
    SystemClock,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "ENTRY_POINTS",
    "AbsentSource",
    "Clock",
    "EventSource",
    "ProcessSource",
    "Source",
    "SourceError",
    "SourceRequest",
    "SystemClock",
    "open_source",
    "source_names",
]

#: The group of entry points: name, and a callable that takes what follows the colon in ``--source`` (empty
#: where nothing does) and a `SourceRequest`, and gives a `Source`.
ENTRY_POINTS = "gipfel.sources"

_Opener = Callable[[str, SourceRequest], Source]

#: There whatever is installed, and first of their names. Each is imported when it is opened, so that a
#: recorder starts with no more than it reads.
_SOURCES: Mapping[str, str] = {
    "auto": "auto:open_auto",
    "nvml": "nvml:open_nvml",
    "dcgm": "dcgm:open_dcgm",
    "exporter": "exporter:open_exporter",
    "prometheus": "prometheus:open_prometheus",
    "amdsmi": "amdsmi_source:open_amdsmi",
    "host": "host:open_host",
    "replay": "replay:open_replay",
    "synthetic": "synthetic:open_synthetic",
}


def source_names() -> tuple[str, ...]:
    """The names of all sources, those of other packages last."""
    return (*_SOURCES, *sorted(_installed().keys() - _SOURCES.keys()))


def open_source(spec: str, request: SourceRequest | None = None) -> Source:
    """Open a source by name.

    Parameters
    ----------
    spec
        ``host``; ``auto`` (``nvml``, with ``dcgm`` where no GPU has GPM and the daemon answers; else
        ``amdsmi``; nothing where the job has no such GPU); ``nvml``; ``dcgm``; ``amdsmi``;
        ``exporter:URL``; ``prometheus:URL``; ``replay:FILE``; ``synthetic:NAME`` and ``synthetic:NAME:N`` for
        N GPUs; or what another package brings.

    Raises
    ------
    SourceError
        No such source, or nothing for it on this machine.
    """
    name, _, argument = spec.partition(":")
    return _opener(name, spec)(argument, request or SourceRequest())


def no_argument(name: str, argument: str) -> None:
    """Refuse what follows the colon of a source that takes nothing.

    Raises
    ------
    SourceError
        There is something.
    """
    if argument:
        raise SourceError(f"The source {name} takes nothing after a colon: {argument!r}.", f"Use {name}.")


def _opener(name: str, spec: str) -> _Opener:
    if name in _SOURCES:
        module, _, function = _SOURCES[name].partition(":")
        opener: _Opener = getattr(import_module(f".{module}", __name__), function)
        return opener
    found = _installed().get(name)
    if found is None:
        raise SourceError(f"There is no source {spec!r}.", f"Use one of {', '.join(source_names())}.")
    try:
        loaded: _Opener = found.load()
    except Exception as error:
        raise SourceError(
            f"The source {name} of {found.value} can't be imported: {error}.", "Install what it needs."
        ) from error
    return loaded


def _installed() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and for names that are not ours

    return {each.name: each for each in entry_points(group=ENTRY_POINTS)}
