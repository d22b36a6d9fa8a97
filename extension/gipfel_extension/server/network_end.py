"""Cut off a run's network access: at its gates while it keeps running, or by ending its job without gates.

Gates are the egress proxies through which programs connect. The person and the reason are recorded as an
event of the run and in the system's authorization log, which the user can't change. An operator acts as the
user, with ``sudo -u USER``.
"""

import os
import syslog
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gipfel_cluster.egress.start import close_gates
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler import Scheduler
from gipfel_cluster.scheduler.machine import current_user_name, run_sync
from gipfel_cluster.workloads.submission import submission_context

from ..network import read_gate
from ..telemetry.events import report_to_job
from ..telemetry.files import read_record_file

_ENDED = "Its job has ended already."


def write_audit(line: str) -> None:
    """Write a line to the system's authorization log."""
    syslog.openlog("gipfel", syslog.LOG_PID, syslog.LOG_AUTHPRIV)
    syslog.syslog(syslog.LOG_NOTICE, line)


def end_network(run: Path, by: str, reason: str, *, audit: Callable[[str], None] = write_audit) -> bool:
    """Cut off the network access behind a run's gates; return False if nothing runs behind a gate.

    Raises
    ------
    GipfelError
        The run folder can't be written to.
    """
    if not read_gate(run).used:
        return False
    try:
        close_gates(run, by, reason, time.time_ns())
    except OSError as error:
        raise GipfelError(f"The gates can't be closed: {error.strerror}.", "End the job instead.") from error
    audit(_line(by, f"the network of {current_user_name()}'s run {run.name}", reason))
    return True


def end_job(
    run: Path,
    by: str,
    reason: str,
    environment: Mapping[str, str],
    *,
    scheduler: Scheduler | None = None,
    audit: Callable[[str], None] = write_audit,
) -> str:
    """End the job of a run, and thereby its network access; return the job's ID.

    Raises
    ------
    GipfelError
        The run names no job, its job has ended, or the scheduler refuses.
    """
    job_id = _running_job(run)
    if scheduler is None:
        context = submission_context(environment)
        scheduler = context.scheduler(context.default_setting("scheduler"))
    if run_sync(scheduler.query([job_id])).get(job_id) is None:
        raise GipfelError(f"The scheduler does not know the job {job_id} of {run.name}.", "See squeue.")
    # Record the event before ending the job, since its recorder ends with the job.
    line = _line(by, f"{current_user_name()}'s job {job_id} for its network", reason)
    try:
        report_to_job({**environment, "GIPFEL_RUN": str(run)}, "network_closed", f"{line}.", "operator")
    except OSError as error:
        raise GipfelError(f"{run} can't be written to: {error.strerror}.", "Use scancel.") from error
    audit(line)
    run_sync(scheduler.cancel(job_id))
    return job_id


def _running_job(run: Path) -> str:
    record = read_record_file(run)
    if not {"job_id", "ended"} <= record.keys():
        raise GipfelError(f"{run.name} names no job.", "End it with scancel.")
    job_id, ended = str(record["job_id"]), record["ended"]
    if ended or not job_id:
        raise GipfelError(_ENDED if ended else f"{run.name} names no job.", "Its network is gone with it.")
    return job_id


def _line(by: str, what: str, reason: str) -> str:
    return one_line(f"{by} ended {what}: {reason}")[:450]


def operator_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the acting person: the operator that sudo names, else the user."""
    return environment.get("SUDO_USER") or current_user_name()
