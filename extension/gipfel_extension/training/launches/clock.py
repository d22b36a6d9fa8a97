"""When the job of a launch ends, and how it goes on in the queue; Slurm is asked on the host."""

import subprocess
import time
from collections.abc import Mapping
from datetime import datetime

_COMMAND_S = 30.0
_ASK_S = 60.0


class EndOfTime:
    """When the job's time is over; asked again now and then, since it can be extended."""

    def __init__(self, environment: Mapping[str, str], slurm_job: str) -> None:
        self._environment = dict(environment)
        self._job = slurm_job
        self._asked = -_ASK_S
        given = environment.get("SLURM_JOB_END_TIME") or environment.get("GIPFEL_JOB_END_TIME") or ""
        self._end = float(given) if given.isdecimal() else None

    def left_s(self) -> float | None:
        """Seconds until the end; None where there is none, or nobody knows."""
        if self._job and time.monotonic() - self._asked >= _ASK_S:
            self._asked = time.monotonic()
            self._end = self._ask() or self._end
        return None if self._end is None else self._end - time.time()

    def _ask(self) -> float | None:
        said = _said(("squeue", "--noheader", f"--jobs={self._job}", "--format=%e"), self._environment)
        try:
            return datetime.fromisoformat((said or "").strip()).timestamp()
        except ValueError:
            return None


def requeue(job: str, environment: Mapping[str, str]) -> bool:
    """Put the job back into the queue, which ends this process among others; whether Slurm took it.

    Slurm may end ``scontrol`` together with the job, before it has its answer.
    """
    done = _run(("scontrol", "requeue", job), environment)
    return done is not None and done.returncode <= 0


def _said(argv: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    done = _run(argv, environment)
    return done.stdout if done is not None and done.returncode == 0 else None


def _run(argv: tuple[str, ...], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
