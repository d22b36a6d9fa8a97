"""Scan a path: models, data and notebooks, packages and their vulnerabilities, other files."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line

from ..advisories.mirror import Mirror
from ..contents.scan import ContentScan, shown
from ..contents.support import support_finding, unknown_support
from ..model import Item, Package, ScanDocument, Vulnerability
from ..models.tree import TreeScan
from ..packages.images import is_image
from ..packages.inventory import Inventory
from .exceptions import Exceptions


def scan_targets(
    targets: Iterable[Path],
    *,
    advisories: Path | None,
    max_age_s: float,
    exceptions: Exceptions | None = None,
) -> ScanDocument:
    """Return what was found in files, directories and images.

    Parameters
    ----------
    advisories
        Directory of a mirror of OSV; None if there is none, so that packages can't be judged.
    max_age_s
        Seconds after which advisories are too old.

    Raises
    ------
    GipfelError
        A target does not exist.
    """
    parts = _Parts()
    for target in targets:
        if not target.exists():
            raise GipfelError(f"{target} does not exist.", "Give a file, a directory or an image.")
        parts.scan(target)
    vulnerabilities, age_s, unknown = _match(parts.packages, advisories, max_age_s)
    used = exceptions or Exceptions(today=datetime.now(UTC).date())
    items, excepted = used.of_items(parts.items)
    left, further = used.of_vulnerabilities(vulnerabilities)
    return ScanDocument(
        items=tuple(items),
        packages=tuple(parts.packages),
        vulnerabilities=tuple(left),
        advisories_age_s=age_s,
        not_judged=tuple(dict.fromkeys([*parts.not_judged, *unknown])),
        not_scanned=tuple(parts.not_scanned),
        excepted=(*excepted, *further),
        other_files=parts.other_files,
    )


class _Parts:
    """What the scans of several targets found."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.packages: list[Package] = []
        self.not_judged: list[str] = []
        self.not_scanned: list[str] = []
        self.other_files = 0

    def scan(self, target: Path) -> None:
        """Scan one target."""
        image = target.is_file() and is_image(target)
        if not image:
            tree = TreeScan()
            self.items += tree.items(target)
            self.not_judged += tree.not_judged
            self.other_files += tree.other_files
        if image or target.is_dir():
            content = ContentScan(target, image=image)
            self.items += content.items
            self.not_judged += content.not_judged
            self.not_scanned += content.not_scanned
            self.other_files += content.other_files
            self._packages(target, image=image)

    def _packages(self, target: Path, *, image: bool) -> None:
        try:
            inventory = Inventory(target)
        except GipfelError as error:
            self.not_judged.append(str(error))
            return
        self.packages += inventory.packages
        self.not_judged += inventory.not_judged
        if image and not inventory.packages:
            self.not_judged.append(one_line(f"{target} has no packages that could be read."))
        if finding := support_finding(inventory.os_release, datetime.now(UTC).date()):
            self.items.append(Item(path=shown(str(target)), verdict="plain", findings=(finding,)))
        elif line := unknown_support(inventory.os_release):
            self.not_scanned.append(one_line(line))


def _match(
    packages: Sequence[Package], advisories: Path | None, max_age_s: float
) -> tuple[tuple[Vulnerability, ...], float | None, list[str]]:
    if not packages:
        return (), None, []
    if advisories is None:
        return (
            (),
            None,
            ["The packages can't be judged without advisories. Set GIPFEL_ADVISORIES to a mirror of OSV."],
        )
    mirror = Mirror(advisories, max_age_s=max_age_s)
    return mirror.vulnerabilities(packages), mirror.age_s, mirror.not_judged
