"""Install a runtime, a directory or a SquashFS file, atomically.

A replaced runtime is kept beside the new one for containers that have it mounted, until
`remove_old_runtimes` removes it.
"""

import hashlib
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..edf.image import read_image_file
from ..model import GipfelError
from ..process.locks import lock_within
from .model import DESCRIPTION

# Servers on other nodes and of other users can't be seen from here; after this time they are assumed to have
# ended.
_OLD_RUNTIME_SECONDS = 14 * 86400.0
#: The suffix of a runtime that is one file.
SUFFIX = ".sqsh"
_SQUASH_SECONDS = 1800
# mksquashfs's default for zstd (15) takes eight times as long and saves 7 %.
_SQUASH_OPTIONS = (
    *("-comp", "zstd", "-Xcompression-level", "6"),
    *("-all-root", "-no-xattrs", "-noappend", "-quiet", "-no-progress"),
)
#: How long to wait for another build of the same path.
_WAIT_SECONDS = 1800.0
#: Smaller files are not replaced by hard links, which would save little.
_MIN_SHARED_BYTES = 4096


@dataclass(frozen=True)
class Installation:
    """A runtime that one builder at a time builds beside its final path.

    ``folder`` is the final path of the directory or file, ``building`` the directory in which it is built.
    """

    folder: Path
    building: Path

    @classmethod
    @contextmanager
    def begin(cls, folder: Path, *, progress: Callable[[str], None]) -> Iterator["Installation"]:
        """Hold the lock of a path and create an empty building directory, which is removed at the end.

        Raises
        ------
        GipfelError
            The path exists and is not a runtime, or another build takes too long.
        """
        check_replaceable(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f".{folder.name}.lock").open("a") as lock:
            _wait_for_lock(lock.fileno(), folder, progress)
            for leftover in folder.parent.glob(f".{folder.name}.building-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            if earlier := remove_old_runtimes(folder):
                progress(f"keeping {len(earlier)} replaced runtimes that may be in use, first {earlier[0]}")
            building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.building-"))
            try:
                yield cls(folder, building)
            finally:
                shutil.rmtree(building, ignore_errors=True)

    def publish(self, built: Path | None = None) -> None:
        """Move the built runtime to its final path, and rename the one that it replaces.

        Parameters
        ----------
        built
            A file in the building directory; by default that directory itself.
        """
        built = built or self.building
        built.chmod(0o755 if built.is_dir() else 0o644)
        is_vacant = self.folder.is_dir() and not self.folder.is_symlink() and _is_empty(self.folder)
        if not self.folder.exists() or (built.is_dir() and is_vacant):
            built.rename(self.folder)
            return
        # Containers may have it mounted: if it were removed now, they would see an empty directory.
        before = rename_to_old(self.folder)
        try:
            built.rename(self.folder)
        except BaseException:
            before.rename(self.folder)
            raise


def check_replaceable(path: Path) -> None:
    """Check that a path is vacant, an empty directory or a runtime.

    Raises
    ------
    GipfelError
        The path is something else.
    """
    if path.exists() and not _is_runtime(path):
        raise GipfelError(
            f"{path} exists and is not a runtime.",
            "Choose an empty directory, or a path that does not exist.",
        )


def hardlink_duplicates(tree: Path) -> None:
    """Replace files with equal content by hard links to one of them; the files must not change any more."""
    first: dict[tuple[int, int, bytes], Path] = {}
    read: dict[int, bytes] = {}
    for parent, _, names in os.walk(tree):
        for name in names:
            path = Path(parent) / name
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size < _MIN_SHARED_BYTES:
                continue
            if status.st_ino not in read:
                read[status.st_ino] = hashlib.sha256(path.read_bytes()).digest()
            same = first.setdefault((status.st_size, status.st_mode, read[status.st_ino]), path)
            if same is not path and not same.samefile(path):
                # Renamed atomically, since another build may be reading the file.
                link = path.with_name(f".{path.name}.link")
                link.unlink(missing_ok=True)
                link.hardlink_to(same)
                link.rename(path)


def _is_runtime(path: Path) -> bool:
    if path.is_dir():
        return not is_squashfs_path(path) and (_is_empty(path) or (path / DESCRIPTION).is_file())
    return is_squashfs_path(path) and read_image_file(path, (DESCRIPTION,), 1) is not None


def _is_empty(folder: Path) -> bool:
    return next(folder.iterdir(), None) is None


def _wait_for_lock(lock: int, folder: Path, progress: Callable[[str], None]) -> None:
    if lock_within(lock, 0):
        return
    progress(f"waiting for another build of {folder}")
    if not lock_within(lock, _WAIT_SECONDS):
        raise GipfelError(
            f"Another build of {folder} did not end within {_WAIT_SECONDS:.0f} s.", "Stop it and try again."
        )


def is_squashfs_path(path: Path) -> bool:
    """Return whether a path has the suffix of a runtime that is one file."""
    return path.suffix == SUFFIX


def mksquashfs() -> str:
    """Return the path of the program mksquashfs.

    Raises
    ------
    GipfelError
        It is not installed.
    """
    found = shutil.which("mksquashfs")
    if found is None:
        raise GipfelError(
            "A .sqsh runtime can't be built without mksquashfs.",
            "Install the package squashfs-tools, or build into a directory.",
        )
    return found


def run_tool(
    name: str, command: Sequence[str], limit_s: float, *, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a program of the build to its end, and return its output and exit status.

    Raises
    ------
    GipfelError
        It can't be run, or takes longer than `limit_s` seconds.
    """
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GipfelError(f"{name} could not be run: {error}.", f"Check that {name} is installed.") from error


def make_squashfs(tree: Path, target: Path) -> None:
    """Create a SquashFS file of a directory, owned by root and readable by every user.

    Raises
    ------
    GipfelError
        mksquashfs failed.
    """
    done = run_tool("mksquashfs", [mksquashfs(), str(tree), str(target), *_SQUASH_OPTIONS], _SQUASH_SECONDS)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise GipfelError(f"mksquashfs failed: {last}", "Check the free space beside the file.")
    target.chmod(0o644)


def rename_to_old(folder: Path) -> Path:
    """Rename a replaced runtime; return the new path. Existing mounts and open files stay valid."""
    # The time is in the name, since the times of a directory depend on its content.
    renamed = folder.with_name(f".{folder.name}.old-{int(time.time()):x}-{secrets.token_hex(8)}")
    folder.rename(renamed)
    return renamed


def remove_old_runtimes(
    folder: Path, *, processes: Path = Path("/proc"), retention_seconds: float = _OLD_RUNTIME_SECONDS
) -> tuple[Path, ...]:
    """Remove replaced runtimes that are no longer in use; return the remaining ones.

    A replaced runtime is removed after some time, 14 days by default, unless a process that is visible here
    runs from it or has it mounted.

    Parameters
    ----------
    processes
        The directory of the ``proc`` file system.
    retention_seconds
        Time to keep a runtime for processes that are not visible; 0 if only this user and machine use it.
    """
    earlier = dict(_earlier(folder))
    oldest = time.time() - retention_seconds
    due = {path.name: path for path, replaced in earlier.items() if replaced < oldest}
    for path in set(due.values()) - {due[name] for name in _in_use(frozenset(due), processes)}:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return tuple(path for path in earlier if path.exists())


def _earlier(folder: Path) -> Iterator[tuple[Path, float]]:
    named = re.compile(re.escape(f".{folder.name}.old-") + "([0-9a-f]{1,12})-[0-9a-f]{16}")
    for path in sorted(folder.parent.iterdir()):
        if match := named.fullmatch(path.name):
            yield path, float(int(match[1], 16))


def _in_use(names: frozenset[str], processes: Path) -> set[str]:
    if not names:
        return set()
    # A mount's source, a mapped file and a program show the new name. Its random suffix is unique, and is
    # found even if mountinfo shows only a part of the path or writes blanks as octal.
    tails = {name.rpartition("-")[2].encode(): name for name in names}
    used: set[str] = set()
    for process in processes.iterdir():
        if process.name.isdigit():
            paths = _used_paths(process)
            used |= {name for tail, name in tails.items() if tail in paths}
    return used


def _used_paths(process: Path) -> bytes:
    """Return all paths that a process uses, as far as this user may read them."""
    paths = b""
    for name in ("mountinfo", "maps"):
        with suppress(OSError):  # it has ended, or belongs to another user
            paths += (process / name).read_bytes()
    links = [process / name for name in ("exe", "cwd", "root")]
    with suppress(OSError):
        # The squashfuse process of a mounted file has it open; the file is in no list of mounts.
        links += (process / "fd").iterdir()
    for link in links:
        with suppress(OSError):
            paths += b"\n" + os.fsencode(link.readlink())
    return paths
