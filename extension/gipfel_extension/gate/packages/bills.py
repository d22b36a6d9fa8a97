"""Read the packages in a bill of materials (SBOM) of any tool: CycloneDX or SPDX 2, in JSON.

Packages are identified by their package URLs. Entries with no valid package URL are counted, and a line in
`not_judged` reports them. Sources: cyclonedx.org/docs/1.6/json; spdx.github.io/spdx-spec/v2.3;
github.com/package-url/purl-spec.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from gipfel_cluster.model import one_line, pluralize

from ...telemetry.files import read_regular
from ..model import Package

_MAX_BYTES = 64 << 20
_MAX_COMPONENTS = 500_000
_MAX_TEXT = 1000
_NAMES = re.compile(r"(.*[-._])?(bom|sbom|cdx|spdx|cyclonedx)\.json", re.IGNORECASE)
_LANGUAGES = {"pypi": "PyPI", "npm": "npm", "golang": "Go", "conda": ""}
_DISTRIBUTIONS = {
    "debian": "Debian",
    "ubuntu": "Ubuntu",
    "alpine": "Alpine",
    "rocky": "Rocky Linux",
    "almalinux": "AlmaLinux",
}
_DISTRIBUTION_TYPES = ("deb", "apk", "rpm")
_DISTRIBUTION_URLS = tuple(f"pkg:{each}/" for each in _DISTRIBUTION_TYPES)
_PRINTABLE = re.compile(r"[!-~]+")


class Bill(NamedTuple):
    """The packages in a bill of materials; `not_judged` has a line for everything that could not be read."""

    packages: tuple[Package, ...]
    not_judged: tuple[str, ...]


def is_bill(name: str) -> bool:
    """Return whether a file is a bill of materials, judging by its name."""
    return _NAMES.fullmatch(name) is not None


def read_bill(path: Path) -> Bill:
    """Return the packages in a bill of materials; problems are listed in `not_judged` instead of raised."""
    try:
        document: Any = json.loads(read_regular(path, _MAX_BYTES, follow=True))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON, or nested too deeply"
        return _unreadable(path, reason)
    kind = document.get("bomFormat") if isinstance(document, dict) else None
    if kind == "CycloneDX":
        return _bill(path, _of_cyclonedx(document))
    if isinstance(document, dict) and str(document.get("spdxVersion", "")).startswith("SPDX-2"):
        return _bill(path, _of_spdx(document))
    return _unreadable(path, "it is neither CycloneDX nor SPDX 2")


def _unreadable(path: Path, reason: str) -> Bill:
    return Bill((), (one_line(f"The bill of materials {path} could not be judged: {reason[:200]}."),))


def _bill(path: Path, listed: "Iterator[_Listed | None]") -> Bill:
    """Return the bill of some entries, of which those that could not be read are None."""
    packages: dict[Package, None] = {}
    installed: set[str] = set()
    unread, count, has_sources, needs_sources = 0, 0, False, False
    for each in listed:
        count += 1
        if count > _MAX_COMPONENTS:
            return _unreadable(path, f"it lists more than {_MAX_COMPONENTS} packages")
        package = _package(each, str(path)) if each else None
        if each is None or package is None:
            unread += 1
            continue
        installed |= {package.name} if each.url.lower().startswith(_DISTRIBUTION_URLS) else set()
        packages.setdefault(package)
        needs_sources |= package.ecosystem.startswith(("Debian", "Ubuntu", "Alpine"))
        has_sources |= bool(package.source)
    if not packages:
        return _unreadable(path, "it lists no packages that could be read")
    lines = []
    if unread:
        entries = pluralize(unread, "entry")
        lines.append(f"{entries} of the bill of materials {path} could not be judged: no valid package URL.")
    if needs_sources and not has_sources:
        lines.append(
            f"Packages of the distribution in {path} could not be judged: it names no source packages, by "
            "which advisories go."
        )
    # A distribution package replaces the owned package's advisories only if the bill lists it as well.
    owned = (each if each.owner in installed else each.model_copy(update={"owner": ""}) for each in packages)
    return Bill(tuple(dict.fromkeys(owned)), tuple(map(one_line, lines)))


class _Listed(NamedTuple):
    url: str
    distribution: str = ""
    source: str = ""
    owner: str = ""


def _of_cyclonedx(document: Mapping[str, Any]) -> Iterator[_Listed | None]:
    """Yield all components, nested ones too, except operating systems, which only name the distribution."""
    waiting = [document.get("components", [])]
    system = ""
    while waiting:
        listed = waiting.pop()
        if not isinstance(listed, list):
            yield None
            continue
        for each in listed:
            if not isinstance(each, dict):
                yield None
                continue
            if each.get("components"):
                waiting.append(each["components"])
            if each.get("type") == "operating-system":
                system = f"{each.get('name', '')}-{each.get('version', '')}"
            elif isinstance(each.get("purl"), str):
                about = _properties(each)
                source = about.get("gipfel:source") or about.get("aquasecurity:trivy:SrcName", "")
                yield _Listed(each["purl"], system, source, about.get("gipfel:owner", ""))
            elif each.get("type") not in ("file", "data", "device", "firmware", "cryptographic-asset"):
                yield None


def _properties(component: Mapping[str, Any]) -> dict[str, str]:
    listed = component.get("properties")
    pairs = (each for each in listed if isinstance(each, dict)) if isinstance(listed, list) else ()
    return {str(each.get("name")): str(each.get("value", ""))[:_MAX_TEXT] for each in pairs}


def _of_spdx(document: Mapping[str, Any]) -> Iterator[_Listed | None]:
    """Yield the packages; the one that the document describes, such as an image, needs no package URL."""
    listed = document.get("packages")
    if not isinstance(listed, list):
        yield None
        return
    described = document.get("documentDescribes")
    for each in listed:
        if not isinstance(each, dict):
            yield None
            continue
        references = each.get("externalRefs")
        urls = [
            str(one.get("referenceLocator", ""))
            for one in (references if isinstance(references, list) else ())
            if isinstance(one, dict) and one.get("referenceType") == "purl"
        ]
        if urls:
            yield _Listed(urls[0])
        elif not (isinstance(described, list) and each.get("SPDXID") in described):
            yield None


def _package(listed: _Listed, path: str) -> Package | None:
    """Return the package that a package URL names; None if the URL is not valid or has no version."""
    url, _, qualifiers = listed.url[:_MAX_TEXT].partition("#")[0].partition("?")
    kind, slash, rest = url.removeprefix("pkg:").strip("/").partition("/")
    name, at, version = rest.rpartition("@")
    if not (listed.url.startswith("pkg:") and slash and at and name and version):
        return None
    kind, name, version = kind.lower(), unquote(name), unquote(version)
    if not _PRINTABLE.fullmatch(name + version):
        # No index has a package with such a name, so it would look like one without advisories.
        return None
    query = {key: values[0] for key, values in parse_qs(qualifiers).items()}
    if kind not in _DISTRIBUTION_TYPES:
        name = re.sub(r"[-_.]+", "-", name).lower() if kind == "pypi" else name
        return Package(
            ecosystem=_LANGUAGES.get(kind, ""), name=name, version=version, path=path, owner=listed.owner
        )
    vendor, _, name = name.rpartition("/")
    if epoch := query.get("epoch", ""):
        version = f"{epoch}:{version}"
    source, _, source_version = (query.get("upstream") or listed.source).partition("@")
    return Package(
        ecosystem=_ecosystem(vendor, query.get("distro") or listed.distribution),
        name=name, version=version, path=path, source=source, source_version=source_version,
    )  # fmt: skip


def _ecosystem(vendor: str, distribution: str) -> str:
    """Return OSV's ecosystem for a distribution such as ``debian-12``; empty if OSV has none."""
    family = _DISTRIBUTIONS.get(vendor, "")
    release = re.search(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,5}", distribution)
    if not family or release is None:
        return ""
    numbers = release[0].split(".")
    if family == "Alpine":
        return f"Alpine:v{'.'.join(numbers[:2])}"
    if family == "Ubuntu":
        is_lts = int(numbers[0]) % 2 == 0 and numbers[1:2] == ["04"]
        return f"Ubuntu:{release[0]}" + (":LTS" if is_lts else "")
    return f"{family}:{numbers[0]}"
