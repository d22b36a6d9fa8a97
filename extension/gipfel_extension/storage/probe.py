"""Probes of a file system: how long it takes to look a name up, to create a file, and to read 4 KiB.

A name that never existed is asked of the metadata server each time; 4 KiB are dropped from the page cache
before they are read. A round is seven small operations, which no file system feels.
"""

import os
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..telemetry.files import open_regular

_LOOKUPS = 3
_BYTES = 4096


@dataclass(frozen=True)
class Target:
    """A mount to probe.

    Parameters
    ----------
    mount
        Its path, as the job's processes see it.
    directory
        A directory on it.
    writable
        True where a file may be created there for a moment.
    example
        A file of the job on it; None where none is known.
    """

    mount: str
    directory: Path
    writable: bool = False
    example: Path | None = None


@dataclass(frozen=True)
class ProbeTimes:
    """Milliseconds of a round of probes; None for what was not measured.

    Parameters
    ----------
    why
        Why something was not measured; empty where all was.
    """

    mount: str
    lookup_ms: float | None = None
    create_ms: float | None = None
    write_ms: float | None = None
    read_ms: float | None = None
    why: str = ""

    @property
    def worst_ms(self) -> float | None:
        """The longest of the measured times; None without any."""
        return max(
            (each for each in (self.lookup_ms, self.create_ms, self.read_ms) if each is not None),
            default=None,
        )


def probe(target: Target, clock: Callable[[], float] = time.perf_counter) -> ProbeTimes:
    """Measure a round; may block for as long as the file system does not answer."""
    problems: list[str] = []
    lookup = _measure(lambda: _look_up(target.directory), clock, _LOOKUPS, problems)
    create = write = read = None
    if target.writable:
        path = target.directory / f".gipfel-probe-{secrets.token_hex(8)}"
        try:
            started = clock()
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                create = 1000 * (clock() - started)
                started = clock()
                os.write(handle, bytes(_BYTES))
                os.fsync(handle)
                write = 1000 * (clock() - started)
                if target.example is None:
                    read = _measure(lambda: _read(handle, _BYTES), clock, 1, problems)
            finally:
                os.close(handle)
        except OSError as error:
            problems.append(f"Creating a file in {target.directory}: {error.strerror or error}.")
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    if target.example is not None:
        try:
            with open_regular(target.example) as file:
                size = os.fstat(file.fileno()).st_size
                read = _measure(lambda: _read(file.fileno(), size), clock, 1, problems)
        except (OSError, ValueError) as error:
            problems.append(f"Reading {target.example.name}: {getattr(error, 'strerror', None) or error}.")
    return ProbeTimes(target.mount, lookup, create, write, read, " ".join(problems))


def _measure(
    action: Callable[[], None], clock: Callable[[], float], times: int, problems: list[str]
) -> float | None:
    """Return the median of the milliseconds of several calls; None after an error."""
    found = []
    for _ in range(times):
        started = clock()
        try:
            action()
        except OSError as error:
            problems.append(f"{error.strerror or error}.")
            return None
        found.append(1000 * (clock() - started))
    return sorted(found)[len(found) // 2]


def _look_up(directory: Path) -> None:
    with suppress(FileNotFoundError):
        os.lstat(directory / f".gipfel-{secrets.token_hex(8)}")


def _read(handle: int, size: int) -> None:
    offset = random.randrange(max(1, size // _BYTES)) * _BYTES  # noqa: S311 - no secret
    with suppress(OSError):
        os.posix_fadvise(handle, offset, _BYTES, os.POSIX_FADV_DONTNEED)
    os.pread(handle, _BYTES, offset)
