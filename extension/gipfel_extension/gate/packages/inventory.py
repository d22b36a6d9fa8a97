"""All packages of an image, and who owns those of Python."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gipfel_cluster.model import one_line

from ...telemetry.files import read_regular
from ..model import Package
from .databases import read_apk, read_dpkg, read_rpm
from .images import image_files, image_text
from .languages import read_conda, read_go, read_npm, read_npm_lock, read_python
from .locations import MAX_BYTES, distribution, kind_of, parse_os_release


class Inventory:
    """The packages of an image.

    Attributes
    ----------
    packages
        Each once, in the order of files.
    not_judged
        Lines on what could not be read.
    os_release
        The values of the image's ``os-release``; empty if it has none.
    """

    def __init__(self, target: Path) -> None:
        self.packages: tuple[Package, ...] = ()
        self.not_judged: list[str] = []
        self._owners: dict[str, str] = {}
        with image_files(target) as files:
            self.os_release = self._read_os_release(files)
            self._distribution = distribution(self.os_release)
            found = [package for path in sorted(files, key=_order) for package in self._of(path, files[path])]
        self.packages = tuple(dict.fromkeys(found))

    def _read_os_release(self, files: dict[str, Path]) -> dict[str, str]:
        for name in ("etc/os-release", "usr/lib/os-release"):
            if name in files:
                return parse_os_release(image_text(files[name]))
        return {}

    def _of(self, path: str, place: Path) -> list[Package]:
        """Return the packages of one file; what is broken is noted."""
        try:
            return list(self._read(kind_of(path), path, place))
        except (ValueError, OSError, RecursionError) as error:
            self.not_judged.append(one_line(f"The packages of {path} can't be read: {error}."))
            return []

    def _read(self, kind: str, path: str, place: Path) -> Iterable[Package]:
        if kind in _LANGUAGES:
            return self._owned(_LANGUAGES[kind](place, path))
        if kind == "dpkg":
            return read_dpkg(image_text(place), self._distribution, path)
        if kind == "dpkg-files":
            owner = path.rpartition("/")[2].removesuffix(".list").partition(":")[0]
            self._own(owner, (line.lstrip("/") for line in image_text(place).splitlines()))
        if kind == "apk":
            return self._with_files(read_apk(image_text(place), self._distribution, path))
        if kind == "rpm":
            return self._with_files(read_rpm(read_regular(place, MAX_BYTES), self._distribution, path))
        if kind == "rpm-old":
            raise ValueError("rpm's databases before SQLite are not read; rpm --rebuilddb converts them")
        return ()

    def _with_files(self, packages: Iterator[tuple[Package, list[str]]]) -> Iterator[Package]:
        for package, files in packages:
            self._own(package.name, files)
            yield package

    def _own(self, owner: str, files: Iterable[str]) -> None:
        for file in files:
            if kind_of(file) in ("python", "npm") or file.endswith((".egg-info", ".dist-info")):
                self._owners[file] = owner

    def _owned(self, packages: Iterable[Package]) -> Iterator[Package]:
        for package in packages:
            folder = package.path.rpartition("/")[0]
            owner = self._owners.get(package.path) or self._owners.get(folder, "")
            yield package.model_copy(update={"owner": owner}) if owner else package


def _order(path: str) -> tuple[bool, str]:
    """Read the databases of distributions first: they say who owns the rest."""
    return kind_of(path) in _LANGUAGES, path


def _one(read: Callable[[str, str], Package | None]) -> Callable[[Path, str], Iterable[Package]]:
    def read_file(place: Path, path: str) -> Iterable[Package]:
        package = read(image_text(place), path)
        return () if package is None else (package,)

    return read_file


_LANGUAGES: dict[str, Callable[[Path, str], Iterable[Package]]] = {
    "python": _one(read_python),
    "conda": _one(read_conda),
    "npm": _one(read_npm),
    "npm-lock": lambda place, path: read_npm_lock(image_text(place), path),
    "go": lambda place, path: read_go(read_regular(place, MAX_BYTES), path),
}
