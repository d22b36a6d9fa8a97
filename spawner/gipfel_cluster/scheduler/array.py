"""Run a job array as one job of the local scheduler: ``python -m gipfel_cluster.scheduler.array``.

The program starts the tasks in order, with a limit on concurrent tasks, and writes the state of each task to
``tasks/<number>.json`` in the job's directory. Its exit status is the highest of the tasks'.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ..model import Frozen
from ..process.tree import Process
from ..runs import write_atomically

#: The variable that carries an `ArrayPlan` as JSON.
PLAN_VARIABLE = "GIPFEL_ARRAY"
#: The variable with the index of the array task, from 0.
TASK_VARIABLE = "GIPFEL_ARRAY_TASK_ID"

_POLL_S = 0.1


class ArrayPlan(Frozen):
    """The tasks of an array.

    ``folder`` is the directory of the array's job, ``script`` the shell script of each task, ``output`` the
    path of its log, in which ``%a`` stands for its index. ``tasks`` is the number of tasks, ``limit`` that of
    concurrent ones. ``gpus`` has the CUDA_VISIBLE_DEVICES of each concurrent task; empty if tasks have no
    GPUs of their own.
    """

    folder: str
    script: str
    output: str
    tasks: int
    limit: int
    gpus: tuple[str, ...] = ()


class TaskState(Frozen):
    """The state of a task: Slurm's name of its state, its process, and its exit code (None while it runs)."""

    state: str
    process: Process
    exit_code: int | None = None


def array_script(python: str) -> str:
    """Return the script of the job that runs an array's tasks."""
    return f"#!/bin/sh\nexec {shlex.quote(python)} -I -m gipfel_cluster.scheduler.array\n"


def task_file(folder: Path, task: int) -> Path:
    """Return the state file of a task in the directory of the array's job."""
    return folder / "tasks" / f"{task}.json"


class ArrayRunner:
    """Runs the tasks of an `ArrayPlan`."""

    def __init__(self, plan: ArrayPlan, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._environment = dict(environment)
        self._job_id = environment.get("GIPFEL_JOB_ID", "")
        self._running: dict[int, tuple[int, subprocess.Popen[bytes], Process]] = {}
        self._ending = False

    def run(self) -> int:
        """Run all tasks and return the highest exit status; after SIGTERM end them, and return 143."""
        signal.signal(signal.SIGTERM, self._end)
        task_file(Path(self._plan.folder), 0).parent.mkdir(mode=0o700, exist_ok=True)
        pending, highest = list(range(self._plan.tasks)), 0
        while self._running or (pending and not self._ending):
            for slot in range(self._plan.limit):
                if pending and not self._ending and slot not in self._running:
                    self._start(slot, pending.pop(0))
            highest = max(highest, *self._collect(), 0)
            time.sleep(_POLL_S)
        return 143 if self._ending else highest

    def _start(self, slot: int, task: int) -> None:
        environment = {
            **self._environment,
            TASK_VARIABLE: str(task),
            "GIPFEL_JOB_ID": f"{self._job_id}_{task}",
        }
        if self._plan.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._plan.gpus[slot]
        log = os.open(
            self._plan.output.replace("%a", str(task)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        script = os.memfd_create("task", 0)
        os.write(script, self._plan.script.encode())
        child = subprocess.Popen(
            ("/bin/sh", f"/proc/self/fd/{script}"),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(script,),
        )
        os.close(log)
        os.close(script)
        process = Process.of(child.pid) or Process(pid=child.pid, start=0, boot="")
        self._running[slot] = (task, child, process)
        self._write_state(task, TaskState(state="RUNNING", process=process))

    def _collect(self) -> list[int]:
        codes = []
        for slot, (task, child, process) in list(self._running.items()):
            status = child.poll()
            if status is None:
                continue
            del self._running[slot]
            code = 128 - status if status < 0 else status
            cancelled = code in {128 + signal.SIGTERM, 128 + signal.SIGINT}
            state = "CANCELLED" if cancelled else "FAILED" if code else "COMPLETED"
            self._write_state(task, TaskState(state=state, process=process, exit_code=code))
            codes.append(code)
        return codes

    def _write_state(self, task: int, state: TaskState) -> None:
        write_atomically(task_file(Path(self._plan.folder), task), state.model_dump_json())

    def _end(self, _number: int, _frame: object) -> None:
        self._ending = True
        for _, child, _ in self._running.values():
            child.terminate()


def main() -> int:
    """Run the array of ``$GIPFEL_ARRAY``."""
    return ArrayRunner(ArrayPlan.model_validate_json(os.environ.pop(PLAN_VARIABLE)), os.environ).run()


if __name__ == "__main__":
    sys.exit(main())
