"""One answer for everybody who asks: asked again by its age, and kept when the next question fails."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gipfel_cluster.model import GipfelError

Value = TypeVar("Value")


@dataclass(frozen=True)
class Seen(Generic[Value]):
    """The last answer, its age in seconds, and why there is no newer one."""

    value: Value | None = None
    age: float = 0.0
    problem: str = ""


class Kept(Generic[Value]):
    """Asks at most one question at a time, and none while the last answer is fresh.

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

    async def look(self) -> Seen[Value]:
        """What is known, for a page; waits long only where nothing is known yet, and never raises."""
        if self._is_old(self._tried):
            asking = self._start()
            # Shielded: the answer is everybody's, and comes also when this page gives up.
            await asyncio.wait({asking}, timeout=self._patience if self._answered is not None else None)
        age = 0.0 if self._answered is None else self._clock() - self._answered
        return Seen(self._value, age, str(self._failure) if self._failure else "")

    async def get(self) -> Value:
        """A fresh answer, for a decision.

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
