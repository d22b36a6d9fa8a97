"""Manifest of a data set inside its image, and a summary with hashes beside it.

The manifest, ``.gipfel-manifest.jsonl`` in the image's root, has a header and a line per entry, sorted by
path. It depends only on names, contents, modes and options, so that packing the same data again gives the
same image. The summary, ``NAME.sqsh.json``, also has the origin of the data and the hashes of the image's
chunks.
Names that are not valid UTF-8 are written with Python's ``surrogateescape``.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, first_problem
from gipfel_cluster.runs import write_atomically

from ..telemetry.files import open_regular, read_json, read_regular

MANIFEST_NAME = b".gipfel-manifest.jsonl"
CROISSANT_PATH = b"croissant.json"
#: Bytes of the image that each chunk hash in the summary covers.
CHUNK_BYTES = 4 << 20

_VERSION = 1
_MAX_SUMMARY_BYTES = 256 << 20
_MAX_LINE_BYTES = 512 << 10
MAX_CROISSANT_BYTES = 4 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KINDS = frozenset(("file", "directory", "symlink", "hardlink", "removed"))

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory or link in the manifest.

    `size` is in bytes. `target` is the target of a symbolic link, or the first name of a hard-linked file.
    The kind ``removed`` is a tombstone for an entry that was removed; `sha256` is the hash that a file had.
    """

    path: bytes
    kind: str
    mode: int
    size: int = 0
    sha256: str = ""
    target: bytes = b""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    #: URL and time (UTC) of a fetched item; not compared, since only the content counts.
    url: str = field(default="", compare=False)
    fetched: str = field(default="", compare=False)

    def line(self) -> bytes:
        """Return the entry's line of the manifest."""
        fields: dict[str, Any] = {"path": to_text(self.path), "kind": self.kind, "mode": f"{self.mode:04o}"}
        if self.kind == "file":
            fields |= {"size": self.size}
        if self.sha256:
            fields |= {"sha256": self.sha256}
        if self.target:
            fields["target"] = to_text(self.target)
        if self.xattrs:
            fields["xattrs"] = {name: value.hex() for name, value in self.xattrs}
        if self.url:
            fields |= {"url": self.url, "fetched": self.fetched}
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


class Origin(Frozen):
    """Origin of a data set: its directory, the time of packing (UTC), and the program that packed it."""

    source: str
    packed: str
    packer: str


class Base(Frozen):
    """The image that a layer extends."""

    file: str
    root: Digest


class Removal(Frozen):
    """A removal of paths: the root hash before it, the time (UTC), and the number of paths."""

    root: Digest
    removed: str
    paths: int = Field(ge=1)


class Packing(Frozen):
    """Settings that an image was made with: access pattern, compressor and block size in bytes."""

    access: Literal["random", "sequential"]
    compression: Literal["none", "zstd", "gzip"]
    block_size: int = Field(ge=4096, le=1 << 20)


class Summary(Frozen):
    """The summary file beside an image.

    Sizes are in bytes. `root` is the hash over the image's size and all chunk hashes; `manifest` is the hash
    of the manifest; `base` is the image that a layer extends, else None; `croissant` is the Croissant
    metadata.
    """

    version: Literal[1] = 1
    bytes: int = Field(ge=0)
    chunk_bytes: Literal[4194304] = 4194304
    root: Digest
    manifest: Digest
    files: int = Field(ge=0)
    data_bytes: int = Field(ge=0)
    packing: Packing
    origin: Origin
    base: Base | None = None
    removals: tuple[Removal, ...] = ()
    croissant: dict[str, Any] | None = None
    chunks: tuple[Digest, ...]


def to_text(path: bytes) -> str:
    """Return a path as text, which `to_bytes` converts back."""
    return path.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Return the path for a text of `to_text`."""
    return text.encode("utf-8", "surrogateescape")


def display_path(path: bytes) -> str:
    """Return a path for display: one line, with escapes for characters that are not printable."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def display_paths(paths: Sequence[bytes], limit: int = 5) -> str:
    """Return the first `limit` paths for display, and how many more there are."""
    more = f" and {len(paths) - limit} more" if len(paths) > limit else ""
    return ", ".join(display_path(each) for each in paths[:limit]) + more


def manifest_lines(entries: Iterable[Entry], packing: Packing) -> Iterator[bytes]:
    """Yield the lines of a manifest."""
    header = {"gipfel_manifest": _VERSION, **packing.model_dump()}
    yield json.dumps(header, separators=(",", ":")).encode() + b"\n"
    for entry in entries:
        yield entry.line()


def parse_manifest(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the entries of a manifest.

    Raises
    ------
    ValueError
        A line is not valid, too long, or not in the order of paths.
    """
    stream = iter(lines)
    header = json.loads(next(stream, b"null"))
    if not isinstance(header, dict) or header.get("gipfel_manifest") != _VERSION:
        raise ValueError("its first line is not that of a manifest")
    before = b""
    for line in stream:
        entry = _entry(line)
        if entry.path <= before:
            raise ValueError("its paths are not sorted")
        before = entry.path
        yield entry


def _entry(line: bytes) -> Entry:
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError("a line is too long")
    fields = json.loads(line)
    try:
        kind, size, digest = fields["kind"], fields.get("size", 0), fields.get("sha256", "")
        found = Entry(
            to_bytes(fields["path"]),
            kind,
            int(fields["mode"], 8),
            size,
            digest,
            to_bytes(fields.get("target", "")),
            tuple((name, bytes.fromhex(value)) for name, value in fields.get("xattrs", {}).items()),
            str(fields.get("url", "")),
            str(fields.get("fetched", "")),
        )
    except (TypeError, KeyError, AttributeError, UnicodeError) as error:
        raise ValueError("a line is not valid") from error
    is_valid = (
        isinstance(kind, str)
        and kind in _KINDS
        and isinstance(size, int)
        and size >= 0
        and isinstance(digest, str)
    )
    if is_valid and kind == "removed" and not digest:
        # A tombstone of an entry without content has no hash.
        return found
    if not is_valid or (kind in {"file", "removed"}) != bool(_DIGEST.fullmatch(digest)):
        raise ValueError("a line is not valid")
    return found


def root_of(size: int, chunks: Sequence[str]) -> str:
    """Return the root hash: SHA-256 of the image's size and of its chunk hashes."""
    found = hashlib.sha256(size.to_bytes(8, "big"))
    for chunk in chunks:
        found.update(bytes.fromhex(chunk))
    return found.hexdigest()


def summary_path(image: Path) -> Path:
    """Return the path of the summary beside an image."""
    return image.with_name(image.name + ".json")


def write_summary(image: Path, summary: Summary, mode: int) -> None:
    """Write the summary beside an image, with the image's read permissions."""
    path = summary_path(image)
    write_atomically(path, summary.model_dump_json(indent=1) + "\n")
    path.chmod(mode & 0o666)


def read_croissant(source: Path) -> dict[str, Any] | None:
    """Return ``croissant.json`` of a data set, or None. Source: docs.mlcommons.org/croissant."""
    try:
        return parse_croissant(read_regular(source / to_text(CROISSANT_PATH), MAX_CROISSANT_BYTES))
    except OSError:
        return None


def parse_croissant(content: bytes) -> dict[str, Any] | None:
    """Return the metadata in the content of a ``croissant.json``; None if it has no context."""
    try:
        # NaN and infinity are not JSON; a summary can't hold them.
        found = json.loads(content, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "@context" in found else None


def read_summary(image: Path) -> Summary | None:
    """Return the summary beside an image; None if there is none.

    If a replacement of the image was interrupted, there are two; the one that matches the image is returned.

    Raises
    ------
    GipfelError
        The summary can't be read or is inconsistent.
    """
    if is_earlier_image(image):
        return _read_summary(earlier_summary_path(image))
    return _read_summary(summary_path(image))


def is_earlier_image(image: Path) -> bool:
    """Return whether an image is still the old one after an interrupted replacement."""
    try:
        earlier = _read_summary(earlier_summary_path(image))
        if earlier is None:
            return False
        now = _read_summary(summary_path(image))
        if now is None:
            return True
        with open_regular(image, follow=True) as file:
            size = os.fstat(file.fileno()).st_size
            if size != earlier.bytes or now.bytes != earlier.bytes:
                return size == earlier.bytes
            pairs = enumerate(zip(earlier.chunks, now.chunks, strict=True))
            # Comparing one chunk that differs between the two is enough.
            number = next((number for number, (first, second) in pairs if first != second), 0)
            content = os.pread(file.fileno(), CHUNK_BYTES, number * CHUNK_BYTES)
    except (OSError, GipfelError):
        return False
    return now != earlier and hashlib.sha256(content).hexdigest() == earlier.chunks[number]


def earlier_summary_path(image: Path) -> Path:
    """Return the path where the summary of an image is kept while the image is being replaced."""
    return image.with_name(image.name + ".json.old")


def _read_summary(path: Path) -> Summary | None:
    try:
        content = read_json(path, _MAX_SUMMARY_BYTES, follow=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise GipfelError(f"{path} can't be read: {reason}.", "Copy it again.") from error
    return parse_summary(content, str(path))


def parse_summary(content: object, path: str) -> Summary:
    """Return a summary from its JSON value.

    Raises
    ------
    GipfelError
        It is inconsistent.
    """
    try:
        found = Summary.model_validate(content)
    except ValidationError as error:
        where, message = first_problem(error)
        raise GipfelError(
            f"{path} is not valid: {where or 'its content'}: {message}.", "Copy it again."
        ) from None
    if found.root != root_of(found.bytes, found.chunks) or len(found.chunks) != -(
        -found.bytes // CHUNK_BYTES
    ):
        raise GipfelError(f"{path} is not valid: its root hash is not that of its chunks.", "Copy it again.")
    return found
