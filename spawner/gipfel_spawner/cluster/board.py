"""What the hub knows of its cluster beside jobs: shared by all pages, so that a page view asks nothing."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from gipfel_cluster.scheduler.protocol import JobRequest, Partition, Scheduler
from gipfel_cluster.scheduler.site import Choices, SiteFacts

from .kept import Kept, Seen

_FRESH_SECONDS = 30.0
_CHOICES_SECONDS = 120.0
_START_SECONDS = 20.0
_MOST_USERS = 2000
_MOST_STARTS = 500
_AT_ONCE = 4

Value = TypeVar("Value")


class SiteBoard:
    """Partitions of the cluster, choices of its users, and expected starts, each as old as it may be.

    Parameters
    ----------
    scheduler
        Is asked; one that knows partitions only offers no choices.
    fresh
        Seconds that partitions are taken for current.
    only
        The partitions that are offered; all where it is empty.
    """

    def __init__(
        self, scheduler: Scheduler, *, fresh: float = _FRESH_SECONDS, only: tuple[str, ...] = ()
    ) -> None:
        self._scheduler = scheduler
        self._only = frozenset(only)
        self._partitions: Kept[tuple[Partition, ...]] = Kept(self._ask_partitions, fresh=fresh)
        self._choices: _Shelf[Choices] = _Shelf(_MOST_USERS)
        self._starts: _Shelf[str] = _Shelf(_MOST_STARTS)
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def partitions(self) -> Seen[tuple[Partition, ...]]:
        """For a page: what is known, with its age."""
        return await self._partitions.look()

    async def current_partitions(self) -> tuple[Partition, ...]:
        """For a start.

        Raises
        ------
        GipfelError
            The scheduler does not answer.
        """
        return await self._partitions.get()

    async def _ask_partitions(self) -> tuple[Partition, ...]:
        found = await self._scheduler.partitions()
        return tuple(each for each in found if each.name in self._only) if self._only else found

    async def choices(self, user: str) -> Seen[Choices]:
        """What a unix user may choose."""

        async def ask() -> Choices:
            scheduler = self._scheduler
            return await scheduler.choices(user) if isinstance(scheduler, SiteFacts) else Choices()

        return await self._choices.at(user, lambda: Kept(ask, fresh=_CHOICES_SECONDS)).look()

    async def expected_start(self, request: JobRequest) -> str:
        """When a job would start, as an ISO time; empty for at once.

        Raises
        ------
        GipfelError
            The scheduler would refuse it, does not say, or does not answer.
        """

        async def ask() -> str:
            scheduler = self._scheduler
            async with self._gate:
                return await scheduler.expected_start(request) if isinstance(scheduler, SiteFacts) else ""

        key = request.model_dump_json(exclude={"environment", "script"})
        return await self._starts.at(key, lambda: Kept(ask, fresh=_START_SECONDS)).get()


class _Shelf(Generic[Value]):
    """Kept answers by name; the one that was used longest ago makes room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[str, Kept[Value]] = OrderedDict()

    def at(self, key: str, make: Callable[[], Kept[Value]]) -> Kept[Value]:
        if key not in self._found:
            self._found[key] = make()
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        return self._found[key]
