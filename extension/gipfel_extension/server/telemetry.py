"""Run, recorder processes and feed of one notebook server; they start once and stop with the server."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError

from ..saturation.advice import HOLD_S
from ..telemetry.recorder_process import RecorderProcess
from .broadcast import SaturationBroadcast
from .runs import CurrentRun, current_run, list_runs, run_folder

_END_S = 5.0
_SIMULATED = "simulated"
_FIRST_SAMPLE_S = 20.0
_POLL_S = 0.1


class ServerTelemetry:
    """Run, recorders and feed of this server, for the routes.

    Parameters
    ----------
    interval
        Seconds between two samples of the recorders that this server starts; None for the update rate of
        their sources, at most ten per second.
    sources
        Sources that a server outside a job records on its machine.
    environment
        Environment variables that name the job's run. If the server creates the run, it adds these variables
        to ``os.environ`` for its kernels.
    advice_hold_s
        Seconds for which evidence must be present before an advice appears, and absent before it disappears.
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
        self._recorders_lock = asyncio.Lock()

    async def ensure_started(self) -> tuple[CurrentRun, SaturationBroadcast]:
        """Return the run and its feed; the first call creates them.

        Raises
        ------
        GipfelError
            The run folder can't be created, or a recorder can't be started.
        """
        async with self._lock:
            if self._running is None:
                run = await asyncio.to_thread(current_run, self._environment)
                if run.created_by_server:
                    await self._record(run, "job", self._sources, f"--root-pid={os.getpid()}")
                    os.environ.update(run.environment)
                self._running = (run, SaturationBroadcast(run, self._log, advice_hold_s=self._advice_hold_s))
        return self._running

    async def runs(self) -> list[dict[str, Any]]:
        """Return the user's runs, the newest first."""
        run, _ = await self.ensure_started()
        return await asyncio.to_thread(list_runs, self._environment, run.folder.name)

    async def run_named(self, name: str) -> Path:
        """Return the folder of a run by its name; an empty name means the run of this server.

        Raises
        ------
        GipfelError
            There is no run of that name.
        """
        run, _ = await self.ensure_started()
        if name in ("", run.folder.name):
            return run.folder.path
        return await asyncio.to_thread(run_folder, self._environment, name)

    async def simulate(self, source: str) -> None:
        """Record a simulated source into the same run; replace an earlier simulated source.

        Raises
        ------
        GipfelError
            The source can't be opened.
        """
        run, broadcast = await self.ensure_started()
        since, deadline = time.time_ns(), time.monotonic() + _FIRST_SAMPLE_S
        recorder = await self._record(run, _SIMULATED, (source,))
        while not broadcast.simulated_since(since):
            if recorder.exit_status is not None:
                reason = await asyncio.to_thread(recorder.last_log_line)
                raise GipfelError(reason or f"The recorder of {source} ended immediately.")
            if time.monotonic() > deadline:
                raise GipfelError(
                    f"The source {source} returned no sample within {_FIRST_SAMPLE_S:g} s.",
                    f"See the log {recorder.log}.",
                )
            await asyncio.sleep(_POLL_S)

    async def stop_simulation(self) -> None:
        """Stop the simulated source, if there is one."""
        async with self._recorders_lock:
            await self._stop_recorder(_SIMULATED)

    async def stop(self) -> None:
        """Stop recorders and feed, and remove the sockets if this server created the run."""
        if self._running is None:
            return
        (run, broadcast), self._running = self._running, None
        await broadcast.close()
        async with self._recorders_lock:
            await asyncio.gather(*map(self._stop_recorder, tuple(self._recorders)))
        if run.created_by_server:
            for name in run.environment:
                os.environ.pop(name, None)
            await asyncio.to_thread(run.remove_sockets)

    async def _record(
        self, run: CurrentRun, name: str, sources: tuple[str, ...], *options: str
    ) -> RecorderProcess:
        """Start a recorder, and stop an earlier one of this name first."""
        async with self._recorders_lock:
            await self._stop_recorder(name)
            try:
                # On this thread, since the recorder ends with the thread that starts it.
                recorder = self._recorders[name] = RecorderProcess(
                    run.folder.telemetry,
                    node=run.node,
                    name=name,
                    sources=sources,
                    interval=self._interval,
                    sockets=run.sockets,
                    log=run.folder.path / f"recorder-{name}.log",
                    options=options,
                )
            except OSError as error:
                raise GipfelError(
                    f"The recorder can't be started: {error.strerror}.", "Restart the server."
                ) from error
        return recorder

    async def _stop_recorder(self, name: str) -> None:
        if recorder := self._recorders.pop(name, None):
            await asyncio.to_thread(recorder.stop, _END_S)
