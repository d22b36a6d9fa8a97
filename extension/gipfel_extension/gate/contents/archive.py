"""OCI and Docker archives: their layers, and the entries of each layer in order."""

import json
import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from ...telemetry.files import open_regular
from .permissions import Entry
from .squashfs import Unreadable

_MANIFEST_LIMIT = 16 << 20
_LARGEST_CONTENT = 256 << 30
_MOST_ENTRIES = 2_000_000
#: An index may name an index, also itself.
_DEEPEST_INDEX = 4
_STREAM: Final = "r|*"
_BROKEN = (
    tarfile.TarError, KeyError, IndexError, ValueError, TypeError, AttributeError, EOFError, zlib.error,
    lzma.LZMAError, RecursionError, OverflowError, OSError,
)  # fmt: skip


def is_archive(path: Path) -> bool:
    """Return whether a file is an OCI or Docker archive."""
    try:
        with open_regular(path, follow=True) as file, tarfile.open(fileobj=file) as archive:
            names = set()
            for _, member in zip(range(10_000), archive, strict=False):
                names.add(member.name.removeprefix("./"))
            return bool(names & {"index.json", "manifest.json"})
    except (tarfile.TarError, OSError, ValueError, zlib.error, EOFError):
        return False


def archive_files(path: Path) -> Iterator[tuple[Entry, BinaryIO | None]]:
    """Yield the entries of all layers, those that a later layer removes too: who has the image can read them.

    Raises
    ------
    Unreadable
        The archive is broken or too large.
    """
    total, count = 0, 0
    with archive_errors(path), open_regular(path, follow=True) as file, tarfile.open(fileobj=file) as archive:
        for layer in layers(archive):
            for member, stream in members(layer):
                total, count = total + member.size, count + 1
                if total > _LARGEST_CONTENT or count > _MOST_ENTRIES:
                    raise Unreadable(f"{path} holds too many files, or files that are too large.")
                kind = stat.S_IFREG if member.isreg() else stat.S_IFDIR if member.isdir() else stat.S_IFLNK
                yield Entry(clean(member.name), kind | (member.mode & 0o7777), member.size), stream


@contextmanager
def archive_errors(path: Path) -> Iterator[None]:
    """Turn what tarfile and json raise for a broken archive or a member of it into `Unreadable`."""
    try:
        yield
    except _BROKEN as error:
        raise Unreadable(f"{path} is not a valid OCI archive ({type(error).__name__}).") from error


def layers(archive: tarfile.TarFile) -> list[BinaryIO]:
    """Return the layers of an archive, the lowest first. Source: OCI image-spec, image-layout.md."""
    names = {member.name.removeprefix("./"): member for member in archive.getmembers()}

    def blob(name: str) -> BinaryIO:
        stream = archive.extractfile(names[name])
        if stream is None:
            raise KeyError(name)
        return cast("BinaryIO", stream)

    def document(name: str) -> Any:
        return json.loads(blob(name).read(_MANIFEST_LIMIT))

    def digest(entry: dict[str, str]) -> str:
        return "blobs/" + entry["digest"].replace(":", "/")

    if "index.json" in names:
        manifest = document(digest(document("index.json")["manifests"][0]))
        for _ in range(_DEEPEST_INDEX):
            if "manifests" in manifest:
                manifest = document(digest(manifest["manifests"].pop(0)))
        return [blob(digest(layer)) for layer in manifest["layers"]]
    return [blob(name) for name in document("manifest.json")[0]["Layers"]]


def members(layer: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, BinaryIO | None]]:
    """Yield the members of a layer; regular files with their content, which is read forward."""
    with tarfile.open(fileobj=layer, mode=_STREAM) as tar:
        for member in tar:
            yield member, cast("BinaryIO", tar.extractfile(member)) if member.isreg() else None


def clean(name: str) -> str:
    """Return the path of a member below the root."""
    return os.path.normpath(name).lstrip("/")
