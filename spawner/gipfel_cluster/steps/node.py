"""Run one task of a step on its node: ``python -I -m gipfel_cluster.steps.node``.

``srun`` starts this program once for each task; without Slurm the step's supervisor does. It composes the
container on the node, forwards signals, and ends all processes of the task.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

from ..model import PYTHON, GipfelError, ReportOSError, report_line
from ..namespaces import die_with_parent
from ..process.fork import ForkedProgram, PreloadedProgram, allow_forks
from ..process.tree import adopt_orphans, end_descendants
from ..runs import ScratchFolder, write_atomically
from .container import step_edf, task_invocation
from .spec import STEP_VARIABLE, StepPlan, TaskLocation

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
#: Exit status if the container could not be made, as podman's.
FAILED = 125
_POLL_S = 0.5


class TaskRunner:
    """Runs one task and returns its exit status."""

    def __init__(self, plan: StepPlan, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._environment = dict(environment)
        self.location = task_location(plan, environment)
        self._child: subprocess.Popen[bytes] | ForkedProgram | None = None
        self._received: int | None = None

    def run(self) -> int:
        """Run the task to its end, and return its exit status, 128 + n after signal n.

        Raises
        ------
        GipfelError
            The container can't be made.
        """
        adopt_orphans()
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        with ScratchFolder.create() as scratch:
            try:
                self._write_location()
                return self._run_in(scratch.path)
            finally:
                end_descendants()

    def _run_in(self, scratch: Path) -> int:
        # Slurm's variables describe this step: its supervisor removed those of the job.
        environment = {name: value for name, value in self._environment.items() if name != STEP_VARIABLE}
        preloaded = self._preload()
        invocation, directory = task_invocation(
            self._plan,
            step_edf(self._plan, environment),
            environment=environment,
            task_variables=self._task_variables(scratch),
            scratch=str(scratch),
            python=sys.executable,
            node=self.location.node,
        )
        for note in invocation.notes:
            report_line(note)
        received = self._received
        if received is not None:
            return 128 + received
        variables = dict(invocation.environment)
        self._child = preloaded.run(invocation.argv, variables, directory) if preloaded else None
        with ReportOSError(
            f"The command can't be started on {self.location.node}", "Check the command and the EDF."
        ):
            self._child = self._child or subprocess.Popen(
                invocation.argv,
                env=variables,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # Safe, since this process has one thread. The command must end when this process is killed.
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        received = self._received
        if received is not None:
            self._forward(received, None)
        status = self._wait(self._child)
        return 128 - status if status < 0 else status

    def _preload(self) -> PreloadedProgram | None:
        """Begin to import the command's module, if it may run in a fork of this process."""
        first, *others = self._plan.spec.command
        if not self._plan.spec.fork or first != PYTHON:
            return None
        return PreloadedProgram.for_command((sys.executable, *others), bound=True)

    def _wait(self, child: "subprocess.Popen[bytes] | ForkedProgram") -> int:
        """Wait for the end; when the step's file ``.stop`` appears, send SIGTERM once to the command alone.

        Slurm would signal all processes of the task at the same time, including helpers that the command
        needs to end in order.
        """
        stop = Path(self._plan.folder, f"{self._plan.spec.name}.stop")
        signalled = False
        while True:
            try:
                return child.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                if not signalled and stop.exists():
                    signalled = True
                    child.send_signal(signal.SIGTERM)

    def _task_variables(self, scratch: Path) -> dict[str, str]:
        plan, location = self._plan, self.location
        variables = {
            "GIPFEL_NODE": location.node,
            "GIPFEL_TASK": str(location.rank),
            "GIPFEL_TASKS": str(len(plan.nodes) * plan.spec.tasks_per_node),
            "GIPFEL_LOCAL_TASK": str(location.local_rank),
            "GIPFEL_NODE_RANK": str(location.node_rank),
            "GIPFEL_NODES": ",".join(plan.nodes),
            "GIPFEL_CLUSTER": plan.job.cluster,
            # The job's sockets are on the disk of another node: tasks have no broker.
            "GIPFEL_SOCKETS": str(scratch),
            "GIPFEL_RUN": plan.job.run,
            "GIPFEL_JOB_ID": plan.job.job_id,
        }
        variables = {name: value for name, value in variables.items() if value} | plan.spec.environment
        if location.gpus is not None:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(location.gpus)
        return variables

    def _write_location(self) -> None:
        folder = Path(self._plan.folder, f"{self._plan.spec.name}.tasks")
        # The task can run without this file.
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(folder / f"{self.location.rank}.json", self.location.model_dump_json() + "\n")

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._received = number
        if self._child is not None and self._child.poll() is None:
            with suppress(ProcessLookupError):
                self._child.send_signal(number)


def task_location(plan: StepPlan, environment: Mapping[str, str]) -> TaskLocation:
    """Return the location of this process's task, from the variables of Slurm or of the step's supervisor."""
    slurm = "SLURM_PROCID" in environment
    rank = int(environment.get("SLURM_PROCID") or environment.get("GIPFEL_TASK") or 0)
    local = environment.get("SLURM_LOCALID") if slurm else environment.get("GIPFEL_LOCAL_TASK")
    index = environment.get("SLURM_NODEID") if slurm else environment.get("GIPFEL_NODE_RANK")
    node = environment.get("SLURMD_NODENAME") or plan.nodes[int(index or 0)]
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    return TaskLocation(
        rank=rank,
        local_rank=int(local or 0),
        node=node,
        node_rank=int(index or 0),
        pid=os.getpid(),
        gpus=visible_gpus(plan, node, environment),
        step_id=f"{job}.{step}" if slurm else "",
    )


def visible_gpus(plan: StepPlan, node: str, environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the job's GPUs that the tasks on a node see; None for all GPUs of a machine without Slurm."""
    job_gpus = environment.get("CUDA_VISIBLE_DEVICES")
    indices, limit = plan.spec.gpus.get(node), plan.spec.gpus_per_node
    if job_gpus is None and not plan.job.slurm_job:
        if indices is not None:
            return tuple(str(each) for each in indices)
        return None if limit is None else tuple(str(each) for each in range(limit))
    granted = tuple(each for each in (job_gpus or "").split(",") if each)
    if indices is not None:
        return tuple(granted[each] for each in indices if each < len(granted))
    return granted if limit is None else granted[:limit]


def main(environment: MutableMapping[str, str] = os.environ) -> int:
    """Run the task of this process; return 125, with one line on stderr, if its container can't be made."""
    allow_forks()
    try:
        plan = StepPlan.model_validate_json(environment.pop(STEP_VARIABLE, ""))
        return TaskRunner(plan, environment).run()
    except GipfelError as error:
        report_line(str(error))
    except (OSError, ValueError) as error:
        report_line(f"The task can't be run: {' '.join(str(error).split())[:300]}")
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
