"""The tasks of a step without Slurm: processes of this machine."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.context import ForkProcess
from pathlib import Path

from ..engines.sandbox.namespaces import die_with_parent
from ..model import GipfelError
from ..regular_files import read_tail
from . import node
from .spec import STEP_VARIABLE, StepPlan
from .srun import log_file, scrubbed

_FORK = multiprocessing.get_context("fork")
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
_MOST_DESCRIPTORS = 1024
NODE_PROGRAM = ("-I", "-m", "gipfel_cluster.steps.node")


class LocalTasks:
    """Every task is a child of this process, which its death takes along."""

    def __init__(self, plan: StepPlan, environment: Mapping[str, str] = os.environ) -> None:
        self._plan = plan
        self._environment = scrubbed(environment)
        self._processes: list[ForkProcess] = []
        self._deadline: float | None = None
        self.step_id = f"local-{os.getpid()}"

    def start(self) -> None:
        """Start all of them.

        Raises
        ------
        GipfelError
            The step wants another machine, or one can't be started.
        """
        here = self._plan.setting.nodes
        if any(node not in here for node in self._plan.nodes):
            raise GipfelError(
                f"There is no Slurm here, and this machine is {', '.join(here)}.", "Leave the nodes out."
            )
        variables = {**self._environment, STEP_VARIABLE: self._plan.model_dump_json()}
        for rank in range(self._plan.spec.tasks_per_node):
            own = {"GIPFEL_TASK": str(rank), "GIPFEL_LOCAL_TASK": str(rank), "GIPFEL_NODE_RANK": "0"}
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            try:
                log = os.open(log_file(self._plan, rank), flags, 0o600)
                try:
                    self._processes.append(self._started(variables | own, log))
                finally:
                    os.close(log)
            except OSError as error:
                raise GipfelError(f"A task can't be started: {error.strerror} ({error.filename}).") from error

    def _started(self, environment: Mapping[str, str], log: int) -> ForkProcess:
        # Forked: what a task needs is loaded here already, which costs more than all else that it does.
        process = _FORK.Process(target=_run_task, args=(dict(environment), log))
        process.start()
        return process

    def poll(self) -> int | None:
        """The highest exit status once all have ended; one that fails ends the others if that was asked."""
        codes = [each.exitcode for each in self._processes]
        if self._plan.spec.end_together and None in codes and any(codes):
            self._end_the_others()
        if any(code is None for code in codes):
            return None
        return max((128 - code if code < 0 else code for code in codes if code is not None), default=0)

    def signal(self, number: int) -> None:
        """Send a signal to each task that runs."""
        for each in self._processes:
            if each.pid and each.exitcode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, number)

    def _end_the_others(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._plan.spec.grace_s
            self.signal(signal.SIGTERM)
        elif time.monotonic() > self._deadline:
            self.signal(signal.SIGKILL)

    def end(self) -> int:
        """End what is left by force, and give the status."""
        for each in self._processes:
            if each.exitcode is None:
                each.kill()
            each.join()
        codes = [each.exitcode or 0 for each in self._processes]
        return max((128 - code if code < 0 else code for code in codes), default=0)

    def last_words(self) -> str:
        """The last line of the first task's log."""
        return last_line(Path(log_file(self._plan, 0)))


def _run_task(environment: dict[str, str], log: int) -> None:
    """Become a task in a forked process: its own session, variables, output and signals."""
    os.setsid()
    die_with_parent()
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # The parent's pipes: its life and its wakening are none of a task's.
    os.closerange(3, _MOST_DESCRIPTORS)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(environment)
    status = node.main()
    sys.stderr.flush()
    os._exit(status)


def last_line(path: Path) -> str:
    """The last line of a log that is not empty."""
    try:
        lines = read_tail(path, 4096).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
