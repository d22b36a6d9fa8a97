"""The files of a directory, a SquashFS image or an OCI archive that say what is installed."""

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from gipfel_cluster.model import GipfelError

from ...telemetry.files import open_regular, read_regular
from .locations import LARGEST, MOST_FILES, kind_of

_LISTING_LIMIT = 512 << 20
_TIMEOUT_S = 120
_LARGEST_TOTAL = 1 << 30
_MANIFEST_LIMIT = 16 << 20
_STREAM: Final = "r|*"


class Unreadable(GipfelError):  # noqa: N818 - it is what a scan reports, not a fault of the program
    """An image whose packages can't be read."""


def is_image(path: Path) -> bool:
    """Return whether a file is a SquashFS image or an OCI or Docker archive."""
    return is_squashfs(path) or bool(_archive_members(path))


def is_squashfs(path: Path) -> bool:
    """Return whether a file is a SquashFS image."""
    with open_regular(path, follow=True) as file:
        return file.read(4) == b"hsqs"


@contextmanager
def image_files(path: Path) -> Iterator[dict[str, Path]]:
    """Provide the files that matter, by their path in the image.

    Raises
    ------
    Unreadable
        The image can't be read, or has too many files.
    """
    if path.is_dir():
        yield _of_directory(path)
        return
    with tempfile.TemporaryDirectory(prefix="gipfel-scan-") as name:
        if is_squashfs(path):
            yield _of_squashfs(path, Path(name, "root"))
        else:
            yield _of_archive(path, Path(name))


def _of_directory(root: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder, names, files in os.walk(root):
        names.sort()
        inside = os.path.relpath(folder, root)
        for name in files:
            path = name if inside == "." else f"{inside}/{name}"
            if kind_of(path) and not Path(folder, name).is_symlink():
                found[path] = Path(folder, name)
        _check_count(found)
    return found


def _of_squashfs(path: Path, target: Path) -> dict[str, Path]:
    if shutil.which("unsquashfs") is None:
        raise Unreadable("A SquashFS image can't be read without unsquashfs.", "Install squashfs-tools.")
    listing = _run(("unsquashfs", "-lc", "-d", "", str(path.absolute())), path)
    wanted = [name.lstrip("/") for name in listing.decode(errors="surrogateescape").splitlines()]
    wanted = [name for name in wanted if kind_of(name)]
    _check_count(dict.fromkeys(wanted))
    if not wanted:
        return {}
    limits = ("prlimit", f"--fsize={LARGEST}", "--cpu=120") if shutil.which("prlimit") else ()
    with tempfile.NamedTemporaryFile("w", errors="surrogateescape") as names:
        names.write("\n".join(wanted) + "\n")
        names.flush()
        command = ("unsquashfs", "-no-progress", "-no-xattrs", "-no-wildcards", "-quiet", "-d", str(target))
        _run((*limits, *command, "-extract-file", names.name, str(path.absolute())), path, unpacks=True)
    found = {name: target / name for name in wanted}
    return {name: place for name, place in found.items() if place.is_file() and not place.is_symlink()}


def _run(argv: tuple[str, ...], path: Path, *, unpacks: bool = False) -> bytes:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unreadable(f"Reading {path} took longer than {_TIMEOUT_S} s.") from None
    # As a plain user it can't set owners, which it reports with status 2.
    if done.returncode not in ((0, 2) if unpacks else (0,)) or len(done.stdout) > _LISTING_LIMIT:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise Unreadable(f"{path} can't be read: {lines[-1][:200] if lines else 'unsquashfs failed'}.")
    return done.stdout


def _archive_members(path: Path) -> set[str]:
    """Return which of the files of an OCI or Docker archive a tar file has."""
    try:
        with open_regular(path, follow=True) as file, tarfile.open(fileobj=file) as archive:
            names = set()
            for _, member in zip(range(10_000), archive, strict=False):
                names.add(member.name.removeprefix("./"))
            return names & {"index.json", "manifest.json"}
    except (tarfile.TarError, OSError, ValueError, zlib.error, EOFError):
        return set()


def _of_archive(path: Path, target: Path) -> dict[str, Path]:
    """Apply the layers of an archive in their order, with what they remove.

    Source: OCI image-spec, layer.md.
    """
    found: dict[str, Path] = {}
    taken = 0
    try:
        with open_regular(path, follow=True) as file, tarfile.open(fileobj=file) as archive:
            for layer in _layers(archive):
                for member, stream in _members(layer):
                    _remove(member.name, found)
                    if stream is None:
                        continue
                    taken += member.size
                    if member.size > LARGEST or taken > _LARGEST_TOTAL:
                        raise Unreadable(f"{path} holds files that are too large.")
                    place = target / str(len(found) + taken)
                    place.write_bytes(stream.read(member.size))
                    found[_clean(member.name)] = place
                    _check_count(found)
    except (tarfile.TarError, KeyError, ValueError, TypeError, AttributeError, EOFError, zlib.error) as error:
        raise Unreadable(f"{path} is not a valid OCI archive ({type(error).__name__}).") from error
    return found


def _layers(archive: tarfile.TarFile) -> list[BinaryIO]:
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
        while "manifests" in manifest:
            manifest = document(digest(manifest["manifests"].pop(0)))
        return [blob(digest(layer)) for layer in manifest["layers"]]
    return [blob(name) for name in document("manifest.json")[0]["Layers"]]


def _members(layer: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, BinaryIO | None]]:
    with tarfile.open(fileobj=layer, mode=_STREAM) as tar:
        for member in tar:
            wanted = member.isreg() and kind_of(_clean(member.name))
            yield member, cast("BinaryIO", tar.extractfile(member)) if wanted else None


def _remove(name: str, found: dict[str, Path]) -> None:
    folder, _, last = _clean(name).rpartition("/")
    if last == ".wh..wh..opq":
        gone = f"{folder}/"
    elif last.startswith(".wh."):
        gone = f"{folder}/{last[4:]}".lstrip("/")
    else:
        # A later layer's entry replaces an earlier one of the same name.
        gone = _clean(name)
        found.pop(gone, None)
        return
    for path in [each for each in found if each == gone or each.startswith(gone.rstrip("/") + "/")]:
        del found[path]


def _clean(name: str) -> str:
    return os.path.normpath(name).lstrip("/")


def _check_count(found: dict[str, Any]) -> None:
    if len(found) > MOST_FILES:
        raise Unreadable(f"It has more than {MOST_FILES} files that describe packages.")


def image_text(path: Path) -> str:
    """Return a file of an image as text, whatever its bytes are."""
    return read_regular(path, LARGEST).decode(errors="replace")
