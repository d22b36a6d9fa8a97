"""Parse a package index's page on one package: JSON (PEP 691), or HTML with ``data-yanked`` (PEP 592)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from gipfel_cluster.model import one_line


@dataclass(frozen=True)
class Listing:
    """An index's page on one package.

    `withdrawn` maps each yanked release to the reason. `status` is the project status (PEP 792), such as
    ``quarantined``; empty if the page has none.
    """

    releases: frozenset[Version]
    withdrawn: Mapping[Version, str]
    status: str = ""

    def release(self, version: str) -> Version | None:
        """Return the listed release with a version; None if it is not listed, or not a valid version."""
        try:
            found = Version(version)
        except InvalidVersion:
            return None
        return found if found in self.releases else None

    def better(self, release: Version) -> Version | None:
        """Return the release to use instead, of the same major version if possible; None if none is left."""
        left = [each for each in self.releases - self.withdrawn.keys() if not each.is_prerelease]
        return max(left, key=lambda each: (each.major == release.major, each), default=None)


def parse_listing(content: bytes, *, html: bool) -> Listing:
    """Return the listing on a page of an index.

    Raises
    ------
    ValueError
        The page is broken or cut off; `RecursionError`, `TypeError` and `AttributeError` mean the same.
    """
    return _parse_html(content) if html else _parse_json(content)


def _listing_of(files: Iterable[tuple[str, str | None]], status: str = "") -> Listing:
    """Return the listing of pairs of a file name and the reason why it was yanked; None if it was not."""
    reasons: dict[Version, list[str | None]] = {}
    for name, reason in files:
        if (version := _version_of(name)) is not None:
            reasons.setdefault(version, []).append(reason)
    withdrawn = {
        version: next((each for each in found if each), "")[:200]
        for version, found in reasons.items()
        if None not in found
    }
    return Listing(frozenset(reasons), {key: one_line(each) for key, each in withdrawn.items()}, status)


def _version_of(file: str) -> Version | None:
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        # Eggs, installers and signatures, which pip does not install.
        return None


def _parse_json(content: bytes) -> Listing:
    document: Any = json.loads(content)
    files = document["files"] if isinstance(document, dict) and "files" in document else None
    if not isinstance(files, list):
        raise ValueError("it lists no files")  # noqa: TRY004 - it is about a file's content
    status = document.get("project-status")
    pairs = ((str(each["filename"]), _reason(each.get("yanked", False))) for each in files)
    return _listing_of(pairs, str(status.get("status", "")) if isinstance(status, dict) else "")


def _reason(yanked: object) -> str | None:
    return None if yanked in (False, None) else yanked if isinstance(yanked, str) else ""


class _Links(HTMLParser):
    """Parser of a simple index's HTML page; collects the links, each with the reason if it was yanked."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[str, str | None]] = []
        self.ended = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a" and (target := found.get("href")):
            name = unquote(target.partition("#")[0].rpartition("/")[2])
            self.files.append((name, (found["data-yanked"] or "") if "data-yanked" in found else None))

    def handle_endtag(self, tag: str) -> None:
        self.ended |= tag == "html"


def _parse_html(content: bytes) -> Listing:
    page = _Links()
    page.feed(content.decode(errors="replace"))
    if not page.ended:
        raise ValueError("it is cut off")
    return _listing_of(page.files)
