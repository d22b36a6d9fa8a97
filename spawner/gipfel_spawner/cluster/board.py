"""Cached facts of a cluster: partitions, choices of its users, expected starts.

All pages share them, so that a page view asks the scheduler nothing. `AsyncCache` is the cache, `SiteBoard`
holds one for each fact.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import Choices, JobRequest, Partition, Scheduler, SiteFacts

Value = TypeVar("Value")
_FRESH_SECONDS = 30.0
_CHOICES_SECONDS = 120.0
_START_SECONDS = 20.0
_MOST_USERS = 2000
_MOST_STARTS = 500
_AT_ONCE = 4


@dataclass(frozen=True)
class Cached(Generic[Value]):
    """Last answer, its age in seconds, and why there is no newer one."""

    value: Value | None = None
    age: float = 0.0
    problem: str = ""


class AsyncCache(Generic[Value]):
    """Shared async cache: refreshes after a TTL and serves the stale value if the refresh fails.

    Parameters
    ----------
    ask
        The question; a `GipfelError` is its failure.
    fresh
        Seconds after which an answer, or a failure, is asked for anew.
    patience
        Seconds that a page waits for a newer answer while it has an older one.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[Value]],
        *,
        fresh: float = 30.0,
        patience: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._fresh = fresh
        self._patience = patience
        self._clock = clock
        self._value: Value | None = None
        self._answered: float | None = None
        self._tried: float | None = None
        self._failure: GipfelError | None = None
        self._asking: asyncio.Task[None] | None = None

    async def cached(self) -> Cached[Value]:
        """Return what is cached, for a page; wait long only where nothing is cached yet, and never raise."""
        if self._is_old(self._tried):
            asking = self._start()
            # Shielded: the answer is everybody's, and comes also when this page gives up.
            await asyncio.wait({asking}, timeout=self._patience if self._answered is not None else None)
        age = 0.0 if self._answered is None else self._clock() - self._answered
        return Cached(self._value, age, str(self._failure) if self._failure else "")

    async def get(self) -> Value:
        """Return a fresh value, for a decision.

        Raises
        ------
        GipfelError
            There is none.
        """
        if self._is_old(self._answered):
            await asyncio.wait({self._start()})
            if self._failure:
                raise GipfelError(self._failure.problem, self._failure.fix)
        if self._value is None:
            raise GipfelError("The scheduler gave no answer.", "Try again in a few minutes.")
        return self._value

    def _is_old(self, moment: float | None) -> bool:
        return moment is None or self._clock() - moment >= self._fresh

    def _start(self) -> "asyncio.Task[None]":
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._renew())
        return self._asking

    async def _renew(self) -> None:
        try:
            self._value = await self._ask()
        except GipfelError as error:
            self._failure = error
        except ValueError:
            # A number of thousands of digits, a time that is none: whoever asked gets a line all the same.
            self._failure = GipfelError(
                "The scheduler's answer can't be read.", "Tell the cluster's administrators."
            )
        else:
            self._failure = None
            self._answered = self._clock()
        finally:
            self._tried = self._clock()


class SiteBoard:
    """Partitions of the cluster, choices of its users, and expected starts, each in its own cache.

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
        self._partitions: AsyncCache[tuple[Partition, ...]] = AsyncCache(self._ask_partitions, fresh=fresh)
        self._choices: LRU[Choices] = LRU(_MOST_USERS)
        self._starts: LRU[str] = LRU(_MOST_STARTS)
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def partitions(self) -> Cached[tuple[Partition, ...]]:
        """Return the partitions with their age, for a page."""
        return await self._partitions.cached()

    async def current_partitions(self) -> tuple[Partition, ...]:
        """Return the partitions as they are now, for a start.

        Raises
        ------
        GipfelError
            The scheduler does not answer.
        """
        return await self._partitions.get()

    async def _ask_partitions(self) -> tuple[Partition, ...]:
        found = await self._scheduler.partitions()
        return tuple(each for each in found if each.name in self._only) if self._only else found

    async def choices(self, user: str) -> Cached[Choices]:
        """Return what a unix user may choose."""

        async def ask() -> Choices:
            scheduler = self._scheduler
            return await scheduler.choices(user) if isinstance(scheduler, SiteFacts) else Choices()

        return await self._choices.at(user, lambda: AsyncCache(ask, fresh=_CHOICES_SECONDS)).cached()

    async def expected_start(self, request: JobRequest) -> str:
        """Return when a job would start, as an ISO time; empty for at once.

        Raises
        ------
        GipfelError
            The scheduler would refuse it, or does not answer.
        """

        async def ask() -> str:
            scheduler = self._scheduler
            async with self._gate:
                return await scheduler.expected_start(request) if isinstance(scheduler, SiteFacts) else ""

        key = request.model_dump_json(exclude={"environment", "script"})
        return await self._starts.at(key, lambda: AsyncCache(ask, fresh=_START_SECONDS)).get()


class LRU(Generic[Value]):
    """Caches by name; the least recently used one makes room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[str, AsyncCache[Value]] = OrderedDict()

    def at(self, key: str, make: Callable[[], AsyncCache[Value]]) -> AsyncCache[Value]:
        """Return the cache of this name, made where there is none."""
        if key not in self._found:
            self._found[key] = make()
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        return self._found[key]
