"""What can be learnt from an image on this machine without entering it."""

import functools
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

from ..environment import IMAGE_FILES, parse_environment
from ..model import GipfelError
from .inside import read_inside
from .oci import oci_environment

_MAGIC = b"hsqs"
_SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQ")  # magic … flags, ids, major, minor, root inode, bytes used
_MOST = 1 << 16  # bytes of all files of variables


def check_image(path: Path) -> None:
    """See that an image is a SquashFS file that is whole, or an unpacked folder.

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
                    "Take image out to run without a container, or give the folder of an unpacked image.",
                )
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


def image_environment(path: Path) -> Mapping[str, str]:
    """Read what an image brings: its OCI configuration, and over it the files of variables in it."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return {}
    if stat.S_ISDIR(state.st_mode):
        files = (read_inside(path, (name,), _MOST) for name in IMAGE_FILES)
        return oci_environment(path) | parse_environment("\n".join(_text(each) for each in files))
    return _of_squashfs(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=64)
def _of_squashfs(path: Path, _changed: int, size: int) -> Mapping[str, str]:
    """Read it once as long as the file stays as it is, however many EDFs share the image."""
    if size < _SUPERBLOCK.size:
        return {}
    # One after the other, so that the last word is that of the last.
    return parse_environment(_text(read_inside(path, IMAGE_FILES, _MOST)))


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")
