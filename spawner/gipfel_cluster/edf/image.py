"""Inspect an image on this machine, an unpacked directory or a SquashFS file, without starting it.

The order below: checks and facts (`check_image`, `image_environment`, `image_architecture`), the OCI
configuration, and single files of an image (`read_image_file`, `image_contains`), which the others use.

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
_MAX_LINKS = 40
_PATH_ONLY = os.O_PATH | os.O_CLOEXEC
_DOCUMENT_BYTES = 4 << 20  # bytes; a manifest is a few kilobytes
_DIGEST = re.compile(r"(sha256|sha512):[0-9a-f]{64,128}")
_SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQ")  # magic … flags, ids, major, minor, root inode, bytes used
_VARIABLES_BYTES = 1 << 16  # bytes of all files of variables
#: ``e_machine`` of the ELF header → output of ``uname -m``. Source: System V ABI, chapter 4.
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
_MACHINE_ALIASES = {"i686": "i386", "arm64": "aarch64", "amd64": "x86_64", "ppc64": "ppc64le"}
_COMPATIBLE = {("x86_64", "i386"), ("aarch64", "armv7l")}
#: Bytes of an ELF file up to the end of ``e_machine``.
_ELF_HEADER = 20
#: Programs that are regular files in common distributions, and the dynamic loaders of images without a shell.
_PROGRAMS = (
    *("usr/bin/dash", "usr/bin/bash", "usr/bin/env", "usr/bin/coreutils", "usr/bin/ls"),
    *("bin/busybox", "bin/dash", "bin/bash", "bin/ls", "usr/sbin/ldconfig.real", "sbin/ldconfig"),
    *("usr/lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2"),
    *("usr/lib/ld-linux-aarch64.so.1", "lib/ld-linux-aarch64.so.1"),
    *("lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1"),
)


def check_image(path: Path) -> None:
    """Check that an image is a complete SquashFS file or an unpacked directory.

    Raises
    ------
    GipfelError
        It is missing, unreadable, truncated, this machine's own root, or neither of the two.
    """
    try:
        if path.is_dir():
            if path.samefile("/"):
                raise GipfelError(
                    f"The image {path} is this machine itself.",
                    "Remove image to run without a container, or give the directory of an unpacked image.",
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
    """Return the variables that an image sets: its OCI configuration, overridden by its environment files."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return {}
    if stat.S_ISDIR(state.st_mode):
        files = (read_image_file(path, (name,), _VARIABLES_BYTES) for name in IMAGE_FILES)
        return oci_environment(path) | parse_environment("\n".join(_text(each) for each in files))
    return _squashfs_environment(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=64)
def _squashfs_environment(path: Path, _changed: int, size: int) -> Mapping[str, str]:
    """Return the variables of an image file; the modification time and size are keys of the cache."""
    if size < _SUPERBLOCK.size:
        return {}
    # unsquashfs writes the files in this order, so the last one wins.
    return parse_environment(_text(read_image_file(path, IMAGE_FILES, _VARIABLES_BYTES)))


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")


def image_architecture(image: Path) -> str | None:
    """Return an image's machine type in the terms of ``uname -m``, or None if no program can be read."""
    for name in (_PROGRAMS,) if not image.is_dir() else tuple((each,) for each in _PROGRAMS):
        head = read_image_file(image, name, _ELF_HEADER)
        if head and len(head) == _ELF_HEADER and head.startswith(b"\x7fELF"):
            number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
            return _MACHINES.get(number, f"ELF machine {number}")
    return None


def can_run(machine: str, image: str) -> bool:
    """Return whether a machine runs programs of an image's architecture without emulation."""
    machine = _MACHINE_ALIASES.get(machine, machine)
    return machine == image or (machine, image) in _COMPATIBLE


def oci_environment(image: Path) -> dict[str, str]:
    """Read the variables that an image's OCI configuration sets; empty without a configuration."""
    bundle = image.parent if image.name == "rootfs" else image
    process = _mapping(_mapping(_json(bundle, "config.json")).get("process"))
    return _variables(process.get("env")) or _variables(_layout(image).get("Env"))


def oci_entry_point(image: Path) -> tuple[str, ...]:
    """Read the entry point's argv from an image layout; empty if it has none or a process can't be given it.

    A runtime bundle does not have it: its ``process.args`` are entry point and command in one list.
    """
    entrypoint = _layout(image).get("Entrypoint")
    listed = [word for word in entrypoint if isinstance(word, str)] if isinstance(entrypoint, list) else []
    return tuple(listed) if all(map(_is_valid_variable, listed)) else ()


def _layout(image: Path) -> dict[str, Any]:
    """Return the ``config`` section of the image configuration that the first manifest names."""
    config = _blob(image, _blob(image, _first(_json(image, "index.json"), "manifests")).get("config"))
    return _mapping(config.get("config"))


def _variables(content: object) -> dict[str, str]:
    pairs = (
        [each.partition("=") for each in content if isinstance(each, str)]
        if isinstance(content, list)
        else []
    )
    return {
        name: value for name, equals, value in pairs if name and equals and _is_valid_variable(name + value)
    }


def _is_valid_variable(text: str) -> bool:
    """Return whether a process can be given a text: JSON may contain NUL and lone surrogates."""
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
    content = read_image_file(folder, (name,), _DOCUMENT_BYTES + 1) if folder.is_dir() else None
    if content is None or len(content) > _DOCUMENT_BYTES:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read_image_file(image: Path, names: Sequence[str], limit: int) -> bytes | None:
    """Return up to ``limit`` bytes of the first regular file among ``names``; None if none can be read.

    Parameters
    ----------
    names
        Paths in the image without the leading slash.
    """
    if image.is_dir():
        return next(filter(None, (_read(image, name, limit) for name in names)), None)
    if not _is_squashfs(image):
        return None
    return _output(("unsquashfs", "-no-wildcards", "-cat", str(image), *names), limit) or None


def image_contains(image: Path, name: str) -> bool | None:
    """Return whether the image has a file or directory of this name; None if it can't be listed."""
    if image.is_dir():
        return _exists(image, name)
    if not _is_squashfs(image):
        return None
    depth = str(len(Path(name).parts))
    listed = _output(("unsquashfs", "-follow-symlinks", "-max-depth", depth, "-l", str(image), name), 1 << 20)
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


def _read(root: Path, name: str, limit: int) -> bytes | None:
    try:
        with _opened(root, name) as file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            # Read the file that was checked, even if it has been replaced.
            with Path(f"/proc/self/fd/{file}").open("rb") as content:
                return content.read(limit)
    except (OSError, ValueError):
        return None


def _exists(root: Path, name: str) -> bool:
    try:
        with _opened(root, name):
            return True
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _opened(root: Path, name: str) -> Iterator[int]:
    """Open a path of an unpacked image, resolving links against the image's root.

    The descriptor is ``O_PATH``, so opening a named pipe does not block.

    Raises
    ------
    OSError
        The path does not exist, can't be reached, or has too many links.
    """
    opened = [os.open(root, _PATH_ONLY | os.O_DIRECTORY)]
    try:
        todo, links = name.split("/")[::-1], 0
        while todo:
            part = todo.pop()
            if part == "..":
                _close_from(opened, max(1, len(opened) - 1))
                continue
            if part in {"", "."}:
                continue
            opened.append(os.open(part, _PATH_ONLY | os.O_NOFOLLOW, dir_fd=opened[-1]))
            if not stat.S_ISLNK(os.fstat(opened[-1]).st_mode):
                continue
            target = os.readlink("", dir_fd=opened[-1])
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
            _close_from(opened, 1 if target.startswith("/") else len(opened) - 1)
            todo.extend(target.split("/")[::-1])
        yield opened[-1]
    finally:
        _close_from(opened, 0)


def _close_from(opened: list[int], first: int) -> None:
    for file in opened[first:]:
        os.close(file)
    del opened[first:]


def _output(argv: Sequence[str], limit: int) -> bytes | None:
    """Return up to ``limit`` bytes of a program's output, and kill it after that or after a time limit."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except (OSError, ValueError):
        return None
    timer = threading.Timer(_UNSQUASHFS_SECONDS, process.kill)
    timer.start()
    try:
        return process.stdout.read(limit) if process.stdout else None
    finally:
        timer.cancel()
        process.kill()
        process.communicate()
