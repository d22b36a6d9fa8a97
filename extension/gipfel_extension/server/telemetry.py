"""Run, recorders and feed of one notebook server, started once and ended with it.

Recorder processes that a notebook server starts itself.
"""

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

from ..saturation.advice.steady import HOLD_S
from ..telemetry.files import open_log, read_tail
from .broadcast import SaturationBroadcast
from .runs import CurrentRun, current_run, list_runs, run_folder

_END_S = 5.0
_MOST_LOG = 64 << 10
_SIMULATED = "simulated"
_FIRST_SAMPLE_S = 20.0
_GLANCE_S = 0.1


class RecorderProcess:
    """A recorder beside the server; it ends with the server, also when that is killed.

    Parameters
    ----------
    run
        Where it writes and streams.
    name
        Tells the recorders of one run apart.
    interval
        Seconds between two samples; None: as fast as its sources count, at most ten a second.
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
        """Start it, in place of one that runs.

        Must be called on the thread that runs the server's event loop: the kernel ends the recorder when the
        thread that started it ends.

        Raises
        ------
        GipfelError
            It can't be started.
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
                raise GipfelError(f"The recorder can't be started: {error.strerror}.") from error

    async def stop(self) -> None:
        """End it: it flushes and closes its segment, or is killed after 5 s."""
        async with self._lock:
            await self._end()

    async def last_words(self) -> str:
        """Return the last line of its log, without the time; empty where there is none."""
        try:
            content = await asyncio.to_thread(read_tail, self.log, _MOST_LOG)
        except OSError:
            return ""
        line = content.decode(errors="replace").rstrip().rpartition("\n")[2]
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
    """Run, recorders and feed, as the routes read and change them.

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
        """Return the run and its feed, made on the first call.

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
        """Return the user's runs, the newest first."""
        run, _ = await self.started()
        return await asyncio.to_thread(list_runs, self._environment, run.folder.name)

    async def run_named(self, name: str) -> Path:
        """Return the folder of a run; of this server's where the name is empty.

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
        """End the simulated source; without one, nothing happens."""
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
