"""Find distributions that no longer get security updates, from a table of end-of-support dates."""

from collections.abc import Mapping
from datetime import date

from ..model import Finding

#: Pairs of `VERSION_ID` and last day of free security support, by `ID`. Sources, read in November 2026:
#: distro-info-data 0.58+deb12u6 for Debian (LTS) and Ubuntu (without Pro); endoflife.date for others.
_LAST_DAYS: dict[str, str] = {
    "debian": "8 2020-06-30 9 2022-06-30 10 2024-06-30 11 2026-08-31 12 2028-06-30 13 2030-06-30",
    "ubuntu": "16.04 2021-04-30 18.04 2023-05-31 18.10 2019-07-18 19.04 2020-01-23 19.10 2020-07-17 "
    "20.04 2025-05-29 20.10 2021-07-22 21.04 2022-01-20 21.10 2022-07-14 22.04 2027-06-01 22.10 2023-07-20 "
    "23.04 2024-01-25 23.10 2024-07-11 24.04 2029-05-31 24.10 2025-07-10 25.04 2026-01-15 25.10 2026-07-09 "
    "26.04 2031-05-29",
    "alpine": "3.12 2022-05-01 3.13 2022-11-01 3.14 2023-05-01 3.15 2023-11-01 3.16 2024-05-23 "
    "3.17 2024-11-22 3.18 2025-05-09 3.19 2025-11-01 3.20 2026-04-01 3.21 2026-11-01 "
    "3.22 2027-05-01 3.23 2027-11-01",
    "centos": "7 2024-06-30 8 2021-12-31 9 2027-05-31",
    "rocky": "8 2029-05-31 9 2032-05-31",
    "almalinux": "8 2029-03-01 9 2032-05-31 10 2035-05-31",
    "fedora": "37 2023-12-05 38 2024-05-21 39 2024-11-26 40 2025-05-13 41 2025-12-15 "
    "42 2026-05-13 43 2026-12-09",
    "opensuse-leap": "15.4 2023-12-07 15.5 2024-12-31 15.6 2026-04-30 16.0 2027-10-31",
}  # fmt: skip
#: Number of version components that identify a release; 1 for other distributions.
_PARTS = {"alpine": 2, "ubuntu": 2, "opensuse-leap": 2}
#: Rolling distributions: they have no releases whose support could end.
_ROLLING = ("arch", "opensuse-tumbleweed", "gentoo", "void", "kali", "wolfi", "chainguard")


def last_day(os_release: Mapping[str, str]) -> date | None:
    """Return the last day of a distribution's support, given its ``os-release``; None if unknown."""
    name, version = os_release.get("ID", ""), os_release.get("VERSION_ID", "")
    fields = _LAST_DAYS.get(name, "").split()
    release = ".".join(version.split(".")[: _PARTS.get(name, 1)])
    found = dict(zip(fields[::2], fields[1::2], strict=True)).get(release)
    return date.fromisoformat(found) if found else None


def support_finding(os_release: Mapping[str, str], today: date) -> Finding | None:
    """Return a finding if a distribution's support has ended."""
    last = last_day(os_release)
    if last is None or today <= last:
        return None
    name = f"{os_release.get('ID', '')} {os_release.get('VERSION_ID', '')}"[:80]
    return Finding(
        rule="ended-support",
        severity="high",
        message=f"{name} has had no security updates since {last}.",
        fix=f"Write a supported release in the Containerfile: FROM {os_release.get('ID', '')[:40]}:RELEASE.",
    )


def unknown_support(os_release: Mapping[str, str]) -> str:
    """Return a line if the end of a distribution's support is unknown, else an empty text."""
    name = os_release.get("ID", "")
    if not name or name in _ROLLING or last_day(os_release) is not None:
        return ""
    version = os_release.get("VERSION_ID") or "without a version"
    return f"How long {name[:40]} {version[:40]} gets security updates is not known to Gipfel."
