"""Judge the lock files of Pipenv (``Pipfile.lock``) and of Yarn (``yarn.lock``, versions 1 and later).

Each function yields unauthenticated sources, missing hashes, and what the index says about the names.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .installation import insecure_index, lines_of_names, listed_names, without_hashes
from .model import Finding
from .package_index import PackageIndex, Pin

_HTTP = re.compile(r"(?:[a-z]+\+)?http://")
_NAME_LINE = re.compile(r'\s*"([^"]{1,300})"\s*:\s*\{')
#: Keys of a Pipfile's packages that are a directory or a commit, which have no hashes.
_WITHOUT_HASHES = ("git", "hg", "svn", "bzr", "path", "editable")


def pipfile_findings(text: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with a ``Pipfile.lock``.

    Raises
    ------
    ValueError
        It is broken.
    """
    document = json.loads(text)
    about = document.get("_meta") if isinstance(document, dict) else None
    sources = about.get("sources") if isinstance(about, dict) else None
    if not isinstance(sources, list) or not all(isinstance(each, dict) for each in sources):
        raise ValueError("it names no sources, as Pipenv does")
    sections = [value for key, value in document.items() if key != "_meta"]
    if not all(isinstance(section, dict) for section in sections):
        raise ValueError("a group of packages is not an object")
    urls = {str(each.get("name")): str(each.get("url")) for each in sources}
    lines = lines_of_names(text, _NAME_LINE)
    pins, unhashed, insecure = [], [], []
    for section in sections:
        for name, package in section.items():
            if not isinstance(package, dict):
                raise ValueError(f"the package {name[:80]} is not an object")  # noqa: TRY004 - broken input
            # Pipenv takes packages without an index from the first source.
            source = next(
                (str(package[key]) for key in ("file", *_WITHOUT_HASHES) if key in package),
                urls.get(str(package.get("index")), next(iter(urls.values()), "")),
            )
            version = str(package.get("version", "")).lstrip("=")
            pins.append(Pin(name, version, lines.get(name, 0), source))
            has_hashes = package.get("hashes") or any(key in package for key in _WITHOUT_HASHES)
            unhashed += [] if has_hashes else [name]
            insecure += [name] if _HTTP.match(source) and source not in urls.values() else []
    yield from index.findings(pins)
    if unhashed:
        yield without_hashes(unhashed, lines.get(unhashed[0], 0), "pipenv lock")
    if any(_HTTP.match(url) for url in urls.values()) or any(
        each.get("verify_ssl") is False for each in sources
    ):
        yield insecure_index('"url": "https://…" with "verify_ssl": true, in the Pipfile too')
    elif insecure:
        yield insecure_index(f"https:// for {listed_names(insecure)}", lines.get(insecure[0], 0))


_YARN = re.compile(r"^(?:# yarn lockfile v1|__metadata:)", re.MULTILINE)
_FIELD = re.compile(r'  "?(version|resolved|resolution|integrity|checksum|conditions)"?:? "?([^"]*)"?\s*')
#: A package's name, and where it comes from or which versions are allowed.
_DESCRIPTOR = re.compile(r"(@?[^@\s]+)@(.*)")
_ALIAS = re.compile(r"npm:(@?[^@\s]+)@")
_COMMIT = re.compile(r"#[0-9a-f]{40}")
_LOCAL = ("workspace:", "patch:", "link:", "portal:", "file:", "virtual:", "exec:", "./", "../", "/")


def yarn_findings(text: str, index: PackageIndex) -> Iterator[Finding]:
    """Yield what is wrong with a ``yarn.lock``.

    Raises
    ------
    ValueError
        It is broken.
    """
    if not _YARN.search(text):
        raise ValueError("it is not a lock file of Yarn")
    pins, unhashed, insecure = [], [], []
    for line, key, fields in _yarn_entries(text):
        # Later versions of Yarn write the real name of an alias into the resolution.
        match = _DESCRIPTOR.fullmatch(fields.get("resolution") or key)
        if match is None or "version" not in fields:
            raise ValueError(f"line {line} is not a package with a version")
        name, place = match[1], fields.get("resolved") or match[2]
        if "resolution" not in fields and (alias := _ALIAS.match(match[2])):
            name = alias[1]
        if place.startswith(_LOCAL):
            continue
        from_url = "://" in place
        pins.append(Pin(name, fields["version"], line, place if from_url else "", "npm"))
        has_hash = fields.get("integrity") or fields.get("checksum") or _COMMIT.search(place)
        # Yarn writes no checksum for packages of other platforms.
        unhashed += [] if has_hash or "conditions" in fields else [(name, line)]
        insecure += [(name, line)] if _HTTP.match(place) else []
    yield from index.findings(pins)
    if unhashed:
        yield without_hashes([name for name, _ in unhashed], unhashed[0][1], "yarn install")
    if insecure:
        yield insecure_index(f"https:// for {listed_names([name for name, _ in insecure])}", insecure[0][1])


def _yarn_entries(text: str) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Yield line, first descriptor and fields of each package."""
    start, key, fields = 0, "", dict[str, str]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0] == " ":
            if match := _FIELD.fullmatch(line):
                fields[match[1]] = match[2]
            continue
        if not line.rstrip().endswith(":"):
            raise ValueError(f"line {number} is not understood")
        if key and key != "__metadata":
            yield start, key, fields
        start, fields = number, {}
        key = line.rstrip()[:-1].split(", ")[0].strip('"')
    if key and key != "__metadata":
        yield start, key, fields
