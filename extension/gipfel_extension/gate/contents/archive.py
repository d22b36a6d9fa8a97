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
_MAX_CONTENT_BYTES = 256 << 30
_MAX_ENTRIES = 2_000_000
#: An index may name an index, also itself.
_MAX_INDEX = 4
#: Attestations of a build, which an index lists beside its images.
_ATTESTATION = "application/vnd.in-toto+json"
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


def archive_files(path: Path, *, one_image: bool = False) -> Iterator[tuple[Entry, BinaryIO | None]]:
    """Yield the entries of all layers, those that a later layer removes too: who has the image can read them.

    A broken layer does not keep the others from being read.

    Raises
    ------
    Unreadable
        The archive is broken or too large, or holds several images with `one_image`.
    """
    total, count = 0, 0
    broken: Exception | None = None
    with archive_errors(path), open_regular(path, follow=True) as file, tarfile.open(fileobj=file) as archive:
        images, blobs = layers(archive)
        if one_image and images > 1:
            raise Unreadable(f"{path} holds {images} images; save each to its own archive.")
        for layer in blobs:
            try:
                for member, stream in members(layer):
                    total, count = total + member.size, count + 1
                    if total > _MAX_CONTENT_BYTES or count > _MAX_ENTRIES:
                        raise Unreadable(f"{path} holds too many files, or files that are too large.")
                    kind = (
                        stat.S_IFREG if member.isreg() else stat.S_IFDIR if member.isdir() else stat.S_IFLNK
                    )
                    yield Entry(clean(member.name), kind | (member.mode & 0o7777), member.size), stream
            except _BROKEN as error:
                broken = broken or error
        if broken:
            raise broken


@contextmanager
def archive_errors(path: Path) -> Iterator[None]:
    """Turn what tarfile and json raise for a broken archive or a member of it into `Unreadable`."""
    try:
        yield
    except _BROKEN as error:
        raise Unreadable(f"{path} is not a valid OCI archive ({type(error).__name__}).") from error


def layers(archive: tarfile.TarFile) -> tuple[int, list[BinaryIO]]:
    """Return the number of images in an archive and the layers of all, each once, an image's lowest first.

    Source: OCI image-spec, image-layout.md and image-index.md; moby's image/spec for manifest.json.
    """
    names = {member.name.removeprefix("./"): member for member in archive.getmembers()}

    def blob(name: str) -> BinaryIO:
        stream = archive.extractfile(names[name.removeprefix("./")])
        if stream is None:
            raise KeyError(name)
        return cast("BinaryIO", stream)

    def document(name: str) -> Any:
        return json.loads(blob(name).read(_MANIFEST_LIMIT))

    images: dict[tuple[str, ...], None] = {}
    # Programs read one of the two files: what the other names counts as well.
    if "index.json" in names:
        left = [(each, 0) for each in document("index.json")["manifests"]]
        seen: set[str] = set()
        while left:
            entry, depth = left.pop(0)
            name = "blobs/" + entry["digest"].replace(":", "/")
            if name in seen:
                continue
            seen.add(name)
            if name not in names and depth:
                # An index names the images of all platforms, of which an archive may hold one.
                continue
            manifest = document(name)
            if depth > _MAX_INDEX:
                raise ValueError("its indexes are nested too deeply")
            left += [(each, depth + 1) for each in manifest.get("manifests", ())]
            images[
                tuple(
                    "blobs/" + layer["digest"].replace(":", "/")
                    for layer in manifest.get("layers", ())
                    if layer.get("mediaType") != _ATTESTATION
                )
            ] = None
    if "manifest.json" in names:
        images.update((tuple(image["Layers"]), None) for image in document("manifest.json"))
    images.pop((), None)
    if not images:
        raise KeyError("layers")
    found = dict.fromkeys(name for image in images for name in image)
    return len(images), [blob(name) for name in found]


def members(layer: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, BinaryIO | None]]:
    """Yield the members of a layer; regular files with their content, which is read forward."""
    with tarfile.open(fileobj=layer, mode=_STREAM) as tar:
        for member in tar:
            yield member, cast("BinaryIO", tar.extractfile(member)) if member.isreg() else None


def clean(name: str) -> str:
    """Return the path of a member below the root."""
    return os.path.normpath(name).lstrip("/")
