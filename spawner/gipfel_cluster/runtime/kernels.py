"""Directories of packages with which an image's own Python becomes a kernel, one for each version of CPython.

pip resolves and installs the wheels in a directory for its version and the oldest supported glibc.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from ..model import GipfelError, one_line
from .distributions import SITE_PACKAGES, is_skipped
from .installation import hardlink_duplicates, run_tool
from .model import DESCRIPTION

#: The oldest supported glibc of an image: that of RHEL 8 and Debian 10.
GLIBC = (2, 28)
_PIP_SECONDS = 900
#: Calls of pip until all requirements are known; see `_closure`.
_PIP_ROUNDS = 6
#: The supported versions of CPython in images.
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
#: Parent of the versions' directories, relative to the runtime's directory.
KERNELS = "kernels"
#: The file in each directory that describes it.
DIRECTORY_DESCRIPTION = "folder.json"
#: Part of each directory's key: a new number makes existing directories outdated.
_FORMAT = 1
#: Oldest Python for which a directory contains what `gipfel_widgets` needs.
_WIDGETS_FROM = (3, 11)
_KERNEL = ("ipykernel",)
# Packages that gipfel_widgets needs in addition to gipfel's own requirements.
_WIDGETS = ("ipywidgets", "anywidget", "plotly", "matplotlib")
# Later versions of pyarrow refuse NumPy 1, which many images with PyTorch contain; the image's NumPy is used.
_WITH_NUMPY_1 = ("pyarrow<25",)
# Directories that a kernel does not read: commands, manuals, and data of the server.
_SKIPPED_TOP = frozenset({"bin", "etc", "include", "man", "share"})
_SKIPPED_SUFFIXES = (".dll", ".dylib", ".exe", ".lib", ".pdb")
_SKIPPED_FILES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})


def initial_kernels(runtime: Path) -> tuple[str, ...] | None:
    """Return the versions to fetch for a new runtime; None, which keeps its versions, for an existing one.

    They are fetched only once: without a network, every later start would wait for them again.
    """
    return None if (runtime / DESCRIPTION).exists() else VERSIONS


def kernel_directory_name(version: str) -> str:
    """Return the directory name of a version: ``cp39`` for 3.9."""
    return f"cp{version.replace('.', '')}"


def kernel_key(version: str) -> str:
    """Return a digest of everything that a directory is built from."""
    digest = hashlib.sha256()
    for fact in (str(_FORMAT), version, platform.machine(), str(GLIBC), *_requirements(version)):
        digest.update(f"{fact}\0".encode())
    return digest.hexdigest()[:16]


def collect_kernels(
    versions: Iterable[str], *, cache: Path, previous: Path, progress: Callable[[str], None]
) -> dict[str, Path]:
    """Find or build the versions' directories; return name -> directory, without the versions that failed.

    Parameters
    ----------
    cache
        The directory in which they are searched and stored.
    previous
        The runtime that is being replaced; its directories are reused.
    progress
        Called with one line that names the versions that failed, and the reason.
    """
    found: dict[str, Path] = {}
    failed: dict[str, str] = {}
    is_changed = False
    for version in versions:
        name, key = kernel_directory_name(version), kernel_key(version)
        cached, earlier = cache / f"{name}-{key}", previous / KERNELS / name
        if not _is_complete(cached, key) and _is_complete(earlier, key):
            found[name] = earlier
            continue
        try:
            is_changed |= _ensure_cached(version, key, cached, progress)
            found[name] = cached
        except (GipfelError, OSError) as error:
            failed[version] = error.problem if isinstance(error, GipfelError) else str(error)
    if is_changed:
        # Most files are equal in all versions: hard links save space in the cache and in every runtime.
        hardlink_duplicates(cache)
    if failed:
        reason = next(iter(failed.values())).rstrip(".")
        progress(f"without kernels for an image's Python {', '.join(failed)}: {reason}")
    return found


def install_kernels(folders: Mapping[str, Path], tree: Path) -> None:
    """Add the directories, the programs that start kernels, and Gipfel's packages to a runtime."""
    top = tree / KERNELS
    top.mkdir(mode=0o755, exist_ok=True)
    copies: dict[int, Path] = {}
    for name, folder in folders.items():
        _link(folder, top / name, copies)
    for program in ("start.py", "kernel_launch.py"):
        shutil.copyfile(Path(__file__).with_name(program), top / program)
        (top / program).chmod(0o644)
    # Links to the runtime's own packages of Gipfel. Below Python 3.11 only gipfel_widgets is linked: its
    # `log` runs with any Python, and its other names raise an error that says what they need.
    packages = tree / SITE_PACKAGES
    own = sorted(packages.glob("gipfel*"))
    for folder, paths in ((top / "gipfel", own), (top / "older", [packages / "gipfel_widgets"])):
        folder.mkdir()
        for path in paths:
            (folder / path.name).symlink_to(os.path.relpath(path, folder))


def _requirements(version: str) -> tuple[str, ...]:
    """Return the requirements of a kernel, from gipfel's own metadata."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - only where runtimes are built

    wants_widgets = tuple(int(part) for part in version.split(".")) >= _WIDGETS_FROM
    extra = (*_KERNEL, *_WIDGETS) if wants_widgets else _KERNEL
    chosen = set(_WITH_NUMPY_1) if wants_widgets else set()
    for text in distribution("gipfel").requires or ():
        requirement = Requirement(text)
        is_optional = requirement.marker is not None
        if (is_optional and requirement.name in extra) or (wants_widgets and not is_optional):
            requirement.marker = None
            chosen.add(str(requirement))
    return tuple(sorted(chosen))


def _is_complete(folder: Path, key: str) -> bool:
    try:
        content = json.loads((folder / DIRECTORY_DESCRIPTION).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("key") == key


def _ensure_cached(version: str, key: str, cached: Path, progress: Callable[[str], None]) -> bool:
    if _is_complete(cached, key):
        return False
    cached.parent.mkdir(parents=True, exist_ok=True)
    with (cached.parent / f".{cached.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_complete(cached, key):
            progress(f"fetching the kernel for an image's Python {version}")
            building = Path(tempfile.mkdtemp(dir=cached.parent, prefix=f".{cached.name}.building-"))
            try:
                _make(version, key, building)
                shutil.rmtree(cached, ignore_errors=True)
                building.rename(cached)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return True


def _make(version: str, key: str, folder: Path) -> None:
    versions = resolve_wheels(version, _requirements(version))
    install_wheels(version, versions, folder)
    modules = {}
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        name = record.parent.name.split("-")[0]
        modules[name] = sorted(_top_modules(record.read_text()))
    _remove_unneeded(folder)
    content = {
        "key": key,
        "python": version,
        "glibc": list(GLIBC),
        "versions": versions,
        # Modules by package, with which `start` replaces an outdated package of the image.
        "modules": modules,
    }
    (folder / DIRECTORY_DESCRIPTION).write_text(json.dumps(content, indent=1) + "\n")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _top_modules(record: str) -> Iterable[str]:
    for line in record.splitlines():
        path = line.split(",")[0].strip('"')
        first, slash, _ = path.partition("/")
        if first.endswith((".dist-info", ".data", ".libs")) or first in _SKIPPED_TOP | {".."}:
            continue
        name = first if slash else first.split(".")[0]
        if name.isidentifier() and (slash or first.endswith((".py", ".so"))):
            yield name


def _remove_unneeded(folder: Path) -> None:
    for name in _SKIPPED_TOP:
        shutil.rmtree(folder / name, ignore_errors=True)
    for parent, folders, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(parent, name)
            inside = f"{SITE_PACKAGES}/{path.relative_to(folder).as_posix()}"
            is_installers = name in _SKIPPED_FILES and Path(parent).suffix == ".dist-info"
            if is_skipped(inside) or name.endswith(_SKIPPED_SUFFIXES) or is_installers:
                path.unlink()
        for name in folders:
            # Only empty directories can be removed.
            with contextlib.suppress(OSError):
                Path(parent, name).rmdir()


def _link(source: Path, target: Path, copies: dict[int, Path]) -> None:
    """Copy a directory by hard links to its files, which never change, or by copies if links fail."""

    def link(origin: str, goal: str) -> str:
        inode = os.stat(origin).st_ino  # noqa: PTH116 - copytree passes strings
        try:
            os.link(copies.get(inode, origin), goal)
        except OSError:
            shutil.copy(origin, goal)
            copies[inode] = Path(goal)
        return goal

    shutil.copytree(source, target, copy_function=link)
    target.chmod(0o755)


def resolve_wheels(python: str, requirements: Iterable[str]) -> dict[str, str]:
    """Return the distributions that pip resolves for a version of CPython: name -> version.

    Parameters
    ----------
    python
        The version, such as ``3.9``.

    Raises
    ------
    GipfelError
        pip is not installed, the package index can't be reached, or no set of wheels fits this version.
    """
    pending = list(requirements)
    for _ in range(_PIP_ROUNDS):
        found = _report(python, pending)
        needed, missing = _closure(found, requirements, python)
        if not missing:
            return {name: found[name]["version"] for name in sorted(needed)}
        pending += sorted(missing)
    raise GipfelError(
        f"The packages for Python {python} could not be resolved: pip omits {', '.join(sorted(missing))}."
    )


def install_wheels(python: str, versions: Mapping[str, str], target: Path) -> None:
    """Unpack exactly these distributions into a directory, without byte code.

    Raises
    ------
    GipfelError
        As for `resolve_wheels`.
    """
    exact = [f"{name}=={version}" for name, version in versions.items()]
    _pip(python, ["--no-deps", "--no-compile", "--target", str(target), *exact])


def _report(python: str, requirements: Sequence[str]) -> dict[str, dict[str, Any]]:
    from packaging.utils import canonicalize_name  # noqa: PLC0415 - only where runtimes are built

    with tempfile.TemporaryDirectory(prefix="gipfel-wheels-") as folder:
        report = Path(folder, "report.json")
        _pip(python, ["--dry-run", "--report", str(report), "--target", f"{folder}/none", *requirements])
        installs = json.loads(report.read_text())["install"]
    return {canonicalize_name(each["metadata"]["name"]): each["metadata"] for each in installs}


def _closure(
    distributions: Mapping[str, Mapping[str, Any]], requirements: Iterable[str], python: str
) -> tuple[set[str], set[str]]:
    """Return the distributions that a Python needs, and the requirements that pip has omitted.

    For another version pip chooses the right wheels, but evaluates markers for the running Python.
    """
    from packaging.requirements import Requirement  # noqa: PLC0415 - only where runtimes are built
    from packaging.utils import canonicalize_name  # noqa: PLC0415

    markers = {"python_version": python, "python_full_version": f"{python}.0"}
    needed: set[tuple[str, str]] = set()
    missing: set[str] = set()
    todo = [(text, "") for text in requirements]
    while todo:
        text, current_extra = todo.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({**markers, "extra": current_extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in distributions:
            requirement.marker = None
            missing.add(str(requirement))
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) not in needed:
                needed.add((name, extra))
                todo += [(each, extra) for each in distributions[name].get("requires_dist", ())]
    return {name for name, _ in needed}, missing


def _pip(python: str, arguments: Sequence[str]) -> None:
    command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-input", "--retries", "1", "--ignore-installed", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", python, *_platforms()]
    done = run_tool("pip", [*command, *arguments], _PIP_SECONDS)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
        raise GipfelError(f"pip: {one_line((lines or ['it failed'])[-1])}")


def _platforms() -> list[str]:
    machine = platform.machine()
    major, newest = GLIBC
    tags = [f"manylinux_{major}_{minor}_{machine}" for minor in range(newest, 4, -1)]
    tags += [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
    return [word for tag in tags for word in ("--platform", tag)]
