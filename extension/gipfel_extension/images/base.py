"""The image that a build begins with: a tar file, a SquashFS image, a directory, an OCI archive, or Debian.

Each becomes an image in podman's store, named after what it was made from, so that it is made once.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from gipfel_cluster.edf.image import image_environment
from gipfel_cluster.model import GipfelError

from ..gate.contents.entries import is_archive
from ..gate.packages.images import is_squashfs
from ..gate.scan.cache import Digest
from .containerfile import Input
from .podman import Podman

_DEBIAN = re.compile(r"debian:([a-z][a-z0-9.-]{1,40})((?:,[a-z0-9][a-z0-9+.-]{0,80})*)")
_LOADED = re.compile(r"Loaded images?:\s*(\S+)")
_NAME = "localhost/gipfel/base"
_TAR = 'tar --sort=name --mtime=@0 --numeric-owner -C "$1" -cf "$2" .'


def load_base(
    base: str, podman: Podman, work: Path, digests: Path | None, report: Callable[[str], None]
) -> tuple[str, Input]:
    """Make a base available in podman's store; return its name there and its digest.

    Parameters
    ----------
    base
        A path, or ``debian:SUITE`` with further packages after commas.
    work
        Directory for temporary files, as large as the base.
    digests
        The user's cache of digests.

    Raises
    ------
    GipfelError
        It does not exist, or is of another kind.
    """
    if match := _DEBIAN.fullmatch(base):
        return _debian(match, podman, work, report)
    path = Path(base).expanduser().absolute()
    if not path.exists():
        raise GipfelError(
            f"The base {base} does not exist.",
            "Give a tar file, a .sqsh, a directory, an OCI archive, or debian:bookworm,python3.",
        )
    if path.is_dir():
        return _import_tree(path, str(path), podman, work, report)
    sha256 = Digest(path, digests).value().removeprefix("sha256:")
    if not sha256:
        raise GipfelError(f"The base {base} can't be read.", "Check its permissions.")
    found = Input(name=str(path), sha256=sha256)
    name = f"{_NAME}:{sha256[:32]}"
    if _exists(name, podman):
        return name, found
    report(f"Loading {path.name}")
    if is_squashfs(path):
        _import_squashfs(path, name, podman, work)
    elif is_archive(path):
        output = podman.podman("load", "--quiet", "--input", str(path))
        loaded = _LOADED.search(output)
        podman.podman("tag", loaded[1] if loaded else output.split()[-1], name)
    else:
        podman.podman("import", "--quiet", str(path), name)
    return name, found


def _exists(name: str, podman: Podman) -> bool:
    with suppress(GipfelError):
        podman.podman("image", "exists", name)
        return True
    return False


def _import_squashfs(path: Path, name: str, podman: Podman, work: Path) -> None:
    """Import an image with the variables that its files declare, which the OCI configuration would hold."""
    tar, root = work / "base.tar", work / "base"
    # Status 2: devices, which only the node's root can create, and which containers get from the host.
    unpack = 'unsquashfs -quiet -no-progress -no-xattrs -d "$1" "$3" || [ $? -eq 2 ]'
    script = f'{unpack}; {_TAR}; rm -rf "$1"'
    podman.in_namespace(script, str(root), str(tar), str(path))
    podman.podman("import", "--quiet", *_changes(image_environment(path)), str(tar), name)
    tar.unlink()


def _changes(variables: Mapping[str, str]) -> list[str]:
    escaped = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in variables.items()}
    return [word for key, value in escaped.items() for word in ("--change", f'ENV {key}="{value}"')]


def _import_tree(
    root: Path, shown: str, podman: Podman, work: Path, report: Callable[[str], None]
) -> tuple[str, Input]:
    tar = work / "base.tar"
    report(f"Loading {shown}")
    podman.in_namespace(_TAR, str(root), str(tar))
    sha256 = Digest(tar).value().removeprefix("sha256:")
    name = f"{_NAME}:{sha256[:32]}"
    if not _exists(name, podman):
        podman.podman("import", "--quiet", *_changes(image_environment(root)), str(tar), name)
    tar.unlink()
    return name, Input(name=shown, sha256=sha256)


def _debian(
    match: re.Match[str], podman: Podman, work: Path, report: Callable[[str], None]
) -> tuple[str, Input]:
    base, suite, packages = match[0], match[1], match[2].strip(",")
    key = hashlib.sha256(base.encode()).hexdigest()
    name = f"{_NAME}:debian-{key[:32]}"
    if not _exists(name, podman):
        if shutil.which("mmdebstrap") is None:
            raise GipfelError("A Debian can't be made without mmdebstrap.", "Install the package mmdebstrap.")
        report(f"Making Debian {suite} from packages, which takes minutes")
        tar = work / "base.tar"
        mode = "root" if os.geteuid() == 0 else "unshare"
        include = (f"--include={packages}",) if packages else ()
        argv = ("mmdebstrap", f"--mode={mode}", "--variant=minbase", *include, suite, str(tar))
        podman.run(*argv, variables={"SOURCE_DATE_EPOCH": "0"})
        podman.podman("import", "--quiet", str(tar), name)
        tar.unlink()
    identifier = podman.podman("image", "inspect", "--format", "{{.Id}}", name).strip()
    return name, Input(name=base, sha256=identifier)
