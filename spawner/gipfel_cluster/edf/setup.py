"""Set-up steps: the shell lines of ``NAME.setup`` beside the EDF ``NAME.toml``."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .model import Diagnostic, Severity

SUFFIX = ".setup"
_TOO_LARGE = 1 << 16  # bytes; steps are a few lines, and what is longer belongs in a file of its own


@dataclass(frozen=True)
class Steps:
    """One file of set-up steps."""

    #: Where it is on this machine, an absolute path.
    path: str
    #: The EDF beside it.
    edf: str
    text: str

    @property
    def digest(self) -> str:
        """Return ``sha256:…`` over the file's bytes."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()


def setup_path(edf: str) -> str:
    """Name the file beside an EDF that its set-up steps would be in."""
    return edf.removesuffix(".toml") + SUFFIX


def read_steps(edf: str) -> tuple[tuple[Steps, ...], list[Diagnostic]]:
    """Read the steps beside an EDF: one file or none, and what is wrong with it.

    Parameters
    ----------
    edf
        The EDF's path. Where it is a link, steps beside the link win over those beside what it leads to.
    """
    path = os.path.abspath(setup_path(edf))  # noqa: PTH100 - a Path for each of thousands is slow
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.path.islink(path):  # noqa: PTH114 - as above
            return (), [_error(path, "leads nowhere", "Make what it leads to, or remove it.")]
        target = os.path.realpath(edf) if os.path.islink(edf) else edf  # noqa: PTH114
        return ((), []) if target == edf else read_steps(target)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return (), [_error(path, f"can't be read: {why}", "Give yourself read permission, or remove it.")]
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            return (), [_error(path, "is not a regular file", "Give a text file with lines of shell.")]
        content = _read(file)
    finally:
        os.close(file)
    found = [*_unusable(path, content)]
    if found:
        return (), found
    steps = Steps(path=path, edf=edf, text=content.decode())
    return (steps,), [*_doubtful(steps, state)]


def _read(file: int) -> bytes:
    content = b""
    while len(content) <= _TOO_LARGE and (piece := os.read(file, _TOO_LARGE + 1 - len(content))):
        content += piece
    return content


def orphans(folder: str, names: list[str]) -> Iterator[Diagnostic]:
    """Yield warnings about the set-up steps in a directory that have no EDF beside them."""
    present = set(names)
    for name in names:
        edf = name.removesuffix(SUFFIX) + ".toml"
        if name.endswith(SUFFIX) and edf not in present:
            yield _diagnostic(
                f"{folder}/{name}",
                "setup-orphan",
                f"there is no {edf} beside these set-up steps: nothing ever runs them.",
                f"Rename it after its EDF, make {edf}, or remove it.",
            )


def _unusable(path: str, content: bytes) -> Iterator[Diagnostic]:
    if len(content) > _TOO_LARGE:
        yield _error(
            path, "is larger than 64 KiB", "Put its lines in another file and write 'source' of that."
        )
        return
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        yield _error(path, "holds a NUL byte, which no shell reads", "Give a text file.", line)
        return
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        yield _error(path, "is not UTF-8 text", "Save it as UTF-8.", line)


def _doubtful(steps: Steps, state: os.stat_result) -> Iterator[Diagnostic]:
    path = steps.path
    if state.st_mode & stat.S_IWOTH or _may_be_replaced(path):
        yield _diagnostic(
            path,
            "setup-writable",
            "every user may change these set-up steps and so run programs as you in your next job.",
            "Take the permission away: chmod o-w, of the file and of its directory.",
        )
    if state.st_uid not in {0, os.geteuid()}:
        yield _diagnostic(
            path,
            "setup-owner",
            f"these set-up steps belong to another user (id {state.st_uid}), "
            "who can run programs as you in your next job by changing them.",
            "Read them, and keep a copy of your own beside a copy of the EDF.",
        )
    if "\r\n" in steps.text:
        line = steps.text[: steps.text.index("\r\n")].count("\n") + 1
        yield _diagnostic(
            path,
            "setup-line-ends",
            "lines end in carriage return and line feed: the shell takes the carriage return for a part of "
            "the last word, so a path isn't found and the job ends.",
            "Save it with line feeds alone: sed -i 's/\\r$//' FILE.",
            line=line,
        )


def _may_be_replaced(path: str) -> bool:
    mode = Path(path).parent.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _error(path: str, what: str, fix: str, line: int | None = None) -> Diagnostic:
    message = f"the file of set-up steps {what}, so the EDF beside it isn't used."
    return _diagnostic(path, "setup", message, fix, severity="error", line=line)


def _diagnostic(
    path: str, code: str, message: str, fix: str, *, severity: Severity = "warning", line: int | None = None
) -> Diagnostic:
    return Diagnostic(severity=severity, code=code, file=path, line=line, key="", message=message, fix=fix)
