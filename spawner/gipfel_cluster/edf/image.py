"""An image on this machine, inspected without entering it: an unpacked directory or a SquashFS file.

First the checks and facts (`check_image`, `image_environment`, `image_architecture`), then the OCI
configuration, then single files of an image (`read_inside`, `is_inside`), on which the others are built.

The OCI configuration is that of a runtime bundle (``config.json`` beside ``rootfs``) or of an image layout
(``index.json``, ``blobs``). Sources: OCI runtime specification 1.2, OCI image specification 1.1.
"""

import contextlib
import errno
import functools
import json
import os
import re
import stat
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..environment import IMAGE_FILES, parse_environment
from ..model import GipfelError

_MAGIC = b"hsqs"
_UNSQUASHFS_SECONDS = 10.0
_LINKS = 40
_PLACE = os.O_PATH | os.O_CLOEXEC
_DOCUMENT_BYTES = 4 << 20  # bytes; a manifest is a few kilobytes
_DIGEST = re.compile(r"(sha256|sha512):[0-9a-f]{64,128}")
_SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQ")  # magic … flags, ids, major, minor, root inode, bytes used
_VARIABLES_BYTES = 1 << 16  # bytes of all files of variables
#: ``e_machine`` of the ELF header, and what ``uname -m`` says there. Source: System V ABI, chapter 4.
_MACHINES = {
    3: "i386",
    20: "ppc",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}
_SAME = {"i686": "i386", "arm64": "aarch64", "amd64": "x86_64", "ppc64": "ppc64le"}
_ALSO_RUNS = {("x86_64", "i386"), ("aarch64", "armv7l")}
_ELF_HEADER = 20
#: Programs that are not links in the common distributions, and the loaders of those that have no shell.
_PROGRAMS = (
    *("usr/bin/dash", "usr/bin/bash", "usr/bin/env", "usr/bin/coreutils", "usr/bin/ls"),
    *("bin/busybox", "bin/dash", "bin/bash", "bin/ls", "usr/sbin/ldconfig.real", "sbin/ldconfig"),
    *("usr/lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2"),
    *("usr/lib/ld-linux-aarch64.so.1", "lib/ld-linux-aarch64.so.1"),
    *("lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1"),
)


def check_image(path: Path) -> None:
    """Check that an image is a SquashFS file that is whole, or an unpacked directory.

    Raises
    ------
    GipfelError
        It is missing, unreadable, cut off, this machine's own root, or something else.
    """
    try:
        if path.is_dir():
            if path.samefile("/"):
                raise GipfelError(
                    f"The image {path} is this machine itself.",
                    "Take image out to run without a container, or give the directory of an unpacked image.",
                )
            if not any(path.iterdir()):
                raise GipfelError(
                    f"The image {path} is an empty directory.", "Give the root of an unpacked image."
                )
            return
        if not path.is_file() and path.exists():
            raise GipfelError(f"The image {path} is neither a file nor a directory.", "Give a SquashFS file.")
        with path.open("rb") as file:
            head = file.read(_SUPERBLOCK.size)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise GipfelError(f"The image {path} does not exist.", "Check the path in the EDF.") from error
    except OSError as error:
        raise GipfelError(
            f"The image {path} can't be read: {error.strerror}.", "Ask its owner for read permission."
        ) from error
    _check_superblock(path, head, size)


def _check_superblock(path: Path, head: bytes, size: int) -> None:
    fix = "Make one with 'mksquashfs' or 'enroot import'."
    if not head.startswith(_MAGIC):
        raise GipfelError(f"The image {path} is not a SquashFS file.", fix)
    if len(head) < _SUPERBLOCK.size:
        raise GipfelError(f"The image {path} is cut off.", "Copy or import it again.")
    *_, major, minor, _root, used = _SUPERBLOCK.unpack(head)
    if major != 4:
        raise GipfelError(f"The image {path} is a SquashFS of version {major}.{minor}, not 4.0.", fix)
    if used > size:
        raise GipfelError(
            f"The image {path} is cut off: {size} of {used} bytes are there.", "Copy or import it again."
        )


def image_environment(path: Path) -> Mapping[str, str]:
    """Read what an image brings: its OCI configuration, and over it the files of variables in it."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return {}
    if stat.S_ISDIR(state.st_mode):
        files = (read_inside(path, (name,), _VARIABLES_BYTES) for name in IMAGE_FILES)
        return oci_environment(path) | parse_environment("\n".join(_text(each) for each in files))
    return _of_squashfs(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=64)
def _of_squashfs(path: Path, _changed: int, size: int) -> Mapping[str, str]:
    """Read it once as long as the file stays as it is, however many EDFs share the image."""
    if size < _SUPERBLOCK.size:
        return {}
    # One after the other, so that the last file wins.
    return parse_environment(_text(read_inside(path, IMAGE_FILES, _VARIABLES_BYTES)))


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")


def image_architecture(image: Path) -> str | None:
    """Name the processors that an image is for as ``uname -m`` does, or None where that can't be seen."""
    for name in (_PROGRAMS,) if not image.is_dir() else tuple((each,) for each in _PROGRAMS):
        head = read_inside(image, name, _ELF_HEADER)
        if head and len(head) == _ELF_HEADER and head.startswith(b"\x7fELF"):
            number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
            return _MACHINES.get(number, f"ELF machine {number}")
    return None


def can_run(machine: str, image: str) -> bool:
    """Return whether a machine runs programs of an image's architecture without emulation."""
    machine = _SAME.get(machine, machine)
    return machine == image or (machine, image) in _ALSO_RUNS


def oci_environment(image: Path) -> dict[str, str]:
    """Read the variables that an image's OCI configuration sets; empty where there is none."""
    bundle = image.parent if image.name == "rootfs" else image
    process = _mapping(_mapping(_json(bundle, "config.json")).get("process"))
    return _variables(process.get("env")) or _variables(_layout(image).get("Env"))


def oci_entry_point(image: Path) -> tuple[str, ...]:
    """Read the words of an image layout's entry point; empty where there is none that can be run.

    A runtime bundle does not show it: in its ``process.args`` entry point and command are one list.
    """
    words = _layout(image).get("Entrypoint")
    listed = [word for word in words if isinstance(word, str)] if isinstance(words, list) else []
    return tuple(listed) if all(map(_is_carried, listed)) else ()


def _layout(image: Path) -> dict[str, Any]:
    """Return the part of an image layout's first manifest about how to run it."""
    config = _blob(image, _blob(image, _first(_json(image, "index.json"), "manifests")).get("config"))
    return _mapping(config.get("config"))


def _variables(listed: object) -> dict[str, str]:
    pairs = (
        [each.partition("=") for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    )
    return {name: value for name, equals, value in pairs if name and equals and _is_carried(name + value)}


def _is_carried(text: str) -> bool:
    """Return whether a process can be given it: JSON also has the NUL and halves of characters."""
    return "\0" not in text and text == text.encode("utf-8", "replace").decode()


def _first(document: object, key: str) -> object:
    listed = _mapping(document).get(key)
    return listed[0] if isinstance(listed, list) and listed else None


def _blob(image: Path, descriptor: object) -> dict[str, Any]:
    digest = _mapping(descriptor).get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        return {}
    algorithm, _, name = digest.partition(":")
    return _mapping(_json(image, f"blobs/{algorithm}/{name}"))


def _json(folder: Path, name: str) -> object:
    content = read_inside(folder, (name,), _DOCUMENT_BYTES + 1) if folder.is_dir() else None
    if content is None or len(content) > _DOCUMENT_BYTES:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


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
    """Return whether the image has a file or directory of this name; None where that can't be seen."""
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
    """Return the beginning of a program's output; the program is ended when that is enough, or too late."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except (OSError, ValueError):
        return None
    late = threading.Timer(_UNSQUASHFS_SECONDS, process.kill)
    late.start()
    try:
        return process.stdout.read(most) if process.stdout else None
    finally:
        late.cancel()
        process.kill()
        process.communicate()
