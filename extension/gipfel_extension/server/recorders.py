"""Recorder processes that a notebook server starts itself."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from gipfel_cluster.model import GipfelError

from ..telemetry.files import open_log, read_tail
from .run import CurrentRun

_END_S = 5.0
_MOST_LOG = 64 << 10


class RecorderProcess:
    """One recorder beside the server; it ends with the server, also when that is killed.

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
        """What the recorder says, one line per event."""
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
                *(sys.executable, "-I", "-m", "gipfel_extension.telemetry.recorder"),
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
        """The last line of its log, without the time; empty where it said nothing."""
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
            await asyncio.wait_for(process.wait(), _END_S)
        except TimeoutError:
            process.kill()
            await process.wait()
