"""Single files and folders of an image, seen without entering it: a SquashFS file or an unpacked folder."""

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

_MAGIC = b"hsqs"
_SECONDS = 10.0


def read_inside(image: Path, names: Sequence[str], most: int) -> bytes | None:
    """Read the first regular file of several, at most ``most`` bytes, or None where none can be read.

    Parameters
    ----------
    names
        Paths in the image without the leading slash.
    """
    if image.is_dir():
        return next(filter(None, (_read(image, name, most) for name in names)), None)
    if not _is_squashfs(image):
        return None
    return _output(("unsquashfs", "-no-wildcards", "-cat", str(image), *names), most) or None


def is_inside(image: Path, name: str) -> bool | None:
    """Tell whether the image has a file or folder of this name; None where that can't be seen."""
    if image.is_dir():
        return _within(image, name) is not None
    if not _is_squashfs(image):
        return None
    depth = str(len(Path(name).parts))
    argv = ("unsquashfs", "-follow-symlinks", "-max-depth", depth, "-l", str(image), name)
    listed = _output(argv, 1 << 20)
    if listed is None:
        return None
    return f"squashfs-root/{name}" in listed.decode(errors="surrogateescape").splitlines()


def _is_squashfs(image: Path) -> bool:
    try:
        if not image.is_file():
            return False
        with image.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _within(root: Path, name: str) -> Path | None:
    """The path of a name in an unpacked image, or None where it isn't there or leads out of it."""
    top = os.path.realpath(root)
    real = os.path.realpath(os.path.join(top, name))  # noqa: PTH118 - a Path would not keep it textual
    inside = real == top or real.startswith(top.rstrip("/") + "/")
    return Path(real) if inside and os.path.lexists(real) else None


def _read(root: Path, name: str, most: int) -> bytes | None:
    path = _within(root, name)
    try:
        if path is None or not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(most)
    except OSError:
        return None


def _output(argv: Sequence[str], most: int) -> bytes | None:
    """The beginning of what a program writes; the program is ended when that is enough, or too late."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except (OSError, ValueError):
        return None
    late = threading.Timer(_SECONDS, process.kill)
    late.start()
    try:
        return process.stdout.read(most) if process.stdout else None
    finally:
        late.cancel()
        process.kill()
        process.communicate()
