"""A local mirror of OSV: ``<dir>/<Ecosystem>/all.zip`` as in its bucket, or as osv-scanner keeps it.

A lookup reads an archive once and keeps in memory only what concerns the requested packages, so that
nothing is written beside the mirror.
"""

import hashlib
import json
import re
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from gipfel_cluster.model import one_line, pluralize

from ...telemetry.files import open_regular
from ..model import Package, Vulnerability
from .osv import NoVersionsError, match, normalized

#: An older mirror can't be relied on.
MAX_AGE_S = 7 * 86400.0
#: Bytes of one record.
MAX_RECORD_BYTES = 4 << 20
MAX_RECORDS = 1_000_000
_MODIFIED = re.compile(rb'"modified"\s*:\s*"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)')
_NAME = re.compile(rb'"name"\s*:\s*"([^"\\]{1,300})"')
_PLACES = ("", "osv-scanner", "osv-scalibr")


class Mirror:
    """Advisories below a directory; what can't be judged is collected in `not_judged`."""

    def __init__(self, root: Path, *, max_age_s: float = MAX_AGE_S, now: float | None = None) -> None:
        self._root, self._max_age_s = root, max_age_s
        self._now = time.time() if now is None else now
        self.not_judged: list[str] = []
        self.newest_s: float | None = None
        self._by_commits: dict[str, set[str]] = {}

    def vulnerabilities(self, packages: Sequence[Package]) -> tuple[Vulnerability, ...]:
        """Return the vulnerabilities of packages, each advisory once for each package and version."""
        found: dict[Vulnerability, None] = {}
        judged = [each for each in packages if not each.owner]
        families = sorted({each.ecosystem.partition(":")[0] for each in judged if each.ecosystem})
        if unknown := sorted({each.path for each in judged if not each.ecosystem}):
            self.not_judged.append(f"There are no advisories for the packages of {', '.join(unknown[:3])}.")
        for family in families:
            mine = [each for each in judged if each.ecosystem.partition(":")[0] == family]
            for vulnerability in self._of_family(family, mine):
                found.setdefault(vulnerability)
        if self._by_commits:
            records = pluralize(len(set[str]().union(*self._by_commits.values())), "record")
            names = ", ".join(sorted(self._by_commits)[:5])
            self.not_judged.append(
                one_line(
                    f"{records} of OSV could not be judged, naming commits and no versions, for: {names}."
                )
            )
        return tuple(found)

    def age_s(self, newest_s: float | None) -> tuple[float | None, list[str]]:
        """Return the age of an answer, and a line if it is too old to be one."""
        if newest_s is None:
            return None, []
        age = max(0.0, self._now - newest_s)
        if age <= self._max_age_s:
            return age, []
        return age, [f"The advisories are {age / 86400:.0f} days old. Update the mirror {self._root}."]

    def state(self) -> str:
        """Return what changes when an archive is replaced, added or removed."""
        paths = sorted(path for place in _PLACES for path in (self._root / place).glob("*/all.zip"))
        found = []
        for path in paths:
            try:
                about = path.stat()
            except OSError:
                continue
            fields = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
            found.append(f"{path} {fields}")
        return hashlib.sha256("\n".join(found).encode(errors="surrogateescape")).hexdigest()

    def _of_family(self, family: str, packages: Sequence[Package]) -> Iterator[Vulnerability]:
        archives = self._archives(family, {each.ecosystem for each in packages})
        if not archives:
            self.not_judged.append(f"There is no advisory data for {family} in {self._root}.")
        wanted: dict[str, list[Package]] = {}
        for package in packages:
            wanted.setdefault(normalized(package.ecosystem, package.advisory_name), []).append(package)
        for path in archives:
            try:
                with open_regular(path, follow=True) as file:
                    yield from self._of_archive(file, path, family, wanted)
            except (
                OSError,
                zipfile.BadZipFile,
                zlib.error,
                EOFError,
                NotImplementedError,
                RuntimeError,
            ) as error:
                text = getattr(error, "strerror", "") or type(error).__name__
                self.not_judged.append(
                    one_line(f"The advisories {path} can't be read ({text}). Update the mirror.")
                )

    def _archives(self, family: str, ecosystems: set[str]) -> list[Path]:
        names = [family, *sorted(ecosystems - {family})]
        paths = (self._root / place / name / "all.zip" for place in _PLACES for name in names)
        return [path for path in paths if path.is_file()]

    def _of_archive(
        self, file: BinaryIO, path: Path, family: str, packages: dict[str, list[Package]]
    ) -> Iterator[Vulnerability]:
        newest = 0.0
        with zipfile.ZipFile(file) as archive:
            entries = [each for each in archive.infolist() if each.filename.endswith(".json")]
            if not entries or len(entries) > MAX_RECORDS:
                self.not_judged.append(f"The advisories {path} are empty or too many. Update the mirror.")
                return
            for entry in entries:
                if entry.file_size > MAX_RECORD_BYTES:
                    self.not_judged.append(
                        one_line(f"The advisory {entry.filename[:80]} is too large to read.")
                    )
                    continue
                content = archive.read(entry)
                newest = max(newest, modified_s(content))
                yield from self._of_record(content, entry.filename, family, packages)
        # The oldest archive decides how old the answer is.
        self.newest_s = newest if self.newest_s is None else min(self.newest_s, newest)

    def _of_record(
        self, content: bytes, name: str, family: str, packages: dict[str, list[Package]]
    ) -> Iterator[Vulnerability]:
        named = {normalized(family, each.decode(errors="replace")) for each in _NAME.findall(content)}
        if named and not named & packages.keys() and content.rstrip().endswith(b"}"):
            # Reading all of them as JSON would take most of the time.
            return
        try:
            record: Any = json.loads(content)
        except (ValueError, RecursionError):
            self.not_judged.append(one_line(f"The advisory {name[:80]} is broken."))
            return
        for package in _concerned(record, packages):
            try:
                found = match(record, package)
            except NoVersionsError:
                self._by_commits.setdefault(package.name, set()).add(name)
                continue
            except ValueError as error:
                self.not_judged.append(
                    one_line(f"{name[:80]} can't be judged for {package.name} {package.version}: {error}.")
                )
                continue
            if found is not None:
                yield found


def _concerned(record: Any, packages: dict[str, list[Package]]) -> Iterator[Package]:
    affected = record.get("affected") if isinstance(record, dict) else None
    seen: set[str] = set()
    for each in affected if isinstance(affected, list) else ():
        about = each.get("package") if isinstance(each, dict) else None
        if isinstance(about, dict):
            name = normalized(str(about.get("ecosystem", "")), str(about.get("name", "")))
            if name not in seen:
                seen.add(name)
                yield from packages.get(name, ())


def modified_s(content: bytes) -> float:
    """Return when an advisory was last changed, in seconds since 1970; 0 where it does not say."""
    found = _MODIFIED.search(content)
    try:
        return datetime.fromisoformat(found[1].decode() + "+00:00").timestamp() if found else 0.0
    except (ValueError, OverflowError):
        return 0.0
