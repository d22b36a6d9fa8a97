"""Single files and folders of an image, seen without entering it: a SquashFS file or an unpacked folder."""

import contextlib
import errno
import os
import stat
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

_MAGIC = b"hsqs"
_SECONDS = 10.0
_LINKS = 40
_PLACE = os.O_PATH | os.O_CLOEXEC


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
        return _is_there(image, name)
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


def _read(root: Path, name: str, most: int) -> bytes | None:
    try:
        with _found(root, name) as file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            # What was looked at is what is read, whatever has its name by now.
            with Path(f"/proc/self/fd/{file}").open("rb") as content:
                return content.read(most)
    except (OSError, ValueError):
        return None


def _is_there(root: Path, name: str) -> bool:
    try:
        with _found(root, name):
            return True
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _found(root: Path, name: str) -> Iterator[int]:
    """Find a name in an unpacked image as a process in it would: links end at the image's root.

    What is given is open as a place only (``O_PATH``): nothing has been read, and no pipe waits.

    Raises
    ------
    OSError
        There is no such name, it can't be reached, or its links lead in a circle.
    """
    opened = [os.open(root, _PLACE | os.O_DIRECTORY)]
    try:
        todo, links = name.split("/")[::-1], 0
        while todo:
            part = todo.pop()
            if part == "..":
                _close_behind(opened, max(1, len(opened) - 1))
                continue
            if part in {"", "."}:
                continue
            opened.append(os.open(part, _PLACE | os.O_NOFOLLOW, dir_fd=opened[-1]))
            if not stat.S_ISLNK(os.fstat(opened[-1]).st_mode):
                continue
            target = os.readlink("", dir_fd=opened[-1])
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
            _close_behind(opened, 1 if target.startswith("/") else len(opened) - 1)
            todo.extend(target.split("/")[::-1])
        yield opened[-1]
    finally:
        _close_behind(opened, 0)


def _close_behind(opened: list[int], kept: int) -> None:
    for file in opened[kept:]:
        os.close(file)
    del opened[kept:]


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
