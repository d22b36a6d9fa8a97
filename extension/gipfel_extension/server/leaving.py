"""How this server ends: its job's time, its idleness, and a hub that no longer knows it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gipfel_cluster.model import GipfelError

from .activity import Idleness, Signs
from .hub import Hub, HubRefusedError, HubSilentError, HubWord


@dataclass(frozen=True)
class LeavingSettings:
    """Times in seconds.

    ``notices`` are before the end, ``beat`` is between two reports, ``orphan_grace`` is for how long
    the hub's refusals are borne before this server ends.
    """

    notices: tuple[float, ...] = (1800.0, 600.0, 120.0)
    beat: float = 30.0
    orphan_grace: float = 600.0


class Leaving:
    """Reports to the hub how this server is used, and knows when it ends.

    Parameters
    ----------
    hub
        None for a server without one, which is never idle for anybody.
    ends
        When the job's time ends as the node learned it, in seconds since 1970; None where it has no limit.
    look
        What there is to see now.
    end
        Ends this server; the line is for its log.
    """

    def __init__(
        self,
        *,
        settings: LeavingSettings,
        hub: Hub | None,
        ends: Callable[[], Awaitable[float | None]],
        look: Callable[[], Awaitable[Signs]],
        end: Callable[[str], None],
        log: logging.Logger,
        gpu_threshold: float = 0.05,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._hub = hub
        self._ends_on_node = ends
        self._look = look
        self._end = end
        self._log = log
        self._clock = clock
        self._idleness = Idleness(clock(), gpu_threshold=gpu_threshold)
        self._word = HubWord()
        self._ends: float | None = None
        self._warned: float | None = None
        self._refused: float | None = None
        self._silent = False

    async def run(self) -> None:
        """Look and report until cancelled."""
        while True:
            try:
                await self.beat()
            except Exception:  # noqa: BLE001 - a server that no longer reported would be stopped
                self._log.exception("This server's use can't be looked at.")
            await asyncio.sleep(self._settings.beat)

    async def beat(self) -> None:
        """Look once, and tell the hub."""
        self._ends = await self._ends_on_node()
        self._idleness.look(await self._look(), self._clock())
        self._judge()
        if self._hub is None:
            return
        try:
            self._word = await asyncio.to_thread(self._hub.report, self._report())
            self._refused, self._silent = None, False
        except HubSilentError as error:
            # A hub that restarts; it takes its servers up again.
            (self._log.debug if self._silent else self._log.warning)("%s", error)
            self._silent = True
        except HubRefusedError:
            self._bear_refusal()
        self._judge()

    def _bear_refusal(self) -> None:
        """End once the hub has refused this server's token for long: nobody can log in to it any more."""
        now = self._clock()
        self._refused = now if self._refused is None else self._refused
        borne = now - self._refused
        if borne >= self._settings.orphan_grace:
            self._end(f"The hub has not known this server for {borne:.0f} s, so it ends.")
        elif borne == 0:
            self._log.warning(
                "The hub does not know this server; it ends in %.0f s.", self._settings.orphan_grace
            )

    def _judge(self) -> None:
        """Warn once the server has been idle for all of its limit but the warning."""
        limit, warning = self._word.idle_limit_s, self._word.idle_warning_s
        now = self._clock()
        if limit <= 0 or now - self._idleness.since < max(limit - warning, 0):
            self._warned = None
        elif self._warned is None:
            self._warned = now

    def _report(self) -> dict[str, Any]:
        now = self._clock()
        return {
            "idle_s": int(now - self._idleness.since),
            "busy_with": [words[:60] for words in self._idleness.busy_with][:6],
            "warned_s": None if self._warned is None else int(now - self._warned),
            "ends": None if self._ends is None else int(self._ends),
        }

    @property
    def ends(self) -> float | None:
        """When this server's time ends, in seconds since 1970: the hub's word, else the node's."""
        return self._ends if self._word.ends is None else float(self._word.ends)

    def describe(self) -> dict[str, Any]:
        """What the lab shows; times are UTC milliseconds."""
        idle = None
        if self._warned is not None:
            stop = max(
                self._idleness.since + self._word.idle_limit_s, self._warned + self._word.idle_warning_s
            )
            idle = {"since_ms": _milliseconds(self._idleness.since), "stop_ms": _milliseconds(stop)}
        return {
            "now_ms": _milliseconds(self._clock()),
            "ends_ms": None if self.ends is None else _milliseconds(self.ends),
            "notices_s": sorted(self._settings.notices, reverse=True),
            "extend_s": self._word.extend_s,
            "idle": idle,
        }

    async def stay(self) -> None:
        """The user wants this server; the hub hears of it at once."""
        self._idleness.touch(self._clock())
        await self.beat()

    async def extend(self) -> None:
        """Ask for more time.

        Raises
        ------
        GipfelError
            The site allows none, or the scheduler refused.
        """
        if self._hub is None:
            raise GipfelError("This server's time can't be extended: no hub started it.")
        try:
            self._word = await asyncio.to_thread(self._hub.extend)
        except HubRefusedError:
            raise GipfelError("The hub does not know this server.", "Save your work.") from None
        except HubSilentError as error:
            raise GipfelError(str(error)) from None


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
