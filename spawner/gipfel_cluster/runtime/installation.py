"""Install a runtime: a directory or a SquashFS file that appears complete or not at all.

A replaced runtime stays beside the new one for those who have it mounted; `remove_unused` removes it later.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..edf.image import read_inside
from ..model import GipfelError
from .model import DESCRIPTION

# A server on another node, or another user's, can't be seen from here; it has ended by then.
_KEPT_SECONDS = 14 * 86400.0
#: What a runtime that is one file is called.
SUFFIX = ".sqsh"
_SQUASH_SECONDS = 1800
# zstd's default here (15) takes eight times as long for 7 % less.
_SQUASH_OPTIONS = (
    *("-comp", "zstd", "-Xcompression-level", "6"),
    *("-all-root", "-no-xattrs", "-noappend", "-quiet", "-no-progress"),
)
_WAIT_SECONDS = 1800.0
_PAUSE_SECONDS = 0.2
_WORTH_SHARING = 4096


@dataclass(frozen=True)
class Installation:
    """A runtime being built beside its final path, a directory or a file; one builder at a time."""

    folder: Path
    building: Path

    @classmethod
    @contextmanager
    def beside(cls, folder: Path, *, progress: Callable[[str], None]) -> Iterator["Installation"]:
        """Hold the lock of a path and a new empty directory beside it, which is removed unless published.

        Raises
        ------
        GipfelError
            The path holds something that is not a runtime, or another build takes too long.
        """
        refuse_foreign(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f".{folder.name}.lock").open("a") as lock:
            _wait_for(lock.fileno(), folder, progress)
            for leftover in folder.parent.glob(f".{folder.name}.building-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            earlier = remove_unused(folder)
            if earlier:
                progress(f"keeping what was replaced and may be in use: {len(earlier)}, first {earlier[0]}")
            building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.building-"))
            try:
                yield cls(folder, building)
            finally:
                shutil.rmtree(building, ignore_errors=True)

    def publish(self, built: Path | None = None) -> None:
        """Move what was built to its final path; what was there before stays beside it for its users.

        Parameters
        ----------
        built
            A file in the building directory, instead of that directory.
        """
        built = built or self.building
        built.chmod(0o755 if built.is_dir() else 0o644)
        is_vacant = self.folder.is_dir() and not self.folder.is_symlink() and _is_empty(self.folder)
        if not self.folder.exists() or (built.is_dir() and is_vacant):
            built.rename(self.folder)
            return
        # Containers have it mounted: removed now, they would look into an empty directory.
        before = set_aside(self.folder)
        try:
            built.rename(self.folder)
        except BaseException:
            before.rename(self.folder)
            raise


def refuse_foreign(path: Path) -> None:
    """Refuse a path that a runtime must not replace.

    Raises
    ------
    GipfelError
        It holds something that is not a runtime.
    """
    if path.exists() and not _is_ours(path):
        raise GipfelError(
            f"{path} holds something that is not a runtime.",
            "Choose an empty directory, or a path where there is nothing.",
        )


def share_content(tree: Path) -> None:
    """Keep the content of equal files once; for files that no longer change."""
    first: dict[tuple[int, int, bytes], Path] = {}
    read: dict[int, bytes] = {}
    for parent, _, names in os.walk(tree):
        for name in names:
            path = Path(parent) / name
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size < _WORTH_SHARING:
                continue
            if status.st_ino not in read:
                read[status.st_ino] = hashlib.sha256(path.read_bytes()).digest()
            content = read[status.st_ino]
            same = first.setdefault((status.st_size, status.st_mode, content), path)
            if same is not path and not same.samefile(path):
                # Never without its name: another build may be reading.
                link = path.with_name(f".{path.name}.link")
                link.unlink(missing_ok=True)
                link.hardlink_to(same)
                link.rename(path)


def _is_ours(path: Path) -> bool:
    if path.is_dir():
        return not is_file_form(path) and (_is_empty(path) or (path / DESCRIPTION).is_file())
    return is_file_form(path) and read_inside(path, (DESCRIPTION,), 1) is not None


def _is_empty(folder: Path) -> bool:
    return next(folder.iterdir(), None) is None


def _wait_for(lock: int, folder: Path, progress: Callable[[str], None]) -> None:
    until = time.monotonic() + _WAIT_SECONDS
    reported = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise GipfelError(
                    f"Another build of {folder} did not end within {_WAIT_SECONDS:.0f} s.",
                    "End it and try again.",
                ) from None
            if not reported:
                progress(f"waiting for another build of {folder}")
                reported = True
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def is_file_form(path: Path) -> bool:
    """Return whether a path names a runtime that is one file."""
    return path.suffix == SUFFIX


def mksquashfs() -> str:
    """Return the path of the program that makes SquashFS files.

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


def squash(tree: Path, target: Path) -> None:
    """Make one file of a directory, everything in it root's, readable by every user.

    Raises
    ------
    GipfelError
        mksquashfs failed.
    """
    try:
        done = subprocess.run(
            [mksquashfs(), str(tree), str(target), *_SQUASH_OPTIONS],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SQUASH_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GipfelError(f"mksquashfs does not run: {error}.") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise GipfelError(f"mksquashfs failed: {last}", "Is there enough room beside the file?")
    target.chmod(0o644)


def set_aside(folder: Path) -> Path:
    """Rename a directory or file to an earlier one of itself; return that. Mounts and open files follow."""
    # When it was replaced is in the name, since the times of a directory are those of its content.
    aside = folder.with_name(f".{folder.name}.old-{int(time.time()):x}-{secrets.token_hex(8)}")
    folder.rename(aside)
    return aside


def remove_unused(
    folder: Path, *, processes: Path = Path("/proc"), kept_seconds: float = _KEPT_SECONDS
) -> tuple[Path, ...]:
    """Remove the earlier trees of a directory that are no longer in use; return the others.

    A tree goes some time after it was replaced, usually 14 days, unless a process that can be seen here runs
    from it or has it mounted.

    Parameters
    ----------
    processes
        Where the kernel lists its processes.
    kept_seconds
        How long a tree stays for those who can't be seen; 0 where only this user of this machine runs it.
    """
    earlier = dict(_earlier(folder))
    oldest = time.time() - kept_seconds
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
        match = named.fullmatch(path.name)
        if match:
            yield path, float(int(match[1], 16))


def _in_use(names: frozenset[str], processes: Path) -> set[str]:
    if not names:
        return set()
    # A mount's source, a mapped file and a program follow the rename. The random end of the name is enough to
    # find it, and stays the same where a mount shows only a part of the path or blanks are written as octal.
    tails = {name.rpartition("-")[2].encode(): name for name in names}
    used: set[str] = set()
    for process in processes.iterdir():
        if process.name.isdigit():
            seen = _seen(process)
            used |= {name for tail, name in tails.items() if tail in seen}
    return used


def _seen(process: Path) -> bytes:
    """Return every path that a process is known to use, as far as this user may look."""
    seen = b""
    for name in ("mountinfo", "maps"):
        try:
            seen += (process / name).read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
    links = [process / name for name in ("exe", "cwd", "root")]
    with contextlib.suppress(OSError):
        # What serves a mounted file holds it open and no more: nothing of it is in any list of mounts.
        links += (process / "fd").iterdir()
    for link in links:
        with contextlib.suppress(OSError):
            seen += b"\n" + os.fsencode(link.readlink())
    return seen
