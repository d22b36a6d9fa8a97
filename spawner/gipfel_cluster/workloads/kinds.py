"""Kinds of workloads, and all workloads of a user whatever their kind: list, find, stop, rerun, follow logs.

A kind is a class of `WorkloadKind` under the entry point group ``gipfel.workloads``; `DirectoryKind` does
all but starting for a kind whose directories are ``<run>/<directory>/<n>``, with a `WorkloadState` in
each.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ..model import Frozen, GipfelError
from .directory import STOP, WorkloadState, read_state, settled_state
from .logs import LogFiles
from .places import find_directory, known_directories, workload_id

ENTRY_POINTS = "gipfel.workloads"

#: Called with each line about a start, such as the outcome of a check.
Report = Callable[[str], None]


class Workload(Frozen):
    """A workload as lists show it; ``state`` is its outcome once it has ended, else its phase."""

    id: str
    kind: str
    name: str
    title: str
    state: str
    ended: bool
    reason: str = ""
    nodes: tuple[str, ...] = ()
    job_id: str = ""
    created_ns: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    exit_status: int | None = None
    folder: str

    @classmethod
    def of(cls, kind: str, folder: Path, state: WorkloadState, id: str = "") -> "Workload":  # noqa: A002 - its name
        """Return the workload of a directory."""
        return cls(
            id=id or workload_id(folder),
            kind=kind,
            state=state.outcome or state.phase,
            ended=state.ended,
            folder=str(folder),
            **state.model_dump(include=_SHOWN),
        )


_SHOWN = {"name", "title", "reason", "nodes", "job_id", "created_ns", "started_ns", "ended_ns", "exit_status"}


class WorkloadKind(Protocol):
    """A kind of workload: where its directories are, how one starts, stops and starts again."""

    name: str

    def list(self, environment: Mapping[str, str]) -> Iterable[Workload]:
        """Return the user's workloads of this kind in all runs, the newest last."""

    def find(self, word: str, environment: Mapping[str, str]) -> Workload | None:
        """Return the workload of an ID or directory; None if there is none."""

    def logs(self, workload: Workload) -> LogFiles:
        """Return its logs."""

    def stop(self, workload: Workload, environment: Mapping[str, str]) -> None:
        """Ask it to end.

        Raises
        ------
        GipfelError
            It can't be reached.
        """

    def rerun(
        self,
        workload: Workload,
        environment: Mapping[str, str],
        *,
        directory: Path,
        report: Report,
        kill_holders: bool = False,
    ) -> Workload:
        """Continue what was held back before its start, else start the same spec as a new workload.

        Parameters
        ----------
        directory
            The user's current directory.
        report
            Is called with each line about the start.
        kill_holders
            End other processes of the user in this job that hold its GPUs.

        Raises
        ------
        GipfelError
            It can't be started.
        """


class DirectoryKind:
    """A kind whose supervisor writes a `WorkloadState` and ``*.log`` into ``<run>/<directory>/<n>``."""

    name: str
    directory: str

    def list(self, environment: Mapping[str, str]) -> Iterable[Workload]:
        """Return the user's workloads of this kind in all runs, the newest last."""
        for folder in known_directories(self.directory, environment, everywhere=True):
            # Another program may have written it; one directory must not hide the others.
            with suppress(GipfelError):
                yield self._workload(folder)

    def find(self, word: str, environment: Mapping[str, str]) -> Workload | None:
        """Return the workload of an ID or directory; None if there is none."""
        folder = find_directory(self.directory, word, environment)
        return self._workload(folder) if folder and folder.parent.name == self.directory else None

    def logs(self, workload: Workload) -> LogFiles:
        """Return its logs, numbered in the order of their names."""
        return LogFiles(dict(enumerate(sorted(Path(workload.folder).glob("*.log")))))

    def stop(self, workload: Workload, environment: Mapping[str, str]) -> None:  # noqa: ARG002 - the Protocol's
        """Create ``stop``, for which its supervisor looks."""
        (Path(workload.folder) / STOP).touch(mode=0o600)

    def _workload(self, folder: Path) -> Workload:
        return Workload.of(self.name, folder, settled_state(folder, read_state(folder, WorkloadState)))


class Workloads:
    """Every workload of a user, by its kinds.

    Parameters
    ----------
    ours
        Kinds of the caller's own package, which are there without being installed as entry points.
    """

    def __init__(
        self, environment: Mapping[str, str], ours: Mapping[str, Callable[[], WorkloadKind]]
    ) -> None:
        self._environment = environment
        self._kinds = _kinds(ours)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the names of all kinds."""
        return tuple(self._kinds)

    def list(self, *, ended: bool = False, kind: str = "") -> tuple[Workload, ...]:
        """Return the workloads, the newest last; those that have ended only with `ended`."""
        found = [
            each
            for name, one in self._kinds.items()
            if kind in {"", name}
            for each in one.list(self._environment)
            if ended or not each.ended
        ]
        return tuple(sorted(found, key=lambda each: each.created_ns))

    def find(self, word: str) -> Workload:
        """Return the workload of an ID, ``KIND:ID`` or a directory; the newest for an empty text.

        Raises
        ------
        GipfelError
            There is none, or several kinds have one.
        """
        if not word:
            known = self.list(ended=True)
            if known:
                return known[-1]
            raise GipfelError(
                "There is no workload yet.", "Start one with `gipfel launch` or `gipfel submit`."
            )
        kind, colon, rest = word.partition(":")
        chosen = {kind: self._kinds[kind]} if colon and kind in self._kinds else self._kinds
        name = rest if chosen is not self._kinds else word
        found = [each for one in chosen.values() if (each := one.find(name, self._environment)) is not None]
        if not found:
            raise GipfelError(f"There is no workload {word[:80]!r}.", "See `gipfel ps --all`.")
        if len(found) > 1:
            names = " or ".join(f"{each.kind}:{each.id}" for each in found)
            raise GipfelError(f"{word} is the ID of several workloads.", f"Write {names}.")
        return found[0]

    def logs(self, workload: Workload) -> LogFiles:
        """Return the logs of a workload."""
        return self._kinds[workload.kind].logs(workload)

    def stop(self, workload: Workload) -> None:
        """Ask a workload to end; see `WorkloadKind.stop`."""
        self._kinds[workload.kind].stop(workload, self._environment)

    def rerun(
        self, workload: Workload, *, directory: Path, report: Report, kill_holders: bool = False
    ) -> Workload:
        """Continue a workload that was held back, else start it again; see `WorkloadKind.rerun`."""
        kind, environment = self._kinds[workload.kind], self._environment
        return kind.rerun(
            workload, environment, directory=directory, report=report, kill_holders=kill_holders
        )


def _kinds(ours: Mapping[str, Callable[[], WorkloadKind]]) -> dict[str, WorkloadKind]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - looking for them takes long

    found = {name: make() for name, make in ours.items()}
    for point in entry_points(group=ENTRY_POINTS):
        if point.name in found:
            continue
        try:
            found[point.name] = point.load()()
        except Exception as error:
            raise GipfelError(
                f"The workload kind {point.name} can't be loaded from {point.value}: {error}.",
                "Install its package again.",
            ) from error
    return found
