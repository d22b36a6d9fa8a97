"""The tasks of a step in a Slurm job: one ``srun`` beside whatever else the job runs."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ..engines import engine_for
from ..engines.ce import ContainerEngine
from ..engines.pyxis import Pyxis
from ..engines.sandbox.namespaces import die_with_parent
from ..model import GipfelError
from ..scratch import ScratchFolder
from .container import step_edf, task_invocation
from .here import NODE_PROGRAM, last_line
from .spec import STEP_VARIABLE, StepPlan
from .srun import scrubbed, signal_arguments, srun_arguments, step_options

_COMMAND_S = 20.0
_END_S = 20.0
_STEP_S = 0.1
# Plugins of Slurm: their srun makes the containers, on all nodes at once.
_BY_SRUN = frozenset((ContainerEngine.name, Pyxis.name))


class SlurmTasks:
    """One srun and what it started; signals go to the step, which outlives an srun that is killed."""

    def __init__(self, plan: StepPlan, environment: Mapping[str, str] = os.environ) -> None:
        self._plan = plan
        self._environment = scrubbed(environment)
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
            It can't be started, or the container of an engine that starts by srun can't be made.
        """
        argv, variables = self._command()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            log = os.open(self._log, flags, 0o600)
            try:
                self._process = subprocess.Popen(
                    argv,
                    env={**self._environment, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    start_new_session=True,
                    # Its own way to end the step, where this process is killed; no other thread runs here.
                    preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509
                )
            finally:
                os.close(log)
        except OSError as error:
            raise GipfelError(
                f"The step can't be started: {error.strerror} ({error.filename}).",
                "Slurm's srun must be on PATH on the job's node.",
            ) from error

    def _command(self) -> tuple[tuple[str, ...], dict[str, str]]:
        plan = self._plan
        edf = step_edf(plan, self._environment)
        if engine_for(edf, plan.setting.engine).name not in _BY_SRUN:
            given = {STEP_VARIABLE: plan.model_dump_json()}
            return srun_arguments(plan, (sys.executable, *NODE_PROGRAM)), given
        self._scratch = ScratchFolder.create()
        invocation, _ = task_invocation(
            plan,
            edf,
            environment=self._environment,
            offered={**plan.spec.environment, "GIPFEL_RUN": plan.setting.run},
            scratch=str(self._scratch.path),
            python=sys.executable,
            step=step_options(plan),
        )
        return invocation.argv, dict(invocation.environment)

    def poll(self) -> int | None:
        """The step's exit status, once srun has ended."""
        code = self._process.poll() if self._process else 1
        if code is not None and code < 0 and self.step_id and not self._ended:
            # The tasks live through the death of their srun.
            self._ended = True
            self._slurm(None)
        if code is not None and self._scratch is not None:
            self._scratch.remove()
            self._scratch = None
        return code if code is None or code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Send a signal to the tasks: by Slurm, or, where it does not answer, by srun."""
        if self.step_id and self._slurm(number):
            return
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def end(self) -> int:
        """End what is left by force, and give the status."""
        if self.poll() is None:
            if self.step_id:
                self._slurm(None)
            self._send(signal.SIGTERM)
            deadline = time.monotonic() + _END_S
            while self.poll() is None and time.monotonic() < deadline:
                time.sleep(_STEP_S)
            self._send(signal.SIGKILL)
            if self._process is not None:
                self._process.wait()
        return self.poll() or 0

    def last_words(self) -> str:
        """The last line that srun said."""
        return last_line(self._log)

    def _send(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _slurm(self, number: int | None) -> bool:
        try:
            done = subprocess.run(
                signal_arguments(self.step_id, number),
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
