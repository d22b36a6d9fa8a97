"""Cached answers of a cluster's scheduler: partitions, choices and GPU hours of its users, expected starts.

All pages share them, so that a page view usually causes no scheduler command. `AsyncCache` caches one query;
`ClusterCache` has one for each query.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import date
from typing import Generic, TypeVar

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import (
    Choices,
    GpuAccounting,
    GpuUsage,
    JobRequest,
    Partition,
    QuotaFacts,
    Scheduler,
    SiteFacts,
    Waits,
)
from gipfel_cluster.scheduler.slurm_usage import find_waits

Value = TypeVar("Value")
#: Seconds after which partitions, choices, expected starts, and GPU hours and waits are queried again.
_TTL_SECONDS = 30.0
_CHOICES_SECONDS = 120.0
_START_SECONDS = 20.0
_USAGE_SECONDS = 300.0
#: Maximum numbers of users, and of job requests for expected starts, whose answers are cached.
_MAX_USERS = 2000
_MAX_STARTS = 500
#: Concurrent queries of the scheduler about single users and requests.
_MAX_CONCURRENT = 4


@dataclass(frozen=True)
class Cached(Generic[Value]):
    """A cached value (None before the first answer), its age in seconds, and why the last refresh failed.

    ``problem`` is empty if the last refresh did not fail.
    """

    value: Value | None = None
    age: float = 0.0
    problem: str = ""


class AsyncCache(Generic[Value]):
    """Shared async cache: refreshes after a TTL and serves the stale value if the refresh fails.

    Parameters
    ----------
    fetch
        Queries the value; a `GipfelError` means that the query failed.
    ttl
        Seconds after which a value is refreshed.
    retry
        Seconds after which a failure is refreshed; by default ``ttl``.
    patience
        Seconds that a page waits for a refresh while it has a stale value.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Value]],
        *,
        ttl: float = 30.0,
        retry: float | None = None,
        patience: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._ttl = ttl
        self._retry = ttl if retry is None else retry
        self._patience = patience
        self._clock = clock
        self._value: Value | None = None
        self._answered: float | None = None
        self._tried: float | None = None
        self._failure: GipfelError | None = None
        self._refreshing: asyncio.Task[None] | None = None

    async def cached(self, *, limit: float | None = None) -> Cached[Value]:
        """Return the cached value for a page, refreshed if it is stale; never raise.

        Parameters
        ----------
        limit
            Seconds to wait for the first value, None for no limit.
        """
        if self._is_stale(self._tried):
            refreshing = self._start_refresh()
            # asyncio.wait does not cancel the task: other pages share it.
            await asyncio.wait({refreshing}, timeout=self._patience if self._answered is not None else limit)
        age = 0.0 if self._answered is None else self._clock() - self._answered
        return Cached(self._value, age, str(self._failure) if self._failure else "")

    async def get(self) -> Value:
        """Return a fresh value, for a decision.

        Raises
        ------
        GipfelError
            The refresh failed.
        """
        if self._is_stale(self._answered):
            await asyncio.wait({self._start_refresh()})
            if self._failure:
                raise GipfelError(self._failure.problem, self._failure.fix)
        if self._value is None:
            raise GipfelError("The scheduler gave no answer.", "Try again in a few minutes.")
        return self._value

    def _is_stale(self, moment: float | None) -> bool:
        return moment is None or self._clock() - moment >= (self._retry if self._failure else self._ttl)

    def _start_refresh(self) -> "asyncio.Task[None]":
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        return self._refreshing

    async def _refresh(self) -> None:
        try:
            self._value = await self._fetch()
        except GipfelError as error:
            self._failure = error
        except ValueError:
            # For example a number with thousands of digits, or an invalid time.
            self._failure = GipfelError(
                "The scheduler's answer can't be read.", "Tell the cluster's administrators."
            )
        else:
            self._failure = None
            self._answered = self._clock()
        finally:
            self._tried = self._clock()


class ClusterCache:
    """Partitions of a cluster, choices and GPU hours of its users, expected starts; each has its own TTL.

    Parameters
    ----------
    scheduler
        The scheduler to query. Without the methods of `SiteFacts` and `GpuAccounting` it offers partitions
        only.
    ttl
        Seconds after which the partitions are queried again.
    only
        The partitions that are offered; all if it is empty.
    """

    def __init__(
        self, scheduler: Scheduler, *, ttl: float = _TTL_SECONDS, only: tuple[str, ...] = ()
    ) -> None:
        self._scheduler = scheduler
        self._only = frozenset(only)
        self._partitions: AsyncCache[tuple[Partition, ...]] = AsyncCache(self._fetch_partitions, ttl=ttl)
        self._choices: LRU[Choices] = LRU(_MAX_USERS)
        self._usage: LRU[GpuUsage] = LRU(_MAX_USERS)
        self._waits: LRU[tuple[Waits, ...]] = LRU(_MAX_USERS)
        self._starts: LRU[str] = LRU(_MAX_STARTS)
        self._gate = asyncio.Semaphore(_MAX_CONCURRENT)

    async def partitions(self, *, limit: float | None = None) -> Cached[tuple[Partition, ...]]:
        """Return the partitions with their age, for a page; see `AsyncCache.cached`."""
        return await self._partitions.cached(limit=limit)

    async def current_partitions(self) -> tuple[Partition, ...]:
        """Return partitions that are not stale, for a start.

        Raises
        ------
        GipfelError
            The scheduler does not answer.
        """
        return await self._partitions.get()

    async def _fetch_partitions(self) -> tuple[Partition, ...]:
        found = await self._scheduler.partitions()
        return tuple(each for each in found if each.name in self._only) if self._only else found

    async def choices(self, user: str) -> Cached[Choices]:
        """Return the accounts, QoS and reservations that a unix user may choose."""

        async def fetch() -> Choices:
            scheduler = self._scheduler
            return await scheduler.choices(user) if isinstance(scheduler, SiteFacts) else Choices()

        return await self._choices.at(user, lambda: AsyncCache(fetch, ttl=_CHOICES_SECONDS)).cached()

    async def gpu_usage(self, user: str, since: date, *, limit: float | None = None) -> Cached[GpuUsage]:
        """Return the GPU hours of a unix user since the beginning of a day; see `AsyncCache.cached`."""

        async def fetch() -> GpuUsage:
            if not isinstance(self._scheduler, GpuAccounting):
                return GpuUsage()
            async with self._gate:
                return await self._scheduler.gpu_usage(user, since)

        key = f"{user} {since.isoformat()}"
        usage = self._usage.at(key, lambda: AsyncCache(fetch, ttl=_USAGE_SECONDS))
        return await usage.cached(limit=limit)

    async def waits(self, user: str) -> tuple[Waits, ...]:
        """Return how long the jobs of a unix user have waited; empty if that is not known (yet)."""

        async def fetch() -> tuple[Waits, ...]:
            if not isinstance(self._scheduler, QuotaFacts):
                return ()
            async with self._gate:
                return (await self._scheduler.quota(user)).waits

        cache = self._waits.at(user, lambda: AsyncCache(fetch, ttl=_USAGE_SECONDS))
        return (await cache.cached()).value or ()

    async def expected_start(self, request: JobRequest) -> str:
        """Return when a job would start, as an ISO time; empty for immediately.

        Raises
        ------
        GipfelError
            The scheduler would refuse it, or does not answer.
        """

        async def fetch() -> str:
            scheduler = self._scheduler
            async with self._gate:
                return await scheduler.expected_start(request) if isinstance(scheduler, SiteFacts) else ""

        key = request.model_dump_json(exclude={"environment", "script"})
        return await self._starts.at(key, lambda: AsyncCache(fetch, ttl=_START_SECONDS)).get()

    async def forecast(self, request: JobRequest, user: str) -> "Forecast":
        """Return when a job of a unix user would start, and how long earlier jobs like it have waited.

        Raises
        ------
        GipfelError
            As for `expected_start`.
        """
        start = await self.expected_start(request)
        waits = await self.waits(user)
        partitions = (await self.partitions()).value or () if waits else ()
        default = next((each.name for each in partitions if each.default), "")
        gpus = request.nodes * request.gpus_per_node
        return Forecast(start, waits, find_waits(waits, request.partition or default, gpus))


@dataclass(frozen=True)
class Forecast:
    """When a job would start.

    ``latest`` is an ISO time, empty for immediately. It is the latest time, because the scheduler assumes
    that all jobs use all their time. ``waits`` are the waits of the user's earlier jobs, ``similar`` those of
    jobs like this one; None if there were none.
    """

    latest: str
    waits: tuple[Waits, ...] = ()
    similar: Waits | None = None


class LRU(Generic[Value]):
    """Caches by key; if there are more than ``max_size``, the least recently used one is dropped."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._caches: OrderedDict[Hashable, AsyncCache[Value]] = OrderedDict()

    def at(self, key: Hashable, make: Callable[[], AsyncCache[Value]]) -> AsyncCache[Value]:
        """Return the cache of this key, created if there is none."""
        if key not in self._caches:
            self._caches[key] = make()
            while len(self._caches) > self._max_size:
                self._caches.popitem(last=False)
        self._caches.move_to_end(key)
        return self._caches[key]

    def drop(self, key: Hashable) -> None:
        """Remove the cache of this key, if there is one."""
        self._caches.pop(key, None)
