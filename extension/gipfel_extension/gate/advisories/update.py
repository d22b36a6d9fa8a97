"""Update a local mirror of OSV from another directory or from a web server.

Each archive is copied beside the old one, read completely, compared with the old one, and only then renamed
to replace it: a reader sees either the old or the new archive, and a failed update leaves the old one.
"""

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, NamedTuple, cast

from gipfel_cluster.model import Frozen, GipfelError, one_line

from ...telemetry.files import open_regular
from .mirror import MAX_RECORD_BYTES, MAX_RECORDS, modified_s

#: Ecosystems of the packages that Gipfel finds in images. OSV's bucket has an archive for each.
ECOSYSTEMS = (
    "AlmaLinux", "Alpine", "Debian", "Go", "PyPI", "Rocky Linux", "Ubuntu", "npm", "openSUSE",
)  # fmt: skip
_MAX_ARCHIVE_BYTES = 4 << 30
_MAX_CONTENT_BYTES = 64 << 30
_TIMEOUT_S = 60.0
_CHUNK = 1 << 20
_BROKEN = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError,
    http.client.HTTPException,
)  # fmt: skip


class Updated(Frozen):
    """An archive that was replaced; `newest_s` is the time of its newest record, in seconds since 1970."""

    ecosystem: str
    records: int
    newest_s: float


class _Content(NamedTuple):
    records: int
    newest_s: float


def update_mirror(root: Path, source: str, ecosystems: Sequence[str] = ()) -> tuple[list[Updated], list[str]]:
    """Replace the archives of a mirror; return those that were replaced, and a line for each that was not.

    Parameters
    ----------
    source
        A directory, or an address that begins with ``https://`` or ``http://``; the archives are
        ``<source>/<ecosystem>/all.zip``.
    ecosystems
        By default those in `source` if it is a directory, else `ECOSYSTEMS`.

    Raises
    ------
    GipfelError
        The source is not a directory or an address, or none of the archives is in it.
    """
    names = list(ecosystems) or _names(source)
    updated: list[Updated] = []
    problems: list[str] = []
    for name in names:
        if not name or name.startswith(".") or "/" in name or not name.isprintable():
            raise GipfelError(f"{name[:80]!r} is not an ecosystem of OSV.", "Write it as OSV does: PyPI.")
        try:
            updated.append(_update(root / name / "all.zip", source, name))
        except (GipfelError, OSError, *_BROKEN) as error:
            reason = getattr(error, "problem", "") or getattr(error, "strerror", "") or str(error)
            problems.append(one_line(f"{name} was not updated: {reason[:300]}"))
    if not updated:
        raise GipfelError(
            f"No advisories of {source} could be used. {problems[0] if problems else 'There are none.'}",
            "Give a directory or an address with <ecosystem>/all.zip, such as a copy of OSV's bucket.",
        )
    return updated, problems


def _names(source: str) -> list[str]:
    if _is_address(source):
        return list(ECOSYSTEMS)
    if not Path(source).is_dir():
        raise GipfelError(
            f"{source[:200]!r} is neither a directory nor an address.", "Begin an address with https://."
        )
    return sorted(each.parent.name for each in Path(source).glob("*/all.zip"))


def _is_address(source: str) -> bool:
    return source.startswith(("https://", "http://"))


def _update(target: Path, source: str, name: str) -> Updated:
    target.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=target.parent, prefix=".all.zip.", delete=False) as copy:
        try:
            with _opened(source, name) as stream:
                _copy(stream, cast("BinaryIO", copy))
            copy.flush()
            os.fsync(copy.fileno())
            found = _content(cast("BinaryIO", copy))
            _compare(found, target)
            # A site's mirror is read by all users.
            os.fchmod(copy.fileno(), 0o644)
            Path(copy.name).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(copy.name).unlink()
            raise
    return Updated(ecosystem=name, records=found.records, newest_s=found.newest_s)


@contextmanager
def _opened(source: str, name: str) -> Iterator[BinaryIO]:
    if not _is_address(source):
        with open_regular(Path(source, name, "all.zip"), follow=True) as file:
            yield file
        return
    address = f"{source.rstrip('/')}/{urllib.parse.quote(name)}/all.zip"
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http(s) only
            yield answer
    except urllib.error.HTTPError as error:
        raise OSError(None, f"the server answered {error.code} for {address}") from error
    except urllib.error.URLError as error:
        raise OSError(None, f"{address} can't be reached ({error.reason})") from error


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    expected = getattr(source, "length", None)
    count = 0
    while piece := source.read(_CHUNK):
        count += len(piece)
        if count > _MAX_ARCHIVE_BYTES:
            raise ValueError(f"the archive is larger than {_MAX_ARCHIVE_BYTES >> 30} GiB")
        target.write(piece)
    if expected is not None and count != expected:
        raise ValueError(f"only {count} of {expected} bytes arrived")


def _content(file: BinaryIO) -> _Content:
    """Return the number of records and the newest time; read every record, so that damage is noticed."""
    newest = 0.0
    with zipfile.ZipFile(file) as archive:
        entries = [each for each in archive.infolist() if each.filename.endswith(".json")]
        total = sum(each.file_size for each in entries)
        if not entries or len(entries) > MAX_RECORDS or total > _MAX_CONTENT_BYTES:
            raise ValueError("the archive is empty or too large")
        for entry in entries:
            if entry.file_size > MAX_RECORD_BYTES:
                continue
            content = archive.read(entry)
            newest = max(newest, modified_s(content))
            if not content.rstrip().endswith(b"}"):
                raise ValueError(f"the record {entry.filename[:80]} is cut off")
        if not isinstance(json.loads(archive.read(entries[-1])), dict):
            raise ValueError(f"the record {entries[-1].filename[:80]} is not an object")  # noqa: TRY004
    if not newest:
        raise ValueError("no record says when it was changed")
    return _Content(len(entries), newest)


def _compare(new: _Content, target: Path) -> None:
    """Refuse an archive that is older or much smaller than the present one: its source may be incomplete."""
    try:
        with open_regular(target, follow=True) as file:
            old = _content(file)
    except (OSError, *_BROKEN):
        return
    if new.newest_s < old.newest_s:
        raise ValueError("it is older than the one that is there. Remove that one to go back.")
    if new.records < old.records / 2:
        raise ValueError(
            f"it has {new.records} records, and the one that is there {old.records}. Remove that one if this "
            "is right."
        )
