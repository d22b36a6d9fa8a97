"""Files of a run folder: safe reading of files that other processes may have written, and atomic replacement.

`modified_ns`, `open_regular`, `open_log`, `read_regular` and `read_tail` are those of
`gipfel_cluster.regular_files`.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gipfel_cluster.regular_files import modified_ns, open_log, open_regular, read_regular, read_tail

__all__ = [
    "MAX_RECORD_BYTES",
    "append_text",
    "modified_ns",
    "open_log",
    "open_regular",
    "read_json",
    "read_object",
    "read_record_file",
    "read_regular",
    "read_tail",
    "replace_file",
    "sync_directory",
]

MAX_RECORD_BYTES = 16 << 20


def read_json(path: Path, max_bytes: int, *, follow: bool = False) -> Any:
    """Return the value of a JSON file.

    Raises
    ------
    OSError
        As :func:`read_regular`.
    ValueError
        The content is not JSON, or is nested too deeply.
    """
    content = read_regular(path, max_bytes, follow=follow)
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def append_text(path: Path, text: str, max_bytes: int | None = None) -> None:
    """Append whole lines to a file in one write, so that those of several processes don't mix.

    Do nothing if the file would be larger than `max_bytes`.

    Raises
    ------
    OSError
        The file can't be written.
    """
    content = text.encode()
    handle = open_log(path)
    try:
        if max_bytes is None or os.fstat(handle).st_size + len(content) <= max_bytes:
            os.write(handle, content)
    finally:
        os.close(handle)


def replace_file(path: Path, text: str) -> None:
    """Replace the text of a file of mode 0600 atomically: readers see either the old or the new text.

    Raises
    ------
    OSError
        The file can't be written; its old content is kept.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object in a file; an empty dictionary where it is missing or unreadable."""
    with suppress(OSError, ValueError):
        content = read_json(path, max_bytes)
        if isinstance(content, dict):
            return content
    return {}


def read_record_file(run: Path) -> dict[str, Any]:
    """Return a run's ``record.json``; an empty dictionary where it is missing or unreadable."""
    return read_object(run / "record.json", MAX_RECORD_BYTES)


def edf_name(record: Mapping[str, Any]) -> str:
    """Return the name of a record's EDF; empty without one."""
    edf = record.get("edf")
    return str(edf.get("name") or "") if isinstance(edf, dict) else ""
