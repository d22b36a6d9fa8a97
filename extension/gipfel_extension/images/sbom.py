"""The packages of an image as a bill of materials: CycloneDX 1.6 in JSON.

The same packages give the same bytes.
Source: cyclonedx.org/docs/1.6/json, and github.com/package-url/purl-spec.
"""

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gipfel_cluster.model import GipfelError

from ..gate.model import Package
from ..telemetry.files import read_regular

SUFFIX = ".cdx.json"
_MAX_BYTES = 256 << 20
_LANGUAGES = {"PyPI": "pypi", "npm": "npm", "Go": "golang", "": "conda"}
_DISTRIBUTIONS = {"Debian": "deb/debian", "Ubuntu": "deb/ubuntu", "Alpine": "apk/alpine"}
_RPM = {"Rocky Linux": "rocky", "AlmaLinux": "almalinux", "openSUSE": "opensuse"}


def bill_of_materials(
    packages: Iterable[Package], *, name: str, sha256: str = "", os_release: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the document for an image or another artifact.

    Parameters
    ----------
    name, sha256
        The artifact's name and digest.
    os_release
        The distribution of an image.
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
        # The same content has the same number; a time would make each document different.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}",
        "version": 1,
        "metadata": {"tools": {"components": [tool]}, "component": about},
        "components": components,
    }


def gipfel_version() -> str:
    """Return the version of this package."""
    try:
        return version("gipfel")
    except PackageNotFoundError:
        return "0"


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
        # Also of a distribution whose advisories OSV lacks.
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
            name, _, rest = url.partition("@")
            found.setdefault(name, set()).add(rest.partition("?")[0])
    return found
