"""Scan files, directories and images for unsafe models, data and notebooks, and for vulnerable packages.

An exception accepts a finding that somebody has reviewed, with a reason and a last day.
"""

import os
import stat
import tomllib
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator

from gipfel_cluster.model import Frozen, GipfelError, OneLine, first_problem, one_line

from ...telemetry.files import read_regular
from ..advisories.mirror import Mirror
from ..contents.support import support_finding, unknown_support
from ..dependencies import is_dependency_file
from ..model import Excepted, Item, Package, ScanDocument, Vulnerability, shown
from ..package_index import PackageIndex
from ..packages.images import is_image
from .cache import FilePart, Matched, ScanCache

_MAX_FILE_BYTES = 1 << 20
_MAX_EXCEPTIONS = 2000
#: Endings of notebooks, which some tools save as .json: their cells may install packages.
_MAY_INSTALL = frozenset((".ipynb", ".json"))


class ScanException(Frozen):
    """One ``[[exception]]`` in a file of exceptions.

    ``rule`` is the rule of a finding, such as ``not-understood``, or the ID or an alias of an advisory;
    ``path`` is an ``fnmatch`` pattern for the path of a scanned file, as the report shows it; ``package`` is
    the name of a package. ``until`` is the last day, and ``by`` is the person who accepted the finding, by
    default the owner of the file.
    """

    rule: Annotated[OneLine, Field(min_length=1, max_length=200)]
    path: Annotated[OneLine, Field(max_length=4096)] = ""
    package: Annotated[OneLine, Field(max_length=300)] = ""
    reason: Annotated[OneLine, Field(min_length=3, max_length=1000)]
    until: date
    by: Annotated[OneLine, Field(max_length=200)] = ""

    @field_validator("until", mode="before")
    @classmethod
    def _only_dates(cls, value: object) -> object:
        if type(value) is not date:
            raise ValueError("must be a date such as 2027-01-31")
        return value


class Exceptions:
    """The exceptions that are valid today; ``notes`` has a line for each that has expired."""

    def __init__(self, entries: Iterable[ScanException] = (), *, today: date) -> None:
        found = list(entries)
        self._valid = [each for each in found if today <= each.until]
        self.notes = [
            f"The exception for {each.rule} ended on {each.until}." for each in found if each.until < today
        ]

    def of_items(self, items: Sequence[Item]) -> tuple[list[Item], list[Excepted]]:
        """Remove the accepted findings from the items; return the items and what was removed."""
        left, excepted = [], []
        for item in items:
            kept = []
            for finding in item.findings:
                by = next((each for each in self._valid if _covers(each, item.path, finding.rule)), None)
                if by is None:
                    kept.append(finding)
                else:
                    excepted.append(
                        Excepted(
                            path=item.path, rule=finding.rule, reason=by.reason, until=by.until, by=by.by
                        )
                    )
            left.append(
                item if len(kept) == len(item.findings) else item.model_copy(update={"findings": tuple(kept)})
            )
        return left, excepted

    def of_vulnerabilities(
        self, vulnerabilities: Sequence[Vulnerability]
    ) -> tuple[list[Vulnerability], list[Excepted]]:
        """Return the vulnerabilities that were not accepted, and those that were."""
        left, excepted = [], []
        for each in vulnerabilities:
            names = {each.id, *each.aliases}
            by = next(
                (
                    e
                    for e in self._valid
                    if e.rule in names and not e.path and e.package in ("", each.package)
                ),
                None,
            )
            if by is None:
                left.append(each)
            else:
                excepted.append(
                    Excepted(path=each.package, rule=each.id, reason=by.reason, until=by.until, by=by.by)
                )
        return left, excepted


def _covers(exception: ScanException, path: str, rule: str) -> bool:
    return (
        exception.rule == rule
        and not exception.package
        and (not exception.path or fnmatchcase(path, exception.path))
    )


def read_exceptions(path: Path, *, today: date) -> Exceptions:
    """Return the exceptions in a TOML file.

    Raises
    ------
    GipfelError
        The file can't be read, or an exception has no reason or no last day.
    """
    try:
        document = tomllib.loads(read_regular(path, _MAX_FILE_BYTES, follow=True).decode())
        entries = document.pop("exception", [])
        if document or not isinstance(entries, list) or len(entries) > _MAX_EXCEPTIONS:
            raise ValueError(f"it may hold only [[exception]], {_MAX_EXCEPTIONS} at most")  # noqa: TRY301
        owner = _owner(path)
        found = (ScanException.model_validate(each) for each in entries)
        return Exceptions(
            (each if each.by else each.model_copy(update={"by": owner}) for each in found), today=today
        )
    except ValidationError as error:
        raise _refused(path, ": ".join(first_problem(error))) from error
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(path, getattr(error, "strerror", "") or str(error)) from error


def _owner(path: Path) -> str:
    """Return the user name of a file's owner, or the user ID if it has no name."""
    try:
        return path.owner()
    except KeyError:
        return str(path.stat().st_uid)


def _refused(path: Path, why: str) -> GipfelError:
    return GipfelError(
        f"The exceptions {path} can't be used: {why[:300]}.",
        'Write [[exception]] with rule = "ID", reason = "why", until = 2027-01-31; add path or package.',
    )


def scan_targets(
    targets: Iterable[Path],
    *,
    advisories: Path | None,
    max_age_s: float,
    exceptions: Exceptions | None = None,
    cache: ScanCache | None = None,
    packages_only: bool = False,
    index: PackageIndex | None = None,
    declared: str = "",
) -> ScanDocument:
    """Scan files, directories and images, and return the combined document.

    Parameters
    ----------
    advisories
        Directory of an OSV mirror; without one (None), packages can't be judged.
    max_age_s
        Age in seconds above which advisories are too old.
    packages_only
        Whether to read only files that describe packages, such as dpkg's database and ``*.dist-info``, and to
        hash no image.
    index
        Package index that tells whether packages that a file would install exist; by default the one that the
        environment configures.
    declared
        ``file:line`` where an EDF declares the image; fixes quote it.

    Raises
    ------
    GipfelError
        A target does not exist.
    """
    cache = cache or ScanCache(None)
    index = index or PackageIndex.from_environment(os.environ)
    parts: list[FilePart] = []
    contents: list[tuple[Path, frozenset[tuple[str, str]]]] = []
    digests: dict[str, str] = {}
    for target in targets:
        if not target.exists():
            raise GipfelError(f"{target} does not exist.", "Give a file, a directory or an image.")
        part = _part(target, cache, index, packages_only=packages_only)
        parts.append(_with_support(part, shown(str(target))))
        contents.append((target, frozenset((each.name, each.version) for each in part.packages)))
        digests |= {shown(str(target)): part.digest} if part.digest else {}
    packages = [package for part in parts for package in part.packages]
    matched, age_s = _match(packages, advisories, max_age_s, cache)
    used = exceptions or Exceptions(today=datetime.now(UTC).date())
    items, excepted = used.of_items([item for part in parts for item in part.items])
    left, further = used.of_vulnerabilities(matched.vulnerabilities)
    if left:
        # Imported here, since a scan without vulnerabilities doesn't need it.
        from .fixes import with_fixes  # noqa: PLC0415

        left = with_fixes(left, contents, declared)
    lines = [line for part in parts for line in part.not_judged]
    return ScanDocument(
        items=tuple(items),
        packages=tuple(packages),
        vulnerabilities=tuple(left),
        advisories_age_s=age_s,
        not_judged=tuple(dict.fromkeys([*lines, *matched.not_judged])),
        not_scanned=tuple(dict.fromkeys(line for part in parts for line in part.not_scanned)),
        excepted=(*excepted, *further),
        other_files=sum(part.other_files for part in parts),
        digests=digests,
        advisories_complete=not matched.not_judged,
    )


def _part(target: Path, cache: ScanCache, index: PackageIndex, *, packages_only: bool) -> FilePart:
    about = target.stat()
    if not stat.S_ISREG(about.st_mode):
        cache.complete = False
        return _scanned(target, cache, index, packages_only=packages_only)
    image, options = is_image(target), "packages" if packages_only else "all"
    if not packages_only and (is_dependency_file(target.name) or target.suffix in _MAY_INSTALL or image):
        options = f"all {index.state}"
    found = cache.part(target, about, options)
    if found is None:
        found = cache.part_of_copy(target, about, options, read=not packages_only) if image else None
        found = found or _scanned(target, cache, index, packages_only=packages_only)
        cache.keep_part(target, about, options, found, image=image)
    return found


def _scanned(target: Path, cache: ScanCache, index: PackageIndex, *, packages_only: bool) -> FilePart:
    # Imported here, since importing the readers takes longer than looking up a cached result.
    from .one_target import scan_target  # noqa: PLC0415

    return scan_target(target, cache.digests, index, packages_only=packages_only)


def _with_support(part: FilePart, name: str) -> FilePart:
    """Add a finding if the distribution's support has ended; not cached, since it depends on the day."""
    if finding := support_finding(part.os_release, datetime.now(UTC).date()):
        item = Item(path=name, verdict="plain", findings=(finding,))
        return part.model_copy(update={"items": (*part.items, item)})
    if line := unknown_support(part.os_release):
        return part.model_copy(update={"not_scanned": (*part.not_scanned, one_line(line))})
    return part


def _match(
    packages: Sequence[Package], advisories: Path | None, max_age_s: float, cache: ScanCache
) -> tuple[Matched, float | None]:
    if not packages:
        return Matched(), None
    if advisories is None:
        line = (
            "The packages could not be judged without advisories. Set GIPFEL_ADVISORIES to a mirror of OSV."
        )
        return Matched(not_judged=(line,)), None
    mirror = Mirror(advisories, max_age_s=max_age_s)
    state = mirror.state()
    matched = cache.matched(packages, state)
    if matched is None:
        vulnerabilities = mirror.vulnerabilities(packages)
        matched = Matched(
            vulnerabilities=vulnerabilities, not_judged=tuple(mirror.not_judged), newest_s=mirror.newest_s
        )
        if state == mirror.state():
            cache.keep_matched(packages, state, matched)
        else:
            cache.complete = False
    age_s, lines = mirror.age_s(matched.newest_s)
    return matched.model_copy(update={"not_judged": (*matched.not_judged, *lines)}), age_s
