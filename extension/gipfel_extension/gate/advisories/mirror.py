"""A local mirror of OSV: ``<dir>/<Ecosystem>/all.zip`` as in OSV's bucket, or as osv-scanner stores it.

A lookup reads each archive once and keeps only the advisories on the requested packages in memory; it writes
no index beside the mirror. `match` decides whether an advisory applies to a version of a package, and returns
its severity and the fixed version. Source: OSV schema 1.7, docs/schema.md in ossf/osv-schema.
"""

import json
import math
import os
import re
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cmp_to_key
from pathlib import Path
from typing import Any, BinaryIO

from gipfel_cluster.model import one_line, pluralize

from ...telemetry.files import open_regular
from ..kept import PLACES, mirror_state
from ..model import Package, Severity, Vulnerability
from .versions import compare

#: Seconds after which a mirror is too old for its answers to count.
MAX_AGE_S = 7 * 86400.0
#: Largest record, in bytes, and most records in an archive: larger ones are refused as damaged.
MAX_RECORD_BYTES = 4 << 20
MAX_RECORDS = 1_000_000
#: Flag bit of an encrypted zip member. Source: PKWARE's APPNOTE, 4.4.4.
_ENCRYPTED = 1
_MODIFIED = re.compile(rb'"modified"\s*:\s*"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)')
_NAME = re.compile(rb'"name"\s*:\s*"([^"\\]{1,300})"')


class Mirror:
    """The advisories below a directory. `not_judged` collects a line for everything that can't be judged."""

    def __init__(self, root: Path, *, max_age_s: float = MAX_AGE_S, now: float | None = None) -> None:
        self._root, self._max_age_s = root, max_age_s
        self._now = time.time() if now is None else now
        self.not_judged: list[str] = []
        self.newest_s: float | None = None
        self._by_commits: dict[str, set[str]] = {}
        self._unseen: set[str] = set()

    def vulnerabilities(self, packages: Sequence[Package]) -> tuple[Vulnerability, ...]:
        """Return the vulnerabilities of packages; an advisory appears once per package and version."""
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
        """Return the age of advisories that last changed at `newest_s`, and a line if they are too old."""
        if newest_s is None:
            return None, []
        age = max(0.0, self._now - newest_s)
        if age <= self._max_age_s:
            return age, []
        return age, [f"The advisories are {age / 86400:.0f} days old. Update the mirror {self._root}."]

    def state(self) -> str:
        """Return a digest that changes when an archive is replaced, added or removed."""
        return mirror_state(self._root)

    def _of_family(self, family: str, packages: Sequence[Package]) -> Iterator[Vulnerability]:
        archives = self._archives(family, {each.ecosystem for each in packages})
        if not archives:
            self.not_judged.append(f"There is no advisory data for {family} in {self._root}.")
        wanted: dict[str, list[Package]] = {}
        for package in packages:
            wanted.setdefault(normalized(package.ecosystem, package.advisory_name), []).append(package)
        # A distribution release that no advisory names may be newer than the mirror, so it does not count as
        # clean.
        self._unseen = {each.ecosystem for each in packages if ":" in each.ecosystem} if archives else set()
        for path in archives:
            try:
                with open_regular(path, follow=True) as file:
                    yield from self._of_archive(file, path, family, wanted)
            except (
                OSError,
                ValueError,
                OverflowError,
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
        for name in sorted(self._unseen):
            self.not_judged.append(one_line(f"The mirror has no advisories for {name}. Update it."))

    def _archives(self, family: str, ecosystems: set[str]) -> list[Path]:
        names = [family, *sorted(ecosystems - {family})]
        paths = (self._root / place / name / "all.zip" for place in PLACES for name in names)
        return [path for path in paths if path.is_file()]

    def _of_archive(
        self, file: BinaryIO, path: Path, family: str, packages: dict[str, list[Package]]
    ) -> Iterator[Vulnerability]:
        newest: float | None = None
        with zipfile.ZipFile(file) as archive:
            entries = [each for each in archive.infolist() if each.filename.endswith(".json")]
            if not entries or len(entries) > MAX_RECORDS:
                self.not_judged.append(f"The advisories {path} are empty or too many. Update the mirror.")
                return
            for entry in entries:
                if max(entry.file_size, entry.compress_size) > MAX_RECORD_BYTES:
                    self.not_judged.append(
                        one_line(f"The advisory {entry.filename[:80]} is too large to read.")
                    )
                    continue
                content = _content(file, archive, entry)
                self._unseen -= {each for each in self._unseen if _names(content, each)}
                newest = max(newest or 0.0, modified_s(content))
                yield from self._of_record(content, entry.filename, family, packages)
        if newest is not None:
            # The oldest archive determines the age of the whole answer.
            self.newest_s = newest if self.newest_s is None else min(self.newest_s, newest)

    def _of_record(
        self, content: bytes, name: str, family: str, packages: dict[str, list[Package]]
    ) -> Iterator[Vulnerability]:
        named = {normalized(family, each.decode(errors="replace")) for each in _NAME.findall(content)}
        if named and not named & packages.keys() and content.rstrip().endswith(b"}"):
            # Parsing every record as JSON would take most of the time.
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
                    one_line(
                        f"{name[:80]} could not be judged for {package.name} {package.version}: {error}."
                    )
                )
                continue
            if found is not None:
                yield found


def _content(file: BinaryIO, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the content of a zip member; `ZipFile.read` takes four times as long for many small members."""
    if entry.flag_bits & _ENCRYPTED or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return archive.read(entry)
    file.seek(entry.header_offset)
    head = file.read(30)
    file.seek(int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little"), os.SEEK_CUR)
    content = file.read(entry.compress_size)
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, entry.file_size + 1)
    if head[:4] != b"PK\x03\x04" or (len(content), zlib.crc32(content)) != (entry.file_size, entry.CRC):
        raise zipfile.BadZipFile("a record is damaged")
    return content


def _names(content: bytes, ecosystem: str) -> bool:
    """Return whether an advisory concerns a release of a distribution, or the distribution as a whole."""
    family = re.escape(ecosystem.partition(":")[0].encode())
    return f'"{ecosystem}"'.encode() in content or bool(
        re.search(rb'"ecosystem"\s*:\s*"' + family + b'"', content)
    )


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
    """Return when an advisory was last changed, in seconds since 1970; 0 if it has no such time.

    A time in the future counts as none: it would keep a mirror from ever becoming too old.
    """
    found = _MODIFIED.search(content)
    try:
        modified = datetime.fromisoformat(found[1].decode() + "+00:00").timestamp() if found else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return modified if modified <= time.time() + _CLOCK_S else 0.0


_WORDS: dict[str, Severity] = {
    "critical": "critical", "high": "high", "important": "high", "moderate": "medium", "medium": "medium",
    "low": "low", "negligible": "low", "unimportant": "low",
    "not yet assigned": "medium", "end-of-life": "medium",
}  # fmt: skip
#: Weights of CVSS 3 metrics. Source: CVSS v3.1 specification, 7.4.
_WEIGHTS: dict[str, dict[str, float]] = {
    "AV": {"N": 0.85, "A": 0.62, "L": 0.55, "P": 0.2},
    "AC": {"L": 0.77, "H": 0.44},
    "UI": {"N": 0.85, "R": 0.62},
    "C": {"H": 0.56, "L": 0.22, "N": 0.0},
}
#: Seconds by which clocks may differ.
_CLOCK_S = 86400.0
_KINDS = ("fixed", "limit", "introduced", "last_affected")
_PRIVILEGES = {"U": {"N": 0.85, "L": 0.62, "H": 0.27}, "C": {"N": 0.85, "L": 0.68, "H": 0.5}}


class NoVersionsError(ValueError):
    """An advisory that names commits, but no versions that a package can be compared with."""


def match(record: dict[str, Any], package: Package) -> Vulnerability | None:
    """Return the vulnerability that an advisory describes in a package; None if it does not apply.

    Raises
    ------
    NoVersionsError
        The advisory names no versions.
    ValueError
        A version can't be compared, so it is unknown whether the advisory applies.
    """
    if record.get("withdrawn"):
        return None
    without_versions = False
    for affected in _of_package(record, package):
        if not _has_versions(affected):
            without_versions = True
            continue
        fixed = _fixed_if_affected(affected, package)
        if fixed is not None:
            return Vulnerability(
                id=str(record.get("id") or "advisory without an ID")[:80],
                aliases=tuple(str(each)[:80] for each in _list(record, "aliases", "upstream")[:20]),
                severity=_severity(record, affected),
                ecosystem=package.ecosystem,
                package=package.name,
                version=package.version,
                fixed=fixed,
                summary=str(record.get("summary") or record.get("details") or "")[:200],
            )
    if without_versions:
        raise NoVersionsError("it names commits only")
    return None


def normalized(ecosystem: str, name: str) -> str:
    """Return a package's name in the normal form in which its ecosystem compares names."""
    return re.sub(r"[-_.]+", "-", name).lower() if ecosystem == "PyPI" else name


def _of_package(record: dict[str, Any], package: Package) -> Iterator[dict[str, Any]]:
    wanted = normalized(package.ecosystem, package.advisory_name)
    for affected in _list(record, "affected"):
        about = affected.get("package") if isinstance(affected, dict) else None
        if not isinstance(about, dict):
            continue
        ecosystem = str(about.get("ecosystem", ""))
        # An advisory that names a distribution without a release applies to every release.
        same = ecosystem == package.ecosystem or (
            ":" not in ecosystem and ecosystem == package.ecosystem.partition(":")[0]
        )
        if same and normalized(ecosystem, str(about.get("name", ""))) == wanted:
            yield affected


def _has_versions(affected: dict[str, Any]) -> bool:
    ranges = [each for each in _list(affected, "ranges") if isinstance(each, dict)]
    return bool(_list(affected, "versions")) or any(
        each.get("type") in ("ECOSYSTEM", "SEMVER") for each in ranges
    )


def _fixed_if_affected(affected: dict[str, Any], package: Package) -> str | None:
    """Return the fixed version, empty if none is known; None if the package's version is not affected."""
    version = package.advisory_version
    is_listed = version in _list(affected, "versions")
    found: str | None = "" if is_listed else None
    for each in _list(affected, "ranges"):
        if isinstance(each, dict) and each.get("type") in ("ECOSYSTEM", "SEMVER"):
            events = [e for e in _list(each, "events") if isinstance(e, dict)]
            try:
                fixed = _in_range(package.ecosystem, version, events)
            except ValueError:
                if is_listed:
                    continue
                raise
            found = found or fixed if fixed is not None else found
    return found


def _in_range(ecosystem: str, version: str, events: list[dict[str, Any]]) -> str | None:
    """Return the fixed version if the version lies in a range, empty if no fix is known; None if it does not.

    Source: the schema's algorithm ``IsVulnerable``.
    """
    if not any("introduced" in each for each in events):
        raise ValueError("it has versions that begin nowhere")
    vulnerable, fix = False, ""
    for kind, limit in _sorted_events(ecosystem, events):
        order = 1 if limit == "0" and kind == "introduced" else compare(ecosystem, version, limit)
        if kind == "introduced":
            vulnerable = vulnerable or order >= 0
        elif vulnerable and (order > 0 or (order == 0 and kind != "last_affected")):
            vulnerable = False
        elif vulnerable and kind == "fixed" and not fix:
            fix = limit
    return fix if vulnerable else None


def _sorted_events(ecosystem: str, events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return kind and version of each event, sorted by version; at equal versions range ends come first."""
    pairs = [(name, str(event[name])) for event in events for name in _KINDS if name in event]
    pairs = [(kind, limit) for kind, limit in pairs if not (kind == "limit" and limit == "*")]

    def order(one: tuple[str, str], other: tuple[str, str]) -> int:
        starts = [kind == "introduced" and limit == "0" for kind, limit in (one, other)]
        if any(starts):
            return starts[1] - starts[0]
        return compare(ecosystem, one[1], other[1]) or _KINDS.index(one[0]) - _KINDS.index(other[0])

    return sorted(pairs, key=cmp_to_key(order))


def _severity(record: dict[str, Any], affected: dict[str, Any]) -> Severity:
    scores = [
        _score(str(each.get("score", ""))) for each in _list(affected, "severity") + _list(record, "severity")
    ]
    known = [score for score in scores if score is not None]
    if known:
        # Source: CVSS v3.1 specification, 5.
        highest = max(known)
        return "critical" if highest >= 9 else "high" if highest >= 7 else "medium" if highest >= 4 else "low"
    for place in (affected, record):
        for part in ("ecosystem_specific", "database_specific"):
            words = place.get(part)
            for key in ("severity", "urgency"):
                word = str(words.get(key, "")).lower().rstrip("*") if isinstance(words, dict) else ""
                if word in _WORDS:
                    return _WORDS[word]
    # An advisory without a rating counts as severe enough to fail a scan.
    return "high"


def _score(text: str) -> float | None:
    """Return the base score (0 to 10) of a CVSS 3 vector or of a plain number; None for any other text."""
    if re.fullmatch(r"\d{1,2}(\.\d)?", text):
        return float(text)
    if not text.startswith("CVSS:3"):
        return None
    metrics = dict(part.split(":", 1) for part in text.split("/") if ":" in part)
    try:
        changed = metrics["S"] == "C"
        impact = 1 - math.prod(1 - _WEIGHTS["C"][metrics[name]] for name in "CIA")
        reach = 8.22 * math.prod(_WEIGHTS[name][metrics[name]] for name in ("AV", "AC", "UI"))
        reach *= _PRIVILEGES[metrics["S"]][metrics["PR"]]
    except KeyError:
        return None
    weighted = 7.52 * (impact - 0.029) - 3.25 * (impact - 0.02) ** 15 if changed else 6.42 * impact
    if weighted <= 0:
        return 0.0
    return math.ceil(round(min(10.0, (1.08 if changed else 1.0) * (weighted + reach)) * 10, 5)) / 10


def _list(holder: Any, *names: str) -> list[Any]:
    found: list[Any] = []
    for name in names:
        value = holder.get(name) if isinstance(holder, dict) else None
        found += value if isinstance(value, list) else []
    return found
