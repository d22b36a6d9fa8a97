"""Who runs what where, from what the hub knows already: its spawners and its watcher's last answers."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from gipfel_cluster.model import Frozen

from ..spawner import EDFSpawner


class RunningServer(Frozen):
    """One server that starts, runs or stops.

    ``state`` is the scheduler's word for the job, or what the hub is about; ``since`` and ``ends`` are ISO
    times in UTC, ``ends`` None where it is not known; ``gpus`` are those of all nodes; ``idle_s`` is None
    where the server has not reported for five minutes.
    """

    user: str
    server: str
    job_id: str
    edf: str
    cluster: str
    partition: str
    nodes: tuple[str, ...]
    state: str
    since: str
    ends: str | None
    gpus: int
    idle_s: int | None
    busy_with: tuple[str, ...]
    cull_due: bool
    pending: bool


def running_servers(users: Iterable[Any]) -> tuple[tuple[EDFSpawner, RunningServer], ...]:
    """Every server of these hub users that is active, with its spawner; by user and name.

    A user whom the hub has not loaded since it started has no server.
    """
    found = [
        (spawner, _describe(spawner))
        for user in users
        for spawner in user.spawners.values()
        if isinstance(spawner, EDFSpawner) and (spawner.active or spawner.pending)
    ]
    return tuple(sorted(found, key=lambda pair: (pair[1].user, pair[1].server)))


def _describe(spawner: EDFSpawner) -> RunningServer:
    options, status = spawner.shown_options(), spawner.last_status()
    report = spawner.activity.fresh
    started = spawner.orm_spawner.started
    pending = str(spawner.pending or "")
    return RunningServer(
        user=spawner.user.name,
        server=spawner.name,
        job_id=spawner.job_id,
        edf=options.edf,
        cluster=spawner.cluster_name or spawner.site.name,
        partition=status.partition or options.partition,
        nodes=status.nodes,
        state="stopping" if pending == "stop" else status.state or pending or "running",
        since=_iso(started.replace(tzinfo=UTC)) if started else "",
        ends=_iso(datetime.fromtimestamp(spawner.ends, UTC)) if spawner.ends else None,
        gpus=(options.gpus or 0) * options.nodes,
        idle_s=report.idle_s if report else None,
        busy_with=report.busy_with if report else (),
        cull_due=spawner.cull_due and not pending,
        pending=bool(pending),
    )


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
