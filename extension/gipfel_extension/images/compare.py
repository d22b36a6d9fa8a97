"""Differences of two images: their packages, and the commands, inputs and variables that made them."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gipfel_cluster.model import Frozen, GipfelError

from ..gate.packages.inventory import Inventory
from .provenance import read_statement
from .sbom import SUFFIX, package_url, read_packages


class PackageChange(Frozen):
    """A package with other versions, none where it is missing; ``name`` is like ``pkg:pypi/numpy``."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]


class ImageComparison(Frozen):
    """Differences of two images; ``removed`` and ``added`` are lines on how the images were made."""

    packages: tuple[PackageChange, ...] = ()
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def is_different(self) -> bool:
        """Return whether anything is different."""
        return bool(self.packages or self.removed or self.added)


def compare_images(before: Path, after: Path) -> ImageComparison:
    """Compare two images, directories or bills of materials.

    Raises
    ------
    GipfelError
        One can't be read.
    """
    old, new = _packages(before), _packages(after)
    changes = (
        PackageChange(name=name, before=_sorted(old.get(name, ())), after=_sorted(new.get(name, ())))
        for name in sorted(old.keys() | new.keys())
    )
    made, remade = _lines(before), _lines(after)
    return ImageComparison(
        packages=tuple(each for each in changes if each.before != each.after),
        removed=tuple(line for line in made if line not in remade),
        added=tuple(line for line in remade if line not in made),
    )


def _packages(path: Path) -> dict[str, set[str]]:
    if path.name.endswith(SUFFIX):
        return read_packages(path)
    if not path.exists():
        raise GipfelError(f"{path} does not exist.", "Check the path.")
    # The image itself, not the list beside it, which may be of another image.
    inventory = Inventory(path)
    if inventory.not_judged:
        raise GipfelError(f"The packages of {path} can't be compared. {inventory.not_judged[0]}")
    found: dict[str, set[str]] = {}
    for each in inventory.packages:
        found.setdefault(package_url(each).partition("@")[0], set()).add(each.version)
    return found


def _sorted(versions: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(versions))


def _lines(path: Path) -> list[str]:
    """Return how an image was made, as lines; none without provenance."""
    with suppress(GipfelError):
        _, record = read_statement(path)
        inputs = [f"input {each.name} sha256:{each.sha256}" for each in record.inputs]
        env = [f"env {name}={value}" for name, value in record.configuration.get("env", {}).items()]
        return [*record.instructions, *inputs, *env]
    return []
