"""Vetting runs that a page starts: ``gipfel vet`` as a child of the server, and a run folder's report."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, one_line

from ..telemetry.files import open_log, read_tail
from ..vetting.command import vet_argv
from ..vetting.grid import grid_of
from ..vetting.report import VettingReport
from ..vetting.report_file import ReportFile

LOG = "vetting.log"
#: A run that writes nothing for so long is not heard of any more; no check takes longer by default.
_SILENT_S = 180.0
_END_S = 20.0
_MOST_LOG = 4000
_MOST_FILES = 8


class ServerVetting:
    """The one run that this server has started, and what its pages show.

    Parameters
    ----------
    environment
        Of the runs; their folder is added.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._started_ns = 0
        self._folder: Path | None = None
        self._lock = asyncio.Lock()
        self._files: dict[Path, ReportFile] = {}

    @property
    def running(self) -> bool:
        """Whether the child runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self, folder: Path, protocol: Path, *, skip_vetted: str = "") -> None:
        """Vet the nodes of this server's job by a protocol; the report goes to `folder`.

        Raises
        ------
        GipfelError
            One runs already, or it can't be started.
        """
        async with self._lock:
            if self.running:
                raise GipfelError("A vetting runs already.", "Wait for it, or stop it.")
            argv = vet_argv(str(protocol), skip_vetted=skip_vetted)
            environment = {**os.environ, **self._environment, "GIPFEL_RUN": str(folder)}
            try:
                with os.fdopen(open_log(folder / LOG, truncate=True), "wb") as log:
                    self._process = await asyncio.create_subprocess_exec(
                        *argv,
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=environment,
                        cwd=folder,
                        start_new_session=True,
                    )
            except OSError as error:
                raise GipfelError(f"The vetting can't be started: {error.strerror}.") from error
            self._folder, self._started_ns = folder, time.time_ns()

    async def stop(self) -> None:
        """End it as Ctrl-C does, so that it leaves a report; after 20 s by force. Ending none is no error."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), _END_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def view(self, folder: Path, *, known: str, rows: int) -> dict[str, Any]:
        """What a page shows of a run folder; without the grid where it is the version that is `known`."""
        file, problem = self._file(folder), ""
        try:
            await asyncio.to_thread(file.look)
        except GipfelError as error:
            problem = str(error)
        own = folder == self._folder
        report = None if problem else file.report
        if own and report is not None and report.started_ns < self._started_ns:
            # Of an earlier run; the one that was started last has none yet.
            report = None
        if own and report is None and not self.running:
            # It ended before it had a report: the protocol could not be used, most likely.
            problem = problem or await asyncio.to_thread(_last_words, folder)
        if own and not self.running and report is not None and report.ended_ns is not None:
            # It is over; the next report of this folder may be somebody else's.
            self._folder = None
        state = self._state(report, own=own, problem=problem, changed_ns=file.changed_ns)
        version = state if report is None else f"{state}:{rows}:{file.version}"
        answer: dict[str, Any] = {
            "state": state,
            "version": version,
            "problem": problem,
            "own": own and self.running,
            "heard_ms": file.changed_ns // 1_000_000,
            "now_ms": time.time_ns() // 1_000_000,
        }
        if report is not None and known != version:
            grid = await asyncio.to_thread(grid_of, report, most_rows=rows)
            answer["grid"] = {**grid.model_dump(), "heading": grid.heading}
        return answer

    def _state(self, report: VettingReport | None, *, own: bool, problem: str, changed_ns: int) -> str:
        if own and self.running:
            # Also while it does what follows its report.
            return "starting" if report is None else "running"
        if report is None:
            return "error" if problem else "none"
        if report.ended_ns is not None:
            return "ended" if report.complete else "interrupted"
        silent = time.time_ns() - changed_ns > _SILENT_S * 1e9
        return "gone" if own or silent else "running"

    def _file(self, folder: Path) -> ReportFile:
        if folder not in self._files:
            while len(self._files) >= _MOST_FILES:
                del self._files[next(iter(self._files))]
            self._files[folder] = ReportFile(folder)
        return self._files[folder]


def _last_words(folder: Path) -> str:
    """What the run said last of itself."""
    with contextlib.suppress(OSError):
        text = read_tail(folder / LOG, _MOST_LOG).decode(errors="replace")
        lines = [one_line(line) for line in text.splitlines() if line.strip()]
        ours = [line.removeprefix("gipfel: ") for line in lines if line.startswith("gipfel: ")]
        if ours or lines:
            return (ours or lines)[-1][:500]
    return "The vetting ended without a report."
