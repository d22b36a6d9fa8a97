"""Supervisor of a launch: it starts and restarts ranks, writes the state, and requeues the job.

``python -I -m gipfel_extension.training.launches.supervisor FOLDER [-]`` supervises a launch, on its host.
With ``-`` the job (`StepJob`) is the first line of standard input, as JSON; else it follows from this
process's variables.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from gipfel_cluster.job.recording import track_begin
from gipfel_cluster.job.time_limit import TimeLimit
from gipfel_cluster.model import GipfelError, pluralize
from gipfel_cluster.process.fork import allow_forks
from gipfel_cluster.process.tree import Process
from gipfel_cluster.regular_files import last_line
from gipfel_cluster.steps import StepJob
from gipfel_cluster.steps.container import step_job_from_environment
from gipfel_cluster.workloads.directory import hold_supervisor_lock

from ..record import (
    STOP,
    LaunchState,
    RankRecord,
    first_failure,
    first_failures,
    newest_restart,
    read_rank_records,
    read_state,
    write_state,
)
from ..record.spec import LaunchPlan
from .allocation import (
    allocation_lock,
    choose_gpus,
    granted_gpus,
    held_gpus,
    requeue,
    stage_for_launch,
    vetted_nodes,
)
from .attempt import RunningAttempt, tracking_variables
from .hang_watch import HangWatch, report_end
from .logs import LogTimes, metrics_of_logs

_LOOK_S = 0.5
_UPDATE_S = 10.0
#: Seconds that Slurm and this process need in addition to the ranks' time for a checkpoint.
_MARGIN_S = 15.0
_SILENT = ("Unable to contact slurm controller", "Socket timed out", "Communication connection failure")
#: Number of attempts to start steps while Slurm does not respond, and the pause between them in seconds.
_SILENT_TRIES, _SILENT_S = 24, 5.0
#: Maximum length of a restart's reason in characters, and number of the last restarts whose reasons are kept.
_MAX_REASON_CHARACTERS, _MAX_REASONS = 300, 20
STOPPED, TIMEOUT = 143, 124


class Supervisor:
    """Supervisor of one launch, from the start of its ranks to its end.

    Parameters
    ----------
    folder
        Directory of the launch on the host.
    setting
        Job that the launch runs in.
    environment
        Environment variables of the job on this node.
    """

    def __init__(
        self,
        folder: Path,
        setting: StepJob,
        environment: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._plan = LaunchPlan.load(folder)
        engine = self._plan.engine or setting.engine
        self._setting = setting.model_copy(update={"engine": engine, "edf": self._plan.edf or setting.edf})
        self._stop_signal = 0
        self._warned = ""
        self._warned_by_slurm = False
        self._time_limit = TimeLimit(environment, setting.slurm_job)
        pattern, node = self._plan.spec.metrics_pattern, os.uname().nodename
        self._times = LogTimes(folder, metrics_of_logs(folder, setting.run, pattern, node))
        self._hangs = HangWatch(folder, environment, self._plan.spec.hang_after_s)
        self._earlier_restarts = 0
        self._reasons: dict[int, str] = {}
        state = read_state(folder)
        again = state.phase == "running" or state.requeues > 0
        self._state = self._write(
            state.model_copy(
                update={
                    "phase": "running",
                    "outcome": "",
                    "reason": "",
                    "ended_ns": None,
                    "exit_status": None,
                    "started_ns": state.started_ns or time.time_ns(),
                    "supervisor": Process.of(os.getpid()),
                    "job_id": setting.slurm_job or setting.job_id or state.job_id,
                    "run": setting.run or state.run,
                    "attempt": state.attempt + 1 if again else 0,
                    "requeues": state.requeues + (1 if again and state.phase == "running" else 0),
                }
            )
        )

    def run(self) -> int:
        """Supervise the launch to its end and return its exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        status, outcome, reason = 1, "failed", ""
        try:
            status, outcome, reason = self._supervise()
        except GipfelError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - the error is written as the reason of the end
            path = getattr(error, "filename", None) or self._folder
            reason = f"The launch can't continue: {type(error).__name__}: {error} ({path})."
        self._times.close()
        if outcome == "requeued":
            return 0
        failure = first_failure(self._folder, self._state.attempt) if outcome == "failed" else None
        if failure:
            # The other ranks were stopped because of this failure, so their exit statuses are not used.
            own_status = (
                read_rank_records(self._folder).get(failure.rank, RankRecord(rank=failure.rank)).status
            )
            status = status if not own_status else own_status if own_status > 0 else 128 - own_status
        ended = self._write(
            self._state.model_copy(
                update={
                    "phase": "ended",
                    "outcome": outcome,
                    "exit_status": status,
                    "reason": reason or (str(failure) if failure else self._last_log_line(outcome)),
                    "failure": failure,
                    "ended_ns": time.time_ns(),
                    "gpus": {},
                }
            )
        )
        report_end(self._folder, ended, self._environment)
        return status

    def _last_log_line(self, outcome: str) -> str:
        """Return the last line of a node's log, for ranks that did not start or left no error."""
        if outcome != "failed":
            return ""
        return last_line(self._folder / "steps" / "node-0.log") or "The ranks ended without a message."

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            self._warned_by_slurm = True
        else:
            self._stop_signal = number

    def _supervise(self) -> tuple[int, str, str]:
        spec = self._plan.spec
        nodes = self._nodes()
        with allocation_lock(self._folder):
            gpus = choose_gpus(
                nodes,
                spec.gpus_per_node,
                granted_gpus(self._environment),
                held_gpus(self._folder, self._state.job_id),
            )
            self._change(nodes=nodes, gpus=gpus, ranks=len(nodes) * spec.gpus_per_node)
        stage_for_launch(self._plan, self._setting, nodes, self._environment, self._report_staging)
        silent = 0
        while not self._stop_requested():
            running = self._start_attempt()
            status = self._follow(running)
            restarts = self._restarts(running)
            if self._stop_requested():
                break
            if self._warned:
                return self._requeue_or_end(status)
            if self._stop_signal:
                return 128 + self._stop_signal, "stopped", "The job was ended."
            if status == 0:
                return 0, "completed", ""
            problem = running.problem
            if problem and any(word in problem for word in _SILENT) and silent < _SILENT_TRIES:
                silent += 1
                self._change(reason="Slurm does not respond; the ranks start when it does.")
                time.sleep(_SILENT_S)
            elif problem:
                return status or 1, "failed", problem
            elif restarts >= spec.restarts:
                return status or 1, "failed", ""
            else:
                # The launcher could not restart the ranks, so the supervisor restarts all of them.
                self._note_restarts(restarts + 1, "")
                self._earlier_restarts = restarts + 1
            self._change(attempt=self._state.attempt + 1)
        return STOPPED, "stopped", "The launch was stopped."

    def _nodes(self) -> tuple[str, ...]:
        spec = self._plan.spec
        if spec.vetting:
            self._change(phase="vetting", reason=f"The nodes are vetted by {spec.vetting}.")
        nodes = vetted_nodes(
            self._plan,
            self._setting,
            self._environment,
            self._stop_vetting,
        )
        self._change(phase="running", reason="")
        least = spec.nodes_min or spec.nodes
        if len(nodes) < least:
            raise GipfelError(
                f"The launch requests {pluralize(least, 'node')}, but the job has only {len(nodes)} left.",
                "Request fewer nodes, or run the launch in a new job (--new-job).",
            )
        return nodes[: spec.nodes]

    def _stop_vetting(self) -> bool:
        """Return whether vetting must end; update the state regularly to show that this process is alive."""
        if time.time_ns() - self._state.updated_ns > _UPDATE_S * 1e9:
            self._change()
        return bool(self._stop_signal or self._stop_requested())

    def _report_staging(self, text: str) -> bool:
        """Write the progress of the staging into the state; return whether it must stop."""
        if text != self._state.reason:
            self._change(reason=text)
        return self._stop_requested() or bool(self._stop_signal)

    def _start_attempt(self) -> RunningAttempt:
        running = RunningAttempt(
            self._plan,
            self._state,
            setting=self._setting,
            environment=self._environment,
            restarts=max(0, self._plan.spec.restarts - self._earlier_restarts),
            extra={
                "notebook": self._notebook(),
                "run": self._setting.run,
                "tracking": self._tracking(),
            },
        )
        running.start()
        self._change(endpoint=running.endpoint, reason="")
        return running

    def _tracking(self) -> dict[str, str]:
        """Return the variables by which rank 0 logs to the launch's run in MLflow; empty without one."""
        run = Path(self._setting.run) if self._setting.run else None
        if run is None or not track_begin(run, self._environment):
            return {}
        return tracking_variables(run, self._folder, self._environment)

    def _notebook(self) -> list[str] | None:
        """Return the argv of a notebook's rank 0: papermill in the runtime's Python."""
        if self._plan.spec.kind not in {"notebook", "cell"}:
            return None
        contained = bool(self._setting.edf)
        runtime = self._setting.runtime
        python = runtime.python if contained or runtime.host_python else sys.executable
        return [python, "-I", "-m", "gipfel_extension.training.launches.notebook", self._plan.folder]

    def _follow(self, running: RunningAttempt) -> int:
        """Wait for the end of an attempt, or stop it; return its exit status."""
        deadline, updated = None, 0.0
        while (status := running.poll()) is None:
            now = time.monotonic()
            if now - updated > _UPDATE_S:
                updated = now
                self._change()
                self._note_restarts(self._restarts(running), *running.notes[-1:])
            self._times.record_growth()
            self._note_hang()
            remaining = self._time_limit.remaining_s()
            # Slurm's warning comes up to a minute early, so it is used only if the end is unknown.
            near = (
                self._warned_by_slurm
                if remaining is None
                else remaining < self._plan.spec.grace_s + _MARGIN_S
            )
            if near and not self._warned:
                self._warned = "the job's time limit is near"
            if (self._warned or self._stop_signal) and deadline is None:
                (self._folder / "signal").touch()
                self._change(reason=f"Ranks write a checkpoint: {self._warned or 'the job is ending'}.")
                deadline = now + self._plan.spec.grace_s
            if self._stop_requested() or (deadline is not None and now > deadline):
                running.stop()
                status = running.poll()
                break
            time.sleep(_LOOK_S)
        self._times.record_growth()
        self._note_restarts(self._restarts(running), *running.notes[-1:])
        return 1 if status is None else status

    def _note_hang(self) -> None:
        """Write a new alarm, or the end of one; its cause is the reason that lists of workloads show."""
        before, notice = self._state.hang, self._hangs.poll(self._state)
        if notice == before or notice is None:
            return
        if notice.ended_ns is None:
            self._change(hang=notice, reason=notice.message)
        else:
            resumed = before is not None and self._state.reason == before.message
            self._change(hang=notice, reason="" if resumed else self._state.reason)

    def _restarts(self, running: RunningAttempt) -> int:
        counted = max(newest_restart(self._folder, self._state.attempt), running.rejoined)
        return self._earlier_restarts + counted

    def _note_restarts(self, count: int, other: str = "") -> None:
        """Write the number of restarts and their reasons: the rank that failed first, else `other`."""
        for start, failure in first_failures(self._folder, self._state.attempt).items():
            number = self._earlier_restarts + start + 1
            if number <= count:
                self._reasons[number] = f"restart {number}: {str(failure)[:_MAX_REASON_CHARACTERS]}"
        if count and count not in self._reasons:
            why = (
                other
                or last_line(self._folder / "steps" / "node-0.log")
                or "the ranks ended without a message"
            )
            self._reasons[count] = f"restart {count}: {why[:_MAX_REASON_CHARACTERS]}"
        kept = tuple(text for _, text in sorted(self._reasons.items())[-_MAX_REASONS:])
        if (count, kept) != (self._state.restarts, self._state.restarted):
            self._change(restarts=count, restarted=kept)

    def _requeue_or_end(self, status: int) -> tuple[int, str, str]:
        """Requeue the job after a warning, or end; return exit status, outcome and reason."""
        spec = self._plan.spec
        if spec.on_preempt == "end":
            return status or TIMEOUT, "timeout", f"The launch was ended: {self._warned}."
        job = self._setting.slurm_job
        if not self._plan.spec.in_job and job:
            self._change(phase="queued", gpus={}, requeues=self._state.requeues + 1, reason="requeued")
            if requeue(job, self._environment):
                return 0, "requeued", ""
            self._change(phase="running")
            return TIMEOUT, "timeout", f"Slurm did not requeue the job: {self._warned}."
        return (
            TIMEOUT,
            "timeout",
            f"The launch was ended: {self._warned}. To continue: `gipfel rerun {self._state.number}`.",
        )

    def _stop_requested(self) -> bool:
        return (self._folder / STOP).exists()

    def _change(self, **changes: object) -> None:
        self._state = self._write(self._state.model_copy(update=changes))

    def _write(self, state: LaunchState) -> LaunchState:
        # A full disk must not end the training.
        with contextlib.suppress(OSError):
            return write_state(self._folder, state)
        return state


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
        setting = (
            StepJob.model_validate_json(sys.stdin.readline())
            if job_on_stdin
            else step_job_from_environment(os.environ)
        )
        return Supervisor(folder, setting, os.environ).run()
    except (GipfelError, OSError, ValueError) as error:
        sys.stderr.write(f"gipfel: {error}\n")
        with contextlib.suppress(GipfelError, OSError):
            state = read_state(folder)
            ended = {"phase": "ended", "outcome": "failed", "exit_status": 1, "reason": str(error)}
            state = state.model_copy(update={**ended, "ended_ns": time.time_ns(), "gpus": {}})
            report_end(folder, write_state(folder, state), os.environ)
        return 1


if __name__ == "__main__":
    allow_forks()
    sys.exit(main(sys.argv[1:]))
