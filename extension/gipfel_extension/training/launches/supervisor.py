"""The process that keeps a launch: it starts the ranks, also again, and says what becomes of them."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.processes import Process
from gipfel_cluster.steps import StepSetting
from gipfel_cluster.steps.here import last_line

from ..launchers import Attempt, check_attempt, launcher_of
from .attempt import RunningAttempt
from .claims import choose, granted_gpus, held, one_at_a_time
from .clock import EndOfTime, requeue
from .log_times import LogTimes
from .plan import LaunchPlan
from .ranks import RankNote, newest_restart, read_notes
from .rendezvous import addresses_of, free_port
from .state import STOP, LaunchState, first_failure, first_failures, read_state, write_state
from .vetted import vetted_nodes

_LOOK_S = 0.5
_BEAT_S = 10.0
#: Beside the ranks' own time to write a checkpoint, what Slurm and this process need.
_MARGIN_S = 15.0
_SILENT = ("Unable to contact slurm controller", "Socket timed out", "Communication connection failure")
_SILENT_TRIES, _SILENT_S = 24, 5.0
#: Characters of why there was a restart, and how many of the last restarts say it.
_LONGEST, _MOST_REASONS = 300, 20
STOPPED, TIMEOUT = 143, 124


class Supervisor:
    """Keeps one launch from its first rank to its end.

    Parameters
    ----------
    folder
        The launch's, as the host has it.
    setting
        The job.
    environment
        The job's variables on this node.
    """

    def __init__(
        self,
        folder: Path,
        setting: StepSetting,
        environment: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._plan = LaunchPlan.load(folder)
        engine = self._plan.engine or setting.engine
        self._setting = setting.model_copy(update={"engine": engine, "edf": self._plan.edf or setting.edf})
        self._asked = 0
        self._warned = ""
        self._hinted = False
        self._clock = EndOfTime(environment, setting.slurm_job)
        self._times = LogTimes(folder)
        self._before = 0
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
        """Keep the launch to its end and return its exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._hear)
        status, outcome, reason = 1, "failed", ""
        try:
            status, outcome, reason = self._keep()
        except GipfelError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the launch has an end that says so
            where = getattr(error, "filename", None) or self._folder
            reason = f"The launch can't go on: {type(error).__name__}: {error} ({where})."
        if outcome == "requeued":
            return 0
        failure = first_failure(self._folder, self._state.attempt) if outcome == "failed" else None
        if failure:
            # The others were ended because of it, and how says nothing.
            own = read_notes(self._folder).get(failure.rank, RankNote(rank=failure.rank)).status
            status = status if not own else own if own > 0 else 128 - own
        self._write(
            self._state.model_copy(
                update={
                    "phase": "ended",
                    "outcome": outcome,
                    "exit_status": status,
                    "reason": reason or (str(failure) if failure else self._last_words(outcome)),
                    "failure": failure,
                    "ended_ns": time.time_ns(),
                    "gpus": {},
                }
            )
        )
        return status

    def _last_words(self, outcome: str) -> str:
        """What a node said last, where the ranks did not even begin or left nothing."""
        if outcome != "failed":
            return ""
        return last_line(self._folder / "steps" / "node-0.log") or "The ranks ended without a word."

    def _hear(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            self._hinted = True
        else:
            self._asked = number

    def _keep(self) -> tuple[int, str, str]:
        spec = self._plan.spec
        nodes = self._nodes()
        with one_at_a_time(self._folder):
            gpus = choose(
                nodes,
                spec.gpus_per_node,
                granted_gpus(self._environment),
                held(self._folder, self._state.job_id),
            )
            self._change(nodes=nodes, gpus=gpus, ranks=len(nodes) * spec.gpus_per_node)
        silent = 0
        while not self._stop_asked():
            running = self._started(nodes, gpus)
            status = self._follow(running)
            restarts = self._restarts(running)
            if self._stop_asked():
                break
            if self._warned:
                return self._leave(status)
            if self._asked:
                return 128 + self._asked, "stopped", "Its job was ended."
            if status == 0:
                return 0, "completed", ""
            problem = running.problem
            if problem and any(word in problem for word in _SILENT) and silent < _SILENT_TRIES:
                silent += 1
                self._change(reason="Slurm does not answer; the ranks are started when it does.")
                time.sleep(_SILENT_S)
            elif problem:
                return status or 1, "failed", problem
            elif restarts >= spec.restarts:
                return status or 1, "failed", ""
            else:
                # What could not restart itself is started again as a whole.
                self._note_restarts(restarts + 1, "")
                self._before = restarts + 1
            self._change(attempt=self._state.attempt + 1)
        return STOPPED, "stopped", "It was stopped."

    def _nodes(self) -> tuple[str, ...]:
        spec = self._plan.spec
        if spec.vetting:
            self._change(phase="vetting", reason=f"The nodes are vetted by {spec.vetting}.")
        nodes = vetted_nodes(
            self._plan,
            self._setting,
            self._environment,
            self._ends_while_vetting,
        )
        self._change(phase="running", reason="")
        least = spec.nodes_min or spec.nodes
        if len(nodes) < least:
            raise GipfelError(
                f"{least} nodes are asked for, and the job has {len(nodes)} that can be used.",
                "Ask for fewer, or let it be a job of its own (--where job).",
            )
        return nodes[: spec.nodes]

    def _ends_while_vetting(self) -> bool:
        """Whether vetting shall end, which says as well that this process lives."""
        if time.time_ns() - self._state.updated_ns > _BEAT_S * 1e9:
            self._change()
        return bool(self._asked or self._stop_asked())

    def _started(self, nodes: tuple[str, ...], gpus: Mapping[str, tuple[int, ...]]) -> RunningAttempt:
        spec, setting = self._plan.spec, self._setting
        slurm = bool(setting.slurm_job)
        attempt = Attempt(
            number=self._state.attempt,
            nodes=nodes,
            addresses=addresses_of(nodes, self._environment, slurm=slurm),
            port=free_port(nodes[0], setting, self._folder, self._environment),
            ranks_per_node=spec.gpus_per_node,
            nodes_min=min(spec.nodes_min or len(nodes), len(nodes)),
            restarts=max(0, spec.restarts - self._before),
            run_id=f"{setting.slurm_job or 'here'}-{self._state.number}-{self._state.attempt}",
            gpu_bound=bool(gpus) and any(Path(each).exists() for each in ("/dev/nvidiactl", "/dev/kfd")),
            gather_s=spec.gather_s,
        )
        check_attempt(attempt)
        running = RunningAttempt(
            self._plan,
            attempt,
            setting=setting,
            environment=self._environment,
            gpus=gpus,
            more={
                "resume": spec.resume or bool(attempt.number),
                "notebook": self._notebook(),
                "run": setting.run,
            },
            rejoins=spec.restarts if launcher_of(spec.launcher).restarts_itself else 0,
        )
        running.start()
        self._change(endpoint=attempt.endpoint, reason="")
        return running

    def _notebook(self) -> list[str] | None:
        """What rank 0 of a notebook runs: papermill by the runtime's Python, whose kernel is the image's."""
        if self._plan.spec.kind not in {"notebook", "cell"}:
            return None
        contained = bool(self._setting.edf)
        runtime = self._setting.runtime
        python = runtime.python if contained or runtime.host_python else sys.executable
        return [python, "-I", "-m", "gipfel_extension.training.launches.notebook", self._plan.folder]

    def _follow(self, running: RunningAttempt) -> int:
        """Wait for the end of an attempt, or bring it about."""
        deadline, beat = None, 0.0
        while (status := running.poll()) is None:
            now = time.monotonic()
            if now - beat > _BEAT_S or running.step_ids != self._state.step_ids:
                beat = now
                self._change(step_ids=running.step_ids)
                self._note_restarts(self._restarts(running), *running.notes[-1:])
            self._times.look()
            left = self._clock.left_s()
            # Slurm's own warning comes up to a minute early: it counts where nobody knows the time.
            near = self._hinted if left is None else left < self._plan.spec.grace_s + _MARGIN_S
            if near and not self._warned:
                self._warned = "its time is nearly over"
            if (self._warned or self._asked) and deadline is None:
                (self._folder / "signal").touch()
                self._change(reason=f"Asked for a checkpoint: {self._warned or 'the job is being ended'}.")
                deadline = now + self._plan.spec.grace_s
            if self._stop_asked() or (deadline is not None and now > deadline):
                running.stop()
                status = running.poll()
                break
            time.sleep(_LOOK_S)
        self._times.look()
        self._note_restarts(self._restarts(running), *running.notes[-1:])
        return 1 if status is None else status

    def _restarts(self, running: RunningAttempt) -> int:
        counted = max(newest_restart(self._folder, self._state.attempt), running.rejoined)
        return self._before + counted

    def _note_restarts(self, count: int, other: str = "") -> None:
        """Write down how many restarts there were, and why: which rank failed first, else `other`."""
        for start, failure in first_failures(self._folder, self._state.attempt).items():
            number = self._before + start + 1
            if number <= count:
                self._reasons[number] = f"restart {number}: {str(failure)[:_LONGEST]}"
        if count and count not in self._reasons:
            why = (
                other or last_line(self._folder / "steps" / "node-0.log") or "the ranks ended without a word"
            )
            self._reasons[count] = f"restart {count}: {why[:_LONGEST]}"
        kept = tuple(text for _, text in sorted(self._reasons.items())[-_MOST_REASONS:])
        if (count, kept) != (self._state.restarts, self._state.restarted):
            self._change(restarts=count, restarted=kept)

    def _leave(self, status: int) -> tuple[int, str, str]:
        """Go on in the queue after a warning, or end."""
        spec = self._plan.spec
        if spec.on_preempt == "end":
            return status or TIMEOUT, "timeout", f"It was ended: {self._warned}."
        job = self._setting.slurm_job
        if self._plan.spec.where == "job" and job:
            self._change(phase="queued", gpus={}, requeues=self._state.requeues + 1, reason="requeued")
            if requeue(job, self._environment):
                return 0, "requeued", ""
            self._change(phase="running")
            return TIMEOUT, "timeout", f"Slurm did not requeue it: {self._warned}."
        return TIMEOUT, "timeout", f"{self._warned}; `gipfel launch again {self._state.number}` goes on."

    def _stop_asked(self) -> bool:
        return (self._folder / STOP).exists()

    def _change(self, **changes: object) -> None:
        self._state = self._write(self._state.model_copy(update=changes))

    def _write(self, state: LaunchState) -> LaunchState:
        # A disk that is full ends no training.
        with contextlib.suppress(OSError):
            return write_state(self._folder, state)
        return state
