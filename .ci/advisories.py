"""Compare the lock files of this project with a mirror of OSV, which `GIPFEL_ADVISORIES` names.

Exit status: 0 no known vulnerability, or no mirror is named; 1 one is known; 2 the mirror can't judge it.
"""

import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_extension.gate.advisories.mirror import Mirror
from gipfel_extension.gate.model import Package
from gipfel_extension.gate.packages.inventory import read_npm_lock
from gipfel_extension.gate.scan.targets import Exceptions, read_exceptions

ROOT = Path(__file__).resolve().parents[1]
EXCEPTIONS = ".ci/advisory-exceptions.toml"
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;#]+)")
_YARN = re.compile(r'^  resolution: "(@?[^@"]+)@npm:([^"#:]+)"$', re.MULTILINE)
#: OSV's records that name commits alone match no release; they are listed and can't be fixed here.
_BY_COMMITS = "naming commits and no versions"


def locked_packages(root: Path = ROOT) -> Iterator[Package]:
    """Yield the packages of all lock files, with the file as their path."""
    constraints, yarn, npm = ".ci/constraints.txt", "extension/yarn.lock", "spawner/proxy/package-lock.json"
    for name, version in _PIN.findall((root / constraints).read_text()):
        yield Package(ecosystem="PyPI", name=name, version=version, path=constraints)
    for name, version in _YARN.findall((root / yarn).read_text()):
        yield Package(ecosystem="npm", name=name, version=version, path=yarn)
    yield from read_npm_lock((root / npm).read_text(), npm)


def main(root: Path = ROOT) -> int:
    """Print what is known, and return the exit status."""
    named = os.environ.get("GIPFEL_ADVISORIES", "")
    if not named:
        print("Lock files: could not be judged: no advisory data (GIPFEL_ADVISORIES names a mirror of OSV).")
        return 0
    today = datetime.now(UTC).date()
    accepted = root / EXCEPTIONS
    try:
        exceptions = read_exceptions(accepted, today=today) if accepted.exists() else Exceptions(today=today)
    except GipfelError as error:
        print(f"Lock files: could not be judged: {error}")
        return 2
    mirror = Mirror(Path(named))
    packages = list(locked_packages(root))
    found = mirror.vulnerabilities(packages)
    age_s, too_old = mirror.age_s(mirror.newest_s)
    left, excepted = exceptions.of_vulnerabilities(found)
    for entry in excepted:
        print(f"{entry.path}: {entry.rule} is excepted until {entry.until}: {entry.reason}")
    for each in left:
        paths = sorted({p.path for p in packages if (p.name, p.version) == (each.package, each.version)})
        fix = f"update to {each.fixed}" if each.fixed else "no fixed version is known"
        print(f"{', '.join(paths)}: {each.package} {each.version}: {each.severity}: {each.id}, {fix}.")
    unclear = [*mirror.not_judged, *too_old]
    for line in unclear:
        print(f"Lock files: could not be judged: {line}")
    age = "" if age_s is None else f"; advisories {age_s / 86400:.1f} days old"
    print(f"Lock files: {len(packages)} packages, {len(left)} known vulnerabilities{age}.")
    return 1 if left else 2 if any(_BY_COMMITS not in line for line in unclear) else 0


if __name__ == "__main__":
    sys.exit(main())
