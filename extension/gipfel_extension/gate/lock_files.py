"""Judge lock files of uv, poetry, pip and npm: hashes, indexes, and what runs at installation."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gipfel_cluster.model import pluralize

from .install_hooks import NO_SCRIPTS, RULE, WHEELS_ONLY, line_of
from .model import Finding
from .package_index import PYPI, PackageIndex, Pin

#: Packages of one file that are looked at.
MAX_NAMES = 20_000
_NAME_LINE = re.compile(r"name\s*=\s*[\"']([^\"']+)[\"']")
_SHOWN = 4


def lock_findings(text: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with a ``uv.lock``, a ``poetry.lock`` or a ``pylock.toml``."""
    document = toml(text)
    packages = document.get("package") or document.get("packages")
    listed = [each for each in packages if isinstance(each, dict)] if isinstance(packages, list) else []
    listed = listed[:MAX_NAMES]
    lines = _lines_of_names(text)
    yield from index.findings(
        Pin(name, _text_of(each, "version"), lines.get(name, 0), _source(each))
        for each in listed
        if (name := _text_of(each, "name"))
    )
    unhashed = [
        _text_of(each, "name")[:60] for each in listed if _has_files(each) and "hash" not in repr(each)
    ]
    if unhashed:
        message = f"Line {lines.get(unhashed[0], 0)}: locked without hashes: {', '.join(unhashed[:4])}."
        yield Finding(rule="no-hashes", severity="medium", message=message, fix="Lock again: uv lock.")
    http = [_text_of(each, "name")[:60] for each in listed if "'http://" in repr(each)]
    if http:
        yield insecure_index(f"https:// for {', '.join(http[:4])}", lines.get(http[0], 0))
    sources = [_text_of(each, "name") for each in listed if _is_source_only(each)]
    yield from source_only_findings(sources, text)


def _lines_of_names(text: str) -> dict[str, int]:
    """Return the line of each package of a lock file in TOML."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _NAME_LINE.match(line):
            found.setdefault(match[1], number)
    return found


def _text_of(package: Mapping[str, Any], key: str) -> str:
    value = package.get(key)
    return value if isinstance(value, str) else ""


def _source(package: Mapping[str, Any]) -> str:
    """Return the URL of a locked package's index or file; a place on this machine as such."""
    source = package.get("source")
    if isinstance(source, dict):
        return str(source.get("registry") or source.get("url") or "its own")
    files = [package.get("sdist"), package.get("archive"), *_list_of(package.get("wheels"))]
    urls = [str(each["url"]) for each in files if isinstance(each, dict) and "url" in each]
    # poetry.lock names no source for packages of PyPI.
    return str(package.get("index") or (urls[0] if urls else PYPI if "files" in package else ""))


def _is_source_only(package: Mapping[str, Any]) -> bool:
    files = [str(each.get("file", "")) for each in _list_of(package.get("files")) if isinstance(each, dict)]
    if files:
        return not any(each.endswith(".whl") for each in files)
    return bool(package.get("sdist")) and not package.get("wheels")


def _list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def npm_lock_findings(text: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with a ``package-lock.json``.

    Raises
    ------
    ValueError
        It is broken.
    """
    document = json.loads(text)
    entries = document.get("packages") if isinstance(document, dict) else None
    unhashed, http, pins = [], [], []
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        resolved = entry.get("resolved") if isinstance(entry, dict) else None
        if isinstance(resolved, str) and resolved.startswith("http"):
            unhashed += [name] if not entry.get("integrity") else []
            http += [name] if resolved.startswith("http://") else []
            short = name.rpartition("node_modules/")[2]
            pins.append(Pin(short, _text_of(entry, "version"), line_of_name(text, name), resolved, "npm"))
    yield from index.findings(pins)
    if isinstance(entries, dict):
        yield from npm_script_findings(entries.items(), text)
    if unhashed:
        line, names = line_of_name(text, unhashed[0]), ", ".join(each[:80] for each in unhashed[:4])
        message = f"Line {line}: locked without hashes: {names}."
        yield Finding(rule="no-hashes", severity="medium", message=message, fix="Lock again: npm install.")
    if http:
        names = ", ".join(each[:80] for each in http[:4])
        yield insecure_index(f"https:// for {names}", line_of_name(text, http[0]))


def npm_script_findings(entries: Iterable[tuple[str, Any]], text: str) -> Iterator[Finding]:
    """Yield the packages of a ``package-lock.json`` that have install scripts, as one finding."""
    names = [
        name.rpartition("node_modules/")[2]
        for name, entry in entries
        if name and isinstance(entry, dict) and entry.get("hasInstallScript") is True
    ]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        message = (
            f"{line_of(text, 'hasInstallScript')}{pluralize(len(names), 'package')} run a script at "
            f"installation: {', '.join(each[:80] for each in names[:_SHOWN])}{more}."
        )
        yield Finding(rule=RULE, severity="low", message=message, fix=NO_SCRIPTS)


def source_only_findings(names: list[str], text: str) -> Iterator[Finding]:
    """Yield that packages are locked as sources alone, whose build runs at installation."""
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        message = (
            f"{line_of(text, f'{chr(34)}{names[0]}{chr(34)}')}locked as source alone, so that its build runs "
            f"at installation: {', '.join(each[:60] for each in names[:_SHOWN])}{more}."
        )
        yield Finding(rule=RULE, severity="low", message=message, fix=WHEELS_ONLY)


def _has_files(package: dict[str, Any]) -> bool:
    source = package.get("source")
    if isinstance(source, dict) and not ("registry" in source or "url" in source):
        return False
    return any(key in package for key in ("files", "wheels", "sdist", "archive"))


def toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML file.

    Raises
    ------
    ValueError
        It is broken.
    """
    return tomllib.loads(text)


def line_of_name(text: str, name: str) -> int:
    """Return the line of a quoted name; 0 where there is none."""
    found = re.search(rf"[\"']{re.escape(name)}(?![A-Za-z0-9._-])", text) if name else None
    return text.count("\n", 0, found.start()) + 1 if found else 0


def insecure_index(line: str, number: int = 0) -> Finding:
    """Return the finding on an index that is not authenticated, with the line to write."""
    message = (
        f"{at_line(number)}an index is not authenticated: an attacker in the network can choose what is "
        "installed."
    )
    return Finding(rule="insecure-index", severity="high", message=message, fix=f"Write {line}.")


def at_line(number: int) -> str:
    """Return the words that begin a message on a line; empty for line 0."""
    return f"Line {number}: " if number else ""
