"""What a runtime would be made from here, and whether the one that is there was made from the same."""

import hashlib
import platform
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path

from ..model import GipfelError
from .distributions import files
from .kernels import folder_name, kernel_folder_key
from .model import Description, read_description
from .programs import programs


def describe(distributions: tuple[Distribution, ...], prefix: str) -> Description:
    """Describe the runtime of these distributions, without the folders of kernels."""
    versions = {one.name: one.version for one in distributions}
    digest = hashlib.sha256()
    for fact in (
        prefix,
        sys.version,
        sys.base_prefix,
        platform.machine(),
        *platform.libc_ver(),
        *sorted(versions.items()),
    ):
        digest.update(f"{fact}\0".encode())
    for one in distributions:
        if one.name == "gipfel":
            # What is copied and no more: byte code is written by whoever imports the source.
            for target, source in sorted(files((one,)).items()):
                digest.update(f"{target}\0".encode())
                digest.update(hashlib.sha256(source.read_bytes()).digest())
    for name, (_, source) in programs().items():
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    key = digest.hexdigest()
    return Description(
        prefix=prefix,
        version=f"{versions['gipfel']}+{key[:12]}",
        arch=platform.machine(),
        key=key,
        distributions=versions,
        programs={name: target for name, (target, _) in programs().items()},
    )


def described_there(path: Path) -> Description | None:
    """What the runtime at a path says about itself; None where there is none that says it."""
    try:
        return read_description(path)
    except GipfelError:
        return None


def is_current(there: Description | None, described: Description, versions: Iterable[str]) -> bool:
    """Tell whether what is there has the same content, and kernels for these versions of Python."""
    if there is None or there.key != described.key:
        return False
    return all(there.kernels.get(folder_name(each)) == kernel_folder_key(each) for each in versions)
