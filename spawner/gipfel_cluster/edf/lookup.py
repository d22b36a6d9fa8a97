"""Find EDFs, by path or by name on the search path, and read their text."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from .model import FILE_BYTES, Diagnostic, EdfError


def search_path(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """List the absolute directories of ``EDF_PATH`` in their order, else ``~/.edf`` alone.

    Nothing where there is neither: no ``HOME``, and a user that the machine has no home directory of.
    """
    folders = [Path(each) for each in environment.get("EDF_PATH", "").split(":") if each.startswith("/")]
    home = _home(environment)
    return tuple(folders) or ((home / ".edf",) if home else ())


def find_edf(name_or_path: str, *, environment: Mapping[str, str], directory: Path) -> Path:
    """Find an EDF by path (``/…``, ``./…``, ``~/…``) or by name, with or without ``.toml``.

    Parameters
    ----------
    environment
        Where ``EDF_PATH`` and ``HOME`` are looked up.
    directory
        What a relative path is relative to.

    Raises
    ------
    EdfError
        There is none; the message lists where it was looked for.
    """
    if not name_or_path.strip() or not name_or_path.isprintable():
        raise _not_found(name_or_path, f"{name_or_path!r} can't name an EDF.", "Give a name or a path.")
    if name_or_path.startswith(("/", ".", "~/")):
        if name_or_path.startswith("~/") and _home(environment) is None:
            raise _not_found(name_or_path, "this machine knows no home directory of yours.", "Set HOME.")
        path = _expanded(name_or_path, environment, directory)
        try:
            path.stat()
        except OSError as error:
            raise _not_found(
                str(path), f"the EDF can't be read: {error.strerror}.", "Check the path."
            ) from error
        return path
    file = name_or_path if name_or_path.endswith(".toml") else f"{name_or_path}.toml"
    tried = [folder / file for folder in search_path(environment)]
    if file == name_or_path:
        tried.insert(0, directory / file)
    present = [candidate for candidate in tried if os.path.lexists(candidate)]
    for candidate in present:
        # A link that leads nowhere or a directory does not hide an EDF further on.
        if os.path.exists(candidate) and not os.path.isdir(candidate):  # noqa: PTH110, PTH112 - as fast
            return candidate
    if present:
        return present[0]
    places = ", ".join(str(each) for each in tried) or "nothing, since neither EDF_PATH nor HOME is set"
    closed = [str(folder) for folder in search_path(environment) if _is_closed(folder / file)]
    if closed:
        raise _not_found(
            name_or_path,
            f"{', '.join(closed)} can't be read: Permission denied. Looked for {places}.",
            "Ask its owner for permission, or set EDF_PATH to directories that you may read.",
        )
    raise _not_found(
        name_or_path,
        f"there is no EDF of this name; looked for {places}.",
        "Set EDF_PATH, or give a path that begins with '/' or './'.",
    )


def _is_closed(path: Path) -> bool:
    """Return whether only its owner can see if a file is there."""
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
        It can't be read, is not a regular file, is larger than 1 MiB or isn't UTF-8.
    """
    try:
        if not str(path).isascii():
            str(path).encode()
        with open(path, "rb", opener=_open) as file:
            kind = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(kind):
                raise _unreadable(path, "is not a regular file.")
            content = file.read(FILE_BYTES + 1)
    except IsADirectoryError as error:
        raise _unreadable(path, "is a directory.") from error
    except UnicodeEncodeError as error:
        raise _unreadable(path, "has a name that is not UTF-8 text.") from error
    except OSError as error:
        raise _unreadable(path, f"can't be read: {error.strerror}.") from error
    if len(content) > FILE_BYTES:
        raise _unreadable(path, "is larger than 1 MiB.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _unreadable(path, "is not UTF-8 text.", line) from error


def _open(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def list_edfs(*, environment: Mapping[str, str]) -> tuple[str, ...]:
    """List the names on the search path, sorted, each once."""
    names: set[str] = set()
    for folder in search_path(environment):
        try:
            inside = os.listdir(folder)  # noqa: PTH208 - as text, and all at once
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


def _expanded(path: str, environment: Mapping[str, str], directory: Path) -> Path:
    home = _home(environment) if path.startswith("~/") else None
    if home is not None:
        return home / path[2:]
    return Path(os.path.normpath(os.path.join(directory, path)))  # noqa: PTH118 - a Path costs more


def _not_found(file: str, message: str, fix: str) -> EdfError:
    return _error("not-found", file, None, message, fix)


def _unreadable(path: Path, what: str, line: int | None = None) -> EdfError:
    return _error("unreadable", str(path), line, f"the EDF {what}", "Give a readable text file in TOML.")


def _error(code: str, file: str, line: int | None, message: str, fix: str) -> EdfError:
    return EdfError(
        [Diagnostic(severity="error", code=code, file=file, line=line, key="", message=message, fix=fix)]
    )
