"""Directories of launches, and the state in them; `spec` has the spec and the plan of a launch.

A launch's directory is ``<run>/launches/<n>``, or ``$GIPFEL_RUNS/launches/<n>`` outside of jobs. Its state
is in ``state.json`` and ``exit.json``, errors of ranks are in ``errors/``, and `RankRecord` is a file in
``ranks/``.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.workloads import directory
from gipfel_cluster.workloads.directory import (
    COMMAND,
    EXIT,
    MAX_BYTES,
    SPEC,
    STATE,
    STOP,
    WorkloadState,
    find_directory,
    known_directories,
    new_directory,
    parent_directory,
    write_state,
)

from ...telemetry.files import read_regular

__all__ = [
    "COMMAND",
    "EXIT",
    "MAX_BYTES",
    "PLAN",
    "SPEC",
    "STATE",
    "STOP",
    "Failure",
    "HangNotice",
    "LaunchState",
    "RankRecord",
    "first_failure",
    "first_failures",
    "newest_restart",
    "read_rank_records",
    "read_state",
    "refresh_state",
    "write_state",
]


PLAN = "plan.json"
_MAX_ERROR_BYTES = 1 << 20
_MAX_ERRORS = 10_000
_MAX_BYTES = 64 << 10
_MAX_RANKS = 100_000
#: Error messages of gloo, NCCL and the store when another rank has ended.
_LOST_CONNECTION = re.compile(
    r"Connection (reset|closed|refused)|Broken pipe|remote (worker|process)|communicator was aborted",
    re.IGNORECASE,
)


class Failure(Frozen, extra="ignore"):
    """Failure of a rank: its node, its error message, the source line, and its traceback if there is one."""

    rank: int
    node: str
    message: str
    time_ns: int = 0
    location: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        location = f" ({self.location})" if self.location else ""
        return f"rank {self.rank} on {self.node}: {self.message}{location}"

    @property
    def is_consequence(self) -> bool:
        """Return whether the rank failed because it lost the connection to another one.

        Such ranks may report their failure before the killed rank's own failure is recorded.
        """
        return _LOST_CONNECTION.search(self.message) is not None


class HangNotice(Frozen, extra="ignore"):
    """Alarm of a launch whose ranks make no progress: the cause in one line, and the ranks that it names.

    ``ended_ns`` is the time when they continued or were restarted; None while they hang.
    """

    time_ns: int
    message: str
    ranks: tuple[int, ...] = ()
    ended_ns: int | None = None


class LaunchState(WorkloadState):
    """A launch at one moment.

    ``in_job`` is true if the launch runs in an existing job, else it has its own. ``job_id`` is the ID of
    that job. ``restarts`` counts restarts of failed ranks, ``requeues`` those of the job. ``run`` is the run
    folder with its samples. ``gpus`` are the indexes, among the job's GPUs, of the GPUs that it holds on each
    node. ``reason`` is the reason for the current phase. ``ranks`` is the number of ranks, ``attempt`` counts
    the starts of all ranks by the supervisor, ``endpoint`` is the address and port of their store.
    ``failure`` is the first failure of a rank. ``restarted`` has the reasons of the last restarts. ``hang``
    is the last alarm.
    """

    number: int
    name: str = "launch"
    in_job: bool = True
    restarts: int = 0
    attempt: int = 0
    requeues: int = 0
    ranks: int = 0
    gpus: dict[str, tuple[int, ...]] = Field(default={})
    endpoint: str = ""
    failure: Failure | None = None
    restarted: tuple[str, ...] = ()
    hang: HangNotice | None = None

    def exit_document(self) -> dict[str, Any]:
        """Return the content of ``exit.json``."""
        failure = self.failure.model_dump() if self.failure else None
        more = {"restarts": self.restarts, "requeues": self.requeues, "failure": failure}
        return {**super().exit_document(), **more}


def read_state(folder: Path) -> LaunchState:
    """Return the state of a launch as its supervisor wrote it.

    Raises
    ------
    GipfelError
        The directory has no state, or it can't be read.
    """
    return directory.read_state(folder, LaunchState, "launch")


def refresh_state(folder: Path) -> LaunchState:
    """Return the state of a launch; write that it has ended if its supervisor was killed.

    Raises
    ------
    GipfelError
        The directory has no state, or it can't be read.
    """
    return directory.refresh_state(folder, read_state(folder))


def first_failure(folder: Path, attempt: int) -> Failure | None:
    """Return the first failure after the last restart of an attempt; None without one."""
    found = first_failures(folder, attempt)
    return found[max(found)] if found else None


def first_failures(folder: Path, attempt: int) -> dict[int, Failure]:
    """Return the first failure after each restart of an attempt, by the number of the restart."""
    found: dict[int, list[Failure]] = {}
    for path in islice((folder / "errors").glob(f"{attempt}-*-*.json"), _MAX_ERRORS):
        with suppress(OSError, ValueError):
            restart = int(path.stem.split("-")[1])
            failure = Failure.model_validate_json(read_regular(path, _MAX_ERROR_BYTES))
            found.setdefault(restart, []).append(failure)
    return {
        restart: min(each, key=lambda one: (one.is_consequence, one.time_ns))
        for restart, each in found.items()
    }


class RankRecord(Frozen, extra="ignore"):
    """Record of one rank.

    ``gpus`` is its CUDA_VISIBLE_DEVICES. ``attempt`` is the number of the supervisor's start, ``restart``
    that of the launcher's restart within it. ``world`` is the number of ranks, ``status`` the exit status.
    """

    rank: int
    local_rank: int = 0
    node: str = ""
    pid: int = 0
    gpus: str | None = None
    attempt: int = 0
    restart: int = 0
    world: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    status: int | None = None

    @property
    def gpu(self) -> str:
        """Return the visible GPU at the index LOCAL_RANK; empty without GPUs."""
        visible = [each for each in (self.gpus or "").split(",") if each]
        return visible[self.local_rank] if self.local_rank < len(visible) else ""


def read_rank_records(folder: Path) -> dict[int, RankRecord]:
    """Return the newest record of each rank."""
    found = {}
    for path in islice((folder / "ranks").glob("*.json"), _MAX_RANKS):
        with suppress(OSError, ValidationError):
            note = RankRecord.model_validate_json(read_regular(path, _MAX_BYTES))
            found[note.rank] = note
    return dict(sorted(found.items()))


def newest_restart(folder: Path, attempt: int) -> int:
    """Return how many times the launcher has restarted the ranks of an attempt."""
    return max(
        (each.restart for each in read_rank_records(folder).values() if each.attempt == attempt), default=0
    )


LAUNCHES = "launches"


def new_folder(environment: Mapping[str, str]) -> Path:
    """Make the next launch's directory, for its owner alone.

    Raises
    ------
    GipfelError
        The directory can't be created.
    """
    return new_directory(parent_directory(LAUNCHES, environment))


def known_folders(environment: Mapping[str, str], *, all_runs: bool = False) -> tuple[Path, ...]:
    """Return the directories of launches, the newest last: of this run or outside of runs, or of all runs."""
    return known_directories(LAUNCHES, environment, all_runs=all_runs)


def find_folder(word: str, environment: Mapping[str, str]) -> Path:
    """Return a launch's directory by its number here, ``RUN/N`` or path; the newest for an empty text.

    Raises
    ------
    GipfelError
        There is no such launch.
    """
    known = known_folders(environment) if not word else ()
    found = known[-1] if known else find_directory(LAUNCHES, word, environment)
    if found is not None:
        return found
    if not word:
        raise GipfelError(
            "There is no launch in this job, or outside a job none of yours.",
            "Start one with `gipfel launch -- SCRIPT`.",
        )
    raise GipfelError(f"There is no launch {word[:80]!r}.", "See `gipfel launch list --all`.")
