"""Clusters of a hub: `ClusterSettings` of each by name, and what its servers share as a `Cluster`.

A cluster that the configuration no longer has is an `AbsentScheduler` while servers of it still run.
"""

import logging
import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.broker.hub_client import HubBrokerScheduler
from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.scheduler import LocalScheduler, Scheduler, SlurmScheduler
from gipfel_cluster.scheduler.protocol import JobRequest, JobStatus, Partition

from .board import SiteBoard
from .watcher import JobWatcher

#: As it stands in run folders.
ClusterName = Annotated[Line, Field(pattern=r"^(?:[A-Za-z0-9][A-Za-z0-9._-]{0,31})?$")]

PartitionName = Annotated[Line, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$", max_length=128)]


class ClusterSettings(Frozen):
    """Settings of one cluster, or of one group of a cluster's partitions under a name of its own.

    ``partitions`` are those that are offered, all where it is empty; ``environment`` goes to the scheduler's
    commands and to jobs; ``hub_connect_url`` is where the nodes reach the hub, empty for the hub's own
    address. All else is as the spawner's trait of that name, which is taken where nothing is set.
    """

    name: Annotated[ClusterName, Field(min_length=1)]
    scheduler: Literal["local", "slurm", "broker"]
    partitions: tuple[PartitionName, ...] = ()
    environment: dict[str, Line] = Field(default_factory=dict)
    exec_prefix: Line = ""
    broker_socket: Line = ""
    engine: Line = ""
    engines: tuple[Line, ...] = ()
    runtime: Line = ""
    python: Line = ""
    hub_connect_url: Line = ""

    @property
    def is_local(self) -> bool:
        """True where jobs are processes of the hub's machine."""
        return self.scheduler == "local"


def read_clusters(given: Mapping[str, object], only: ClusterSettings) -> dict[str, ClusterSettings]:
    """Return the clusters by name, the default one first; ``only`` where none is given, else their default.

    Raises
    ------
    GipfelError
        One of them can't be used.
    """
    if not given:
        return {only.name: only}
    found: dict[str, ClusterSettings] = {}
    for name, content in given.items():
        if not isinstance(content, Mapping) or "name" in content:
            raise GipfelError(f"EDFSpawner.clusters: {name!r} needs a dictionary of its settings.")
        found[str(name)] = _read(str(name), content, only)
    return found


def _read(name: str, content: Mapping[Any, object], only: ClusterSettings) -> ClusterSettings:
    try:
        read = ClusterSettings.model_validate(only.model_dump() | dict(content) | {"name": name})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise GipfelError(f"EDFSpawner.clusters: {name!r}: {where}: {first['msg']}.") from None
    if read.scheduler == "broker" and not read.broker_socket.startswith("/"):
        raise GipfelError(
            f"EDFSpawner.clusters: {name!r} has no broker_socket.", "Give the path of the broker's socket."
        )
    return read


class AbsentScheduler:
    """A scheduler that answers nothing, and so ends nothing, until its cluster is configured again."""

    name = "absent"

    def __init__(self, cluster: str) -> None:
        self._error = GipfelError(
            f"This hub has no cluster {cluster} any more.", "Tell the hub's administrators."
        )

    async def submit(self, request: JobRequest) -> str:  # noqa: ARG002 - the Protocol's
        """Refuse."""
        raise self._error

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return every job as unknown."""
        return dict.fromkeys(job_ids, JobStatus(answer="unknown", reason=self._error.problem))

    async def cancel(self, job_id: str, *, user: str = "") -> None:  # noqa: ARG002 - the Protocol's
        """Refuse."""
        raise self._error

    async def address(self, node: str) -> str:  # noqa: ARG002 - the Protocol's
        """Refuse."""
        raise self._error

    async def partitions(self) -> tuple[Partition, ...]:
        """Refuse."""
        raise self._error


class Cluster:
    """A scheduler with the watcher of its jobs, and the cached facts of its site.

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
    """Intervals and limits of a hub's questions to its schedulers, in seconds."""

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
    """Return the hub's `Cluster`, made at the first call.

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
