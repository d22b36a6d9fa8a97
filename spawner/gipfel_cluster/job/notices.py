"""Notices to a job's user: the start after a wait, the end, the approaching time limit, and some events.

A thread follows the events that recorders and workloads write to the run folder. `gipfel_cluster.notify`
decides whether and how a message is sent. Nothing here raises an error or delays the job.
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from ..model import GipfelError
from ..notify import Event, JobKind
from ..notify.journal import Reporter
from ..regular_files import open_regular, read_regular
from ..runs import RunFolder
from . import JobSpec
from .time_limit import query_end, time_limit_end

#: Seconds in the queue from which the start of a job is reported.
QUEUE_S = 60.0
#: Seconds before the time limit at which the user is warned; a quarter of the job's time if that is less.
LEAD_S = 900.0
_POLL_S = 15.0
#: Seconds before and after its time limit within which a job that is stopped counts as having reached the
#: limit: Slurm's signal may come a minute early, and ``OverTimeLimit`` lets jobs run for longer.
_BEFORE_S, _AFTER_S = 90.0, 300.0
_QUERY_S = 10.0
#: Seconds that the end of the job waits for the thread.
_JOIN_S = 3.0
_MAX_STATE_BYTES = 1 << 20
_SUFFIX = ".events.jsonl"
_MAX_PIECE_BYTES = 64 << 10
_MAX_FILES = 2000
#: Kinds of events in the run folder that are reported to the user -> kind of the message.
_REPORTED: dict[str, JobKind] = {"gpus_idle": "idle", "checkpoint_space": "checkpoint"}


#: Noun for each kind of job, and the option with its name.
_NOUNS = {
    "server": ("Notebook server", ""),
    "launch": ("Launch", "name"),
    "service": ("Service", "service"),
    "build": ("Image", "target"),
    "notebook": ("Batch notebook", "notebook"),
}


class EventFollower:
    """Reads the lines that are appended to the event files of a run."""

    def __init__(self, telemetry: Path) -> None:
        self._telemetry = telemetry
        self._offsets: dict[str, int] = {}

    def skip(self) -> None:
        """Skip the events that the files contain now."""
        for name in self._names():
            with suppress(OSError):
                self._offsets[name] = (self._telemetry / name).lstat().st_size

    def read(self) -> Iterator[Mapping[str, Any]]:
        """Yield the events since the last call, at most 64 KiB of each file; skip damaged lines."""
        for name in self._names():
            for line in self._new_lines(name):
                with suppress(ValueError, RecursionError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        yield event

    def _names(self) -> list[str]:
        try:
            names = sorted(each.name for each in self._telemetry.iterdir() if each.name.endswith(_SUFFIX))
        except OSError:
            return []
        return names[:_MAX_FILES]

    def _new_lines(self, name: str) -> list[bytes]:
        offset = self._offsets.get(name, 0)
        try:
            with open_regular(self._telemetry / name) as file:
                file.seek(offset)
                content = file.read(_MAX_PIECE_BYTES)
        except OSError:
            return []
        # An incomplete last line is read again later; one longer than `_MAX_PIECE_BYTES` is skipped.
        complete = content.rfind(b"\n") + 1 or (len(content) if len(content) == _MAX_PIECE_BYTES else 0)
        self._offsets[name] = offset + complete
        return content[:complete].split(b"\n")


class JobNotices:
    """Sends notices about one job to its user.

    Parameters
    ----------
    environment
        The job's variables, with the end of its time limit; tokens are not passed on.
    stopping
        Returns whether the job got a signal to end.
    """

    def __init__(
        self,
        spec: JobSpec,
        run: RunFolder,
        job_id: str,
        environment: Mapping[str, str],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spec = spec
        self._stopping = stopping
        self._environment = environment
        self._run = run
        self._title = f"{_what(spec)} ({run.name})"
        self._workload = _workload(spec, job_id)
        # Empty at the first start of a job, else the number of times that Slurm has restarted it.
        self._restart = environment.get("SLURM_RESTART_COUNT", "0").removeprefix("0")
        self._limit = time_limit_end(environment)
        self._checked: set[tuple[float, float]] = set()
        self._reported_limit: float | None = None
        self._began = time.time()
        self._follower = EventFollower(run.telemetry)
        self._failure = ""
        self._reporter = Reporter(environment)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Report the start if the job has waited for it, and follow its events from now on."""
        waited = self._began - self._spec.submitted
        if self._restart:
            self._report("started", "Slurm had requeued it and has started it again.")
        elif waited >= QUEUE_S:
            self._report("started", f"It waited {duration(waited)} in the queue.")
        # Events of an earlier start of a requeued job are not reported again.
        self._follower.skip()
        with suppress(RuntimeError):  # no more threads: the job runs without these notices
            self._thread.start()

    def report_end(self, status: int, *, stopped: bool) -> None:
        """Report the end of the job with its exit status; ``stopped`` if it got a signal to end.

        The end is not reported of a notebook server that its user stops or that ends without an error, nor
        of a launch that has requeued its job.
        """
        self._stop_following()
        after = f"after {duration(time.time() - self._began)}"
        if stopped and self._is_requeued():
            return
        if stopped and self._at_limit():
            self._report("failed", f"It reached its time limit {after}.")
        elif stopped or status == 0:
            if self._spec.kind != "server":
                self._report("ended", f"It {'was stopped' if stopped else 'completed'} {after}.")
        else:
            self._report("failed", self._failure or f"It ended with {_status(status)} {after}.")

    def report_error(self, error: Exception) -> None:
        """Report that the job could not be started or continued; later reports of its end are ignored."""
        reason = str(error) if isinstance(error, GipfelError) else getattr(error, "strerror", None)
        self._report("failed", f"It could not start or continue: {reason or type(error).__name__}")

    def pids(self) -> frozenset[int]:
        """Return the ids of the processes that are sending messages."""
        return self._reporter.pids()

    def finish(self) -> None:
        """Wait a few seconds for messages that are being sent."""
        self._ended.set()
        self._reporter.finish()

    def _report(self, kind: JobKind, reason: str) -> None:
        # The same kind of event is reported once per occurrence: per restart of the job, or per time limit.
        occurrence = f"{self._limit:.0f}" if kind == "time" else self._restart
        event = Event.of(
            kind, self._title, reason, run=self._run.name, workload=self._workload, occurrence=occurrence
        )
        self._reporter.report(event)

    def _follow(self) -> None:
        while not self._ended.wait(_POLL_S):
            self._read_events()
            if self._stopping():
                # Reported now, because Slurm kills a job that does not end within KillWait (default 30 s).
                if self._at_limit() and not self._is_requeued():
                    self._report("failed", f"It reached its time limit of {duration(self._time_s())}.")
            elif self._limit is not None:
                self._check_limit(self._limit)

    def _stop_following(self) -> None:
        """End the thread, then read the last events, unless the thread hangs (on a lost file system)."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._read_events()

    def _check_limit(self, limit: float) -> None:
        """Warn that the time limit is near, unless Slurm reports an extension; ask again just before it."""
        left = limit - time.time()
        leads = (min(LEAD_S, self._time_s() / 4), _BEFORE_S)
        due = {(limit, lead) for lead in leads if 0 < left < lead} - self._checked
        if not due:
            return
        self._checked |= due
        job = self._environment.get("SLURM_JOB_ID", "")
        self._limit = (query_end(job, self._environment, _QUERY_S) if job else None) or limit
        if abs(self._limit - limit) < 1 and self._reported_limit != limit:
            self._reported_limit = limit
            clock = datetime.fromtimestamp(limit).astimezone()
            self._report(
                "time", f"It ends at {clock:%H:%M %Z} unless its time limit is extended. Save your work."
            )

    def _at_limit(self) -> bool:
        return self._limit is not None and -_BEFORE_S < time.time() - self._limit < _AFTER_S

    def _time_s(self) -> float:
        return 0.0 if self._limit is None else self._limit - self._began

    def _is_requeued(self) -> bool:
        """Return whether the job's launch has requeued it, which ends this start of the job."""
        folder = Path(str(self._spec.options.get("launch") or ""))
        if self._spec.kind != "launch" or not folder.is_absolute():
            return False
        with suppress(OSError, ValueError, RecursionError):
            state = json.loads(read_regular(folder / "state.json", _MAX_STATE_BYTES))
            return isinstance(state, dict) and state.get("reason") == "requeued"
        return False

    def _read_events(self) -> None:
        for event in self._follower.read():
            kind, message = event.get("kind"), event.get("message")
            if not isinstance(message, str) or not isinstance(kind, str):
                continue
            if kind in _REPORTED:
                self._report(_REPORTED[kind], f"{event.get('node', '')}: {message}")
            elif kind == "workload_failed":
                self._failure = message


def duration(seconds: float) -> str:
    """Return a duration for people: ``45 s``, ``12 min``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{minutes} min" if not hours else f"{hours} h {rest} min" if rest else f"{hours} h"


def _what(spec: JobSpec) -> str:
    noun, option = _NOUNS[spec.kind]
    name = str(spec.options.get(option) or "")
    return f"{noun} {Path(name).name if spec.kind in {'build', 'notebook'} else name}".strip()


def _workload(spec: JobSpec, job_id: str) -> str:
    """Return the ID of the workload that the job runs; empty for a server."""
    if spec.kind == "notebook":
        return f"batch:{job_id}"
    if spec.kind == "service":
        return f"service:{spec.options.get('service') or ''}"
    if spec.kind == "build":
        return f"build:{Path(str(spec.options.get('build') or '')).name}"
    folder = Path(str(spec.options.get("launch") or ""))
    if spec.kind != "launch" or not folder.is_absolute() or len(folder.parents) < 2:
        return ""
    inside = (folder.parents[1] / "telemetry").is_dir()
    return f"launch:{folder.parents[1].name}/{folder.name}" if inside else f"launch:{folder.name}"


def _status(status: int) -> str:
    if status > 128:
        with suppress(ValueError):
            name = signal.Signals(status - 128).name
            hint = " (often because memory ran out)" if name == "SIGKILL" else ""
            return f"exit status {status}, {name}{hint},"
    return f"exit status {status}"
