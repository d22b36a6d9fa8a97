"""Lifetime of this server: its job's time limit, its idle time, and a hub that no longer knows the server.

`hub_connection` connects to the hub with the server's own token. `ServerLifetime` reports to the hub and
stops the server.
"""

import asyncio
import http
import json
import logging
import math
import time
import urllib.error
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import Field

from gipfel_cluster.hub_requests import open_hub
from gipfel_cluster.model import Frozen, GipfelError

from .activity import Idleness, Indicators

_ANSWER_S = 30.0
_MAX_LINE = 300
#: A notice is skipped if more than this share of the server's time is left, so that short servers don't begin
#: with a notice.
_MOST_LEFT = 0.75


class LifetimeStatus(Frozen):
    """Response of the hub: the end of the job in seconds since 1970, and the site's limits (0: none).

    ``extend_s`` is the time by which the user may extend the job. A server is stopped after ``idle_limit_s``
    of idle time, and its user is warned ``idle_warning_s`` before.
    """

    ends: int | None = None
    extend_s: int = Field(0, ge=0)
    idle_limit_s: int = Field(0, ge=0)
    idle_warning_s: int = Field(0, ge=0)


class HubRefusedError(Exception):
    """The hub refused this server's token."""


class HubUnavailableError(Exception):
    """The hub gave no usable response; the message is one line."""


#: Function that posts content to a path of the hub about this server, and returns the response. It blocks,
#: and raises `HubRefusedError` or `HubUnavailableError`.
Hub = Callable[[str, Mapping[str, Any]], LifetimeStatus]


def hub_connection(environment: Mapping[str, str]) -> Hub | None:
    """Return the connection to the hub that started this server; None without a hub."""
    needed = ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN")
    return partial(_post, environment) if all(environment.get(name) for name in needed) else None


def _post(environment: Mapping[str, str], path: str, content: Mapping[str, Any]) -> LifetimeStatus:
    path = f"/gipfel/server{path}"
    try:
        with open_hub("POST", path, content, environment, limit_s=_ANSWER_S) as answer:
            return LifetimeStatus.model_validate_json(answer.read())
    except urllib.error.HTTPError as error:
        if error.code in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
            raise HubRefusedError from error
        raise HubUnavailableError(_message(error)) from error
    except (OSError, ValueError) as error:
        raise HubUnavailableError(f"The hub does not respond ({type(error).__name__}).") from error


def _message(error: urllib.error.HTTPError) -> str:
    try:
        message = str(json.loads(error.read())["message"])
    except (OSError, ValueError, KeyError, TypeError):
        message = f"The hub responded with HTTP status {error.code}."
    return " ".join(message.split())[:_MAX_LINE]


@dataclass(frozen=True)
class LifetimeSettings:
    """Times in seconds.

    ``notices`` are times before the end of the job at which the user gets a notice; one that would be due in
    the first quarter of the server's time is left out. ``report_interval`` is the time between two reports
    to the hub, and ``orphan_grace`` the time for which the hub must refuse the server's token before the
    server stops.
    """

    notices: tuple[float, ...] = (1800.0, 600.0, 120.0)
    report_interval: float = 30.0
    orphan_grace: float = 600.0


class ServerLifetime:
    """Periodic activity reports to the hub, and the stop of a server that the hub no longer knows.

    Parameters
    ----------
    hub
        None for a server without a hub, which is never stopped for being idle.
    job_end
        Function that returns the end of the job as its node knows it, in seconds since 1970; None without a
        time limit.
    indicators
        Function that returns the current activity.
    stop_server
        Function that stops this server; its argument is the reason for the log.
    """

    def __init__(
        self,
        *,
        settings: LifetimeSettings,
        hub: Hub | None,
        job_end: Callable[[], Awaitable[float | None]],
        indicators: Callable[[], Awaitable[Indicators]],
        stop_server: Callable[[str], None],
        log: logging.Logger,
        gpu_threshold: float = 0.05,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._hub = hub
        self._job_end = job_end
        self._indicators = indicators
        self._stop_server = stop_server
        self._log = log
        self._clock = clock
        self._started = clock()
        self._idleness = Idleness(self._started, gpu_threshold=gpu_threshold)
        self._status = LifetimeStatus()
        self._ends: float | None = None
        self._warned: float | None = None
        self._refused_since: float | None = None
        self._unavailable = False

    async def run(self) -> None:
        """Report the activity regularly until cancelled."""
        while True:
            try:
                await self.report_once()
            except Exception:  # noqa: BLE001 - the hub would stop a server that no longer reports
                self._log.exception("This server's activity can't be determined.")
            await asyncio.sleep(self._settings.report_interval)

    async def report_once(self) -> None:
        """Determine the activity and report it to the hub."""
        self._ends = await self._job_end()
        self._idleness.update(await self._indicators(), self._clock())
        self._update_warning()
        if self._hub is None:
            return
        try:
            self._status = await asyncio.to_thread(self._hub, "/activity", self._report())
            self._refused_since, self._unavailable = None, False
        except HubUnavailableError as error:
            # The hub may just be restarting, so only log the error.
            (self._log.debug if self._unavailable else self._log.warning)("%s", error)
            self._unavailable = True
        except HubRefusedError:
            self._handle_refusal()
        self._update_warning()

    def _handle_refusal(self) -> None:
        """Stop the server after the grace time, because users can't log in to it any more."""
        now = self._clock()
        self._refused_since = now if self._refused_since is None else self._refused_since
        elapsed = now - self._refused_since
        if elapsed >= self._settings.orphan_grace:
            self._stop_server(
                f"The hub has refused this server's token for {elapsed:.0f} s, so the server stops."
            )
        elif elapsed == 0:
            self._log.warning(
                "The hub refuses this server's token. The server stops in %.0f s.",
                self._settings.orphan_grace,
            )

    def _update_warning(self) -> None:
        """Set the time of the idle warning, or clear it once the server is used."""
        limit, warning = self._status.idle_limit_s, self._status.idle_warning_s
        now = self._clock()
        if limit <= 0 or now - self._idleness.since < max(limit - warning, 0):
            self._warned = None
        elif self._warned is None:
            self._warned = now

    def _report(self) -> dict[str, Any]:
        now = self._clock()
        return {
            "idle_s": int(now - self._idleness.since),
            "busy_with": [text[:60] for text in self._idleness.busy_with][:6],
            "warned_s": None if self._warned is None else int(now - self._warned),
            "ends": None if self._ends is None else int(self._ends),
        }

    @property
    def ends(self) -> float | None:
        """End of the job in seconds since 1970 as the hub reports it, else as the node knows it."""
        return self._ends if self._status.ends is None else float(self._status.ends)

    def describe(self) -> dict[str, Any]:
        """Return the lifetime for JupyterLab, as `responses.Lifetime` declares it."""
        idle = None
        if self._warned is not None:
            stop = max(
                self._idleness.since + self._status.idle_limit_s, self._warned + self._status.idle_warning_s
            )
            idle = {"since_ms": _milliseconds(self._idleness.since), "stop_ms": _milliseconds(stop)}
        return {
            "now_ms": _milliseconds(self._clock()),
            "ends_ms": None if self.ends is None else _milliseconds(self.ends),
            "notices_s": self._notices(),
            "extend_s": self._status.extend_s,
            "idle": idle,
        }

    def _notices(self) -> list[float]:
        """Return the times of the notices before the end, the earliest first."""
        most = math.inf if self.ends is None else _MOST_LEFT * (self.ends - self._started)
        return sorted((each for each in self._settings.notices if each <= most), reverse=True)

    async def keep_alive(self) -> None:
        """Count this moment as use, and report it to the hub immediately."""
        self._idleness.since = self._clock()
        await self.report_once()

    async def extend(self) -> None:
        """Request more time.

        Raises
        ------
        GipfelError
            The site allows no more time, or the scheduler refused.
        """
        if self._hub is None:
            raise GipfelError("The time of this server can't be extended, because no hub started it.")
        try:
            self._status = await asyncio.to_thread(self._hub, "/extend", {"extend": True})
        except HubRefusedError:
            raise GipfelError(
                "The hub does not know this server.", "Save your work and start a new server."
            ) from None
        except HubUnavailableError as error:
            raise GipfelError(str(error)) from None


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
