"""Stagings as workloads: start, await, list and stop stagings; list the copies on this node."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from gipfel_cluster.model import GipfelError, pluralize
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.workloads.directory import (
    COMMAND,
    SPEC,
    known_directories,
    new_directory,
    parent_directory,
    read_state,
    refresh_state,
    workload_id,
    write_state,
)
from gipfel_cluster.workloads.kinds import DirectoryKind, Report, Workload
from gipfel_cluster.workloads.submission import start_supervisor

from ...telemetry.files import read_regular
from .model import TRANSFERS, StageSpec, TransferState

_MAX_BYTES = 1 << 20
_POLL_S = 0.1


def start_staging(spec: StageSpec, environment: Mapping[str, str], parent: Path | None = None) -> Path:
    """Start a staging in the current job, or on this machine if there is none; return its directory.

    Parameters
    ----------
    parent
        Directory in which the staging's directory is created; by default the run folder.

    Raises
    ------
    GipfelError
        The staging can't be started.
    """
    folder = new_directory(parent or parent_directory(TRANSFERS, environment))
    names = ", ".join(Path(each).name for each in spec.data)
    state = TransferState(
        phase="queued",
        number=int(folder.name),
        name=names[:60],
        title=names[:200],
        data=spec.data,
        reason="its supervisor starts",
        created_ns=time.time_ns(),
    )
    write_atomically(folder / SPEC, spec.model_dump_json(indent=1) + "\n")
    write_atomically(folder / COMMAND, f"gipfel data stage {' '.join(spec.data)}\n")
    write_state(folder, state)
    try:
        start_supervisor(folder, "transfer", environment)
    except (GipfelError, OSError) as error:
        ended = {"phase": "ended", "outcome": "failed", "exit_status": 1, "reason": str(error)}
        write_state(folder, state.model_copy(update=ended))
        raise
    return folder


def wait_until_staged(
    folder: Path, on_change: Callable[[TransferState], None], stopped: Callable[[], bool] = lambda: False
) -> TransferState:
    """Wait until a staging's data is ready or the staging has ended, and return its state.

    Parameters
    ----------
    on_change
        Called with each new state.
    stopped
        Function that returns True to stop waiting.
    """
    while True:
        state = refresh_state(folder, read_state(folder, TransferState))
        on_change(state)
        if state.ready or state.ended or stopped():
            return state
        time.sleep(_POLL_S)


class TransferKind(DirectoryKind):
    """Stagings of data on the nodes of a job."""

    name = "transfer"
    directory = TRANSFERS

    def rerun(
        self,
        workload: Workload,
        environment: Mapping[str, str],
        *,
        directory: Path,  # noqa: ARG002 - the paths are absolute
        report: Report,
        kill_holders: bool = False,  # noqa: ARG002 - it uses no GPUs
    ) -> Workload:
        """Stage the same data again, in this process's job."""
        spec = StageSpec.model_validate_json(read_regular(Path(workload.folder) / SPEC, _MAX_BYTES))
        folder = start_staging(spec, environment)
        report(f"staging {pluralize(len(spec.data), 'path')}")
        return self._workload(folder)


def running_stagings(environment: Mapping[str, str]) -> dict[str, TransferState]:
    """Return the stagings of the user that have not ended, by ID."""
    found = {}
    for folder in known_directories(TRANSFERS, environment, all_runs=True):
        # An unreadable directory must not hide other stagings.
        with suppress(GipfelError):
            state = refresh_state(folder, read_state(folder, TransferState))
            if not state.ended:
                found[workload_id(folder)] = state
    return found
