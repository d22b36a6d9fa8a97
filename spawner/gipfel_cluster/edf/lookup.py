"""Find EDFs, by path or by name on the search path, and read their text and set-up steps.

Set-up steps are the shell lines of ``NAME.setup``, which is beside the EDF ``NAME.toml``.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..installs import command_problems
from ..regular_files import open_regular
from .model import MAX_FILE_BYTES, Diagnostic, EdfError, Severity


def search_path(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """List the absolute directories of ``EDF_PATH`` in order, else only ``~/.edf``.

    Empty if ``EDF_PATH`` and ``HOME`` are unset and the user has no home directory.
    """
    folders = [Path(each) for each in environment.get("EDF_PATH", "").split(":") if each.startswith("/")]
    home = _home(environment)
    return tuple(folders) or ((home / ".edf",) if home else ())


def current_directory() -> Path:
    """Return the working directory; ``/`` if it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


def find_edf(name_or_path: str, *, environment: Mapping[str, str], directory: Path) -> Path:
    """Find an EDF by path (``/…``, ``./…``, ``~/…``) or by name, with or without ``.toml``.

    Parameters
    ----------
    environment
        The variables with ``EDF_PATH`` and ``HOME``.
    directory
        The directory that a relative path starts from.

    Raises
    ------
    EdfError
        It does not exist or can't be read; the message lists the searched paths.
    """
    if not name_or_path.strip() or not name_or_path.isprintable():
        raise _not_found(name_or_path, f"{name_or_path!r} can't name an EDF.", "Give a name or a path.")
    if name_or_path.startswith(("/", ".", "~/")):
        path = Path(os.path.normpath(os.path.join(directory, name_or_path)))  # noqa: PTH118 - a Path costs more
        if name_or_path.startswith("~/"):
            home = _home(environment)
            if home is None:
                raise _not_found(
                    name_or_path, "this machine has no home directory for your user.", "Set HOME."
                )
            path = home / name_or_path[2:]
        try:
            path.stat()
        except OSError as error:
            raise _not_found(
                str(path), f"the EDF can't be read: {error.strerror}.", "Check the path."
            ) from error
        return path
    file = name_or_path if name_or_path.endswith(".toml") else f"{name_or_path}.toml"
    candidates = [folder / file for folder in search_path(environment)]
    if file == name_or_path:
        candidates.insert(0, directory / file)
    present = [candidate for candidate in candidates if os.path.lexists(candidate)]
    for candidate in present:
        # A broken link or a directory does not hide an EDF in a later directory.
        if os.path.exists(candidate) and not os.path.isdir(candidate):  # noqa: PTH110, PTH112 - as fast
            return candidate
    if present:
        return present[0]
    searched = (
        ", ".join(str(each) for each in candidates) or "nothing, since neither EDF_PATH nor HOME is set"
    )
    unreadable = [str(folder) for folder in search_path(environment) if _is_permission_denied(folder / file)]
    if unreadable:
        raise _not_found(
            name_or_path,
            f"{', '.join(unreadable)} can't be read: Permission denied. Looked for {searched}.",
            "Ask its owner for permission, or set EDF_PATH to directories that you may read.",
        )
    raise _not_found(
        name_or_path,
        f"there is no EDF of this name; looked for {searched}.",
        "Set EDF_PATH, or give a path that begins with '/' or './'.",
    )


def _is_permission_denied(path: Path) -> bool:
    """Return whether permissions keep this user from finding out if a file exists."""
    try:
        path.lstat()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return False


def read_edf_text(path: Path) -> str:
    """Read the text of one EDF.

    Raises
    ------
    EdfError
        The file can't be read, is not a regular file, is larger than 1 MiB or isn't UTF-8.
    """
    try:
        str(path).encode()
        with open_regular(path, follow=True) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except IsADirectoryError as error:
        raise _unreadable(path, "is a directory.") from error
    except UnicodeEncodeError as error:
        raise _unreadable(path, "has a name that is not UTF-8 text.") from error
    except OSError as error:
        raise _unreadable(path, f"can't be read: {error.strerror}.") from error
    if len(content) > MAX_FILE_BYTES:
        raise _unreadable(path, "is larger than 1 MiB.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _unreadable(path, "is not UTF-8 text.", line) from error


def list_edfs(*, environment: Mapping[str, str]) -> tuple[str, ...]:
    """List the distinct names of the EDFs on the search path, sorted."""
    names: set[str] = set()
    for folder in search_path(environment):
        try:
            inside = os.listdir(folder)  # noqa: PTH208 - faster than a Path each
        except OSError:
            continue
        # os.path returns False for a link into another user's private directory, where a Path would raise.
        files = (each for each in inside if each.endswith(".toml") and os.path.isfile(folder / each))  # noqa: PTH113
        names.update(each.removesuffix(".toml") for each in files)
    return tuple(sorted(name for name in names if name.isprintable() and not name.startswith(".")))


def _home(environment: Mapping[str, str]) -> Path | None:
    try:
        return Path(environment.get("HOME") or Path.home())
    except RuntimeError:
        return None


def _not_found(file: str, message: str, fix: str) -> EdfError:
    return _error("not-found", file, None, message, fix)


def _unreadable(path: Path, problem: str, line: int | None = None) -> EdfError:
    return _error("unreadable", str(path), line, f"the EDF {problem}", "Give a readable text file in TOML.")


def _error(code: str, file: str, line: int | None, message: str, fix: str) -> EdfError:
    return EdfError(
        [Diagnostic(severity="error", code=code, file=file, line=line, key="", message=message, fix=fix)]
    )


SETUP_SUFFIX = ".setup"
_MAX_STEPS_BYTES = 1 << 16  # bytes; steps are a few lines, and longer code belongs in a separate file


@dataclass(frozen=True)
class SetupSteps:
    """One file of set-up steps."""

    #: The absolute path on this machine.
    path: str
    #: The path of the EDF that the steps belong to.
    edf: str
    text: str

    @property
    def digest(self) -> str:
        """Return ``sha256:…`` over the file's bytes."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()


def setup_path(edf: str) -> str:
    """Return the path of an EDF's set-up steps; the file may not exist."""
    return edf.removesuffix(".toml") + SETUP_SUFFIX


def read_steps(edf: str) -> tuple[tuple[SetupSteps, ...], list[Diagnostic]]:
    """Read the steps beside an EDF: one file or none, and diagnostics about it.

    Parameters
    ----------
    edf
        The EDF's path. If it is a link, steps beside the link take precedence over those beside its target.
    """
    path = os.path.abspath(setup_path(edf))  # noqa: PTH100 - a Path for each of thousands is slow
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.path.islink(path):  # noqa: PTH114
            return (), [
                _steps_error(path, "is a broken link", "Create the target of the link, or remove the link.")
            ]
        target = os.path.realpath(edf) if os.path.islink(edf) else edf  # noqa: PTH114
        return ((), []) if target == edf else read_steps(target)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return (), [
            _steps_error(path, f"can't be read: {reason}", "Give yourself read permission, or remove it.")
        ]
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            return (), [_steps_error(path, "is not a regular file", "Give a text file with lines of shell.")]
        content = os.pread(file, _MAX_STEPS_BYTES + 1, 0)
    finally:
        os.close(file)
    errors = [*_content_errors(path, content)]
    if errors:
        return (), errors
    steps = SetupSteps(path=path, edf=edf, text=content.decode())
    return (steps,), [*_steps_warnings(steps, state)]


def orphan_steps(folder: str, names: list[str]) -> Iterator[Diagnostic]:
    """Yield warnings about the set-up steps in a directory that belong to no EDF."""
    present = set(names)
    for name in names:
        edf = name.removesuffix(SETUP_SUFFIX) + ".toml"
        if name.endswith(SETUP_SUFFIX) and edf not in present:
            yield _steps_diagnostic(
                f"{folder}/{name}",
                "setup-orphan",
                f"there is no {edf} beside these set-up steps: they never run.",
                f"Rename the file after its EDF, create {edf}, or remove the file.",
            )


def _content_errors(path: str, content: bytes) -> Iterator[Diagnostic]:
    if len(content) > _MAX_STEPS_BYTES:
        yield _steps_error(
            path, "is larger than 64 KiB", "Put its lines in another file and write 'source' of that."
        )
        return
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        yield _steps_error(path, "holds a NUL byte, which no shell reads", "Give a text file.", line)
        return
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        yield _steps_error(path, "is not UTF-8 text", "Save it as UTF-8.", line)


def _steps_warnings(steps: SetupSteps, state: os.stat_result) -> Iterator[Diagnostic]:
    path = steps.path
    if state.st_mode & stat.S_IWOTH or _may_be_replaced(path):
        yield _steps_diagnostic(
            path,
            "setup-writable",
            "every user may change these set-up steps and so run programs as you in your next job.",
            "Take the permission away: chmod o-w, of the file and of its directory.",
        )
    if state.st_uid not in {0, os.geteuid()}:
        yield _steps_diagnostic(
            path,
            "setup-owner",
            f"these set-up steps belong to another user (id {state.st_uid}), "
            "who can run programs as you in your next job by changing them.",
            "Read them, and keep a copy of your own beside a copy of the EDF.",
        )
    if "\r\n" in steps.text:
        line = steps.text[: steps.text.index("\r\n")].count("\n") + 1
        yield _steps_diagnostic(
            path,
            "setup-line-ends",
            "lines end in carriage return and line feed: the shell takes the carriage return as part of "
            "the last word, so a path isn't found and the job ends.",
            "Save it with line feeds alone: sed -i 's/\\r$//' FILE.",
            line=line,
        )
    for problem in command_problems(steps.text):
        yield _steps_diagnostic(
            path,
            f"setup-{problem.code}",
            f"{problem.reason}: {problem.consequence}.",
            problem.fix,
            line=problem.line,
        )


def _may_be_replaced(path: str) -> bool:
    mode = Path(path).parent.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _steps_error(path: str, problem: str, fix: str, line: int | None = None) -> Diagnostic:
    message = f"the file of set-up steps {problem}, so the EDF beside it isn't used."
    return _steps_diagnostic(path, "setup", message, fix, severity="error", line=line)


def _steps_diagnostic(
    path: str, code: str, message: str, fix: str, *, severity: Severity = "warning", line: int | None = None
) -> Diagnostic:
    return Diagnostic(severity=severity, code=code, file=path, line=line, key="", message=message, fix=fix)
