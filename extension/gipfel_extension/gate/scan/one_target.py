"""Scan one target according to its kind: dependency file, bill of materials, model, image or directory.

This module imports all format readers, so `targets` imports it only if the cache has no result.
"""

from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line

from ...telemetry.files import read_regular
from ..contents.scan import ContentScan
from ..dependencies import dependency_findings, is_dependency_file
from ..model import Item, shown
from ..models.tree import TreeScan
from ..package_index import PackageIndex
from ..packages.bills import is_bill, read_bill
from ..packages.images import is_image
from ..packages.inventory import Inventory
from .cache import Digest, FilePart

_MAX_TEXT_BYTES = 16 << 20


def scan_target(target: Path, digests: Path | None, index: PackageIndex, *, packages_only: bool) -> FilePart:
    """Return the result of scanning one file, directory or image; `digests` is the user's digest cache."""
    index = index.unused()
    image = target.is_file() and is_image(target)
    if target.is_file() and not image and is_dependency_file(target.name):
        return _dependencies(target, index)
    if target.is_file() and not image and is_bill(target.name):
        bill = read_bill(target)
        return FilePart(packages=bill.packages, not_judged=bill.not_judged)
    if not (image or target.is_dir()):
        tree = TreeScan(index)
        items = tuple(tree.items(target))
        return FilePart(
            items=items,
            not_judged=(*tree.not_judged, *index.not_judged),
            not_scanned=tuple(index.not_scanned),
            other_files=tree.other_files,
        )
    packages = _packages(target, image=image)
    if packages_only:
        line = one_line(f"All files of {shown(str(target))} except those that list installed packages.")
        return packages.model_copy(update={"not_scanned": (line,)})
    digest = Digest(target, digests) if image else None
    tree = TreeScan(index)
    items = () if image else tuple(tree.items(target))
    content = ContentScan(target, image=image, index=index)
    return FilePart(
        items=(*items, *content.items),
        packages=packages.packages,
        not_judged=(*packages.not_judged, *tree.not_judged, *content.not_judged, *index.not_judged),
        not_scanned=(*content.not_scanned, *index.not_scanned),
        other_files=tree.other_files + content.other_files,
        os_release=packages.os_release,
        digest=digest.value() if digest else "",
    )


def _dependencies(target: Path, index: PackageIndex) -> FilePart:
    """Judge one dependency file."""
    name = shown(str(target))
    try:
        found = dependency_findings(target.name, read_regular(target, _MAX_TEXT_BYTES, follow=True), index)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or str(error)
        return FilePart(not_judged=(one_line(f"{name} could not be judged: {reason[:200]}."),))
    # Reading a dependency file runs no code, which is all that `plain` says; what is wrong is in the
    # findings.
    return FilePart(
        items=(Item(path=name, verdict="plain", findings=tuple(found)),),
        not_judged=tuple(index.not_judged),
        not_scanned=tuple(index.not_scanned),
    )


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
