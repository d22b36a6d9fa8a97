"""Start a step, wait for it, and end all of it: ``python -I -m gipfel_cluster.steps.supervisor``.

The first line of standard input is a `StepPlan`. The step stops on SIGTERM, and on end of file of the input,
which also happens if the process that started the step dies. SIGUSR1 and SIGUSR2 are forwarded to the tasks.
The supervisor writes the step's state to ``<name>.json`` in its directory, and exits with the step's status.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from ..model import GipfelError, report_line
from ..process.tree import Process, adopt_orphans, end_descendants
from ..regular_files import read_regular
from ..runs import write_atomically
from .spec import StepPlan, StepState, TaskLocation
from .tasks import LocalTasks, SlurmTasks

#: Exit status after the time limit, as that of timeout(1).
TIMED_OUT = 124
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_POLL_S = 0.5
_MAX_PLAN = 1 << 20


class StepSupervisor:
    """Supervises one step.

    Parameters
    ----------
    parent_pipe
        A descriptor on which end of file stops the step.
    """

    def __init__(self, plan: StepPlan, parent_pipe: int) -> None:
        self._plan = plan
        self._parent_pipe: int | None = parent_pipe
        self._file = Path(plan.folder, f"{plan.spec.name}.json")
        self._tasks_folder = Path(plan.folder, f"{plan.spec.name}.tasks")
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (*_STOPPING, *_FORWARDED, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._state = StepState(
            phase="starting", supervisor=Process.of(os.getpid()), nodes=plan.nodes, started_ns=time.time_ns()
        )
        self._tasks = SlurmTasks(plan) if plan.job.slurm_job else LocalTasks(plan)

    def run(self) -> int:
        """Run the step to its end and return its exit status."""
        adopt_orphans()
        self._remove_old_files()
        self._write()
        status, problem = 1, ""
        try:
            self._tasks.start()
            status = self._wait()
        except GipfelError as error:
            problem = str(error)
        finally:
            end_descendants()
        if status and not problem and self._state.phase == "starting":
            problem = self._tasks.last_output()
        if problem:
            report_line(problem)
        self._write(phase="ended", status=status, problem=problem, ended_ns=time.time_ns())
        return status

    def _wait(self) -> int:
        limit = self._plan.spec.time_limit_s
        deadline = None if limit is None else time.monotonic() + limit
        while (status := self._tasks.poll()) is None:
            self._detect_start()
            watched = [self._wake] if self._parent_pipe is None else [self._wake, self._parent_pipe]
            ready, _, _ = select.select(watched, [], [], _POLL_S)
            stop = self._handle_signals() if self._wake in ready else False
            if self._parent_pipe in ready and not os.read(self._parent_pipe or 0, 4096):
                self._parent_pipe = None
                stop = True
            if deadline is not None and time.monotonic() > deadline:
                return self._stop(TIMED_OUT)
            if stop:
                return self._stop(None)
        self._detect_start()
        return status

    def _handle_signals(self) -> bool:
        """Forward signals to the tasks, and return whether one of them stops the step."""
        stop = False
        for number in os.read(self._wake, 512):
            stop = stop or number in _STOPPING
            if number in _FORWARDED:
                self._tasks.signal(number)
        return stop

    def _stop(self, status: int | None) -> int:
        self._write(stopped=True)
        if self._state.phase == "running":
            # Every task looks for this file. If it can't be created, the tasks are killed after the grace
            # period.
            with suppress(OSError):
                Path(self._plan.folder, f"{self._plan.spec.name}.stop").touch(mode=0o600)
        else:
            self._tasks.signal(signal.SIGTERM)
        deadline = time.monotonic() + self._plan.spec.grace_s
        while self._tasks.poll() is None and time.monotonic() < deadline:
            select.select([self._wake], [], [], _POLL_S / 5)
            with suppress(BlockingIOError):
                os.set_blocking(self._wake, False)
                os.read(self._wake, 512)
        ended = self._tasks.end()
        return ended if status is None else status

    def _detect_start(self) -> None:
        """Write the phase ``running`` as soon as a task has written its location."""
        if self._state.phase != "starting":
            return
        with suppress(OSError, ValueError):
            path = next(self._tasks_folder.glob("*.json"), None)
            if path is not None:
                location = TaskLocation.model_validate_json(read_regular(path, _MAX_PLAN))
                self._tasks.step_id = location.step_id or self._tasks.step_id
                self._write(phase="running", step_id=self._tasks.step_id)

    def _remove_old_files(self) -> None:
        Path(self._plan.folder, f"{self._plan.spec.name}.stop").unlink(missing_ok=True)
        for path in self._tasks_folder.glob("*.json"):
            path.unlink(missing_ok=True)

    def _write(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)
        # A full disk must not end the step.
        with suppress(OSError):
            write_atomically(self._file, self._state.model_dump_json() + "\n")


def main() -> int:
    """Supervise the step that standard input describes; return its exit status, 0 if the input is empty."""
    line = _first_line(0)
    if not line:
        return 0  # It was started in advance, and no step followed.
    try:
        return StepSupervisor(StepPlan.model_validate_json(line), 0).run()
    except (GipfelError, OSError, ValueError) as error:
        report_line(f"The step can't be supervised: {' '.join(str(error).split())[:300]}")
        return 1


def _first_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_PLAN:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            break
        line += piece
    return line


if __name__ == "__main__":
    sys.exit(main())
