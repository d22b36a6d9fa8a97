"""Limits of a user's jobs, and GPU hours and energy of the month, for quota, panel and pre-flights."""

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gipfel_cluster.model import GipfelError, pluralize
from gipfel_cluster.runs import runs_root
from gipfel_cluster.scheduler import Scheduler
from gipfel_cluster.scheduler.machine import current_user_name
from gipfel_cluster.scheduler.notation import format_duration, parse_duration
from gipfel_cluster.scheduler.protocol import JobRequest, Partition, Quota, QuotaFacts
from gipfel_cluster.scheduler.slurm_limits import exceeded, problem_text, requested_job
from gipfel_cluster.scheduler.slurm_usage import (
    QuotaSection,
    bound_text,
    energy_text,
    find_waits,
    quota_sections,
    standing_text,
)

from .run_folders import read_document, run_folders, summary_of
from .submission import submission_context

#: Clocks of nodes and file servers differ by less than this.
_CLOCKS = timedelta(days=1)


async def own_quota(environment: Mapping[str, str]) -> Quota | None:
    """Return the limits of this user's jobs, and what is left; None for a scheduler without limits.

    Raises
    ------
    GipfelError
        The scheduler did not answer in time.
    """
    context = submission_context(environment)
    scheduler = context.scheduler(context.default_setting("scheduler"))
    if not isinstance(scheduler, QuotaFacts):
        return None
    found = await scheduler.quota(current_user_name())
    return None if found == Quota() else found


def own_sections(quota: Quota | None, environment: Mapping[str, str], now: datetime) -> list[QuotaSection]:
    """Return the sections of ``gipfel quota``: limits, GPU hours, shares and waits, energy of the month."""
    energy = "" if _has_energy(quota) else recorded_energy(environment, now)
    sections = () if quota is None else quota_sections(quota)
    return [*sections, *([QuotaSection(title=energy)] if energy else [])]


async def check_limits(scheduler: Scheduler, request: JobRequest, environment: Mapping[str, str]) -> str:
    """Check that no limit would keep a job waiting for ever, as the hub's form does.

    Slurm accepts a job that exceeds a limit of its account, QoS or partition, and never starts it.

    Returns
    -------
    str
        What the job starts with, as sentences: how long the user's earlier jobs of this size waited, GPU
        hours and energy of this month, and the account's share. Each is left out if it is not known. If the
        scheduler does not answer, limits are checked by the scheduler alone.

    Raises
    ------
    GipfelError
        The job exceeds a limit, which the message names.
    """
    quota, sentences = None, []
    if isinstance(scheduler, QuotaFacts):
        try:
            quota = await scheduler.quota(request.user or current_user_name())
            partitions = await scheduler.partitions()
        except GipfelError:
            return ""
        default = next((each for each in partitions if each.default), None)
        partition = next((each for each in partitions if each.name == request.partition), default)
        _check_limits(request, quota, partition)
        name = request.partition or (partition.name if partition else "")
        waits = find_waits(quota.waits, name, request.nodes * request.gpus_per_node)
        sentences = [f"Of your jobs like this on {name}, {bound_text(waits)}."] if waits else []
        sentences.append(standing_text(quota, request.account or quota.choices.default_account))
    now = datetime.now().astimezone()
    energy = "" if _has_energy(quota) else await asyncio.to_thread(recorded_energy, environment, now)
    return " ".join(each for each in (*sentences, f"{energy}." if energy else "") if each)


def _check_limits(request: JobRequest, quota: Quota, partition: Partition | None) -> None:
    job = requested_job(
        request,
        quota.choices,
        partition,
        nodes=request.nodes,
        gpus=request.gpus_per_node,
        cpus=request.cpus_per_task,
    )
    for limit in exceeded(job, quota.choices.limits):
        raise GipfelError(
            f"{problem_text(job, limit)} Slurm would never start this job.",
            "Request less, or choose another account or QoS. `gipfel quota` shows all limits.",
        )
    limit_s = partition.time_limit_s if partition else None
    seconds = parse_duration(request.time) if request.time else None
    if partition and limit_s is not None and seconds is not None and seconds > limit_s:
        raise GipfelError(
            f"Partition {partition.name} allows {format_duration(limit_s)} (MaxTime), {request.time} "
            "requested. Slurm would never start this job.",
            "Request less time, or choose another partition.",
        )


def _has_energy(quota: Quota | None) -> bool:
    return quota is not None and quota.usage.energy_kwh is not None


def recorded_energy(environment: Mapping[str, str], now: datetime) -> str:
    """Return the energy of the runs that began this month, as their recorders measured it; empty if none did.

    A run's energy is that of its score: of its GPUs, and of its hosts where their power was recorded.
    """
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    hours = [each for each in _watt_hours(runs_root(dict(environment)), month) if each is not None]
    runs = pluralize(len(hours), "run")
    return f"Energy this month: {energy_text(sum(hours) / 1000)}, measured in {runs}" if hours else ""


def _watt_hours(root: Path, since: datetime) -> Iterator[float | None]:
    for folder in run_folders(root):
        try:
            # The record is written again at the end of a run, so one from before needs no reading.
            if (folder / "record.json").stat().st_mtime < (since - _CLOCKS).timestamp():
                continue
            record = read_document(folder / "record.json")
            started = datetime.fromisoformat(str(record.get("started")))
        except (OSError, ValueError):
            continue
        if (started if started.tzinfo else started.replace(tzinfo=UTC)) >= since:
            yield summary_of(record, read_document(folder / "score.json")).energy_wh
