"""Scan a path: models, data and notebooks, installed packages, and their vulnerabilities."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line

from ..advisories.mirror import Mirror
from ..model import Item, Package, ScanDocument, Vulnerability
from ..models.tree import TreeScan
from ..packages.images import is_image
from ..packages.inventory import Inventory


def scan_targets(targets: Iterable[Path], *, advisories: Path | None, max_age_s: float) -> ScanDocument:
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
    items: list[Item] = []
    packages: list[Package] = []
    tree = TreeScan()
    not_judged: list[str] = []
    not_scanned: list[str] = []
    for target in targets:
        if not target.exists():
            raise GipfelError(f"{target} does not exist.", "Give a file, a directory or an image.")
        image = target.is_file() and is_image(target)
        if image:
            not_scanned.append(one_line(f"Models, data and notebooks inside {target}."))
        else:
            items += tree.items(target)
        if image or target.is_dir():
            try:
                inventory = Inventory(target)
            except GipfelError as error:
                not_judged.append(str(error))
                continue
            packages += inventory.packages
            not_judged += inventory.not_judged
            if image and not inventory.packages:
                not_judged.append(one_line(f"{target} has no packages that could be read."))
    vulnerabilities, age_s, unknown = _match(packages, advisories, max_age_s)
    return ScanDocument(
        items=tuple(items),
        packages=tuple(packages),
        vulnerabilities=vulnerabilities,
        advisories_age_s=age_s,
        not_judged=tuple(dict.fromkeys([*not_judged, *tree.not_judged, *unknown])),
        not_scanned=tuple(not_scanned),
        other_files=tree.other_files,
    )


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
