"""GPU hours and energy of a user in this month, and what is left of limits, for home and form."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gipfel_cluster.model import Frozen
from gipfel_cluster.scheduler.protocol import GpuUsage
from gipfel_cluster.scheduler.slurm_usage import SHARE, budget_text, energy_text, hours_text, share_text

from .cluster import Cluster, ClusterSettings
from .history import SessionHistory

if TYPE_CHECKING:
    from .spawner import EDFSpawner

# Seconds that a page waits for account and scheduler; its next refresh shows later answers.
_PATIENCE_S = 1.0


class GpuHours(Frozen):
    """GPU hours and energy of this month as ``text``, and lines for accounts with limits or shares."""

    text: str
    budgets: tuple[str, ...] = ()


async def month_gpu_hours(spawner: "EDFSpawner", *, running: Sequence[str]) -> GpuHours:
    """Return GPU hours and energy of the user since the first day of this month, in the hub's time zone.

    The energy is that of Slurm's accounting; the hub does not read what the user's own recorders measured.

    Parameters
    ----------
    running
        Job IDs of the user's servers.
    """
    today = datetime.now().astimezone()
    first = datetime(today.year, today.month, 1).astimezone()
    groups = _clusters_by_scheduler(spawner)
    usages = await asyncio.gather(*(_usage(spawner, *group[0], first) for group in groups))
    return await summarize(
        [
            (tuple(settings.name for settings, _ in group), usage)
            for group, usage in zip(groups, usages, strict=True)
        ],
        spawner.lifetime.history(),
        spawner.user.name,
        max(first.timestamp(), spawner.lifetime.user_created),
        running,
    )


async def summarize(
    usages: Sequence[tuple[tuple[str, ...], GpuUsage | None]],
    history: SessionHistory,
    user: str,
    since: float,
    running: Sequence[str],
) -> GpuHours:
    """Return the sum over all schedulers.

    Parameters
    ----------
    usages
        For each scheduler the names of its clusters, and its answer; None if it did not answer.
    since
        The beginning of the month, or when the hub created the user if that was later, in seconds since 1970.
    """
    total, whose = 0.0, "by your sessions"
    energy: list[float] = []
    budgets = []
    for names, usage in usages:
        if usage is None:
            continue
        used = usage.used
        if used is None:
            used = await history.gpu_hours(user, since, clusters=names, running=running)
        else:
            whose = "by your jobs"
        total += used
        energy += [] if usage.energy_kwh is None else [usage.energy_kwh]
        place = f" on {', '.join(names)}" if len(usages) > 1 else ""
        budgets += [f"{budget_text(each)}{place}" for each in usage.budgets]
        budgets += [f"{SHARE}, {share_text(each)}{place}" for each in usage.shares]
    measured = f" and {energy_text(sum(energy))}" if energy else ""
    if any(usage is None for _, usage in usages):
        known = f"at least {hours_text(total)}{measured}" if total else "unknown"
        return GpuHours(
            text=f"GPU hours this month: {known} (no answer from the scheduler yet)", budgets=tuple(budgets)
        )
    return GpuHours(
        text=f"{hours_text(total)} GPU hours{measured} used this month {whose}", budgets=tuple(budgets)
    )


def _clusters_by_scheduler(spawner: "EDFSpawner") -> list[list[tuple[ClusterSettings, Cluster]]]:
    """Return the hub's clusters, with those together that are groups of one cluster's partitions."""
    groups: dict[int, list[tuple[ClusterSettings, Cluster]]] = {}
    for settings in spawner.placement.settings_by_name.values():
        cluster = spawner.placement.shared(settings)
        groups.setdefault(id(cluster.scheduler), []).append((settings, cluster))
    return list(groups.values())


async def _usage(
    spawner: "EDFSpawner", settings: ClusterSettings, cluster: Cluster, first: datetime
) -> GpuUsage | None:
    deadline = time.monotonic() + _PATIENCE_S
    user = await spawner.placement.cached_unix_name(settings, limit=_PATIENCE_S)
    if user.value is None:
        # Without an account there are no jobs.
        return GpuUsage() if user.problem else None
    left = max(deadline - time.monotonic(), 0.0)
    return (await cluster.cache.gpu_usage(user.value, first.date(), limit=left)).value
