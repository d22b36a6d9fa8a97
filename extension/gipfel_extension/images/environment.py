"""Write a Containerfile that installs again what pip and apt have installed in a running container.

Such packages are recognized by their files' times: those of the image are older than the container. Every
version is pinned, dependencies included, so that a later build installs the same versions.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from gipfel_cluster.model import BREAKS, Frozen, GipfelError, one_line
from gipfel_cluster.runs import RunFolder

from ..gate.packages.databases import read_dpkg
from ..telemetry.files import read_regular

_MAX_BYTES = 64 << 20
_LIST_BYTES = 1 << 20
_TIMEOUT_S = 120.0
_SETTINGS = ("sources.list", "sources.list.d", "preferences.d", "trusted.gpg.d", "keyrings")
_FILE_URI = re.compile(r"\bfile:(?://)?(/[^\s]*)")
_CREDENTIALS = re.compile(r"://[^/\s]*@")
_PLACE = "/opt/gipfel-environment"
_APT_INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends --allow-downgrades"
#: Program that lists the installed distributions; it runs in the image's Python.
_SCRIPT = """\
import importlib.metadata, json, os, sys, sysconfig
found = []
for each in importlib.metadata.distributions():
    path = str(getattr(each, "_path", ""))
    if os.path.exists(path) and each.metadata["Name"]:
        found.append({"name": each.metadata["Name"], "version": each.version,
            "changed": os.stat(path).st_ctime, "url": each.read_text("direct_url.json") or ""})
managed = os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))
json.dump({"packages": found, "managed": managed, "python": sys.executable}, sys.stdout)
"""


class PythonPackage(Frozen):
    """An installed distribution.

    ``changed`` is when it was installed, in seconds since 1970; ``url`` is the content of its
    ``direct_url.json``, empty if it was installed from an index.
    """

    name: str
    version: str
    changed: float
    url: str = ""


class PythonState(Frozen):
    """The distributions that a Python finds.

    ``managed`` is whether the environment is externally managed, so that pip refuses to install without an
    option; ``python`` is the interpreter, empty if the image has none.
    """

    packages: tuple[PythonPackage, ...] = ()
    managed: bool = False
    python: str = ""


class SavedEnvironment(Frozen):
    """The written Containerfile, the packages that it installs, and a note for everything that it lacks."""

    containerfile: Path
    python: tuple[str, ...]
    debian: tuple[str, ...]
    notes: tuple[str, ...]
    #: Directories of ``file:`` repositories, which `BuildSpec.mounts` must name.
    mounts: tuple[str, ...] = ()


class Origin(Frozen):
    """The container's image and EDF, and the time of its start in seconds since 1970."""

    image: str
    edf: str = ""
    started: float


def find_origin(image: str, edf: str, environment: Mapping[str, str]) -> Origin:
    """Return the origin of this process's container: the given image and EDF, else those of the run record.

    Raises
    ------
    GipfelError
        This process is not in a container, or the container's image is not known.
    """
    if not image and (run := environment.get("GIPFEL_RUN")):
        record = RunFolder(Path(run)).read_record()
        found = record.get("edf") or {}
        image, edf = str(found.get("image") or ""), edf or str(found.get("path") or "")
    if not image:
        raise GipfelError(
            "This is not a container of a Gipfel job.",
            "Run it in one, or name the container's image: --image.",
        )
    _check_lines(image, edf)
    return Origin(image=image, edf=edf, started=_container_start())


def _check_lines(*values: str) -> None:
    """Raise for a value that would add lines to a Containerfile.

    Raises
    ------
    GipfelError
        It has a line break.
    """
    if any(BREAKS.search(value) for value in values):
        raise GipfelError("A path has a line break, which a Containerfile can't hold.", "Rename it.")


def _container_start() -> float:
    """Return when the first process of this PID namespace was started, in seconds since 1970."""
    fields = Path("/proc/1/stat").read_text().rpartition(")")[2].split()
    lines = Path("/proc/stat").read_text().splitlines()
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    # The boot time is only known to a second, so subtract one.
    return boot + int(fields[19]) / os.sysconf("SC_CLK_TCK") - 1.0


def find_python(given: str, environment: Mapping[str, str]) -> str:
    """Return the image's Python: the given one, that of an active environment, or the first on the PATH.

    Empty if the image has none; apt may have installed packages nevertheless.
    """
    if given:
        return given
    folders = [each for each in environment.get("PATH", "").split(os.pathsep) if each.startswith("/")]
    if active := environment.get("VIRTUAL_ENV"):
        folders.insert(0, f"{active}/bin")
    for folder in (*folders, "/usr/local/bin", "/usr/bin", "/opt/conda/bin"):
        path = Path(folder, "python3")
        # The runtime's own Python has none of the image's packages.
        if os.access(path, os.X_OK) and not path.resolve().is_relative_to(Path(sys.prefix).resolve()):
            return str(path)
    return ""


def container_python_state(given: str, environment: Mapping[str, str]) -> PythonState:
    """Return the distributions that the image's Python finds; an empty state if the image has none.

    Raises
    ------
    GipfelError
        It can't be run.
    """
    python = find_python(given, environment)
    return read_python_state(python) if python else PythonState()


def read_python_state(python: str) -> PythonState:
    """Return the distributions that a Python interpreter finds.

    Raises
    ------
    GipfelError
        It can't be run.
    """
    try:
        done = subprocess.run(
            (python, "-c", _SCRIPT), capture_output=True, timeout=_TIMEOUT_S, check=True, cwd="/"
        )
        return PythonState.model_validate_json(done.stdout)
    except (OSError, subprocess.SubprocessError, ValidationError) as error:
        raise GipfelError(f"{python} can't list its packages: {one_line(str(error))[:200]}.") from error


def save_environment(
    folder: Path,
    origin: Origin,
    python: PythonState,
    *,
    wheels: Sequence[Path] = (),
    root: Path = Path("/"),
    environment: Mapping[str, str],
) -> SavedEnvironment:
    """Write a directory with a Containerfile for everything installed since the container started.

    Parameters
    ----------
    wheels
        Directories to search for wheels that packages were installed from.
    root
        The container's root directory.

    Raises
    ------
    GipfelError
        The directory exists, nothing was installed, or dpkg's database can't be read.
    """
    debian = _new_debian(root, origin.started)
    installed = [each for each in python.packages if each.changed >= origin.started]
    if not debian and not installed:
        raise GipfelError(
            "Nothing was installed with pip or apt since the container's start.",
            "Run this in the container, after installing.",
        )
    try:
        folder.mkdir(mode=0o755)
    except OSError as error:
        raise GipfelError(f"{folder} can't be created: {error.strerror}.", "Give a new directory.") from error
    try:
        apt, mounts, notes = _copy_settings(root, folder, origin.started) if debian else ((), (), ())
        lines, more = _pip_lines(folder, installed, python, wheels, environment)
        text = _containerfile(origin, mounts, _apt_lines(debian, copied=bool(apt)) + lines)
        (folder / "Containerfile").write_text(text)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return SavedEnvironment(
        containerfile=folder / "Containerfile",
        python=tuple(f"{each.name}=={each.version}" for each in installed),
        debian=debian,
        notes=(*notes, *more),
        mounts=tuple(mounts),
    )


def _new_debian(root: Path, started: float) -> tuple[str, ...]:
    """Return ``name=version`` of each Debian package whose file list is newer than the container."""
    status = root / "var/lib/dpkg/status"
    if not status.exists():
        return ()
    try:
        text = read_regular(status, _MAX_BYTES).decode(errors="replace")
    except OSError as error:
        raise GipfelError(f"{status} can't be read: {error.strerror}.") from error
    try:
        installed = list(read_dpkg(text, "", str(status)))
    except ValueError as error:
        raise GipfelError(f"{status} can't be read: {error}.") from error
    found = []
    for each in installed:
        lists = [*(root / "var/lib/dpkg/info").glob(f"{_escaped(each.name)}.list")]
        lists += (root / "var/lib/dpkg/info").glob(f"{_escaped(each.name)}:*.list")
        if any(path.lstat().st_ctime >= started for path in lists):
            found.append(f"{each.name}={each.version}")
    return tuple(sorted(found))


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def _copy_settings(
    root: Path, folder: Path, started: float
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Copy apt settings that are newer than the container; return them, directories to mount, and notes."""
    copied, mounts, notes = [], set(), []
    for name in _SETTINGS:
        place = root / "etc/apt" / name
        files = sorted(place.glob("*")) if place.is_dir() else [place]
        for path in (each for each in files if each.is_file()):
            content = read_regular(path, _LIST_BYTES, follow=True)
            text = content.decode(errors="replace")
            mounts |= {match.rstrip("/") for match in _FILE_URI.findall(text)}
            if path.lstat().st_ctime < started:
                continue
            if _CREDENTIALS.search(text):
                notes.append(f"{path} has a password and was not copied. Add the repository without one.")
                continue
            target = folder / "apt" / path.relative_to(root / "etc/apt")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            copied.append(str(target.relative_to(folder)))
    return tuple(copied), tuple(sorted(mounts)), tuple(notes)


def _apt_lines(packages: Sequence[str], *, copied: bool) -> list[str]:
    if not packages:
        return []
    names = " \\\n      ".join(shlex.quote(each) for each in packages)
    return [
        *(["COPY apt/ /etc/apt/"] if copied else []),
        f"RUN apt-get update \\\n  && {_APT_INSTALL} \\\n      {names}",
    ]


def _pip_lines(
    folder: Path,
    packages: Sequence[PythonPackage],
    python: PythonState,
    wheels: Sequence[Path],
    environment: Mapping[str, str],
) -> tuple[list[str], list[str]]:
    """Write the requirements file and wheels; return the lines of the Containerfile, and notes."""
    if not packages:
        return [], []
    requirements, notes, from_index = [], [], False
    (folder / "wheels").mkdir()
    for each in sorted(packages, key=lambda package: package.name.lower()):
        source = _direct_url(each)
        if source.get("dir_info") is not None:
            notes.append(
                f"{each.name} is installed from the directory {source.get('url')} and was left out. "
                "Copy it into the saved directory, and add a line that installs it."
            )
            continue
        if isinstance(vcs := source.get("vcs_info"), dict):
            requirements.append(f"{each.name} @ {vcs.get('vcs')}+{source['url']}@{vcs.get('commit_id')}")
            from_index = True
        elif wheel := _find_wheel(each, source, wheels):
            shutil.copyfile(wheel, folder / "wheels" / wheel.name)
            requirements.append(f"{each.name}=={each.version}")
        else:
            requirements.append(f"{each.name}=={each.version}")
            from_index = True
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements))
    index = environment.get("PIP_INDEX_URL", "")
    if index and _CREDENTIALS.search(index):
        notes.append("PIP_INDEX_URL has a password and was not copied. Set an index without one.")
        index = ""
    options = [
        *(["--break-system-packages"] if python.managed else []),
        *([] if from_index else ["--no-index"]),
        *(["--index-url", shlex.quote(index)] if index and from_index else []),
    ]
    command = (
        f"RUN {shlex.quote(python.python)} -m pip install --no-deps --no-cache-dir --root-user-action=ignore "
        f"{' '.join(options)} \\\n      --find-links {_PLACE}/wheels -r {_PLACE}/requirements.txt"
    )
    return [f"COPY requirements.txt {_PLACE}/", f"COPY wheels/ {_PLACE}/wheels/", command], notes


def _direct_url(package: PythonPackage) -> dict[str, Any]:
    try:
        found = json.loads(package.url) if package.url else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _find_wheel(package: PythonPackage, source: Mapping[str, Any], folders: Iterable[Path]) -> Path | None:
    """Return the wheel that a package was installed from, if it is on this machine."""
    url = urlsplit(str(source.get("url", "")))
    if url.scheme == "file" and url.path.endswith(".whl") and Path(unquote(url.path)).is_file():
        return Path(unquote(url.path))
    name = re.sub(r"[-_.]+", "_", package.name).lower()
    for folder in folders:
        for path in sorted(folder.glob("*.whl")):
            distribution, _, rest = path.name.partition("-")
            version = rest.partition("-")[0]
            if (re.sub(r"[-_.]+", "_", distribution).lower(), version) == (name, package.version):
                return path
    return None


def _containerfile(origin: Origin, mounts: Iterable[str], lines: Iterable[str]) -> str:
    is_file = origin.image.startswith("/")
    mounts = tuple(mounts)
    options = "".join(f" --mount {shlex.quote(each)}" for each in mounts)
    head = [f"# Saved from a running container. Build it: gipfel image build DIR -o NAME.sqsh{options}"]
    head += [f"# gipfel: base {origin.image}"] if is_file else []
    head += [f"# gipfel: edf {origin.edf}"] if origin.edf else []
    head += [f"# gipfel: mount {each}" for each in mounts]
    return "\n".join([*head, f"FROM {'scratch' if is_file else origin.image}", *lines]) + "\n"
