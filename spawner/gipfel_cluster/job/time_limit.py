"""End of a job's time limit: from the job's variables, and from Slurm, which knows extensions."""

import subprocess
import time
from collections.abc import Mapping
from datetime import datetime

#: Time limit of `squeue`, and interval between two queries, in seconds.
_COMMAND_S = 30.0
_INTERVAL_S = 60.0


def time_limit_end(environment: Mapping[str, str]) -> float | None:
    """Return the end of a job's original time limit, in seconds since 1970; None without a limit."""
    text = environment.get("SLURM_JOB_END_TIME") or environment.get("GIPFEL_JOB_END_TIME") or ""
    return float(text) if text.isascii() and text.isdecimal() else None


def query_end(job: str, environment: Mapping[str, str], timeout_s: float = _COMMAND_S) -> float | None:
    """Return the end of a Slurm job as ``squeue`` reports it now, in seconds since 1970; None if unknown."""
    try:
        done = subprocess.run(
            ("squeue", "--noheader", f"--jobs={job}", "--format=%e"),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        return datetime.fromisoformat(done.stdout.strip()).timestamp() if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None


class TimeLimit:
    """Time limit of the job; it is queried every minute, because it can be extended."""

    def __init__(self, environment: Mapping[str, str], slurm_job: str) -> None:
        self._environment = dict(environment)
        self._job = slurm_job
        self._queried_at = -_INTERVAL_S
        self._end = time_limit_end(environment)

    def remaining_s(self) -> float | None:
        """Return the seconds until the end; None if there is no limit or it is unknown."""
        if self._job and time.monotonic() - self._queried_at >= _INTERVAL_S:
            self._queried_at = time.monotonic()
            self._end = query_end(self._job, self._environment) or self._end
        return None if self._end is None else self._end - time.time()
