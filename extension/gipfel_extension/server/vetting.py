"""Vettings that a page starts, and the protocols it can choose and change.

`ServerVetting` runs ``gipfel vet`` as a child of the server and reads a run folder's report; a protocol is
a YAML file beside the notebook, the user's, or shipped.
"""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.runs import write_atomically

from ..telemetry.files import open_log, read_regular, read_tail
from ..vetting.external_run import ReportFile, vet_argv
from ..vetting.grid import grid_of
from ..vetting.protocol import VettingProtocol
from ..vetting.protocol_files import SHIPPED, load_protocol, own_protocols, parse_protocol, shipped_protocols
from ..vetting.report import VettingReport

LOG = "vetting.log"
#: A run that writes nothing for so long is not heard of any more; no check takes longer by default.
_SILENT_S = 180.0
_END_S = 20.0
_MOST_LOG = 4000
_MOST_FILES = 8
MOST_BYTES = 256 << 10
_MOST_PROTOCOLS = 100
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# What makes a YAML file a protocol; many others lie beside a notebook.
_CHECKS = re.compile(rb"^(?:checks|evals)\s*:", re.MULTILINE)
_SOURCE = "The text"
# How a mistake of the file, and a check that can't be run, say where they are.
_LINE = re.compile(rf"(?:{_SOURCE}, line|Line) ([0-9]{{1,7}}):")


class ServerVetting:
    """Vetting that this server has started, and what its pages show.

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
        """True while the child is running."""
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
        """Interrupt it, so that it leaves a report; kill it after 20 s. Without one, nothing happens."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def view(self, folder: Path, *, known: str, rows: int) -> dict[str, Any]:
        """Return a run folder's vetting for a page; without the grid where its version is the `known` one."""
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
            # It is over; the next report of this folder may be another run's.
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
    """Return the last line that the run wrote."""
    with contextlib.suppress(OSError):
        text = read_tail(folder / LOG, _MOST_LOG).decode(errors="replace")
        lines = [one_line(line) for line in text.splitlines() if line.strip()]
        ours = [line.removeprefix("gipfel: ") for line in lines if line.startswith("gipfel: ")]
        if ours or lines:
            return (ours or lines)[-1][:500]
    return "The vetting ended without a report."


def offered_protocols(directory: Path, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return every protocol with its description, those beside the notebook first."""
    folders = (("beside", directory), ("own", own_protocols(environment)))
    found = [(kind, path.name, path) for kind, folder in folders for path in _files(folder)]
    found += [("shipped", name, SHIPPED / f"{name}.yaml") for name in shipped_protocols()]
    return [{"kind": kind, "name": path.stem, "file": file, **_about(path)} for kind, file, path in found]


def path_of(kind: str, file: str, directory: Path, environment: Mapping[str, str]) -> Path:
    """Return the file of an offered protocol.

    Raises
    ------
    GipfelError
        It is none of those.
    """
    if kind == "shipped" and file in shipped_protocols():
        return SHIPPED / f"{file}.yaml"
    folder = {"beside": directory, "own": own_protocols(environment)}.get(kind)
    if folder is not None:
        for path in _files(folder):
            if path.name == file:
                return path
    raise GipfelError("This protocol no longer exists.", "Choose one of the list.")


def text_of(path: Path) -> str:
    """Return the text of a protocol's file.

    Raises
    ------
    GipfelError
        It can't be read, or is not text.
    """
    try:
        return read_regular(path, MOST_BYTES, follow=True).decode()
    except OSError as error:
        raise GipfelError(f"{path} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise GipfelError(f"{path} is not text in UTF-8.") from None


def described(text: str) -> dict[str, Any]:
    """Return a text as a protocol: ``valid``, its checks, and what is wrong with it, by line."""
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
    """Return the line that each problem is about, 0 for none."""
    found = (_LINE.match(each) for each in problems)
    return [int(each[1]) if each else 0 for each in found]


def save_protocol(directory: Path, name: str, text: str, *, replace: bool) -> Path:
    """Write a protocol beside a notebook.

    Raises
    ------
    GipfelError
        The name or the text can't be one, a file of that name is there, or it can't be written.
    """
    stem = re.sub(r"\.ya?ml$", "", name)
    if not _NAME.fullmatch(stem):
        raise GipfelError("This can't name a protocol.", "Use letters, digits, dots, dashes and underscores.")
    parse_protocol(text, _SOURCE)
    path = directory / f"{stem}.yaml"
    if path.exists() and not replace:
        raise GipfelError(f"{path.name} is there already.", "Take another name, or replace it.")
    try:
        write_atomically(path, text)
    except OSError as error:
        raise GipfelError(f"{path} can't be written: {error.strerror}.") from error
    return path


def _files(folder: Path) -> Iterator[Path]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"})
    except OSError:
        return
    for path in paths[:_MOST_PROTOCOLS]:
        try:
            if _CHECKS.search(read_regular(path, MOST_BYTES, follow=True)):
                yield path
        except OSError:
            continue


def _about(path: Path) -> dict[str, Any]:
    try:
        protocol: VettingProtocol = load_protocol(path)
    except GipfelError as error:
        return {"description": "", "problem": str(error)}
    return {"description": protocol.description, "problem": ""}
