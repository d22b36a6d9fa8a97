"""Write an image's packages as a bill of materials (CycloneDX 1.6, JSON), and compare two images.

The same packages give the same bytes.
Source: cyclonedx.org/docs/1.6/json, and github.com/package-url/purl-spec.
"""

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.runtime.distributions import installed_version

from ..gate.model import Package
from ..gate.packages.inventory import Inventory
from ..telemetry.files import read_regular
from .provenance import read_statement

SUFFIX = ".cdx.json"
_MAX_BYTES = 256 << 20
_LANGUAGES = {"PyPI": "pypi", "npm": "npm", "Go": "golang", "": "conda"}
_DISTRIBUTIONS = {"Debian": "deb/debian", "Ubuntu": "deb/ubuntu", "Alpine": "apk/alpine"}
_RPM = {"Rocky Linux": "rocky", "AlmaLinux": "almalinux", "openSUSE": "opensuse"}


def bill_of_materials(
    packages: Iterable[Package], *, name: str, sha256: str = "", os_release: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the CycloneDX document for an image or another artifact.

    Parameters
    ----------
    name, sha256
        Name of the artifact, and its SHA-256 in hexadecimal; empty if unknown.
    os_release
        The image's ``os-release``, which names the distribution.
    """
    system = os_release or {}
    components = _components(sorted(packages, key=lambda each: (each.ecosystem, each.name, each.path)))
    if system.get("ID"):
        distribution = {"type": "operating-system", "bom-ref": "distribution", "name": system["ID"]}
        if system.get("VERSION_ID"):
            distribution["version"] = system["VERSION_ID"]
        components.insert(0, distribution)
    about: dict[str, Any] = {"type": "container" if name.endswith(".sqsh") else "application"}
    about |= {"bom-ref": "artifact", "name": name}
    if sha256:
        about |= {"version": f"sha256:{sha256}", "hashes": [{"alg": "SHA-256", "content": sha256}]}
    text = json.dumps([about, components], sort_keys=True)
    tool = {"type": "application", "name": "gipfel", "version": gipfel_version()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The same content gets the same serial number. There is no time, which would make each document
        # differ.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}",
        "version": 1,
        "metadata": {"tools": {"components": [tool]}, "component": about},
        "components": components,
    }


def gipfel_version() -> str:
    """Return the version of this package."""
    return installed_version("gipfel") or "0"


def _components(packages: list[Package]) -> list[dict[str, Any]]:
    seen: Counter[str] = Counter()
    found = []
    for each in packages:
        url = package_url(each)
        seen[url] += 1
        reference = url if seen[url] == 1 else f"{url}#{seen[url]}"
        properties = [{"name": "gipfel:path", "value": each.path}]
        if each.owner:
            properties.append({"name": "gipfel:owner", "value": each.owner})
        if each.source:
            value = f"{each.source}@{each.source_version}" if each.source_version else each.source
            properties.append({"name": "gipfel:source", "value": value})
        found.append(
            {
                "type": "library",
                "bom-ref": reference,
                "name": each.name,
                "version": each.version,
                "purl": url,
                "properties": properties,
            }
        )
    return found


def package_url(package: Package) -> str:
    """Return the package URL of a package, such as ``pkg:pypi/numpy@1.26.4``."""
    ecosystem, _, release = package.ecosystem.partition(":")
    name, kind = package.name, _LANGUAGES.get(ecosystem, "")
    if package.path.endswith("dpkg/status") or "status.d/" in package.path:
        # The default is for distributions without advisories in OSV.
        kind = _DISTRIBUTIONS.get(ecosystem, "deb/debian")
    elif kind == "pypi":
        name = re.sub(r"[-_.]+", "-", name).lower()
    elif not kind or package.path.endswith(("rpmdb.sqlite", "apk/db/installed")):
        kind = _DISTRIBUTIONS.get(ecosystem) or f"rpm/{_RPM.get(ecosystem, 'unknown')}"
    named = "/".join(quote(part, safe="") for part in name.split("/"))
    distribution = f"?distro={quote(f'{ecosystem}-{release}'.lower(), safe='')}" if release else ""
    return f"pkg:{kind}/{named}@{quote(package.version, safe='')}{distribution}"


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document with sorted keys, so that the same content gives the same bytes."""
    path.write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def read_packages(path: Path) -> dict[str, set[str]]:
    """Return the versions of each package in a bill of materials, by its package URL without a version.

    Raises
    ------
    GipfelError
        It is not a bill of materials in CycloneDX's JSON.
    """
    try:
        document = json.loads(read_regular(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise GipfelError(f"{path} can't be read: {reason}.", "Build the image again.") from error
    components = document.get("components", []) if isinstance(document, dict) else None
    if not isinstance(components, list) or document.get("bomFormat") != "CycloneDX":
        raise GipfelError(f"{path} is not a bill of materials of CycloneDX.", "Build the image again.")
    found: dict[str, set[str]] = {}
    for each in components:
        url = each.get("purl") if isinstance(each, dict) else None
        if isinstance(url, str):
            name, _, rest = one_line(url).partition("@")
            found.setdefault(name, set()).add(rest.partition("?")[0])
    return found


class PackageChange(Frozen):
    """A package whose versions differ between two images; ``before`` or ``after`` is empty if it is missing.

    ``name`` is its package URL without a version, such as ``pkg:pypi/numpy``.
    """

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]


class ImageComparison(Frozen):
    """Differences between two images; ``removed`` and ``added`` are lines on how the images were built."""

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
    # Read the image itself: the bill of materials beside it may belong to another image.
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
    """Return lines that describe how an image was built; empty without provenance."""
    with suppress(GipfelError):
        _, record = read_statement(path)
        inputs = [f"input {each.name} sha256:{each.sha256}" for each in record.inputs]
        env = [f"env {name}={value}" for name, value in record.environment.items()]
        return list(map(one_line, (*record.instructions, *inputs, *env)))
    return []
