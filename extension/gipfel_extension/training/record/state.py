"""State of a launch: ``state.json``, ``exit.json``, failed ranks' ``errors/`` and each rank's ``ranks/``."""

from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen
from gipfel_cluster.workloads import directory
from gipfel_cluster.workloads.directory import (
    COMMAND,
    EXIT,
    MOST_BYTES,
    SPEC,
    STATE,
    STOP,
    WorkloadState,
    write_state,
)

from ...telemetry.files import read_regular

__all__ = [
    "COMMAND",
    "EXIT",
    "MOST_BYTES",
    "PLAN",
    "SPEC",
    "STATE",
    "STOP",
    "Failure",
    "LaunchState",
    "RankNote",
    "first_failure",
    "first_failures",
    "newest_restart",
    "read_notes",
    "read_state",
    "settled_state",
    "write_state",
]

PLAN = "plan.json"
_MOST_ERROR_BYTES = 1 << 20
_MOST_ERRORS = 10_000
_MOST_BYTES = 64 << 10
_MOST_RANKS = 100_000


class Failure(Frozen, extra="ignore"):
    """The first rank that failed: where it ran, its error, and its traceback if it left one."""

    rank: int
    node: str
    message: str
    time_ns: int = 0
    where: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"rank {self.rank} on {self.node}: {self.message}{place}"


class LaunchState(WorkloadState):
    """A launch at one moment.

    ``restarts`` counts starts of failed ranks beyond the first, ``requeues`` those of the job; ``job_id`` is
    the launch's own job, or the one that it runs in; ``run`` the run folder with its samples; ``gpus`` the
    positions among the job's GPUs that it holds on each node; ``reason`` why it is in this phase, for people;
    ``restarted`` why its ranks were started again, a line for each of the last times.
    """

    number: int
    name: str = "launch"
    where: Literal["here", "job"] = "here"
    restarts: int = 0
    attempt: int = 0
    requeues: int = 0
    ranks: int = 0
    gpus: dict[str, tuple[int, ...]] = Field(default={})
    endpoint: str = ""
    step_ids: tuple[str, ...] = ()
    failure: Failure | None = None
    restarted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

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
        There is none, or it can't be read.
    """
    return directory.read_state(folder, LaunchState, "launch")


def settled_state(folder: Path) -> LaunchState:
    """Return the state of a launch; write that it has ended if its supervisor was killed.

    Raises
    ------
    GipfelError
        There is none, or it can't be read.
    """
    return directory.settled_state(folder, read_state(folder))


def first_failure(folder: Path, attempt: int) -> Failure | None:
    """Return the rank that failed first in the last start of an attempt's ranks."""
    found = first_failures(folder, attempt)
    return found[max(found)] if found else None


def first_failures(folder: Path, attempt: int) -> dict[int, Failure]:
    """Return the rank that failed first in each start of an attempt's ranks, by the start's number."""
    found: dict[int, list[Failure]] = {}
    for path in islice((folder / "errors").glob(f"{attempt}-*-*.json"), _MOST_ERRORS):
        try:
            restart = int(path.stem.split("-")[1])
            failure = Failure.model_validate_json(read_regular(path, _MOST_ERROR_BYTES))
            found.setdefault(restart, []).append(failure)
        except (OSError, ValueError):
            continue
    return {restart: min(each, key=lambda one: one.time_ns) for restart, each in found.items()}


class RankNote(Frozen, extra="ignore"):
    """One rank: its node and process, its CUDA_VISIBLE_DEVICES, the number of its start."""

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
        """Return the GPU that a rank takes by its LOCAL_RANK; empty without GPUs."""
        seen = [each for each in (self.gpus or "").split(",") if each]
        return seen[self.local_rank] if self.local_rank < len(seen) else ""


def read_notes(folder: Path) -> dict[int, RankNote]:
    """Return the last note of each rank."""
    found = {}
    for path in islice((folder / "ranks").glob("*.json"), _MOST_RANKS):
        try:
            note = RankNote.model_validate_json(read_regular(path, _MOST_BYTES))
        except (OSError, ValidationError):
            continue
        found[note.rank] = note
    return dict(sorted(found.items()))


def newest_restart(folder: Path, attempt: int) -> int:
    """Return how often the launcher restarted the ranks of an attempt."""
    return max((each.restart for each in read_notes(folder).values() if each.attempt == attempt), default=0)
