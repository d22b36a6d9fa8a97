"""All packages of an image, and who owns those of Python.

Databases of distributions come first: dpkg, apk and rpm, with the files that each package owns. Then
packages of languages: Python, Conda, npm, and modules that are built into Go programs. :class:`Inventory`
takes them all.
"""

import json
import re
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from gipfel_cluster.model import one_line

from ...telemetry.files import read_regular
from ..model import Package
from .images import MAX_BYTES, distribution, image_files, image_text, kind_of, parse_os_release

_MAX_PACKAGES = 200_000
_SOURCE = re.compile(r"(\S+)(?:\s+\(([^)]+)\))?")
_NAME, _VERSION, _RELEASE, _EPOCH, _SOURCE_RPM = 1000, 1001, 1002, 1003, 1044
_DIR_INDEXES, _BASE_NAMES, _DIR_NAMES = 1116, 1117, 1118
_STRING, _STRINGS, _I18N, _INT32 = 6, 8, 9, 4
#: Distributions whose advisories name the source package.
_BY_SOURCE = ("Rocky Linux", "openSUSE")


def read_dpkg(text: str, ecosystem: str, path: str) -> Iterator[Package]:
    """Yield the installed packages of dpkg's ``status``."""
    parser = HeaderParser()
    for paragraph in re.split(r"\n\s*\n", text)[:_MAX_PACKAGES]:
        fields = parser.parsestr(paragraph.lstrip("\n"))
        name, version = fields.get("Package"), fields.get("Version")
        # Distroless images have no Status.
        if not name or not version or not fields.get("Status", "x installed").endswith(" installed"):
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


def read_apk(text: str, ecosystem: str, path: str) -> Iterator[tuple[Package, list[str]]]:
    """Yield each package of apk's ``installed`` with the files it owns."""
    for paragraph in text.split("\n\n")[:_MAX_PACKAGES]:
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
    # In memory there is no write-ahead log: 1 in these bytes means a database without one.
    content = content[:18] + b"\x01\x01" + content[20:]
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(content)
        database.execute("PRAGMA trusted_schema = OFF")
        steps = iter(range(1_000))
        # A hostile view could run for ever: it is ended after a number of steps.
        database.set_progress_handler(lambda: next(steps, None) is None, 1_000_000)
        kind = database.execute("SELECT type FROM sqlite_master WHERE name = 'Packages'").fetchone()
        if kind != ("table",):
            raise ValueError("it has no table of packages")
        for (blob,) in database.execute(f"SELECT blob FROM Packages LIMIT {_MAX_PACKAGES}"):  # noqa: S608 - a constant
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


_HEADERS = 1 << 16
_GO_MAGIC = b"\xff Go buildinf:"
#: Marks around the text of modules. Source: ``runtime/debug.modinfo`` and cmd/go/internal/modload/build.go.
_GO_START = b"\x30\x77\xaf\x0c\x92\x74\x08\x02\x41\xe1\xc1\x07\xe6\xd6\x18\xe6"
_GO_END = b"\xf9\x32\x43\x31\x86\x18\x20\x72\x00\x82\x42\x10\x41\x16\xd8\xf2"
_GO_VERSION = re.compile(rb"go(\d+\.\d+(?:\.\d+)?)")


def read_python(text: str, path: str) -> Package:
    """Return the package of a ``METADATA`` or ``PKG-INFO``.

    Raises
    ------
    ValueError
        It names no package.
    """
    fields = HeaderParser().parsestr(text[:_HEADERS])
    name, version = fields.get("Name"), fields.get("Version")
    if not name or not version:
        raise ValueError("it has no name or version")
    return Package(ecosystem="PyPI", name=name.strip(), version=version.strip(), path=path)


def read_conda(text: str, path: str) -> Package:
    """Return the package of a file of ``conda-meta``; OSV has no advisories for Conda.

    Raises
    ------
    ValueError
        It names no package.
    """
    return _named(json.loads(text), "", path)


def read_npm(text: str, path: str) -> Package | None:
    """Return the package of a ``package.json`` in ``node_modules``; None for one that is not a package."""
    document = json.loads(text)
    if isinstance(document, dict) and not ({"name", "version"} <= set(document)):
        # Parts of packages have a package.json without a name.
        return None
    return _named(document, "npm", path)


def read_npm_lock(text: str, path: str) -> Iterator[Package]:
    """Yield the packages of a ``package-lock.json`` of any version."""
    document = json.loads(text)
    entries = document.get("packages") if isinstance(document, dict) else None
    if isinstance(entries, dict):
        for place, entry in entries.items():
            name = str(place).rpartition("node_modules/")[2]
            if place and isinstance(entry, dict) and isinstance(entry.get("version"), str):
                yield Package(
                    ecosystem="npm", name=str(entry.get("name", name)), version=entry["version"], path=path
                )
        return
    left = [document.get("dependencies")] if isinstance(document, dict) else []
    while left:
        entries = left.pop()
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if isinstance(entry, dict) and isinstance(entry.get("version"), str):
                yield Package(ecosystem="npm", name=str(name), version=entry["version"], path=path)
                left.append(entry.get("dependencies"))


def read_go(content: bytes, path: str) -> Iterator[Package]:
    """Yield the modules of a Go program, and Go itself; nothing of another program."""
    start = content.find(_GO_START)
    if content[:4] != b"\x7fELF" or _GO_MAGIC not in content:
        return
    at = content.find(_GO_MAGIC)
    # A length, then the version, at a fixed offset since Go 1.18. Source: debug/buildinfo.
    length = content[at + 32] if at + 32 < len(content) else 0
    if version := _GO_VERSION.match(content[at + 33 : at + 33 + length]):
        yield Package(ecosystem="Go", name="stdlib", version=version[1].decode(), path=path)
    end = content.find(_GO_END, start + 1)
    text = content[start + 16 : end].decode(errors="replace") if 0 <= start < end else ""
    held: list[str] = []
    for line in text.splitlines():
        fields = line.split("\t")
        if fields[0] == "=>" and len(fields) >= 3:
            # It replaces the module of the line before.
            held = fields[1:3]
        elif fields[0] == "dep" and len(fields) >= 3:
            yield from _go_module(held, path)
            held = fields[1:3]
    yield from _go_module(held, path)


def _go_module(fields: list[str], path: str) -> Iterator[Package]:
    if fields:
        yield Package(ecosystem="Go", name=fields[0], version=fields[1], path=path)


def _named(document: Any, ecosystem: str, path: str) -> Package:
    name, version = (document.get(key) if isinstance(document, dict) else None for key in ("name", "version"))
    if not isinstance(name, str) or not isinstance(version, str):
        raise ValueError("it has no name or version")  # noqa: TRY004 - it is about a file's content
    return Package(ecosystem=ecosystem, name=name, version=version, path=path)


class Inventory:
    """The packages of an image.

    Attributes
    ----------
    packages
        Each once, in the order of files.
    not_judged
        Lines on what could not be read.
    os_release
        The values of the image's ``os-release``; empty if it has none.
    """

    def __init__(self, target: Path) -> None:
        self.packages: tuple[Package, ...] = ()
        self.not_judged: list[str] = []
        self._owners: dict[str, str] = {}
        with image_files(target) as files:
            self.os_release = self._read_os_release(files)
            self._distribution = distribution(self.os_release)
            found = [package for path in sorted(files, key=_order) for package in self._of(path, files[path])]
        self.packages = tuple(dict.fromkeys(found))

    def _read_os_release(self, files: dict[str, Path]) -> dict[str, str]:
        for name in ("etc/os-release", "usr/lib/os-release"):
            if name in files:
                return parse_os_release(image_text(files[name]))
        return {}

    def _of(self, path: str, place: Path) -> list[Package]:
        """Return the packages of one file; what is broken is noted."""
        try:
            return list(self._read(kind_of(path), path, place))
        except (ValueError, OSError, RecursionError) as error:
            self.not_judged.append(one_line(f"The packages of {path} can't be read: {error}."))
            return []

    def _read(self, kind: str, path: str, place: Path) -> Iterable[Package]:
        if kind in _LANGUAGES:
            return self._owned(_LANGUAGES[kind](place, path))
        if kind == "dpkg":
            return read_dpkg(image_text(place), self._distribution, path)
        if kind == "dpkg-files":
            owner = path.rpartition("/")[2].removesuffix(".list").partition(":")[0]
            self._own(owner, (line.lstrip("/") for line in image_text(place).splitlines()))
        if kind == "apk":
            return self._with_files(read_apk(image_text(place), self._distribution, path))
        if kind == "rpm":
            return self._with_files(read_rpm(read_regular(place, MAX_BYTES), self._distribution, path))
        if kind == "rpm-old":
            raise ValueError("rpm's databases before SQLite are not read; rpm --rebuilddb converts them")
        return ()

    def _with_files(self, packages: Iterator[tuple[Package, list[str]]]) -> Iterator[Package]:
        for package, files in packages:
            self._own(package.name, files)
            yield package

    def _own(self, owner: str, files: Iterable[str]) -> None:
        for file in files:
            if kind_of(file) in ("python", "npm") or file.endswith((".egg-info", ".dist-info")):
                self._owners[file] = owner

    def _owned(self, packages: Iterable[Package]) -> Iterator[Package]:
        for package in packages:
            folder = package.path.rpartition("/")[0]
            owner = self._owners.get(package.path) or self._owners.get(folder, "")
            yield package.model_copy(update={"owner": owner}) if owner else package


def _order(path: str) -> tuple[bool, str]:
    """Read the databases of distributions first: they say who owns the rest."""
    return kind_of(path) in _LANGUAGES, path


def _one(read: Callable[[str, str], Package | None]) -> Callable[[Path, str], Iterable[Package]]:
    def read_file(place: Path, path: str) -> Iterable[Package]:
        package = read(image_text(place), path)
        return () if package is None else (package,)

    return read_file


_LANGUAGES: dict[str, Callable[[Path, str], Iterable[Package]]] = {
    "python": _one(read_python),
    "conda": _one(read_conda),
    "npm": _one(read_npm),
    "npm-lock": lambda place, path: read_npm_lock(image_text(place), path),
    "go": lambda place, path: read_go(read_regular(place, MAX_BYTES), path),
}
