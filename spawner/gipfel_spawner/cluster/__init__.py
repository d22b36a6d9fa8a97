"""Clusters of a hub: the `ClusterSettings` of each, and a `Cluster` with its shared scheduler and watcher.

All pages of the hub share a cluster's cached answers (`cache`). A cluster that was removed from the
configuration gets a `RemovedClusterScheduler` while its servers run.
"""

import logging
import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.broker.hub_client import HubBrokerScheduler
from gipfel_cluster.model import Frozen, GipfelError, OneLine, first_problem
from gipfel_cluster.scheduler import LocalScheduler, Scheduler, SlurmScheduler
from gipfel_cluster.scheduler.protocol import JobRequest, JobStatus, Partition

from .cache import ClusterCache
from .watcher import JobWatcher

#: A cluster's name, which is part of the names of run folders. In a user's options, an empty name means the
#: default cluster.
ClusterName = Annotated[OneLine, Field(pattern=r"^(?:[A-Za-z0-9][A-Za-z0-9._-]{0,31})?$")]

PartitionName = Annotated[OneLine, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$", max_length=128)]


class ClusterSettings(Frozen):
    """Settings of one cluster, or of a named group of a cluster's partitions.

    ``partitions`` are the partitions to offer (empty: all); ``environment`` has variables for the scheduler's
    commands and for jobs; ``hub_connect_url`` is the hub's address for the nodes (empty: the trait of that
    name, which is JupyterHub's). Each other field, except ``name``, means the same as the spawner's trait of
    that name, whose value is its default.
    """

    name: Annotated[ClusterName, Field(min_length=1)]
    scheduler: Literal["local", "slurm", "broker"]
    partitions: tuple[PartitionName, ...] = ()
    environment: dict[str, OneLine] = Field(default_factory=dict)
    exec_prefix: OneLine = ""
    broker_socket: OneLine = ""
    engine: OneLine = ""
    engines: tuple[OneLine, ...] = ()
    runtime: OneLine = ""
    python: OneLine = ""
    hub_connect_url: OneLine = ""

    @property
    def is_local(self) -> bool:
        """True if jobs are processes on the hub's machine."""
        return self.scheduler == "local"


def read_clusters(configured: Mapping[str, object], default: ClusterSettings) -> dict[str, ClusterSettings]:
    """Return the clusters by name in the order of the configuration; the first is the hub's default cluster.

    ``default`` has the values of fields that a cluster leaves out. It is in the result only if no cluster is
    configured.

    Raises
    ------
    GipfelError
        The settings of a cluster are not valid.
    """
    if not configured:
        return {default.name: default}
    found: dict[str, ClusterSettings] = {}
    for name, content in configured.items():
        if not isinstance(content, Mapping):
            raise GipfelError(f"EDFSpawner.clusters: {name!r} needs a dictionary of its settings.")
        if "name" in content:
            raise GipfelError(
                f"EDFSpawner.clusters: the settings of {name!r} have a 'name'.",
                f"Leave it out: the key {name!r} is the name.",
            )
        found[str(name)] = _read_settings(str(name), content, default)
    return found


def _read_settings(name: str, content: Mapping[Any, object], default: ClusterSettings) -> ClusterSettings:
    try:
        settings = ClusterSettings.model_validate(default.model_dump() | dict(content) | {"name": name})
    except ValidationError as error:
        key, message = first_problem(error)
        raise GipfelError(f"EDFSpawner.clusters: {name!r}: {key}: {message}.") from None
    if settings.scheduler == "broker" and not settings.broker_socket.startswith("/"):
        raise GipfelError(
            f"EDFSpawner.clusters: {name!r} has no broker_socket.", "Give the path of the broker's socket."
        )
    return settings


class RemovedClusterScheduler:
    """Scheduler of a cluster that is no longer configured.

    It reports every job's state as unknown, so that the hub takes none for ended.
    """

    name = "removed"

    def __init__(self, cluster: str) -> None:
        self._error = GipfelError(
            f"The cluster {cluster} is no longer configured in this hub.", "Tell the hub's administrators."
        )

    async def submit(self, request: JobRequest) -> str:  # noqa: ARG002 - required by the Protocol
        """Raise the error."""
        raise self._error

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return the state of every job as unknown."""
        return dict.fromkeys(job_ids, JobStatus(answer="unknown", reason=self._error.problem))

    async def cancel(self, job_id: str, *, user: str = "") -> None:  # noqa: ARG002 - required by the Protocol
        """Raise the error."""
        raise self._error

    async def address(self, node: str) -> str:  # noqa: ARG002 - required by the Protocol
        """Raise the error."""
        raise self._error

    async def partitions(self) -> tuple[Partition, ...]:
        """Raise the error."""
        raise self._error


class Cluster:
    """Scheduler of a cluster, with the watcher of its jobs and the cache of what pages show about it.

    The cache has its partitions and each user's accounts, QoS, reservations and GPU hours.

    Parameters
    ----------
    partitions
        The partitions that are offered; all if it is empty.
    """

    def __init__(
        self, scheduler: Scheduler, watcher: JobWatcher, *, partitions: tuple[str, ...] = ()
    ) -> None:
        self.scheduler = scheduler
        self.watcher = watcher
        self.cache = ClusterCache(scheduler, only=partitions)


def shared_cluster(
    hub_settings: MutableMapping[str, Any],
    settings: ClusterSettings | str,
    *,
    is_only_cluster: bool,
    state_folder: Path,
    answer_limit: float,
    interval: float,
    calm_interval: float,
    log: logging.Logger,
) -> Cluster:
    """Return the hub's `Cluster` of these settings, created at the first call.

    Parameters
    ----------
    hub_settings
        JupyterHub's ``settings``, in which the `Cluster` is stored.
    settings
        Settings of the cluster, or only its name if it is no longer configured.
    is_only_cluster
        Whether the hub has a single cluster.
    state_folder
        The directory in which the local scheduler stores its jobs.
    answer_limit
        Time limit of a scheduler's command in seconds.
    interval, calm_interval
        Seconds between two queries of the scheduler: while a job starts or is cancelled, and otherwise.
    """
    if isinstance(settings, str):
        key = f"gipfel_absent_{settings}"
    else:
        key = f"gipfel_{settings.scheduler}" if is_only_cluster else f"gipfel_cluster_{settings.name}"
    if key not in hub_settings:
        # Groups of one cluster's partitions share its queue, so one query covers the jobs of all groups.
        queues = hub_settings.setdefault("gipfel_queues", {})
        queue = settings if isinstance(settings, str) else _queue(settings)
        if queue not in queues:
            scheduler = _scheduler(settings, state_folder, answer_limit)
            watcher = JobWatcher(scheduler, interval=interval, calm_interval=calm_interval, log=log)
            queues[queue] = (scheduler, watcher)
        partitions = () if isinstance(settings, str) else settings.partitions
        hub_settings[key] = Cluster(*queues[queue], partitions=partitions)
    cluster: Cluster = hub_settings[key]
    return cluster


def _queue(settings: ClusterSettings) -> tuple[object, ...]:
    """Return what identifies the queue of a cluster."""
    environment = tuple(sorted(settings.environment.items()))
    return settings.scheduler, settings.exec_prefix, settings.broker_socket, environment


def _scheduler(settings: ClusterSettings | str, state_folder: Path, limit: float) -> Scheduler:
    if isinstance(settings, str):
        return RemovedClusterScheduler(settings)
    environment = {**os.environ, **settings.environment}
    match settings.scheduler:
        case "slurm":
            return SlurmScheduler(environment=environment, exec_prefix=settings.exec_prefix, limit=limit)
        case "broker":
            return HubBrokerScheduler(Path(settings.broker_socket))
        case "local":
            return LocalScheduler(state_folder / "jobs", environment=environment)
