"""What can be learnt from an image on this machine without entering it."""

import os
import struct
import subprocess
from pathlib import Path

from ..environment import parse_environment
from ..model import GipfelError

_MAGIC = b"hsqs"
_SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQ")  # magic … flags, ids, major, minor, root inode, bytes used
_SECONDS = 10.0


def check_image(path: Path) -> None:
    """See that an image is a SquashFS file that is whole, or an unpacked folder.

    Raises
    ------
    GipfelError
        It is missing, unreadable, cut off, or something else.
    """
    try:
        if path.is_dir():
            if not any(path.iterdir()):
                raise GipfelError(
                    f"The image {path} is an empty folder.", "Give the root of an unpacked image."
                )
            return
        if not path.is_file() and path.exists():
            raise GipfelError(f"The image {path} is neither a file nor a folder.", "Give a SquashFS file.")
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
        raise GipfelError(f"The image {path} is no SquashFS file.", fix)
    if len(head) < _SUPERBLOCK.size:
        raise GipfelError(f"The image {path} is cut off.", "Copy or import it again.")
    *_, major, minor, _root, used = _SUPERBLOCK.unpack(head)
    if major != 4:
        raise GipfelError(f"The image {path} is a SquashFS of version {major}.{minor}, not 4.0.", fix)
    if used > size:
        raise GipfelError(
            f"The image {path} is cut off: {size} of {used} bytes are there.", "Copy or import it again."
        )


def image_environment(path: Path) -> dict[str, str]:
    """Read what an image brings in its ``/etc/environment``; empty where that can't be read."""
    try:
        if path.is_dir():
            file = path / "etc/environment"
            return parse_environment(file.read_text(errors="replace")) if file.is_file() else {}
        answer = subprocess.run(
            ["unsquashfs", "-cat", str(path), "etc/environment"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_environment(answer.stdout.decode(errors="replace"))
