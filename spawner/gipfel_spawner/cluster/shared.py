"""What all spawners of a hub share: one scheduler and one watcher."""

import logging
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from gipfel_cluster.scheduler import LocalScheduler, Scheduler, SlurmScheduler

from .board import SiteBoard
from .watcher import JobWatcher


class Cluster:
    """A scheduler with the watcher of its jobs, and what is known of its site."""

    def __init__(self, scheduler: Scheduler, watcher: JobWatcher) -> None:
        self.scheduler = scheduler
        self.watcher = watcher
        self.board = SiteBoard(scheduler)


def shared_cluster(
    settings: MutableMapping[str, Any],
    name: str,
    *,
    environment: dict[str, str],
    state_folder: Path,
    exec_prefix: str,
    answer_limit: float,
    interval: float,
    calm_interval: float,
    log: logging.Logger,
) -> Cluster:
    """The hub's `Cluster` of this name, made at the first call; ``settings`` are the hub's own."""
    key = f"gipfel_{name}"
    if key not in settings:
        scheduler: Scheduler
        if name == "slurm":
            scheduler = SlurmScheduler(environment=environment, exec_prefix=exec_prefix, limit=answer_limit)
        else:
            scheduler = LocalScheduler(state_folder / "jobs", environment=environment)
        watcher = JobWatcher(scheduler, interval=interval, calm_interval=calm_interval, log=log)
        settings[key] = Cluster(scheduler, watcher)
    cluster: Cluster = settings[key]
    return cluster
