"""What all spawners of a hub share: one scheduler and one watcher for each cluster."""

import logging
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from gipfel_cluster.model import Frozen
from gipfel_cluster.scheduler import LocalScheduler, Scheduler, SlurmScheduler
from gipfel_cluster.scheduler.hub_broker import HubBrokerScheduler

from .absent import AbsentScheduler
from .board import SiteBoard
from .settings import ClusterSettings
from .watcher import JobWatcher


class Cluster:
    """A scheduler with the watcher of its jobs, and what is known of its site.

    Parameters
    ----------
    partitions
        Those that are offered; all where it is empty.
    """

    def __init__(
        self, scheduler: Scheduler, watcher: JobWatcher, *, partitions: tuple[str, ...] = ()
    ) -> None:
        self.scheduler = scheduler
        self.watcher = watcher
        self.board = SiteBoard(scheduler, only=partitions)


class Pace(Frozen):
    """How a hub asks its schedulers, in seconds."""

    answer_limit: float
    interval: float
    calm_interval: float


def shared_cluster(
    settings: MutableMapping[str, Any],
    site: ClusterSettings | str,
    *,
    alone: bool,
    state_folder: Path,
    pace: Pace,
    log: logging.Logger,
) -> Cluster:
    """The hub's `Cluster`, made at the first call.

    Parameters
    ----------
    settings
        The hub's own, which keep it.
    site
        What the cluster is; its name alone where the hub's configuration has no such cluster.
    alone
        Whether the hub has no other one.
    state_folder
        Where the local scheduler keeps its jobs.
    """
    if isinstance(site, str):
        key = f"gipfel_absent_{site}"
    else:
        key = f"gipfel_{site.scheduler}" if alone else f"gipfel_cluster_{site.name}"
    if key not in settings:
        settings[key] = _cluster(settings, site, state_folder, pace, log)
    cluster: Cluster = settings[key]
    return cluster


def _cluster(
    settings: MutableMapping[str, Any],
    site: ClusterSettings | str,
    state_folder: Path,
    pace: Pace,
    log: logging.Logger,
) -> Cluster:
    def watched(scheduler: Scheduler) -> tuple[Scheduler, JobWatcher]:
        return scheduler, JobWatcher(
            scheduler, interval=pace.interval, calm_interval=pace.calm_interval, log=log
        )

    if isinstance(site, str):
        return Cluster(*watched(AbsentScheduler(site)))
    # Groups of one cluster's partitions have one queue: one question for the jobs of all of them.
    queues = settings.setdefault("gipfel_queues", {})
    queue = (site.scheduler, site.exec_prefix, site.broker_socket, tuple(sorted(site.environment.items())))
    if queue not in queues:
        queues[queue] = watched(_scheduler(site, state_folder, pace.answer_limit))
    return Cluster(*queues[queue], partitions=site.partitions)


def _scheduler(site: ClusterSettings, state_folder: Path, limit: float) -> Scheduler:
    environment = {**os.environ, **site.environment}
    match site.scheduler:
        case "slurm":
            return SlurmScheduler(environment=environment, exec_prefix=site.exec_prefix, limit=limit)
        case "broker":
            return HubBrokerScheduler(Path(site.broker_socket))
        case "local":
            return LocalScheduler(state_folder / "jobs", environment=environment)
