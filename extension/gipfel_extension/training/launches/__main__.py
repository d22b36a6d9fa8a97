"""``python -I -m gipfel_extension.training.launches FOLDER [-]``: supervise a launch, on its host.

With ``-`` the job (`StepJob`) is the first line of standard input, as JSON; else it follows from this
process's variables.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.process.fork import allow_forks
from gipfel_cluster.steps.container import step_job_from_environment
from gipfel_cluster.steps.spec import StepJob
from gipfel_cluster.workloads.directory import hold_supervisor_lock

from ..record import read_state, write_state
from .hang_watch import report_end
from .supervisor import Supervisor


def main(arguments: list[str]) -> int:
    """Supervise a launch to its end."""
    folder = Path(arguments[0])
    try:
        with hold_supervisor_lock(folder):
            return _supervise(folder, job_on_stdin=arguments[1:] == ["-"])
    except GipfelError as error:
        # Another supervisor holds the lock and writes the state.
        sys.stderr.write(f"gipfel: {error}\n")
        return 1


def _supervise(folder: Path, *, job_on_stdin: bool) -> int:
    try:
        if job_on_stdin:
            setting = StepJob.model_validate_json(sys.stdin.readline())
        else:
            setting = step_job_from_environment(os.environ)
        return Supervisor(folder, setting, os.environ).run()
    except (GipfelError, OSError, ValueError) as error:
        sys.stderr.write(f"gipfel: {error}\n")
        with suppress(GipfelError, OSError):
            state = read_state(folder)
            ended = {"phase": "ended", "outcome": "failed", "exit_status": 1, "reason": str(error)}
            state = state.model_copy(update={**ended, "ended_ns": time.time_ns(), "gpus": {}})
            report_end(folder, write_state(folder, state), os.environ)
        return 1


if __name__ == "__main__":
    allow_forks()
    sys.exit(main(sys.argv[1:]))
