"""A job's file systems: their response times, the number of opened files, and the striping of large files.

A probe looks up a name that never existed, which the metadata server must answer each time, creates a file,
and reads 4 KiB after dropping them from the page cache. A round of probes is seven small operations, a
negligible load for a file system.

procfs has no counter of opened files. inotify reports them for any file system and without privileges, but
only for directories that are watched, and for all processes of the node. The number for the job's directories
is a lower bound.

On Lustre, ``lfs getstripe`` prints over how many storage targets a file is striped: a file on one target is
read at most at the speed of this target, however many nodes read it.
"""

import ctypes
import errno
import os
import random
import re
import secrets
import select
import shlex
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..telemetry.files import open_regular

#: Number of name lookups in a round, of which the median counts; bytes of a read.
_LOOKUPS = 3
_BYTES = 4096


@dataclass(frozen=True)
class Target:
    """A mount to probe.

    Parameters
    ----------
    mount
        Path of the mount, as the job's processes see it.
    directory
        A directory on the mount.
    writable
        True if the probe may create a temporary file in the directory.
    example
        A file of the job on the mount, for read probes; None if none is known.
    """

    mount: str
    directory: Path
    writable: bool = False
    example: Path | None = None


@dataclass(frozen=True)
class ProbeTimes:
    """Milliseconds of a round of probes; None for an operation that was not measured.

    Parameters
    ----------
    why
        Why an operation was not measured; empty if all were.
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
    """Run a round of probes; may block for as long as the file system does not respond."""
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


#: Size from which a shared file should be striped over several targets.
LARGE_BYTES = 1 << 30
#: Maximum duration of ``lfs``.
_TIMEOUT_S = 10.0
_MAX_OUTPUT = 1 << 20
_COUNT = re.compile(r"^\s*(?:lmm_)?stripe_count:\s*(-?\d+)", re.MULTILINE)
_SIZE = re.compile(r"\b(?:lmm_)?stripe_size:\s*(\d+)")
_COMPONENT = re.compile(r"^\s*(?:- )?lcme_id:", re.MULTILINE)
_START = re.compile(r"lcme_extent\.e_start:\s*(\d+)")
_END = re.compile(r"lcme_extent\.e_end:\s*(EOF|\d+)")
_FLAGS = re.compile(r"lcme_flags:\s*(\S+)")


@dataclass(frozen=True)
class Component:
    """A part of a file with its own striping: `count` targets (-1: all), `size` bytes per stripe.

    `end` is None if the part extends to the end of the file.
    """

    start: int
    end: int | None
    count: int
    size: int
    initialized: bool = True


@dataclass(frozen=True)
class SiteStripes:
    """Recommended striping of large files at this site; ``GIPFEL_STRIPES=32x4M``: 32 targets, 4 MiB each."""

    count: int = 32
    size: str = "4M"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "SiteStripes":
        """Return the site's recommended striping.

        Raises
        ------
        ValueError
            The variable is not valid.
        """
        text = environment.get("GIPFEL_STRIPES", "")
        if not text:
            return cls()
        found = re.fullmatch(r"(-1|[1-9]\d{0,3})x([1-9]\d{0,4}[KMG])", text)
        if found is None:
            raise ValueError(f"GIPFEL_STRIPES={text!r} is not of the form 32x4M")
        return cls(int(found[1]), found[2])


def parse_getstripe(text: str) -> list[Component]:
    """Return the components in the output of ``lfs getstripe`` (plain, composite or ``--yaml``)."""
    parts = _COMPONENT.split(text)
    if len(parts) == 1:
        count, size = _COUNT.search(text), _SIZE.search(text)
        if count is None:
            return []
        return [Component(0, None, int(count[1]), int(size[1]) if size else 0)]
    found = []
    for part in parts[1:]:
        count, size, start, end = (each.search(part) for each in (_COUNT, _SIZE, _START, _END))
        if count is None or start is None or end is None:
            continue
        flags = _FLAGS.search(part)
        found.append(
            Component(
                int(start[1]),
                None if end[1] == "EOF" else int(end[1]),
                int(count[1]),
                int(size[1]) if size else 0,
                flags is None or "init" in flags[1],
            )
        )
    return found


def stripes_of(components: list[Component], size: int) -> int | None:
    """Return over how many targets most bytes of a file are striped; -1 for all, None if unknown."""
    shares: dict[int, int] = {}
    for each in components:
        if not each.initialized:
            continue
        end = size if each.end is None else min(each.end, size)
        if end > each.start:
            shares[each.count] = shares.get(each.count, 0) + end - each.start
    return max(shares, key=lambda count: shares[count]) if shares else None


def read_stripes(path: Path, size: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return over how many targets a file is striped; None if ``lfs`` is missing or does not report it."""
    lfs = shutil.which("lfs", path=environment.get("PATH"))
    if lfs is None:
        return None
    try:
        done = subprocess.run(
            [lfs, "getstripe", "--", str(path)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return stripes_of(parse_getstripe(done.stdout[:_MAX_OUTPUT].decode(errors="replace")), size)


def mending(path: str, size: int, stripes: int | None, site: SiteStripes) -> str:
    """Return advice on a file's striping with a command; empty if it suffices or is unknown."""
    if stripes is None or stripes < 0 or size < LARGE_BYTES:
        return ""
    # One target per 256 MiB suffices: a file of 2 GiB gains nothing from 32 targets.
    wanted = site.count if site.count < 0 else min(site.count, max(2, size >> 28))
    if 0 < wanted <= 2 * stripes:
        return ""
    targets = "1 storage target" if stripes == 1 else f"{stripes} storage targets"
    command = f"lfs migrate --stripe-count {wanted} --stripe-size {site.size} {shlex.quote(path)}"
    return f"{path} ({size / 1e9:.1f} GB) is spread over {targets}. While nothing writes to it: {command}"


#: Flags of inotify (linux/inotify.h).
_IN_OPEN, _IN_Q_OVERFLOW = 0x20, 0x4000
_IN_ONLYDIR, _IN_EXCL_UNLINK, _IN_ISDIR = 0x01000000, 0x04000000, 0x40000000
_HEAD = struct.Struct("iIII")
_MOST_DIRECTORIES, _MOST_SIBLINGS = 1024, 1024
_READ_BYTES = 1 << 18
_PAUSE_S = 0.02


class OpenCounter:
    """Counter of opened files: call ``watch(directories)``, then ``count(seconds)`` from time to time.

    Between two counts the kernel's queue of events may overflow; this costs the job nothing.

    Raises
    ------
    OSError
        The kernel allows no more instances of inotify.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._watched: set[str] = set()
        self._names: dict[int, str] = {}
        self._listed: set[str] = set()
        #: Why some directories are not counted; empty where all are.
        self.why = ""

    @property
    def directories(self) -> int:
        """Number of the directories that are watched."""
        return len(self._watched)

    def watch(self, directories: Mapping[str, str]) -> None:
        """Watch directories and their siblings, up to 1 024: a data set often has a directory per class.

        Parameters
        ----------
        directories
            Path by which this process reaches a directory, by its path in the job.
        """
        for name, path in directories.items():
            self._add(name, path)
            above, path_above = name.rpartition("/")[0], path.rpartition("/")[0]
            if name not in self._watched or above in self._listed or self.directories >= _MOST_DIRECTORIES:
                continue
            self._listed.add(above)
            with suppress(OSError):
                for number, entry in enumerate(os.scandir(path_above)):
                    if number >= _MOST_SIBLINGS:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        self._add(f"{above}/{entry.name}", entry.path)

    def count(self, seconds: float, clock: Callable[[], float]) -> tuple[dict[str, int], float]:
        """Return the number of opened files by directory, and the seconds in which they were counted.

        Where the kernel's queue overflows, counting ends early.
        """
        self._drain()
        started = clock()
        found: dict[str, int] = {}
        while (left := started + seconds - clock()) > 0:
            if not select.select([self._handle], [], [], left)[0]:
                break
            if self._drain(found):
                break
            # Reading many events at once is cheaper; the kernel's queue has room for 16 384.
            time.sleep(_PAUSE_S)
        return found, max(clock() - started, 1e-6)

    def close(self) -> None:
        """Release the instance of inotify."""
        os.close(self._handle)

    def _add(self, name: str, path: str) -> None:
        if name in self._watched or self.directories >= _MOST_DIRECTORIES:
            return
        mask = _IN_OPEN | _IN_ONLYDIR | _IN_EXCL_UNLINK
        number = self._libc.inotify_add_watch(self._handle, os.fsencode(path), mask)
        if number >= 0:
            self._watched.add(name)
            # Two paths of one directory share a number: the first one counts.
            self._names.setdefault(number, name)
        elif (error := ctypes.get_errno()) not in (errno.ENOENT, errno.ENOTDIR):
            self.why = f"Opened files in {name} can't be counted: {os.strerror(error)}."

    def _drain(self, found: dict[str, int] | None = None) -> bool:
        """Read the queued events and add opened files to `found`; return whether the queue had overflowed."""
        overflowed = False
        while True:
            try:
                data = os.read(self._handle, _READ_BYTES)
            except BlockingIOError:
                return overflowed
            offset = 0
            while offset < len(data):
                number, mask, _, length = _HEAD.unpack_from(data, offset)
                offset += _HEAD.size + length
                overflowed |= bool(mask & _IN_Q_OVERFLOW)
                if found is not None and mask & _IN_OPEN and not mask & _IN_ISDIR and length:
                    name = self._names.get(number, "")
                    found[name] = found.get(name, 0) + 1
