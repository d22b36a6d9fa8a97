"""End of this server: its job's time limit, its idleness, and a hub that no longer knows it.

`Hub` is the connection to the hub with the server's own token, `ServerLifetime` reports to it and ends the
server.
"""

import asyncio
import http
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError

from .activity import Idleness, Indicators

_ANSWER_S = 30.0
_LONGEST_LINE = 300


class LifetimeStatus(Frozen):
    """End of this server's time in seconds since 1970, and what the site allows; 0 means not at all."""

    ends: int | None = None
    extend_s: int = Field(0, ge=0)
    idle_limit_s: int = Field(0, ge=0)
    idle_warning_s: int = Field(0, ge=0)


class HubRefusedError(Exception):
    """Refusal by the hub: it does not know this server's token."""


class HubSilentError(Exception):
    """No usable answer of the hub; the message is one line."""


class Hub(Protocol):
    """Connection of a server to its hub; both methods block."""

    def report(self, content: Mapping[str, Any]) -> LifetimeStatus:
        """Report how this server is used.

        Raises
        ------
        HubRefusedError, HubSilentError
        """

    def extend(self) -> LifetimeStatus:
        """Request more time.

        Raises
        ------
        HubRefusedError, HubSilentError
        """


class HttpHub:
    """Connection to the hub of ``JUPYTERHUB_API_URL``, with ``JUPYTERHUB_API_TOKEN``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._url = environment["JUPYTERHUB_API_URL"].rstrip("/") + "/gipfel/server"
        self._token = environment["JUPYTERHUB_API_TOKEN"]
        # An EDF may name a proxy for the internet, which the hub is not on, and which must not see the token.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def report(self, content: Mapping[str, Any]) -> LifetimeStatus:
        """Report how this server is used."""
        return self._post("/activity", content)

    def extend(self) -> LifetimeStatus:
        """Request more time."""
        return self._post("/extend", {"extend": True})

    def _post(self, path: str, content: Mapping[str, Any]) -> LifetimeStatus:
        request = urllib.request.Request(  # noqa: S310 - the hub's own address, from the hub
            self._url + path,
            data=json.dumps(content).encode(),
            headers={"Authorization": f"token {self._token}", "Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=_ANSWER_S) as answer:
                return LifetimeStatus.model_validate_json(answer.read())
        except urllib.error.HTTPError as error:
            if error.code in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
                raise HubRefusedError from error
            raise HubSilentError(_message(error)) from error
        except (OSError, ValueError) as error:
            raise HubSilentError(f"The hub does not answer ({type(error).__name__}).") from error


def hub_of(environment: Mapping[str, str]) -> Hub | None:
    """Return the hub that started this server, None where none did."""
    needed = ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN")
    return HttpHub(environment) if all(environment.get(name) for name in needed) else None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        words = str(json.loads(error.read())["message"])
    except (OSError, ValueError, KeyError, TypeError):
        words = f"The hub answered {error.code}."
    return " ".join(words.split())[:_LONGEST_LINE]


@dataclass(frozen=True)
class LifetimeSettings:
    """Times in seconds.

    ``notices`` are before the end, ``beat`` is between two reports, ``orphan_grace`` is for how long
    the hub's refusals are borne before this server ends.
    """

    notices: tuple[float, ...] = (1800.0, 600.0, 120.0)
    beat: float = 30.0
    orphan_grace: float = 600.0


class ServerLifetime:
    """Reports to the hub how this server is used, and the end of the server.

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
        settings: LifetimeSettings,
        hub: Hub | None,
        ends: Callable[[], Awaitable[float | None]],
        indicators: Callable[[], Awaitable[Indicators]],
        end: Callable[[str], None],
        log: logging.Logger,
        gpu_threshold: float = 0.05,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._hub = hub
        self._ends_on_node = ends
        self._indicators = indicators
        self._end = end
        self._log = log
        self._clock = clock
        self._idleness = Idleness(clock(), gpu_threshold=gpu_threshold)
        self._word = LifetimeStatus()
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
        self._idleness.update(await self._indicators(), self._clock())
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
        """End once the hub has refused this server's token for long: users can't log in to it any more."""
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
        """End of this server's time in seconds since 1970: the hub's answer, else the node's."""
        return self._ends if self._word.ends is None else float(self._word.ends)

    def describe(self) -> dict[str, Any]:
        """Return what the lab shows; times are UTC milliseconds."""
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
        """Count this moment as use, and report it to the hub at once."""
        self._idleness.touch(self._clock())
        await self.beat()

    async def extend(self) -> None:
        """Request more time.

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
