"""Jobs that this hub submitted and that no server of it owns: after its database was restored or lost."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from jupyterhub import orm

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import MarkedJob

from ..spawner import EDFSpawner


@runtime_checkable
class MarkLister(Protocol):
    """A scheduler that lists jobs by their marks."""

    async def marked(self, prefix: str) -> tuple[MarkedJob, ...]:
        """The jobs that wait or run and whose mark begins so.

        Raises
        ------
        GipfelError
            It does not answer.
        """


async def orphan_jobs(handler: Any) -> tuple[tuple[MarkedJob, ...], str]:
    """The jobs of this hub that no server owns, and why they are not known; for an administrator's page."""
    spawner = getattr(handler.current_user, "spawner", None)
    if not isinstance(spawner, EDFSpawner):
        return (), ""
    try:
        found = await asyncio.gather(
            *(each.marked(spawner.marks) for each in spawner.all_schedulers() if isinstance(each, MarkLister))
        )
    except GipfelError as error:
        return (), str(error)
    # Read after the jobs: a server that starts meanwhile is no orphan.
    jobs, marks = _owned(handler)
    return tuple(
        each for some in found for each in some if each.job_id not in jobs and each.mark not in marks
    ), ""


def _owned(handler: Any) -> tuple[set[str], set[str]]:
    """Numbers and marks of the jobs of all servers, those that the hub has not loaded among them."""
    states: list[Mapping[str, Any]] = [state or {} for (state,) in handler.db.query(orm.Spawner.state)]
    for user in handler.users.values():
        states += [each.get_state() for each in user.spawners.values() if isinstance(each, EDFSpawner)]
    return {str(each.get("job_id")) for each in states}, {str(each.get("mark")) for each in states}
