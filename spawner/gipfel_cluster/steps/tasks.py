"""Run the tasks of a step: as children of its supervisor (`LocalTasks`), or with one srun (`SlurmTasks`)."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path

from ..engines import engine_for
from ..engines.srun import ContainerEngine, Pyxis
from ..model import GipfelError, ReportOSError
from ..namespaces import die_with_parent
from ..regular_files import last_line, open_log
from ..runs import ScratchFolder
from . import node
from .container import step_edf, task_invocation
from .spec import STEP_VARIABLE, StepPlan

# Variables that srun needs; the job's other SLURM variables would become options of the step.
_KEPT_FOR_SRUN = frozenset(("SLURM_CONF",))
_SLURM_FAMILIES = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SRUN_",
    "PMI_",
    "PMIX_",
    "PMI2_",
    "OMPI_",
    "PRTE_",
    "OPAL_",
)
#: Variables that another launcher may have set, and that would give a rank a wrong identity.
RANK_VARIABLES = frozenset(
    (
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
        "ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "MV2_COMM_WORLD_RANK",
    )
)  # fmt: skip
_LEAKED_FAMILIES = ("TORCHELASTIC_", "PET_", "ACCELERATE_", "MPI_LOCALRANKID", "HYDRA_", "HYDI_")
_FORK = multiprocessing.get_context("fork")
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
_MAX_DESCRIPTORS = 1024
NODE_PROGRAM = ("-I", "-m", "gipfel_cluster.steps.node")
#: Time limits in seconds: for scancel, and for the end of srun after it was signalled.
_COMMAND_S = 20.0
_END_S = 20.0
_POLL_S = 0.1
# Engines that are Slurm plugins: srun itself starts the containers on all nodes.
_SRUN_ENGINES = frozenset((ContainerEngine.name, Pyxis.name))


def without_launcher_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of launchers and schedulers, such as ``RANK``, ``SLURM_PROCID``."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT_FOR_SRUN
        or not (name in RANK_VARIABLES or name.startswith((*_SLURM_FAMILIES, *_LEAKED_FAMILIES)))
    }


def step_options(plan: StepPlan) -> tuple[str, ...]:
    """Return the options of srun; all are set explicitly, so that none is inherited from the job."""
    spec, nodes = plan.spec, plan.nodes
    tasks = spec.tasks_per_node
    cpus = spec.cpus_per_task or max(1, plan.job.cpus // tasks)
    return (
        f"--jobid={plan.job.slurm_job}",
        "--overlap",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={len(nodes) * tasks}",
        f"--ntasks-per-node={tasks}",
        f"--cpus-per-task={cpus}",
        "--mem=0",
        # The ranks bind themselves to the CPUs near their GPU.
        "--cpu-bind=none",
        "--distribution=block",
        *(["--overcommit"] if tasks * cpus > plan.job.cpus else []),
        *([f"--task-epilog={spec.epilog}"] if spec.epilog else []),
        *(["--gres=none"] if spec.gpus_per_node == 0 and not spec.gpus else []),
        f"--job-name={spec.name}",
        f"--kill-on-bad-exit={int(spec.kill_on_bad_exit)}",
        *([] if spec.kill_on_bad_exit else ["--no-kill"]),
        "--wait=0",
        "--input=none",
        "--unbuffered",
        "--open-mode=append",
        f"--output={log_pattern(plan)}",
        "--chdir=/",
    )


def log_pattern(plan: StepPlan) -> str:
    """Return srun's pattern for the tasks' log files; ``%t`` is the task's number, ``%n`` the node's."""
    name = "rank-%t.log" if plan.spec.tasks_per_node > 1 else "node-%n.log"
    # srun expands percent signs, so those of the path are doubled.
    return f"{plan.folder.replace('%', '%%')}/{name}"


def log_file(plan: StepPlan, rank: int) -> str:
    """Return the path of the log file of a task that runs without Slurm."""
    tasks = plan.spec.tasks_per_node
    return f"{plan.folder}/" + (f"rank-{rank}.log" if tasks > 1 else f"node-{rank // tasks}.log")


def srun_arguments(plan: StepPlan, command: Sequence[str]) -> tuple[str, ...]:
    """Return the argv of srun that runs a program of the host as every task."""
    return ("srun", *step_options(plan), "--export=ALL", *command)


class LocalTasks:
    """Tasks that are children of this process and end with it."""

    def __init__(self, plan: StepPlan, environment: Mapping[str, str] = os.environ) -> None:
        self._plan = plan
        self._environment = without_launcher_variables(environment)
        self._processes: list[ForkProcess] = []
        self._deadline: float | None = None
        self.step_id = f"local-{os.getpid()}"

    def start(self) -> None:
        """Start all tasks.

        Raises
        ------
        GipfelError
            The step names another machine, or a task can't be started.
        """
        nodes = self._plan.job.nodes
        if any(node not in nodes for node in self._plan.nodes):
            raise GipfelError(
                f"Without Slurm, a step can run on this machine only, which is {', '.join(nodes)}.",
                "Do not name other nodes.",
            )
        variables = {**self._environment, STEP_VARIABLE: self._plan.model_dump_json()}
        for rank in range(self._plan.spec.tasks_per_node):
            identity = {"GIPFEL_TASK": str(rank), "GIPFEL_LOCAL_TASK": str(rank), "GIPFEL_NODE_RANK": "0"}
            path = Path(log_file(self._plan, rank))
            with ReportOSError("A task can't be started"), os.fdopen(open_log(path), "ab") as log:
                # A fork, because this process has imported the task's modules, which takes most of a task's
                # start.
                process = _FORK.Process(target=_run_task, args=(variables | identity, log.fileno()))
                process.start()
                self._processes.append(process)

    def poll(self) -> int | None:
        """Return the highest exit status, None before all tasks have ended; apply ``kill_on_bad_exit``."""
        codes = [each.exitcode for each in self._processes]
        if self._plan.spec.kill_on_bad_exit and None in codes and any(codes):
            self._end_remaining()
        if any(code is None for code in codes):
            return None
        return max((128 - code if code < 0 else code for code in codes if code is not None), default=0)

    def signal(self, number: int) -> None:
        """Send a signal to each running task."""
        for each in self._processes:
            if each.pid and each.exitcode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, number)

    def _end_remaining(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._plan.spec.grace_s
            self.signal(signal.SIGTERM)
        elif time.monotonic() > self._deadline:
            self.signal(signal.SIGKILL)

    def end(self) -> int:
        """End remaining tasks with SIGKILL, and return the exit status."""
        for each in self._processes:
            if each.exitcode is None:
                each.kill()
            each.join()
        return self.poll() or 0

    def last_output(self) -> str:
        """Return the last line of the first task's log."""
        return last_line(Path(log_file(self._plan, 0)))


def _run_task(environment: dict[str, str], log: int) -> None:
    """Turn this forked process into a task with its own session, variables, output and signal handlers."""
    os.setsid()
    die_with_parent()
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Close the pipes of the supervisor.
    os.closerange(3, _MAX_DESCRIPTORS)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(environment)
    status = node.main()
    sys.stderr.flush()
    os._exit(status)


class SlurmTasks:
    """Tasks of one srun; signals are sent to the Slurm step, because it outlives an srun that is killed."""

    def __init__(self, plan: StepPlan, environment: Mapping[str, str] = os.environ) -> None:
        self._plan = plan
        self._environment = without_launcher_variables(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: ScratchFolder | None = None
        self._log = Path(plan.folder, f"{plan.spec.name}.log")
        self.step_id = ""
        self._ended = False

    def start(self) -> None:
        """Start srun.

        Raises
        ------
        GipfelError
            srun can't be started, or the container of an engine that starts with srun can't be made.
        """
        argv, variables = self._command()
        with (
            ReportOSError("The step can't be started", "Put Slurm's srun on PATH on the job's node."),
            os.fdopen(open_log(self._log), "ab") as log,
        ):
            self._process = subprocess.Popen(
                argv,
                env={**self._environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                # SIGTERM makes srun end the step if this process is killed. Safe, since it has one thread.
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509
            )

    def _command(self) -> tuple[tuple[str, ...], dict[str, str]]:
        plan = self._plan
        edf = step_edf(plan, self._environment)
        if engine_for(edf, plan.job.engine).name not in _SRUN_ENGINES:
            variables = {STEP_VARIABLE: plan.model_dump_json()}
            return srun_arguments(plan, (sys.executable, *NODE_PROGRAM)), variables
        self._scratch = ScratchFolder.create()
        invocation, _ = task_invocation(
            plan,
            edf,
            environment=self._environment,
            task_variables={**plan.spec.environment, "GIPFEL_RUN": plan.job.run},
            scratch=str(self._scratch.path),
            python=sys.executable,
            step=step_options(plan),
        )
        return invocation.argv, dict(invocation.environment)

    def poll(self) -> int | None:
        """Return the step's exit status once srun has ended, 128 + n after signal n; None before."""
        code = self._process.poll() if self._process else 1
        if code is not None and code < 0 and self.step_id and not self._ended:
            # Tasks survive the death of their srun.
            self._ended = True
            self._scancel(None)
        if code is not None and self._scratch is not None:
            self._scratch.remove()
            self._scratch = None
        return code if code is None or code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Send a signal to the tasks with scancel; if that fails, with srun."""
        if not (self.step_id and self._scancel(number)):
            self._send(number)

    def end(self) -> int:
        """End remaining tasks with SIGKILL, and return the exit status."""
        if self.poll() is None:
            if self.step_id:
                self._scancel(None)
            self._send(signal.SIGTERM)
            deadline = time.monotonic() + _END_S
            while self.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            self._send(signal.SIGKILL)
            if self._process is not None:
                self._process.wait()
        return self.poll() or 0

    def last_output(self) -> str:
        """Return the last line that srun printed."""
        return last_line(self._log)

    def _send(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _scancel(self, number: int | None) -> bool:
        """Send a signal to the step's tasks, or cancel the step (None); return whether Slurm did."""
        options = () if number is None else (f"--signal={number}",)
        try:
            done = subprocess.run(
                ("scancel", *options, self.step_id),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_COMMAND_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0
