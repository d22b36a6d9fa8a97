"""List all packages in an image, and which distribution packages own Python packages.

The readers of language packages come first: Python, Conda, npm, and modules built into Go programs.
:class:`Inventory` combines them with the packages of the distribution (`databases`).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from gipfel_cluster.model import one_line

from ...telemetry.files import read_regular
from ..model import Package
from .databases import read_apk, read_dpkg, read_rpm
from .images import DATABASES, MAX_BYTES, distribution, image_files, image_text, kind_of, parse_os_release

_HEADERS = 1 << 16
_GO_MAGIC = b"\xff Go buildinf:"
#: Marks around the list of modules in a Go program. Source: ``runtime/debug.modinfo`` and
#: cmd/go/internal/modload/build.go.
_GO_START = b"\x30\x77\xaf\x0c\x92\x74\x08\x02\x41\xe1\xc1\x07\xe6\xd6\x18\xe6"
_GO_END = b"\xf9\x32\x43\x31\x86\x18\x20\x72\x00\x82\x42\x10\x41\x16\xd8\xf2"
_GO_VERSION = re.compile(rb"go(\d+\.\d+(?:\.\d+)?)")


def read_python(text: str, path: str) -> Package:
    """Return the package that a ``METADATA`` or ``PKG-INFO`` file describes.

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
    """Return the package that a file in ``conda-meta`` describes; OSV has no advisories for Conda.

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
        # Subdirectories of packages may have a package.json without a name.
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
    """Yield the modules built into a Go program, and Go itself; nothing for other programs."""
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
            # A line "=>" names a module that replaces the one on the line before.
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
        Every package once, in the order of the files.
    not_judged
        A line for everything that could not be read.
    os_release
        The values of the image's ``os-release``; empty if it has none.
    """

    def __init__(self, target: Path) -> None:
        self.packages: tuple[Package, ...] = ()
        self.not_judged: list[str] = []
        self._owners: dict[str, str] = {}
        self._broken: set[str] = set()
        with image_files(target) as files:
            self.os_release = self._read_os_release(files)
            self._distribution = distribution(self.os_release)
            found = [package for path in sorted(files, key=_order) for package in self._of(path, files[path])]
            kinds = {kind: path for path in files if (kind := kind_of(path)) in DATABASES}
        self.packages = tuple(dict.fromkeys(found))
        filled = {kind_of(each.path) for each in found}
        for kind, path in sorted(kinds.items()):
            if kind not in filled and path not in self._broken:
                self.not_judged.append(one_line(f"The package database {path} lists no packages."))

    def _read_os_release(self, files: dict[str, Path]) -> dict[str, str]:
        for name in ("etc/os-release", "usr/lib/os-release"):
            if name in files:
                return parse_os_release(image_text(files[name]))
        return {}

    def _of(self, path: str, place: Path) -> list[Package]:
        """Return the packages in one file; if it is broken, those before the broken place, and note it."""
        found: list[Package] = []
        try:
            found.extend(self._read(kind_of(path), path, place))
        except (ValueError, OSError, RecursionError) as error:
            self._broken.add(path)
            self.not_judged.append(one_line(f"The packages of {path} can't all be read: {error}."))
        return found

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
    """Return a sort key that puts the databases of distributions first: they say which files they own."""
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
