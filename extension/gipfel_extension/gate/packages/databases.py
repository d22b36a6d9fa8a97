"""Read the package databases of distributions: dpkg, apk and rpm, with the files that each package owns.

A database that is truncated, or has an entry without a name or version, may hide packages: its reader yields
the packages that it can read, and then raises.
"""

import re
import sqlite3
import struct
from collections.abc import Iterator
from email.parser import HeaderParser

from ..model import Package

_MAX_PACKAGES = 200_000
_SOURCE = re.compile(r"(\S+)(?:\s+\(([^)]+)\))?")
_NAME, _VERSION, _RELEASE, _EPOCH, _SOURCE_RPM = 1000, 1001, 1002, 1003, 1044
_DIR_INDEXES, _BASE_NAMES, _DIR_NAMES = 1116, 1117, 1118
_STRING, _STRINGS, _I18N, _INT32 = 6, 8, 9, 4
#: rpm distributions whose advisories name the source package.
_BY_SOURCE = ("Rocky Linux", "openSUSE")


def read_dpkg(text: str, ecosystem: str, path: str) -> Iterator[Package]:
    """Yield the installed packages of dpkg's ``status``.

    Raises
    ------
    ValueError
        It is cut off, or an entry has no name or version; the others were yielded before.
    """
    parser = HeaderParser()
    paragraphs = [each for each in re.split(r"\n\s*\n", text) if each.strip()]
    broken = 0
    for paragraph in paragraphs[:_MAX_PACKAGES]:
        fields = parser.parsestr(paragraph.lstrip("\n"))
        name, version = fields.get("Package"), fields.get("Version")
        # Entries in distroless images have no Status, and come with files of checksums.
        if not fields.get("Status", "x installed").endswith(" installed") or (
            not name and "/status.d/" in path
        ):
            continue
        if not name or not version or len(fields.get_all("Version", [])) > 1:
            broken += 1
            continue
        source = _SOURCE.match(fields.get("Source", ""))
        yield Package(
            ecosystem=ecosystem,
            name=name.strip(),
            version=version.strip(),
            path=path,
            source=source[1] if source else "",
            source_version=(source[2] or "") if source else "",
        )
    _check_complete(text, broken, len(paragraphs))


def _check_complete(text: str, broken: int, entries: int) -> None:
    """Raise if a text database has broken entries, has too many, or is truncated."""
    if entries > _MAX_PACKAGES:
        raise ValueError(f"it has more than {_MAX_PACKAGES} entries")
    if broken:
        raise ValueError(f"{broken} of its entries have no name or no single version")
    if text and not text.endswith("\n"):
        raise ValueError("it is cut off")


def read_apk(text: str, ecosystem: str, path: str) -> Iterator[tuple[Package, list[str]]]:
    """Yield each package of apk's ``installed`` with the files it owns.

    Raises
    ------
    ValueError
        It is cut off, or an entry has no name or version; the others were yielded before.
    """
    paragraphs = [each for each in text.split("\n\n") if each.strip()]
    broken = 0
    for paragraph in paragraphs[:_MAX_PACKAGES]:
        values: dict[str, str] = {}
        folder, files = "", []
        for line in paragraph.splitlines():
            key, _, value = line.partition(":")
            if key == "F":
                folder = value
            elif key == "R":
                files.append(f"{folder}/{value}".lstrip("/"))
            else:
                values.setdefault(key, value)
        if values.get("P") and values.get("V"):
            package = Package(
                ecosystem=ecosystem,
                name=values["P"],
                version=values["V"],
                path=path,
                source=values.get("o", ""),
            )
            yield package, files
        else:
            broken += 1
    _check_complete(text, broken, len(paragraphs))


def read_rpm(content: bytes, ecosystem: str, path: str) -> Iterator[tuple[Package, list[str]]]:
    """Yield each package of ``rpmdb.sqlite`` with the files it owns.

    Raises
    ------
    ValueError
        The database or a header in it is broken.
    """
    for blob in _blobs(content):
        tags = _header(blob)
        name, version, release = (_first(tags, tag) for tag in (_NAME, _VERSION, _RELEASE))
        if not name or not version:
            raise ValueError("a header has no name")
        if name == "gpg-pubkey":
            continue
        epoch = _first(tags, _EPOCH)
        source = re.sub(r"-[^-]+-[^-]+\.(no)?src\.rpm$", "", str(_first(tags, _SOURCE_RPM) or ""))
        by_source = ecosystem.partition(":")[0] in _BY_SOURCE
        package = Package(
            ecosystem=ecosystem,
            name=str(name),
            version=f"{f'{epoch}:' if epoch else ''}{version}-{release}",
            path=path,
            source=source if by_source else "",
        )
        yield package, _files(tags)


def _blobs(content: bytes) -> Iterator[bytes]:
    if content[:15] != b"SQLite format 3":
        raise ValueError("it is not a database of SQLite")
    # A database in memory has no write-ahead log, so mark it as one without (1 in these two header bytes).
    content = content[:18] + b"\x01\x01" + content[20:]
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(content)
        database.execute("PRAGMA trusted_schema = OFF")
        steps = iter(range(1_000))
        # A hostile view could run forever: end the query after a number of steps.
        database.set_progress_handler(lambda: next(steps, None) is None, 1_000_000)
        kind = database.execute("SELECT type FROM sqlite_master WHERE name = 'Packages'").fetchone()
        if kind != ("table",):
            raise ValueError("it has no table of packages")
        (count,) = database.execute("SELECT count(*) FROM Packages").fetchone()
        if count > _MAX_PACKAGES:
            raise ValueError(f"it has more than {_MAX_PACKAGES} entries")
        for (blob,) in database.execute("SELECT blob FROM Packages"):
            if not isinstance(blob, bytes):
                raise ValueError("a header is not bytes")  # noqa: TRY004 - it is about a file's content
            yield blob
    except sqlite3.Error as error:
        raise ValueError(f"the database is broken ({error})") from error
    finally:
        database.close()


def _header(blob: bytes) -> dict[int, list[int | str]]:
    """Return the values of a header by tag. Source: rpm's docs/manual/format.md, "Header"."""
    try:
        count, size = struct.unpack_from(">II", blob)
        start = 8 + 16 * count
        if count > 10_000 or start + size > len(blob):
            raise ValueError("a header is cut off")
        wanted = {_NAME, _VERSION, _RELEASE, _EPOCH, _SOURCE_RPM, _DIR_INDEXES, _BASE_NAMES, _DIR_NAMES}
        entries = (struct.unpack_from(">IIII", blob, 8 + 16 * index) for index in range(count))
        return {
            tag: _values(blob, kind, start + offset, number)
            for tag, kind, offset, number in entries
            if tag in wanted
        }
    except struct.error as error:
        raise ValueError("a header is cut off") from error


def _values(blob: bytes, kind: int, at: int, count: int) -> list[int | str]:
    if kind == _INT32:
        if at + 4 * count > len(blob):
            raise ValueError("a header is cut off")
        return list(struct.unpack_from(f">{count}I", blob, at))
    if kind not in (_STRING, _STRINGS, _I18N):
        return []
    found: list[int | str] = []
    for _ in range(count):
        end = blob.find(b"\0", at)
        if end < 0:
            raise ValueError("a header is cut off")
        found.append(blob[at:end].decode(errors="replace"))
        at = end + 1
    return found


def _first(tags: dict[int, list[int | str]], tag: int) -> int | str | None:
    return next(iter(tags.get(tag, [])), None)


def _files(tags: dict[int, list[int | str]]) -> list[str]:
    folders = tags.get(_DIR_NAMES, [])
    pairs = zip(tags.get(_DIR_INDEXES, []), tags.get(_BASE_NAMES, []), strict=False)
    return [
        f"{folders[index]}{name}".lstrip("/")
        for index, name in pairs
        if isinstance(index, int) and index < len(folders)
    ]
