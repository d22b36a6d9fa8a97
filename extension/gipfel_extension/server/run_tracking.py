"""Runs that the panel sends to an MLflow server, each by a process of ``gipfel track``."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gipfel_cluster.model import GipfelError

from ..exporters.mlflow_client import check_address
from ..exporters.mlflow_tracking import read_tracked
from .responses import RunTracking
from .runs import run_gipfel

#: Variables with the address of the MLflow server, the first that is set; those that hold its token.
_ADDRESSES = ("GIPFEL_TRACK_TO", "MLFLOW_TRACKING_URI")
_TOKENS = ("GIPFEL_TRACK_TOKEN_FILE", "MLFLOW_TRACKING_TOKEN")
_LIMIT_S = 1800.0
#: Maximum number of runs that are sent at a time: each takes a process.
_MAX_SENDING = 4
_MAX_PROBLEMS = 100


@dataclass(frozen=True)
class _Sending:
    task: "asyncio.Task[None]"
    since: float


class RunTrackings:
    """Sender of runs to an MLflow server; it outlives the page that asked for it.

    Example
    -------
    ``trackings.start(run_folder, "")``, then ``trackings.state(run_folder)`` until it is not ``sending``.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._sending: dict[Path, _Sending] = {}
        # Problems of the last attempts, the oldest first.
        self._problems: dict[Path, str] = {}

    def state(self, run: Path) -> RunTracking:
        """Return where a run was sent, and whether it is being sent; reads a file."""
        sending = self._sending.get(run)
        return RunTracking(
            to=self._configured(),
            url=_page(run),
            sending_s=None if sending is None else max(0, int(time.monotonic() - sending.since)),
            problem="" if sending is not None else self._problems.get(run, ""),
        )

    def start(self, run: Path, to: str) -> None:
        """Start to send a run, unless it is being sent; an empty address means the configured one.

        Raises
        ------
        GipfelError
            There is no address, it is not valid, or too many runs are being sent.
        """
        address = (to.strip() or self._configured()).rstrip("/")
        if not address:
            raise GipfelError(
                "There is no address of an MLflow server.", "Give one, or set $GIPFEL_TRACK_TO."
            )
        check_address(address)
        if run in self._sending:
            return
        if len(self._sending) >= _MAX_SENDING:
            raise GipfelError(f"{_MAX_SENDING} runs are being sent: try again when one of them is done.")
        self._problems.pop(run, None)
        task = asyncio.create_task(self._send(run, address))
        self._sending[run] = _Sending(task, time.monotonic())

    async def _send(self, run: Path, address: str) -> None:
        environment = dict(self._environment)
        configured = self._configured().rstrip("/")
        if configured and address != configured:
            # The token is for the configured server.
            for name in _TOKENS:
                environment.pop(name, None)
        try:
            await run_gipfel(("track", str(run), f"--to={address}", "--json"), environment, _LIMIT_S)
        except GipfelError as error:
            while len(self._problems) >= _MAX_PROBLEMS:
                self._problems.pop(next(iter(self._problems)))
            self._problems[run] = str(error)
        finally:
            self._sending.pop(run, None)

    def _configured(self) -> str:
        return next((each for name in _ADDRESSES if (each := self._environment.get(name, ""))), "")


def _page(run: Path) -> str:
    """Return the address of the run's page; empty if there is none, or not one that a browser may open."""
    tracked = read_tracked(run)
    if tracked is None or not tracked.run_id:
        return ""
    try:
        check_address(tracked.uri)
    except GipfelError:
        return ""
    return tracked.url
