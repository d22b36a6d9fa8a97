"""``python -I -m gipfel_cluster.steps.node``: one task of a step, on its node, around its container.

Started by ``srun`` once for each task, or by the step's supervisor where there is no Slurm. It composes the
container here, passes signals on, and leaves no process behind.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

from ..model import GipfelError
from ..namespaces import die_with_parent
from ..process.liveness import adopt_orphans
from ..process.tree import end_descendants
from ..runs import ScratchFolder, write_atomically
from .container import step_edf, task_invocation
from .spec import STEP_VARIABLE, StepPlan, TaskLocation

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
FAILED = 125
_LOOK_S = 0.5


class Task:
    """Runs one task and returns its exit status."""

    def __init__(self, plan: StepPlan, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._environment = dict(environment)
        self.location = task_location(plan, environment)
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: int | None = None

    def run(self) -> int:
        """Run the task to its end.

        Raises
        ------
        GipfelError
            The container can't be made.
        """
        adopt_orphans()
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        scratch = ScratchFolder.create()
        try:
            self._write_location()
            return self._run_in(scratch.path)
        finally:
            end_descendants()
            scratch.remove()

    def _run_in(self, scratch: Path) -> int:
        # Slurm's variables are this step's own: its supervisor removed those of the job around it.
        environment = {name: value for name, value in self._environment.items() if name != STEP_VARIABLE}
        invocation, folder = task_invocation(
            self._plan,
            step_edf(self._plan, environment),
            environment=environment,
            offered=self._offered(scratch),
            scratch=str(scratch),
            python=sys.executable,
        )
        for note in invocation.notes:
            _report(note)
        early = self._asked
        if early is not None:
            return 128 + early
        try:
            self._child = subprocess.Popen(
                invocation.argv,
                env=dict(invocation.environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # No other thread runs here. Who kills this process means the command.
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        except OSError as error:
            raise GipfelError(
                f"The command can't be started on {self.location.node}: {error.strerror} ({error.filename}).",
                "Check the command and the EDF.",
            ) from error
        asked = self._asked
        if asked is not None:
            self._forward(asked, None)
        status = self._wait(self._child)
        return 128 - status if status < 0 else status

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the end; when the step shall stop, signal the command alone, and once.

        Slurm's own way signals every process below at the same time, also those that others need to end
        well.
        """
        stop = Path(self._plan.folder, f"{self._plan.spec.name}.stop")
        signalled = False
        while True:
            try:
                return child.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                if not signalled and stop.exists():
                    signalled = True
                    child.send_signal(signal.SIGTERM)

    def _offered(self, scratch: Path) -> dict[str, str]:
        plan, location = self._plan, self.location
        offered = {
            "GIPFEL_NODE": location.node,
            "GIPFEL_TASK": str(location.rank),
            "GIPFEL_TASKS": str(len(plan.nodes) * plan.spec.tasks_per_node),
            "GIPFEL_LOCAL_TASK": str(location.local_rank),
            "GIPFEL_NODE_RANK": str(location.node_rank),
            "GIPFEL_NODES": ",".join(plan.nodes),
            "GIPFEL_CLUSTER": plan.setting.cluster,
            # A socket of the job's is on another disk; there is no broker for ranks.
            "GIPFEL_SOCKETS": str(scratch),
            "GIPFEL_RUN": plan.setting.run,
            "GIPFEL_JOB_ID": plan.setting.job_id,
        }
        kept = {name: value for name, value in offered.items() if value} | plan.spec.environment
        return kept if location.gpus is None else kept | {"CUDA_VISIBLE_DEVICES": ",".join(location.gpus)}

    def _write_location(self) -> None:
        folder = Path(self._plan.folder, f"{self._plan.spec.name}.tasks")
        # The location of a task is information only.
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(folder / f"{self.location.rank}.json", self.location.model_dump_json() + "\n")

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number
        if self._child is not None and self._child.poll() is None:
            with suppress(ProcessLookupError):
                self._child.send_signal(number)


def task_location(plan: StepPlan, environment: Mapping[str, str]) -> TaskLocation:
    """Read which task this process is from the variables of Slurm, or of the step's supervisor."""
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
        gpus=chosen_gpus(plan, node, environment),
        step_id=f"{job}.{step}" if slurm else "",
    )


def chosen_gpus(plan: StepPlan, node: str, environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the job's GPUs on a node that the tasks there see; None for all of a machine without Slurm."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    positions, most = plan.spec.gpus.get(node), plan.spec.gpus_per_node
    if given is None and not plan.setting.slurm_job:
        if positions is not None:
            return tuple(str(each) for each in positions)
        return None if most is None else tuple(str(each) for each in range(most))
    granted = tuple(each for each in (given or "").split(",") if each)
    if positions is not None:
        return tuple(granted[each] for each in positions if each < len(granted))
    return granted if most is None else granted[:most]


def main(environment: MutableMapping[str, str] = os.environ) -> int:
    """Run the task of this process; return 125, with one line on stderr, without a container."""
    try:
        plan = StepPlan.model_validate_json(environment.pop(STEP_VARIABLE, ""))
        return Task(plan, environment).run()
    except GipfelError as error:
        _report(str(error))
    except (OSError, ValueError) as error:
        _report(f"The task can't be run: {' '.join(str(error).split())[:300]}")
    return FAILED


def _report(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"gipfel: {line}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
