"""A folder or file that appears complete or not at all."""

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..edf.inside import read_inside
from ..model import GipfelError
from .earlier import remove_unused, set_aside
from .model import DESCRIPTION
from .squash import is_file_form

_WAIT_SECONDS = 1800.0
_PAUSE_SECONDS = 0.2
_WORTH_SHARING = 4096


@dataclass(frozen=True)
class Place:
    """Where a runtime is built, and what it then becomes, a folder or a file; one builder at a time."""

    folder: Path
    building: Path

    @classmethod
    @contextmanager
    def beside(cls, folder: Path, *, progress: Callable[[str], None]) -> Iterator["Place"]:
        """Hold the lock of a path and a new empty folder beside it, which is removed unless it was published.

        Raises
        ------
        GipfelError
            The path holds something that is no runtime, or another build takes too long.
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
        """Give what was built its name; what was there before stays beside it for those who use it.

        Parameters
        ----------
        built
            A file in the building folder, instead of that folder.
        """
        built = built or self.building
        built.chmod(0o755 if built.is_dir() else 0o644)
        is_vacant = self.folder.is_dir() and not self.folder.is_symlink() and _is_empty(self.folder)
        if not self.folder.exists() or (built.is_dir() and is_vacant):
            built.rename(self.folder)
            return
        # Containers have it mounted: removed now, they would look into an empty folder.
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
        It holds something that is no runtime.
    """
    if path.exists() and not _is_ours(path):
        raise GipfelError(
            f"{path} holds something that is no runtime.",
            "Choose an empty folder, or a path where there is nothing.",
        )


def share_content(tree: Path) -> None:
    """Keep the content of equal files once; for files that nobody writes to any more."""
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
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise GipfelError(
                    f"Another build of {folder} did not end within {_WAIT_SECONDS:.0f} s.",
                    "End it and try again.",
                ) from None
            if not told:
                progress(f"waiting for another build of {folder}")
                told = True
            time.sleep(_PAUSE_SECONDS)
        else:
            return
