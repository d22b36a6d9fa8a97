"""Settings of pip and uv, project files and lock files."""

import configparser
import json
import tomllib
from collections.abc import Iterator
from typing import Any

from ..model import Finding
from .requirements import name_findings

_MAX_NAMES = 20_000


def pip_findings(text: str) -> Iterator[Finding]:
    """Yield what is wrong with a ``pip.conf``.

    Raises
    ------
    ValueError
        It is broken.
    """
    settings = configparser.RawConfigParser(strict=False)
    try:
        settings.read_string(text)
    except configparser.Error as error:
        raise ValueError(str(error).splitlines()[0]) from error
    values = {
        key.replace("_", "-"): value for name in settings.sections() for key, value in settings.items(name)
    }
    if values.get("extra-index-url"):
        yield _extra_index("index-url = URL of one index that has all packages")
    insecure = values.get("trusted-host") or any(
        each.strip().startswith("http://")
        for key in ("index-url", "extra-index-url")
        for each in values.get(key, "").split()
    )
    if insecure:
        yield _insecure_index("index-url = https://… without trusted-host")


def uv_findings(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with a ``uv.toml``, or ``[tool.uv]`` of a ``pyproject.toml``."""
    pip = document.get("pip")
    places = [document, pip if isinstance(pip, dict) else {}]
    if any(str(each.get("index-strategy", "")).startswith("unsafe") for each in places):
        yield _extra_index('index-strategy = "first-index"')
    elif any(each.get("extra-index-url") for each in places):
        yield _extra_index("[[index]] with explicit = true, and [sources] for its packages")
    indexes = document.get("index")
    listed = [each for each in indexes if isinstance(each, dict)] if isinstance(indexes, list) else []
    urls = [str(each.get("url", "")) for each in listed] + [str(each.get("index-url", "")) for each in places]
    if any(url.startswith("http://") for url in urls) or document.get("allow-insecure-host"):
        yield _insecure_index('url = "https://…" without allow-insecure-host')


def project_findings(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with a ``pyproject.toml``; versions belong into its lock file."""
    tool = document.get("tool")
    uv = tool.get("uv") if isinstance(tool, dict) else None
    if isinstance(uv, dict):
        yield from uv_findings(uv)
    project = document.get("project")
    listed = project.get("dependencies") if isinstance(project, dict) else None
    names = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    yield from name_findings(_name(each) for each in names[:_MAX_NAMES])


def lock_findings(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with a ``uv.lock``, a ``poetry.lock`` or a ``pylock.toml``."""
    packages = document.get("package") or document.get("packages")
    listed = [each for each in packages if isinstance(each, dict)] if isinstance(packages, list) else []
    yield from name_findings(str(each.get("name", "")) for each in listed[:_MAX_NAMES])
    unhashed = [
        str(each.get("name", ""))[:60]
        for each in listed[:_MAX_NAMES]
        if _has_files(each) and "hash" not in repr(each)
    ]
    if unhashed:
        message = f"Locked without hashes: {', '.join(unhashed[:4])}."
        yield Finding(rule="no-hashes", severity="medium", message=message, fix="Lock again: uv lock.")
    http = [str(each.get("name", ""))[:60] for each in listed[:_MAX_NAMES] if "'http://" in repr(each)]
    if http:
        yield _insecure_index(f"https:// for {', '.join(http[:4])}")


def npm_lock_findings(text: str) -> Iterator[Finding]:
    """Yield what is wrong with a ``package-lock.json``.

    Raises
    ------
    ValueError
        It is broken.
    """
    document = json.loads(text)
    entries = document.get("packages") if isinstance(document, dict) else None
    unhashed, http = [], []
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        resolved = entry.get("resolved") if isinstance(entry, dict) else None
        if isinstance(resolved, str) and resolved.startswith("http"):
            unhashed += [name] if not entry.get("integrity") else []
            http += [name] if resolved.startswith("http://") else []
    if unhashed:
        message = f"Locked without hashes: {', '.join(each[:80] for each in unhashed[:4])}."
        yield Finding(rule="no-hashes", severity="medium", message=message, fix="Lock again: npm install.")
    if http:
        yield _insecure_index(f"https:// for {', '.join(each[:80] for each in http[:4])}")


def toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML file.

    Raises
    ------
    ValueError
        It is broken.
    """
    return tomllib.loads(text)


def _has_files(package: dict[str, Any]) -> bool:
    source = package.get("source")
    if isinstance(source, dict) and not ("registry" in source or "url" in source):
        return False
    return any(key in package for key in ("files", "wheels", "sdist", "archive"))


def _name(requirement: str) -> str:
    end = next(
        (at for at, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None
    )
    return requirement[:end]


def _extra_index(line: str) -> Finding:
    message = (
        "Packages come from several indexes: the highest version of all is installed, so a public package "
        "can replace your own of the same name."
    )
    return Finding(rule="extra-index", severity="high", message=message, fix=f"Write {line}.")


def _insecure_index(line: str) -> Finding:
    message = "An index is not authenticated: an attacker in the network can choose what is installed."
    return Finding(rule="insecure-index", severity="high", message=message, fix=f"Write {line}.")
