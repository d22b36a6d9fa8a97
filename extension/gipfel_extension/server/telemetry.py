"""Run, recorders and feed of one notebook server, started once and ended with it."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError

from ..saturation.advice.steady import HOLD_S
from .broadcast import SaturationBroadcast
from .recorders import RecorderProcess
from .run import CurrentRun, current_run
from .runs import list_runs, run_folder

_SIMULATED = "simulated"
_FIRST_SAMPLE_S = 20.0
_GLANCE_S = 0.1


class ServerTelemetry:
    """What the routes read and change.

    Parameters
    ----------
    interval
        Seconds between two samples of the recorders that this server starts; None: as fast as their sources
        count, at most ten a second.
    sources
        What a server without a job records of its own machine.
    environment
        Where the job's run is named; kernels of an own run find it in ``os.environ``.
    advice_hold_s
        Seconds that evidence must hold before an advice appears, and be gone before it disappears.
    """

    def __init__(
        self,
        *,
        interval: float | None,
        sources: tuple[str, ...],
        environment: Mapping[str, str],
        log: logging.Logger,
        advice_hold_s: float = HOLD_S,
    ) -> None:
        self._advice_hold_s = advice_hold_s
        self._interval = interval
        self._sources = sources
        self._environment = environment
        self._log = log
        self._lock = asyncio.Lock()
        self._running: tuple[CurrentRun, SaturationBroadcast] | None = None
        self._recorders: dict[str, RecorderProcess] = {}

    async def started(self) -> tuple[CurrentRun, SaturationBroadcast]:
        """The run and its feed, made on the first call.

        Raises
        ------
        GipfelError
            The run folder can't be made or a recorder can't be started.
        """
        async with self._lock:
            if self._running is None:
                run = await asyncio.to_thread(current_run, self._environment)
                if run.own:
                    await self._record(run, "job", self._sources, root_pid=os.getpid())
                    os.environ.update(run.environment)
                self._running = (run, SaturationBroadcast(run, self._log, advice_hold_s=self._advice_hold_s))
        return self._running

    async def runs(self) -> list[dict[str, Any]]:
        """The user's runs, the newest first."""
        run, _ = await self.started()
        return await asyncio.to_thread(list_runs, self._environment, run.folder.name)

    async def run_named(self, name: str) -> Path:
        """The folder of a run; of this server's where the name is empty.

        Raises
        ------
        GipfelError
            There is none of that name.
        """
        run, _ = await self.started()
        if name in ("", run.folder.name):
            return run.folder.path
        return await asyncio.to_thread(run_folder, self._environment, name)

    async def simulate(self, source: str) -> None:
        """Record a simulated source into the same run, in place of one that is recorded already.

        Raises
        ------
        GipfelError
            The source can't be opened.
        """
        run, broadcast = await self.started()
        since, deadline = time.time_ns(), time.monotonic() + _FIRST_SAMPLE_S
        recorder = await self._record(run, _SIMULATED, (source,))
        while not broadcast.simulated_since(since):
            if not recorder.running:
                words = await recorder.last_words()
                raise GipfelError(words or f"The recorder of {source} ended at once.")
            if time.monotonic() > deadline:
                raise GipfelError(
                    f"No sample came from {source} within {_FIRST_SAMPLE_S:g} s.",
                    f"Look into {recorder.log}.",
                )
            await asyncio.sleep(_GLANCE_S)

    async def stop_simulation(self) -> None:
        """End the simulated source; ending none is no error."""
        if recorder := self._recorders.pop(_SIMULATED, None):
            await recorder.stop()

    async def stop(self) -> None:
        """End recorders and feed, and remove the sockets of an own run."""
        if self._running is None:
            return
        (run, broadcast), self._running = self._running, None
        await broadcast.close()
        await asyncio.gather(*(recorder.stop() for recorder in self._recorders.values()))
        self._recorders.clear()
        if run.own:
            for name in run.environment:
                os.environ.pop(name, None)
            await asyncio.to_thread(run.remove_sockets)

    async def _record(
        self, run: CurrentRun, name: str, sources: tuple[str, ...], root_pid: int | None = None
    ) -> RecorderProcess:
        recorder = self._recorders.setdefault(name, RecorderProcess(run, name, self._interval))
        await recorder.start(sources, root_pid)
        return recorder
