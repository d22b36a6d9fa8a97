"""Files of an image that tell its distribution and its installed packages."""

import re
from collections.abc import Mapping

#: Kind of a file by its path without a leading slash; the first that matches counts.
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("os-release", r"(etc|usr/lib)/os-release"),
        ("dpkg", r"var/lib/dpkg/(status|status\.d/[^/]+)"),
        ("dpkg-files", r"var/lib/dpkg/info/[^/]+\.list"),
        ("apk", r"(usr/)?lib/apk/db/installed"),
        ("rpm", r"(var/lib/rpm|usr/lib/sysimage/rpm)/rpmdb\.sqlite"),
        ("rpm-old", r"(var/lib/rpm|usr/lib/sysimage/rpm)/Packages(\.db)?"),
        ("python", r"(.+/)?[^/]+\.(dist-info/METADATA|egg-info/PKG-INFO|egg-info)"),
        ("conda", r"(.+/)?conda-meta/[^/]+\.json"),
        ("npm-lock", r"(?!.*node_modules/)(.+/)?package-lock\.json"),
        ("npm", r"(.+/)?node_modules/(@[^/]+/)?[^/]+/package\.json"),
        ("go", r"(usr/local/bin|usr/local/go/bin|(root/|home/[^/]+/)?go/bin|opt/[^/]+/bin|app)/[^/.]+"),
    )
)
MAX_FILES = 50_000
#: Bytes that are read of one file.
MAX_BYTES = 256 << 20
_OSV_NAMES = {"debian": "Debian", "alpine": "Alpine", "rocky": "Rocky Linux", "almalinux": "AlmaLinux"}


def kind_of(path: str) -> str:
    """Return what a file says about packages; empty for most files."""
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(path)), "")


def distribution(os_release: Mapping[str, str]) -> str:
    """Return OSV's ecosystem of a distribution by its ``os-release``; empty if OSV has none."""
    name, version = os_release.get("ID", ""), os_release.get("VERSION_ID", "")
    major = version.partition(".")[0]
    if not version:
        return ""
    if name == "ubuntu":
        return f"Ubuntu:{version}" + (":LTS" if "LTS" in os_release.get("VERSION", "") else "")
    if name == "opensuse-leap":
        return f"openSUSE:Leap {version}"
    if name == "alpine":
        return "Alpine:v" + ".".join(version.split(".")[:2])
    return f"{_OSV_NAMES[name]}:{major}" if name in _OSV_NAMES else ""


def parse_os_release(text: str) -> dict[str, str]:
    """Return the values of an ``os-release`` file."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
