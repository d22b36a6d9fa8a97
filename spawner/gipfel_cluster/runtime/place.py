"""A folder that appears complete or not at all."""

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

from ..model import GipfelError
from .earlier import remove_unused, set_aside
from .model import DESCRIPTION

_WAIT_SECONDS = 1800.0
_PAUSE_SECONDS = 0.2
_WORTH_SHARING = 4096


@dataclass(frozen=True)
class Place:
    """Where a runtime is built, and the folder that it then becomes; one builder at a time."""

    folder: Path
    building: Path

    @classmethod
    @contextmanager
    def beside(cls, folder: Path, *, progress: Callable[[str], None]) -> Iterator["Place"]:
        """Hold the lock of a folder and a new empty one beside it, which is removed unless it was published.

        Raises
        ------
        GipfelError
            The folder holds something that is no runtime, or another build takes too long.
        """
        if folder.exists() and not (
            folder.is_dir() and (_is_empty(folder) or (folder / DESCRIPTION).is_file())
        ):
            raise GipfelError(
                f"{folder} holds something that is no runtime.",
                "Choose an empty folder or one that does not exist.",
            )
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

    def publish(self) -> None:
        """Give the new folder its name; one that was there before stays beside it for those who use it."""
        self.building.chmod(0o755)
        if not self.folder.exists() or (not self.folder.is_symlink() and _is_empty(self.folder)):
            self.building.rename(self.folder)
            return
        # Containers have it mounted: removed now, they would look into an empty folder.
        before = set_aside(self.folder)
        try:
            self.building.rename(self.folder)
        except BaseException:
            before.rename(self.folder)
            raise


def share_content(tree: Path) -> None:
    """Keep the content of equal files once; for files that nobody writes to any more."""
    first: dict[tuple[int, int, bytes], Path] = {}
    for parent, _, names in os.walk(tree):
        for name in names:
            path = Path(parent) / name
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size < _WORTH_SHARING:
                continue
            content = hashlib.sha256(path.read_bytes()).digest()
            same = first.setdefault((status.st_size, status.st_mode, content), path)
            if same is not path:
                path.unlink()
                path.hardlink_to(same)


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
