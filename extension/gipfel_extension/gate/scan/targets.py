"""Scan a path: models, data and notebooks, packages and their vulnerabilities, other files."""

import stat
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line

from ...telemetry.files import read_regular
from ..advisories.mirror import Mirror
from ..contents.scan import ContentScan, shown, support_finding, unknown_support
from ..dependencies import dependency_findings, is_dependency_file
from ..model import Item, Package, ScanDocument
from ..models.tree import TreeScan
from ..packages.images import is_image
from ..packages.inventory import Inventory
from .cache import Digest, FilePart, Matched, ScanCache
from .exceptions import Exceptions

_MAX_TEXT_BYTES = 16 << 20


def scan_targets(
    targets: Iterable[Path],
    *,
    advisories: Path | None,
    max_age_s: float,
    exceptions: Exceptions | None = None,
    cache: ScanCache | None = None,
    packages_only: bool = False,
) -> ScanDocument:
    """Return what was found in files, directories and images.

    Parameters
    ----------
    advisories
        Directory of a mirror of OSV; None if there is none, so that packages can't be judged.
    max_age_s
        Seconds after which advisories are too old.
    packages_only
        Whether to leave out all files that say nothing about packages, and the digest.

    Raises
    ------
    GipfelError
        A target does not exist.
    """
    cache = cache or ScanCache(None)
    parts: list[FilePart] = []
    digests: dict[str, str] = {}
    for target in targets:
        if not target.exists():
            raise GipfelError(f"{target} does not exist.", "Give a file, a directory or an image.")
        part = _part(target, cache, packages_only=packages_only)
        parts.append(_with_support(part, shown(str(target))))
        digests |= {shown(str(target)): part.digest} if part.digest else {}
    packages = [package for part in parts for package in part.packages]
    matched, age_s = _match(packages, advisories, max_age_s, cache)
    used = exceptions or Exceptions(today=datetime.now(UTC).date())
    items, excepted = used.of_items([item for part in parts for item in part.items])
    left, further = used.of_vulnerabilities(matched.vulnerabilities)
    lines = [line for part in parts for line in part.not_judged]
    return ScanDocument(
        items=tuple(items),
        packages=tuple(packages),
        vulnerabilities=tuple(left),
        advisories_age_s=age_s,
        not_judged=tuple(dict.fromkeys([*lines, *matched.not_judged])),
        not_scanned=tuple(line for part in parts for line in part.not_scanned),
        excepted=(*excepted, *further),
        other_files=sum(part.other_files for part in parts),
        digests=digests,
    )


def _part(target: Path, cache: ScanCache, *, packages_only: bool) -> FilePart:
    about = target.stat()
    if not stat.S_ISREG(about.st_mode):
        return _scan(target, packages_only=packages_only)
    options = "packages" if packages_only else "all"
    found = cache.part(target, about, options)
    if found is None:
        found = _scan(target, packages_only=packages_only)
        cache.keep_part(target, about, options, found)
    return found


def _scan(target: Path, *, packages_only: bool) -> FilePart:
    """Scan one target."""
    image = target.is_file() and is_image(target)
    if target.is_file() and not image and is_dependency_file(target.name):
        return _dependencies(target)
    if not (image or target.is_dir()):
        tree = TreeScan()
        items = tuple(tree.items(target))
        return FilePart(items=items, not_judged=tuple(tree.not_judged), other_files=tree.other_files)
    packages = _packages(target, image=image)
    if packages_only:
        line = one_line(f"All files of {shown(str(target))} but those that describe packages.")
        return packages.model_copy(update={"not_scanned": (line,)})
    digest = Digest(target) if image else None
    tree = TreeScan()
    items = () if image else tuple(tree.items(target))
    content = ContentScan(target, image=image)
    return FilePart(
        items=(*items, *content.items),
        packages=packages.packages,
        not_judged=(*packages.not_judged, *tree.not_judged, *content.not_judged),
        not_scanned=tuple(content.not_scanned),
        other_files=tree.other_files + content.other_files,
        os_release=packages.os_release,
        digest=digest.value() if digest else "",
    )


def _dependencies(target: Path) -> FilePart:
    """Judge one file of dependencies."""
    name = shown(str(target))
    try:
        found = dependency_findings(target.name, read_regular(target, _MAX_TEXT_BYTES, follow=True))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or str(error)
        return FilePart(not_judged=(one_line(f"{name} can't be judged: {reason[:200]}."),))
    return FilePart(items=(Item(path=name, verdict="plain", findings=tuple(found)),))


def _packages(target: Path, *, image: bool) -> FilePart:
    try:
        inventory = Inventory(target)
    except GipfelError as error:
        return FilePart(not_judged=(one_line(str(error)),))
    not_judged = list(inventory.not_judged)
    if image and not inventory.packages:
        not_judged.append(one_line(f"{target} has no packages that could be read."))
    known = ("ID", "VERSION_ID")
    return FilePart(
        packages=inventory.packages,
        not_judged=tuple(not_judged),
        os_release={key: value for key, value in inventory.os_release.items() if key in known},
    )


def _with_support(part: FilePart, name: str) -> FilePart:
    """Add whether the distribution is still supported, which changes with the day."""
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
        line = "The packages can't be judged without advisories. Set GIPFEL_ADVISORIES to a mirror of OSV."
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
    age_s, lines = mirror.age_s(matched.newest_s)
    return matched.model_copy(update={"not_judged": (*matched.not_judged, *lines)}), age_s
