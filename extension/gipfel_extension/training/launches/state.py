"""What becomes of a launch: ``state.json``, written by whoever acts for it, and ``exit.json`` at its end."""

import json
import time
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.scheduler.processes import Process

from ...telemetry.files import read_regular

Phase = Literal["preflight", "vetting", "queued", "running", "ended"]
Outcome = Literal["", "completed", "failed", "stopped", "timeout", "preempted", "lost"]
STATE, EXIT, SPEC, PLAN, COMMAND, STOP = (
    "state.json", "exit.json", "spec.json", "plan.json", "command.txt", "stop",
)  # fmt: skip
#: What any file of a launch but logs, metrics, traces and dumps may hold.
MOST_BYTES = 16 << 20
_MOST_ERROR_BYTES = 1 << 20
_MOST_ERRORS = 10_000


class Failure(Frozen, extra="ignore"):
    """The first rank that failed: where it ran, what it said, and its traceback if it left one."""

    rank: int
    node: str
    message: str
    time_ns: int = 0
    where: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"rank {self.rank} on {self.node}: {self.message}{place}"


class LaunchState(Frozen, extra="ignore"):
    """A launch at one moment.

    ``restarts`` counts starts of failed ranks beyond the first, ``requeues`` those of the job; ``job_id`` is
    the launch's own job, or the one that it runs in; ``run`` the run folder with its samples; ``gpus`` the
    positions among the job's GPUs that it holds on each node; ``reason`` why it is where it is, for people;
    ``restarted`` why its ranks were started again, a line for each of the last times.
    """

    phase: Phase
    number: int
    name: str = "launch"
    title: str = ""
    where: Literal["here", "job"] = "here"
    outcome: Outcome = ""
    reason: str = ""
    restarts: int = 0
    attempt: int = 0
    requeues: int = 0
    ranks: int = 0
    nodes: tuple[str, ...] = ()
    gpus: dict[str, tuple[int, ...]] = Field(default={})
    endpoint: str = ""
    step_ids: tuple[str, ...] = ()
    job_id: str = ""
    scheduler: str = ""
    run: str = ""
    supervisor: Process | None = None
    created_ns: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    updated_ns: int = 0
    exit_status: int | None = None
    failure: Failure | None = None
    restarted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.phase == "ended"


def read_state(folder: Path) -> LaunchState:
    """The state of a launch.

    Raises
    ------
    GipfelError
        There is none, or it can't be read.
    """
    try:
        return LaunchState.model_validate_json(read_regular(folder / STATE, MOST_BYTES))
    except FileNotFoundError:
        raise GipfelError(f"There is no launch in {folder}.", "See `gipfel launch list`.") from None
    except OSError as error:
        raise GipfelError(f"The state of the launch in {folder} can't be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = one_line(f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip())[:200]
        raise GipfelError(
            f"The state of the launch in {folder} can't be read: {why}.",
            "Use the version of Gipfel that wrote it, or remove the folder.",
        ) from error


def write_state(folder: Path, state: LaunchState) -> LaunchState:
    """Write the state, stamped with the time, and at its end ``exit.json``; returns it as written."""
    state = state.model_copy(update={"updated_ns": time.time_ns()})
    write_atomically(folder / STATE, state.model_dump_json(indent=1) + "\n")
    if state.ended:
        content = {
            "exit_status": state.exit_status,
            "outcome": state.outcome,
            "restarts": state.restarts,
            "requeues": state.requeues,
            "failure": state.failure.model_dump() if state.failure else None,
            "reason": state.reason,
            "ended_ns": state.ended_ns,
        }
        write_atomically(folder / EXIT, json.dumps(content, indent=1) + "\n")
    return state


def first_failure(folder: Path, attempt: int) -> Failure | None:
    """The rank that failed first in the last start of an attempt's ranks."""
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
