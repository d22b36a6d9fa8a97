"""Vetting runs that a page starts, and the protocols that it can choose and edit.

`ServerVetting` runs ``gipfel vet`` as a child process of the server and reads the report in a run folder. A
protocol is a YAML file in the notebook's directory, in the user's own directory, or shipped with Gipfel.
"""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from gipfel_cluster.broker.serving import end_process
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.runs import write_atomically

from ..telemetry.files import open_log, read_regular, read_tail
from ..vetting.grid import make_grid
from ..vetting.protocol import VettingProtocol
from ..vetting.protocol_files import SHIPPED, load_protocol, own_protocols, parse_protocol, shipped_protocols
from ..vetting.report import VettingReport
from ..vetting.report_display import ReportFile, vet_argv

LOG = "vetting.log"
#: A run that has written nothing for this time counts as gone; by default no check takes longer.
_SILENT_S = 180.0
_END_S = 20.0
_MAX_LOG = 4000
_MAX_FILES = 8
MAX_BYTES = 256 << 10
_MAX_PROTOCOLS = 100
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# Identifies a protocol among other YAML files in the notebook's directory.
_CHECKS = re.compile(rb"^(?:checks|evals)\s*:", re.MULTILINE)
_SOURCE = "The text"
# Start of messages about the syntax of a file, and about a check that can't be run.
_LINE = re.compile(rf"(?:{_SOURCE}, line|Line) ([0-9]{{1,7}}):")


class ServerVetting:
    """Vetting run that this server has started, and its state for pages.

    Parameters
    ----------
    environment
        Additional environment variables of the run; ``GIPFEL_RUN`` is added.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._started_ns = 0
        self._folder: Path | None = None
        self._lock = asyncio.Lock()
        self._file = lru_cache(_MAX_FILES)(ReportFile)

    @property
    def running(self) -> bool:
        """True while the child process is running."""
        return self._process is not None and self._process.returncode is None

    async def start(self, folder: Path, protocol: Path, *, skip_vetted: str = "") -> None:
        """Vet the nodes of this server's job by a protocol; the report is written to `folder`.

        Raises
        ------
        GipfelError
            A vetting is already running, or it can't be started.
        """
        async with self._lock:
            if self.running:
                raise GipfelError("A vetting is already running.", "Wait until it ends, or stop it.")
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
        """Interrupt a running vetting, so that it writes its report, and kill it after 20 s."""
        if self._process is not None:
            await end_process(self._process, _END_S, signal.SIGINT)

    async def view(self, folder: Path, *, known: str, rows: int) -> dict[str, Any]:
        """Return the vetting in a run folder for a page; omit the grid if its version is `known`."""
        file, problem = self._file(folder), ""
        try:
            await asyncio.to_thread(file.refresh)
        except GipfelError as error:
            problem = str(error)
        started_here = folder == self._folder
        report = None if problem else file.report
        if started_here and report is not None and report.started_ns < self._started_ns:
            # The report is from an earlier run; the current run has not written one yet.
            report = None
        if started_here and report is None and not self.running:
            # The run ended before it wrote a report, usually because of an error in the protocol.
            problem = problem or await asyncio.to_thread(_last_log_line, folder)
        if started_here and not self.running and report is not None and report.ended_ns is not None:
            # The next report in this folder may be from a run that another process started.
            self._folder = None
        state = self._state(report, started_here=started_here, problem=problem, changed_ns=file.changed_ns)
        version = state if report is None else f"{state}:{rows}:{file.version}"
        response: dict[str, Any] = {
            "state": state,
            "version": version,
            "problem": problem,
            "can_stop": started_here and self.running,
            "updated_ms": file.changed_ns // 1_000_000,
            "now_ms": time.time_ns() // 1_000_000,
        }
        if report is not None and known != version:
            grid = await asyncio.to_thread(make_grid, report, max_rows=rows)
            response["grid"] = grid.model_dump(mode="json")
        return response

    def _state(
        self, report: VettingReport | None, *, started_here: bool, problem: str, changed_ns: int
    ) -> str:
        if started_here and self.running:
            # The process still runs after its report has ended.
            return "starting" if report is None else "running"
        if report is None:
            return "error" if problem else "none"
        if report.ended_ns is not None:
            return "ended" if report.complete else "interrupted"
        silent = time.time_ns() - changed_ns > _SILENT_S * 1e9
        return "gone" if started_here or silent else "running"


def _last_log_line(folder: Path) -> str:
    """Return the last line in the log of the run; lines of Gipfel take precedence."""
    with contextlib.suppress(OSError):
        text = read_tail(folder / LOG, _MAX_LOG).decode(errors="replace")
        lines = [one_line(line) for line in text.splitlines() if line.strip()]
        messages = [line.removeprefix("gipfel: ") for line in lines if line.startswith("gipfel: ")]
        if messages or lines:
            return (messages or lines)[-1][:500]
    return "The vetting ended without a report."


def list_protocols(directory: Path, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return every protocol with its description, those in the notebook's directory first."""
    folders = (("notebook", directory), ("user", own_protocols(environment)))
    found = [(kind, path.name, path) for kind, folder in folders for path in _files(folder)]
    found += [("shipped", name, SHIPPED / f"{name}.yaml") for name in shipped_protocols()]
    return [{"kind": kind, "name": path.stem, "file": file, **_about(path)} for kind, file, path in found]


def protocol_path(kind: str, file: str, directory: Path, environment: Mapping[str, str]) -> Path:
    """Return the file of a protocol from `list_protocols`.

    Raises
    ------
    GipfelError
        The protocol does not exist.
    """
    if kind == "shipped" and file in shipped_protocols():
        return SHIPPED / f"{file}.yaml"
    folder = {"notebook": directory, "user": own_protocols(environment)}.get(kind)
    if folder is not None:
        for path in _files(folder):
            if path.name == file:
                return path
    raise GipfelError("This protocol no longer exists.", "Choose a protocol from the list.")


def read_protocol(path: Path) -> str:
    """Return the text of a protocol's file.

    Raises
    ------
    GipfelError
        The file can't be read, or is not text.
    """
    try:
        return read_regular(path, MAX_BYTES, follow=True).decode()
    except OSError as error:
        raise GipfelError(
            f"{path} can't be read: {error.strerror}.", "Choose a file that you can read."
        ) from error
    except UnicodeDecodeError:
        raise GipfelError(f"{path} is not text in UTF-8.", "Choose another file.") from None


def describe_protocol(text: str) -> dict[str, Any]:
    """Return the content of a protocol as `task_responses.ProtocolContent` declares it."""
    try:
        protocol = parse_protocol(text, _SOURCE)
    except GipfelError as error:
        return {
            "valid": False,
            "problems": [str(error)],
            "lines": _lines([str(error)]),
            "checks": [],
            "notes": [],
        }
    problems = [each.reason + (f" {each.fix}" if each.fix else "") for each in protocol.problems()]
    checks = [
        {"name": each.name, "type": each.type, "scope": each.scope.value, "severity": each.severity.value}
        for each in protocol.checks
    ]
    return {
        "valid": True,
        "problems": problems,
        "lines": _lines(problems),
        "checks": checks,
        "notes": list(protocol.notes),
    }


def _lines(problems: Sequence[str]) -> list[int]:
    """Return the line number of each problem, 0 if it has none."""
    found = (_LINE.match(each) for each in problems)
    return [int(each[1]) if each else 0 for each in found]


def save_protocol(directory: Path, name: str, text: str, *, replace: bool) -> Path:
    """Write a protocol to the notebook's directory.

    Raises
    ------
    GipfelError
        The name or the text is not valid, a file of that name exists, or it can't be written.
    """
    stem = re.sub(r"\.ya?ml$", "", name)
    if not _NAME.fullmatch(stem):
        raise GipfelError(
            "This is not a valid name of a protocol.", "Use letters, digits, dots, dashes and underscores."
        )
    parse_protocol(text, _SOURCE)
    path = directory / f"{stem}.yaml"
    if path.exists() and not replace:
        raise GipfelError(f"{path.name} already exists.", "Choose another name, or replace the file.")
    try:
        write_atomically(path, text)
    except OSError as error:
        raise GipfelError(
            f"{path} can't be written: {error.strerror}.", "Save it in a directory that you can write to."
        ) from error
    return path


def _files(folder: Path) -> Iterator[Path]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"})
    except OSError:
        return
    for path in paths[:_MAX_PROTOCOLS]:
        try:
            if _CHECKS.search(read_regular(path, MAX_BYTES, follow=True)):
                yield path
        except OSError:
            continue


def _about(path: Path) -> dict[str, Any]:
    try:
        protocol: VettingProtocol = load_protocol(path)
    except GipfelError as error:
        return {"description": "", "problem": str(error)}
    return {"description": protocol.description, "problem": ""}
