"""Run, recorder processes and feed of one notebook server; they start once and stop with the server."""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_cluster.regular_files import last_line, open_log

from ..saturation.advice import HOLD_S
from .broadcast import SaturationBroadcast
from .runs import CurrentRun, current_run, list_runs, run_folder

_END_S = 5.0
_SIMULATED = "simulated"
_FIRST_SAMPLE_S = 20.0
_POLL_S = 0.1


class RecorderProcess:
    """Recorder process of this server; it ends with the server, even if the server is killed.

    Parameters
    ----------
    run
        Run folder and sockets that the recorder writes to.
    name
        Name that distinguishes the recorders of one run.
    interval
        Seconds between two samples; None for the update rate of its sources, at most ten per second.
    """

    def __init__(self, run: CurrentRun, name: str, interval: float | None) -> None:
        self._run = run
        self._name = name
        self._interval = interval
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def log(self) -> Path:
        """Path of the recorder's log, one line per event."""
        return self._run.folder.path / f"recorder-{self._name}.log"

    async def start(self, sources: tuple[str, ...], root_pid: int | None = None) -> None:
        """Start the process; stop one that is running first.

        Must be called on the thread of the server's event loop, because Linux ends the recorder when the
        thread that started it ends.

        Raises
        ------
        GipfelError
            The recorder can't be started.
        """
        async with self._lock:
            await self._end()
            argv = [
                *(sys.executable, "-I", "-m", "gipfel_extension.recorder"),
                *("--telemetry", str(self._run.folder.telemetry)),
                *("--sockets", str(self._run.sockets)),
                *("--node", self._run.node),
                *("--name", self._name),
                *(() if self._interval is None else ("--interval", str(self._interval))),
                f"--with-parent={os.getpid()}",
            ]
            for source in sources:
                argv += ["--source", source]
            if root_pid is not None:
                argv += ["--root-pid", str(root_pid)]
            try:
                with os.fdopen(open_log(self.log), "ab") as log:
                    self._process = await asyncio.create_subprocess_exec(
                        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
                    )
            except OSError as error:
                raise GipfelError(
                    f"The recorder can't be started: {error.strerror}.", "Restart the server."
                ) from error

    async def stop(self) -> None:
        """Stop the process: it flushes and closes its segment, or is killed after 5 s."""
        async with self._lock:
            await self._end()

    async def last_log_line(self) -> str:
        """Return the last line of its log without the time; empty without a log."""
        line = await asyncio.to_thread(last_line, self.log)
        return line.partition(" recorder: ")[2] or line

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


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
                    await self._record(run, "job", self._sources, root_pid=os.getpid())
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
            if not recorder.running:
                reason = await recorder.last_log_line()
                raise GipfelError(reason or f"The recorder of {source} ended immediately.")
            if time.monotonic() > deadline:
                raise GipfelError(
                    f"The source {source} returned no sample within {_FIRST_SAMPLE_S:g} s.",
                    f"See the log {recorder.log}.",
                )
            await asyncio.sleep(_POLL_S)

    async def stop_simulation(self) -> None:
        """Stop the simulated source, if there is one."""
        if recorder := self._recorders.pop(_SIMULATED, None):
            await recorder.stop()

    async def stop(self) -> None:
        """Stop recorders and feed, and remove the sockets if this server created the run."""
        if self._running is None:
            return
        (run, broadcast), self._running = self._running, None
        await broadcast.close()
        await asyncio.gather(*(recorder.stop() for recorder in self._recorders.values()))
        self._recorders.clear()
        if run.created_by_server:
            for name in run.environment:
                os.environ.pop(name, None)
            await asyncio.to_thread(run.remove_sockets)

    async def _record(
        self, run: CurrentRun, name: str, sources: tuple[str, ...], root_pid: int | None = None
    ) -> RecorderProcess:
        recorder = self._recorders.setdefault(name, RecorderProcess(run, name, self._interval))
        await recorder.start(sources, root_pid)
        return recorder
