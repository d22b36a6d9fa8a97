"""``python -I -m gipfel_cluster.steps.supervisor``: start a step, wait for it, and end all of it.

The first line of standard input is a `StepPlan`; the end of the input, also by the death of the process that
started the step, stops the step. So does SIGTERM; SIGUSR1 and SIGUSR2 go to the tasks. What becomes of
the step is in ``<name>.json`` of its folder; the exit status is the step's.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from ..model import GipfelError
from ..process.liveness import adopt_orphans
from ..process.tree import Process, end_descendants
from ..regular_files import read_regular
from ..runs import write_atomically
from .spec import StepPlan, StepState, TaskLocation
from .tasks import LocalTasks, SlurmTasks

TIMED_OUT = 124
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_S = 0.5
_MOST_PLAN = 1 << 20


class StepSupervisor:
    """Supervises one step.

    Parameters
    ----------
    life
        A descriptor whose end stops the step.
    """

    def __init__(self, plan: StepPlan, life: int) -> None:
        self._plan = plan
        self._life: int | None = life
        self._file = Path(plan.folder, f"{plan.spec.name}.json")
        self._tasks_folder = Path(plan.folder, f"{plan.spec.name}.tasks")
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (*_STOPPING, *_PASSED_ON, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._state = StepState(
            phase="starting", supervisor=Process.of(os.getpid()), nodes=plan.nodes, started_ns=time.time_ns()
        )
        self._tasks = SlurmTasks(plan) if plan.setting.slurm_job else LocalTasks(plan)

    def run(self) -> int:
        """Run the step to its end and return its exit status."""
        adopt_orphans()
        self._remove_old_locations()
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
            sys.stderr.write(f"gipfel: {problem}\n")
        self._write(phase="ended", status=status, problem=problem, ended_ns=time.time_ns())
        return status

    def _wait(self) -> int:
        limit = self._plan.spec.time_limit_s
        deadline = None if limit is None else time.monotonic() + limit
        while (status := self._tasks.poll()) is None:
            self._look_for_tasks()
            watched = [self._wake] if self._life is None else [self._wake, self._life]
            ready, _, _ = select.select(watched, [], [], _LOOK_S)
            stop = self._pass_signals_on() if self._wake in ready else False
            if self._life in ready and not os.read(self._life or 0, 4096):
                self._life = None
                stop = True
            if deadline is not None and time.monotonic() > deadline:
                return self._stop(TIMED_OUT)
            if stop:
                return self._stop(None)
        self._look_for_tasks()
        return status

    def _pass_signals_on(self) -> bool:
        """Pass signals on, and return whether the step shall stop."""
        stop = False
        for number in os.read(self._wake, 512):
            stop = stop or number in _STOPPING
            if number in _PASSED_ON:
                self._tasks.signal(number)
        return stop

    def _stop(self, status: int | None) -> int:
        self._write(stopped=True)
        if self._state.phase == "running":
            # Seen by every task; where it can't be written, the end is only less gentle.
            with suppress(OSError):
                Path(self._plan.folder, f"{self._plan.spec.name}.stop").touch(mode=0o600)
        else:
            self._tasks.signal(signal.SIGTERM)
        deadline = time.monotonic() + self._plan.spec.grace_s
        while self._tasks.poll() is None and time.monotonic() < deadline:
            select.select([self._wake], [], [], _LOOK_S / 5)
            with suppress(BlockingIOError):
                os.set_blocking(self._wake, False)
                os.read(self._wake, 512)
        ended = self._tasks.end()
        return ended if status is None else status

    def _look_for_tasks(self) -> None:
        if self._state.phase != "starting":
            return
        with suppress(OSError, ValueError):
            found = next(self._tasks_folder.glob("*.json"), None)
            if found is not None:
                location = TaskLocation.model_validate_json(read_regular(found, _MOST_PLAN))
                self._tasks.step_id = location.step_id or self._tasks.step_id
                self._write(phase="running", step_id=self._tasks.step_id)

    def _remove_old_locations(self) -> None:
        Path(self._plan.folder, f"{self._plan.spec.name}.stop").unlink(missing_ok=True)
        for path in self._tasks_folder.glob("*.json"):
            path.unlink(missing_ok=True)

    def _write(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)
        # A disk that is full ends no step.
        with suppress(OSError):
            write_atomically(self._file, self._state.model_dump_json() + "\n")


def main() -> int:
    """Supervise the step that standard input describes."""
    line = _first_line(0)
    if not line:
        return 0  # It was started ahead of a step, and there was none.
    try:
        return StepSupervisor(StepPlan.model_validate_json(line), 0).run()
    except (GipfelError, OSError, ValueError) as error:
        sys.stderr.write(f"gipfel: The step can't be supervised: {' '.join(str(error).split())[:300]}\n")
        return 1


def _first_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _MOST_PLAN:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            break
        line += piece
    return line


if __name__ == "__main__":
    sys.exit(main())
