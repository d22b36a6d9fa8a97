"""Kinds of workloads, and functions for workloads of any kind: list, find, stop, rerun, follow logs.

A kind is a class with the methods of `WorkloadKind`, registered as an entry point of the group
``gipfel.workloads``. `DirectoryKind` implements all of them except ``rerun`` for kinds that keep a
`WorkloadState` in ``<run>/<directory>/<n>``.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ..model import Frozen, GipfelError
from .directory import (
    STOP,
    WorkloadState,
    find_directory,
    known_directories,
    read_state,
    refresh_state,
    workload_id,
)
from .logs import LogFiles

ENTRY_POINTS = "gipfel.workloads"

#: Callback that receives each line about a start, such as the outcome of a check.
Report = Callable[[str], None]


class Workload(Frozen):
    """A workload as shown in lists; ``state`` is its outcome if it has ended, else its phase.

    ``kind`` is the name of its `WorkloadKind`, ``folder`` its directory; the other fields are those of
    `WorkloadState`.
    """

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
    progress: float | None = None
    folder: str

    @classmethod
    def of(cls, kind: str, folder: Path, state: WorkloadState, id: str = "") -> "Workload":  # noqa: A002 - a field
        """Return the workload of a directory with this state."""
        return cls(
            id=id or workload_id(folder),
            kind=kind,
            state=state.outcome or state.phase,
            ended=state.ended,
            folder=str(folder),
            **state.model_dump(include=_COMMON_FIELDS),
        )


_COMMON_FIELDS = {
    *("name", "title", "reason", "nodes", "job_id"),
    *("created_ns", "started_ns", "ended_ns", "exit_status", "progress"),
}


class WorkloadKind(Protocol):
    """A kind of workload: lists, finds, stops and reruns workloads."""

    name: str

    def list(self, environment: Mapping[str, str]) -> Iterable[Workload]:
        """Return the user's workloads of this kind in all runs, the newest last."""

    def find(self, name: str, environment: Mapping[str, str]) -> Workload | None:
        """Return the workload with this ID or directory; None if there is none."""

    def logs(self, workload: Workload) -> LogFiles:
        """Return the workload's log files."""

    def stop(self, workload: Workload, environment: Mapping[str, str]) -> None:
        """Request that the workload ends; return without waiting for the end.

        Raises
        ------
        GipfelError
            The workload can't be reached.
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
        """Start a workload that a check held back before its start, or else a new one with the same spec.

        Parameters
        ----------
        directory
            The user's current directory.
        report
            Called with each line about the start.
        kill_holders
            End other processes of the user in this job that use its GPUs.

        Raises
        ------
        GipfelError
            The workload can't be started.
        """


class DirectoryKind:
    """Base class of a kind whose supervisor writes a `WorkloadState` and ``*.log``.

    ``directory`` is the name of the parent directory: workloads are in ``<run>/<directory>/<n>``.
    """

    name: str
    directory: str

    def list(self, environment: Mapping[str, str]) -> Iterable[Workload]:
        """Return the user's workloads of this kind in all runs, the newest last."""
        for folder in known_directories(self.directory, environment, all_runs=True):
            # An unreadable directory, which another program may have written, must not hide the others.
            with suppress(GipfelError):
                yield self._workload(folder)

    def find(self, name: str, environment: Mapping[str, str]) -> Workload | None:
        """Return the workload with this ID or directory; None if there is none."""
        folder = find_directory(self.directory, name, environment)
        return self._workload(folder) if folder and folder.parent.name == self.directory else None

    def logs(self, workload: Workload) -> LogFiles:
        """Return the workload's log files, numbered in the order of their names."""
        return LogFiles(dict(enumerate(sorted(Path(workload.folder).glob("*.log")))))

    def stop(self, workload: Workload, environment: Mapping[str, str]) -> None:  # noqa: ARG002 - the Protocol's
        """Create the file ``stop``, which makes the supervisor end the workload."""
        (Path(workload.folder) / STOP).touch(mode=0o600)

    def _workload(self, folder: Path) -> Workload:
        return Workload.of(self.name, folder, refresh_state(folder, read_state(folder, WorkloadState)))


class Workloads:
    """All workloads of a user.

    Parameters
    ----------
    environment
        Environment variables of the user's process, which locate the runs.
    builtin
        Functions that create the kinds that are not entry points, by name.
    """

    def __init__(
        self, environment: Mapping[str, str], builtin: Mapping[str, Callable[[], WorkloadKind]]
    ) -> None:
        self._environment = environment
        self._kinds = _kinds(builtin)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the names of all kinds."""
        return tuple(self._kinds)

    def list(self, *, ended: bool = False, kind: str = "") -> tuple[Workload, ...]:
        """Return the workloads of one kind (empty: of all), the newest last; ended ones only with `ended`."""
        workloads = [
            each
            for name, one in self._kinds.items()
            if kind in {"", name}
            for each in one.list(self._environment)
            if ended or not each.ended
        ]
        return tuple(sorted(workloads, key=lambda each: each.created_ns))

    def find(self, identifier: str) -> Workload:
        """Return the workload with an ID, ``KIND:ID`` or a directory; the newest for an empty text.

        Raises
        ------
        GipfelError
            There is none, or workloads of several kinds have this ID.
        """
        if not identifier:
            if known := self.list(ended=True):
                return known[-1]
            raise GipfelError(
                "There is no workload yet.", "Start one with `gipfel launch` or `gipfel submit`."
            )
        kind, colon, rest = identifier.partition(":")
        kinds = {kind: self._kinds[kind]} if colon and kind in self._kinds else self._kinds
        name = rest if kinds is not self._kinds else identifier
        matches = [each for one in kinds.values() if (each := one.find(name, self._environment)) is not None]
        if not matches:
            raise GipfelError(f"There is no workload {identifier[:80]!r}.", "See `gipfel ps --all`.")
        if len(matches) > 1:
            names = " or ".join(f"{each.kind}:{each.id}" for each in matches)
            raise GipfelError(f"{identifier} is the ID of several workloads.", f"Write {names}.")
        return matches[0]

    def logs(self, workload: Workload) -> LogFiles:
        """Return the log files of a workload."""
        return self._kinds[workload.kind].logs(workload)

    def stop(self, workload: Workload) -> None:
        """Request that a workload ends; see `WorkloadKind.stop`."""
        self._kinds[workload.kind].stop(workload, self._environment)

    def rerun(
        self, workload: Workload, *, directory: Path, report: Report, kill_holders: bool = False
    ) -> Workload:
        """Start a workload that was held back, or start it again; see `WorkloadKind.rerun`."""
        kind, environment = self._kinds[workload.kind], self._environment
        return kind.rerun(
            workload, environment, directory=directory, report=report, kill_holders=kill_holders
        )


def _kinds(builtin: Mapping[str, Callable[[], WorkloadKind]]) -> dict[str, WorkloadKind]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import

    kinds = {name: make() for name, make in builtin.items()}
    for point in entry_points(group=ENTRY_POINTS):
        if point.name in kinds:
            continue
        try:
            kinds[point.name] = point.load()()
        except Exception as error:
            raise GipfelError(
                f"The workload kind {point.name} can't be loaded from {point.value}: {error}.",
                "Reinstall its package.",
            ) from error
    return kinds
