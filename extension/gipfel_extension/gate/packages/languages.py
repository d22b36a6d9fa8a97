"""Packages of languages: Python, Conda, npm, and modules that are built into Go programs."""

import json
import re
from collections.abc import Iterator
from email.parser import HeaderParser
from typing import Any

from ..model import Package

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
