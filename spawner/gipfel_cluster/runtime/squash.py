"""A runtime's folder as one SquashFS file, which spares a parallel file system thousands of small ones."""

import shutil
import subprocess
from pathlib import Path

from ..model import GipfelError

#: What a runtime that is one file is called.
SUFFIX = ".sqsh"
_SECONDS = 1800
# zstd's default here (15) takes eight times as long for 7 % less.
_OPTIONS = (
    *("-comp", "zstd", "-Xcompression-level", "6"),
    *("-all-root", "-no-xattrs", "-noappend", "-quiet", "-no-progress"),
)


def is_file_form(path: Path) -> bool:
    """Tell whether a path names a runtime that is one file."""
    return path.suffix == SUFFIX


def mksquashfs() -> str:
    """Path of the program that makes SquashFS files.

    Raises
    ------
    GipfelError
        It is not installed.
    """
    found = shutil.which("mksquashfs")
    if found is None:
        raise GipfelError(
            "A .sqsh runtime can't be built without mksquashfs.",
            "Install the package squashfs-tools, or build into a folder.",
        )
    return found


def squash(tree: Path, target: Path) -> None:
    """Make one file of a folder, everything in it root's, readable by everybody.

    Raises
    ------
    GipfelError
        mksquashfs failed.
    """
    try:
        done = subprocess.run(
            [mksquashfs(), str(tree), str(target), *_OPTIONS],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GipfelError(f"mksquashfs does not run: {error}.") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise GipfelError(f"mksquashfs failed: {last}", "Is there enough room beside the file?")
    target.chmod(0o644)
