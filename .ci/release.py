"""Make a release in dist/: wheel, sdist and runtime, a bill of materials of each, and signed checksums.

``SHA256SUMS.sig`` is by an SSH key, in the namespace ``gipfel-release``; check it with
``ssh-keygen -Y verify -n gipfel-release -I NAME -f SIGNERS -s SHA256SUMS.sig < SHA256SUMS``.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from advisories import ROOT, locked_packages
from packaging.requirements import Requirement

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import build_runtime
from gipfel_extension.gate.model import Package
from gipfel_extension.gate.packages.inventory import Inventory
from gipfel_extension.images.containerfile import hash_file
from gipfel_extension.images.provenance import find_key, sign
from gipfel_extension.images.sbom import SUFFIX, bill_of_materials, write_json

NAMESPACE = "gipfel-release"
EXTRAS = frozenset(("hub", "lab", "registry"))


def required_packages() -> Iterator[Package]:
    """Yield what the wheel requires with the extras of hub and lab, in the versions of this environment."""
    seen: set[str] = set()
    waiting = [("gipfel", EXTRAS)]
    while waiting:
        name, extras = waiting.pop()
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        for text in found.requires or ():
            requirement = Requirement(text)
            key = re.sub(r"[-_.]+", "-", requirement.name).lower()
            marker = requirement.marker
            wanted = marker is None or any(marker.evaluate({"extra": each}) for each in (*extras, ""))
            if wanted and key not in seen:
                seen.add(key)
                waiting.append((requirement.name, frozenset(requirement.extras)))
        if name != "gipfel":
            yield Package(ecosystem="PyPI", name=found.name, version=found.version, path="METADATA")


def write_bills(folder: Path) -> None:
    """Write a bill of materials beside each wheel, sdist and runtime.

    The panel in the wheel is built from packages of yarn.lock. All are listed, since it is not known which of
    them are in it.
    """
    panel = [each for each in locked_packages() if each.path == "extension/yarn.lock"]
    wheel = [*required_packages(), *panel]
    for path in sorted(folder.iterdir()):
        if path.name.endswith((".whl", ".tar.gz")):
            packages = wheel
        elif path.suffix == ".sqsh":
            packages = list(Inventory(path).packages)
        else:
            continue
        document = bill_of_materials(packages, name=path.name, sha256=hash_file(path))
        write_json(path.with_name(f"{path.name}{SUFFIX}"), document)


def write_checksums(folder: Path, key: Path) -> Path:
    """Write and sign ``SHA256SUMS`` of all files, in the format of sha256sum; locks are removed."""
    for lock in folder.glob(".*.lock"):
        lock.unlink()
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("SHA256SUMS"))
    sums = folder / "SHA256SUMS"
    sums.write_text("".join(f"{hash_file(folder / name)}  {name}\n" for name in names))
    return sign(sums, key, os.environ, NAMESPACE)


def main() -> int:
    """Make the release, and say where it is."""
    key = find_key("", os.environ)
    if key is None:
        print("There is no key to sign with. Set GIPFEL_IMAGE_KEY, or: ssh-keygen -t ed25519")
        return 1
    try:
        folder = ROOT / "dist"
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run((sys.executable, "-m", "build", "-o", str(folder), str(ROOT)), check=True)
        build_runtime(folder / "gipfel-runtime.sqsh", kernels=(), progress=print)
        write_bills(folder)
        print(write_checksums(folder, key))
    except (GipfelError, subprocess.CalledProcessError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
