"""Examination of a machine by all probes in parallel, and their findings as text of 80 columns."""

import asyncio
import os
import pwd
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from gipfel_cluster.engines import engine_missing, engine_names
from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.scheduler import SlurmPresence, slurm_presence
from gipfel_cluster.scheduler.machine import run_command

COMMAND_SECONDS = 10.0
_MAX_BYTES = 1 << 20
# Directories of administration programs, which are not on every user's PATH.
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
#: ``missing``: something required does not work; ``warning``: something optional does not work.
Status = Literal["ok", "missing", "warning", "not applicable"]


class Answer(Frozen):
    """Result of a command; ``problem`` is why it could not run to completion, empty if it did."""

    code: int = 0
    output: str = ""
    errors: str = ""
    problem: str = ""

    @property
    def ok(self) -> bool:
        """True if the command ended with exit status 0."""
        return not self.problem and self.code == 0

    @property
    def error(self) -> str:
        """Reason of the failure: the last line of its error output."""
        lines = (self.errors or self.output).strip().splitlines()
        return self.problem or (lines[-1].strip() if lines else f"exit status {self.code}")


Run = Callable[[Sequence[str]], Answer]


@dataclass(frozen=True)
class Machine:
    """Machine that probes examine; tests replace it.

    Parameters
    ----------
    run
        Function that runs a command within a time limit and never raises.
    which
        Function that returns the path of a program, or None.
    slurm
        Function that returns whether Slurm is configured.
    root
        Root of the file system.
    engines
        Container engines by name, each with a function that returns why it can't run here, or None.
    """

    environment: Mapping[str, str]
    run: Run
    which: Callable[[str], str | None]
    slurm: Callable[[], SlurmPresence]
    root: Path = Path("/")
    uid: int = field(default_factory=os.geteuid)
    user: str = ""
    home: str = ""
    engines: Mapping[str, Callable[[], str | None]] = field(default_factory=dict)
    python: str = sys.executable

    @classmethod
    def local(cls, environment: Mapping[str, str]) -> "Machine":
        """Return the machine that this process runs on."""
        path = f"{environment.get('PATH', os.defpath)}:{_ADMIN_PATH}"
        uid = os.geteuid()
        try:
            entry = pwd.getpwuid(uid)
            user, home = entry.pw_name, entry.pw_dir
        except KeyError:
            user, home = str(uid), ""
        return cls(
            environment=environment,
            run=lambda argv: run_locally(argv, {**environment, "PATH": path}),
            which=partial(shutil.which, path=path),
            slurm=partial(slurm_presence, environment),
            uid=uid,
            user=user,
            home=environment.get("HOME", "") or home,
            engines={name: partial(engine_missing, name) for name in engine_names() if name != "host"},
        )

    @property
    def in_container(self) -> bool:
        """True if this process runs in the container of a job."""
        return "GIPFEL_RUN" in self.environment and self.environment.get("GIPFEL_ENGINE", "") not in {
            "",
            "host",
        }

    def path(self, absolute: str | Path) -> Path:
        """Return the path in this process of an absolute path of the machine."""
        return self.root / str(absolute).lstrip("/")

    def read(self, absolute: str | Path) -> str:
        """Return the text of a file; empty if it can't be read."""
        try:
            handle = os.open(self.path(absolute), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                return file.read(_MAX_BYTES).decode(errors="replace")
        except OSError:
            return ""


def run_locally(
    argv: Sequence[str], environment: Mapping[str, str], *, limit: float = COMMAND_SECONDS
) -> Answer:
    """Run a command on this machine with a time limit."""
    try:
        done = asyncio.run(run_command(argv, environment=environment, limit=limit))
    except TimeoutError:
        return Answer(problem=f"{argv[0]} did not answer within {limit:.0f} s")
    except GipfelError as error:
        return Answer(problem=error.problem.rstrip("."))
    return Answer(code=done.code, output=done.output, errors=done.errors)


#: A text that may come from a command, made one line.
_Line = Annotated[str, AfterValidator(one_line)]


class Finding(Frozen):
    """Result of one probe: ``message`` describes the state, ``fix`` is how to correct it.

    `ok`, `missing`, `warning` and `not_applicable` make findings, to which `examine` adds the probe's name
    and group.
    """

    name: str = ""
    group: str = ""
    status: Status
    message: _Line
    fix: _Line = ""


def ok(message: str) -> Finding:
    """Return the finding that the examined thing works."""
    return Finding(status="ok", message=message)


def missing(message: str, fix: str) -> Finding:
    """Return the finding that something required does not work."""
    return Finding(status="missing", message=message, fix=fix)


def warning(message: str, fix: str) -> Finding:
    """Return the finding that something optional does not work, or will fail soon."""
    return Finding(status="warning", message=message, fix=fix)


def not_applicable(message: str, fix: str = "") -> Finding:
    """Return the finding that the examined thing is not needed here; ``fix`` says how to set it up."""
    return Finding(status="not applicable", message=message, fix=fix)


def fix_of(problem: str, fixes: Iterable[tuple[tuple[str, ...], str]], default: str) -> str:
    """Return the first fix one of whose words is in a message."""
    found = (fix for words, fix in fixes if any(word in problem.lower() for word in words))
    return next(found, default)


class Examination(Frozen):
    """All findings, in the order of the probes."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if nothing required is missing."""
        return not self.of("missing")

    def of(self, status: Status) -> tuple[Finding, ...]:
        """Return the findings of one status."""
        return tuple(each for each in self.findings if each.status == status)


#: Time limit of a probe in seconds; longer than that of its commands.
PROBE_SECONDS = 30.0


@dataclass(frozen=True)
class Probe:
    """Name, group and function of a probe."""

    name: str
    group: str
    check: Callable[[Machine], Finding]


def examine(machine: Machine, probes: Iterable[Probe], *, seconds: float = PROBE_SECONDS) -> Examination:
    """Run every probe; one that raises or takes longer than ``seconds`` becomes a finding."""
    running = {_start(probe, machine): probe for probe in probes}
    wait(running, seconds)
    late = missing(
        f"No result within {seconds:.0f} s: a file system or a program hangs.",
        "Check for a mount that does not answer: timeout 5 df",
    )
    return Examination(
        findings=tuple(
            (found.result() if found.done() else late).model_copy(
                update={"name": probe.name, "group": probe.group}
            )
            for found, probe in running.items()
        )
    )


def _start(probe: Probe, machine: Machine) -> Future[Finding]:
    """Run a probe in a thread that this process does not wait for: a file system may block it forever."""
    found: Future[Finding] = Future()

    def run() -> None:
        try:
            found.set_result(probe.check(machine))
        except Exception as error:  # noqa: BLE001 - the results of the other probes must not be lost
            found.set_result(warning(f"The probe failed: {type(error).__name__}: {error}.", ""))

    threading.Thread(target=run, daemon=True, name=probe.name).start()
    return found


_WIDTH = 80
_NAME_WIDTH = 24
_SYMBOLS: dict[Status, str] = {"ok": "✓", "missing": "✗", "warning": "!", "not applicable": "–"}  # noqa: RUF001 - a dash
_ASCII_SYMBOLS: dict[Status, str] = {"ok": "+", "missing": "x", "warning": "!", "not applicable": "-"}
#: Colour of a status on a terminal, empty for none.
STATUS_COLOURS: dict[Status, str] = {
    "ok": "green",
    "missing": "red",
    "warning": "yellow",
    "not applicable": "",
}


def format_lines(examination: Examination, *, plain: bool = False) -> Iterator[tuple[str, Status | None]]:
    """Yield the lines of an examination, each with the status that determines the colour of its symbol.

    Parameters
    ----------
    plain
        Whether to use ASCII characters only.
    """
    for group, findings in groupby(examination.findings, key=lambda finding: finding.group):
        yield group, None
        for finding in findings:
            yield from _finding_lines(finding, plain=plain)
        yield "", None
    yield from ((line, None) for line in textwrap.wrap(summary(examination), _WIDTH))


def summary(examination: Examination) -> str:
    """Return in one line whether anything required is missing."""
    names = ", ".join(each.name for each in examination.of("missing"))
    warnings = examination.of("warning")
    rest = f" Warnings: {len(warnings)}." if warnings else ""
    return f"Missing: {names}.{rest}" if names else f"Nothing required is missing.{rest}"


def _finding_lines(finding: Finding, *, plain: bool) -> Iterator[tuple[str, Status | None]]:
    symbol = (_ASCII_SYMBOLS if plain else _SYMBOLS)[finding.status]
    indent = " " * (_NAME_WIDTH + 4)
    prefix = f"{finding.status}: " if finding.status in {"missing", "warning"} else ""
    message = textwrap.wrap(
        prefix + finding.message,
        _WIDTH - len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]
    yield f"  {symbol} {finding.name:<{_NAME_WIDTH}}{message[0]}", finding.status
    yield from ((f"{indent}{line}", None) for line in message[1:])
    # Fixes use the full width, so that commands are broken less often.
    arrow = "->" if plain else "→"
    if finding.fix:
        yield from (
            (line, None)
            for line in textwrap.wrap(
                finding.fix,
                _WIDTH,
                initial_indent=f"      {arrow} ",
                subsequent_indent="        ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
