"""Extract the files that describe distribution and packages of a directory, an image or an OCI archive."""

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...telemetry.files import open_regular, read_regular
from ..contents.entries import Unreadable, archive_errors, archive_files, clean, is_archive, squashfs_entries

_TIMEOUT_S = 120
_MAX_TOTAL_BYTES = 1 << 30


def is_image(path: Path) -> bool:
    """Return whether a file is a SquashFS image or an OCI or Docker archive."""
    return is_squashfs(path) or is_archive(path)


def is_squashfs(path: Path) -> bool:
    """Return whether a file is a SquashFS image."""
    with open_regular(path, follow=True) as file:
        return file.read(4) == b"hsqs"


@contextmanager
def image_files(path: Path) -> Iterator[dict[str, Path]]:
    """Provide the files that describe packages, by their path in the image; for use in a ``with`` statement.

    Raises
    ------
    Unreadable
        The image can't be read, or has too many files.
    """
    if path.is_dir():
        yield _of_directory(path)
        return
    with tempfile.TemporaryDirectory(prefix="gipfel-scan-") as name:
        if is_squashfs(path):
            yield _of_squashfs(path, Path(name, "root"))
        else:
            yield _of_archive(path, Path(name))


def _of_directory(root: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder, names, files in os.walk(root):
        names.sort()
        inside = os.path.relpath(folder, root)
        for name in (*files, *names):
            path = name if inside == "." else f"{inside}/{name}"
            kind = kind_of(path)
            regular = bool(kind) and stat.S_ISREG(Path(folder, name).lstat().st_mode)
            if kind in DATABASES and not regular:
                raise Unreadable(f"{path} is not a file.")
            if regular:
                found[path] = Path(folder, name)
        _check_count(found)
    return found


def _of_squashfs(path: Path, target: Path) -> dict[str, Path]:
    wanted = []
    for entry in squashfs_entries(path):
        kind = kind_of(entry.path)
        if kind in DATABASES and not stat.S_ISREG(entry.mode):
            raise Unreadable(f"{entry.path} in {path} is not a file.")
        if kind and stat.S_ISREG(entry.mode):
            wanted.append(entry.path)
    _check_count(dict.fromkeys(wanted))
    if not wanted:
        return {}
    limits = ("prlimit", f"--fsize={MAX_BYTES}", "--cpu=120") if shutil.which("prlimit") else ()
    with tempfile.NamedTemporaryFile("w", errors="surrogateescape") as names:
        names.write("\n".join(wanted) + "\n")
        names.flush()
        command = ("unsquashfs", "-no-progress", "-no-xattrs", "-no-wildcards", "-quiet", "-d", str(target))
        _unpack((*limits, *command, "-extract-file", names.name, str(path.absolute())), path)
    found = {name: target / name for name in wanted}
    return {name: place for name, place in found.items() if place.is_file() and not place.is_symlink()}


def _unpack(argv: tuple[str, ...], path: Path) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unreadable(f"Reading {path} took longer than {_TIMEOUT_S} s.") from None
    # Status 2 reports that owners could not be set, as always for a plain user.
    if done.returncode not in (0, 2):
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise Unreadable(f"{path} can't be read: {lines[-1][:200] if lines else 'unsquashfs failed'}.")


def _of_archive(path: Path, target: Path) -> dict[str, Path]:
    """Apply the layers of an archive in their order, including removals.

    Source: OCI image-spec, layer.md.
    """
    found: dict[str, Path] = {}
    taken = 0
    for entry, stream in archive_files(path, one_image=True):
        _remove(entry.path, found)
        kind = kind_of(entry.path)
        if kind in DATABASES and stream is None and not stat.S_ISREG(entry.mode):
            raise Unreadable(f"{entry.path} in {path} is not a file.")
        if stream is None or not kind:
            continue
        taken += entry.size
        if entry.size > MAX_BYTES or taken > _MAX_TOTAL_BYTES:
            raise Unreadable(f"{path} holds files that are too large.")
        place = target / str(len(found) + taken)
        with archive_errors(path):
            place.write_bytes(stream.read(entry.size))
        found[entry.path] = place
        _check_count(found)
    return found


def _remove(name: str, files: dict[str, Path]) -> None:
    folder, _, last = clean(name).rpartition("/")
    if last == ".wh..wh..opq":
        gone = f"{folder}/"
    elif last.startswith(".wh."):
        gone = f"{folder}/{last[4:]}".lstrip("/")
    else:
        # A later layer's entry replaces an earlier one of the same name.
        gone = clean(name)
        files.pop(gone, None)
        return
    for path in [each for each in files if each == gone or each.startswith(gone.rstrip("/") + "/")]:
        del files[path]


def _check_count(files: dict[str, Any]) -> None:
    if len(files) > MAX_FILES:
        raise Unreadable(f"It has more than {MAX_FILES} files that describe packages.")


def image_text(path: Path) -> str:
    """Return an extracted file as text, with invalid bytes replaced."""
    return read_regular(path, MAX_BYTES).decode(errors="replace")


#: Kind of a file and a pattern for its path without a leading slash; the first match counts.
_KINDS = (
    ("os-release", r"(?:etc|usr/lib)/os-release"),
    ("dpkg", r"var/lib/dpkg/(?:status|status\.d/[^/]+)"),
    ("dpkg-files", r"var/lib/dpkg/info/[^/]+\.list"),
    ("apk", r"(?:usr/)?lib/apk/db/installed"),
    ("rpm", r"(?:var/lib/rpm|usr/lib/sysimage/rpm)/rpmdb\.sqlite"),
    ("rpm-old", r"(?:var/lib/rpm|usr/lib/sysimage/rpm)/Packages(?:\.db)?"),
    ("python", r"(?:.+/)?[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)"),
    ("conda", r"(?:.+/)?conda-meta/[^/]+\.json"),
    ("npm-lock", r"(?!.*node_modules/)(?:.+/)?package-lock\.json"),
    ("npm", r"(?:.+/)?node_modules/(?:@[^/]+/)?[^/]+/package\.json"),
    ("go", r"(?:usr/local/bin|usr/local/go/bin|(?:root/|home/[^/]+/)?go/bin|opt/[^/]+/bin|app)/[^/.]+"),
)
#: All patterns in one, since an image may have 100 000 files; group numbers are positions in `_KINDS`.
_ANY_KIND = re.compile("|".join(f"({pattern})" for _, pattern in _KINDS))
#: Kinds of files that are the package database of a distribution.
DATABASES = frozenset(("dpkg", "apk", "rpm"))
MAX_FILES = 50_000
#: Largest size of one extracted file, in bytes.
MAX_BYTES = 256 << 20
_OSV_NAMES = {"debian": "Debian", "alpine": "Alpine", "rocky": "Rocky Linux", "almalinux": "AlmaLinux"}


def kind_of(path: str) -> str:
    """Return the kind of a file that describes packages, by its path; empty for all others."""
    found = _ANY_KIND.fullmatch(path)
    return _KINDS[found.lastindex - 1][0] if found and found.lastindex else ""


def distribution(os_release: Mapping[str, str]) -> str:
    """Return OSV's ecosystem for a distribution, given its ``os-release``; empty if OSV has none."""
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
