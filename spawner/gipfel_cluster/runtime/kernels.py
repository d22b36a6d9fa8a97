"""A folder of packages per CPython version, with which an image's own Python becomes a kernel."""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import distribution
from pathlib import Path

from ..model import GipfelError
from .distributions import SITE_PACKAGES, is_skipped
from .model import DESCRIPTION
from .place import share_content
from .wheels import GLIBC, install_wheels, resolve_wheels

#: CPython versions that images have.
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
#: Where the folders are, relative to the runtime's.
KERNELS = "kernels"
#: What a folder says about itself.
FOLDER_DESCRIPTION = "folder.json"

_FORMAT = 1
_WIDGETS_FROM = (3, 11)
_KERNEL = ("ipykernel",)
# What gipfel_widgets shows and draws with, beside what gipfel needs anywhere.
_WIDGETS = ("ipywidgets", "anywidget", "plotly", "matplotlib")
# Later ones refuse NumPy 1, which many images with PyTorch have, and which wins.
_WITH_NUMPY_1 = ("pyarrow<25",)
# Nothing of these is read by a kernel: commands, manuals, and what the server shows.
_SKIPPED_TOP = frozenset({"bin", "etc", "include", "man", "share"})
_SKIPPED_SUFFIXES = (".dll", ".dylib", ".exe", ".lib", ".pdb")
_SKIPPED_FILES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})


def first_kernels(runtime: Path) -> tuple[str, ...] | None:
    """Return the versions to fetch where no runtime was built yet; None keeps those that it has.

    They are fetched once: without a network, every later start would wait for them in vain.
    """
    return None if (runtime / DESCRIPTION).exists() else VERSIONS


def folder_name(version: str) -> str:
    """Name the folder of a version: ``cp39`` for 3.9."""
    return f"cp{version.replace('.', '')}"


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where folders are kept that were made once, for this user's next builds."""
    given = environment.get("XDG_CACHE_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "gipfel" / "kernels"


def kernel_folder_key(version: str) -> str:
    """What a folder was made from, in short: another key is another folder."""
    digest = hashlib.sha256()
    for fact in (str(_FORMAT), version, platform.machine(), str(GLIBC), *_requirements(version)):
        digest.update(f"{fact}\0".encode())
    return digest.hexdigest()[:16]


def gather_kernels(
    versions: Iterable[str], *, cache: Path, before: Path, progress: Callable[[str], None]
) -> dict[str, Path]:
    """Find or make the folders of some versions: name -> folder, of those that could be had.

    Parameters
    ----------
    cache
        Where they are looked for and left.
    before
        The runtime that is being replaced, whose folders do as well.
    progress
        Told in one line which versions are missing, and why.
    """
    found: dict[str, Path] = {}
    failed: dict[str, str] = {}
    made = False
    for version in versions:
        key = kernel_folder_key(version)
        kept = cache / f"{folder_name(version)}-{key}"
        earlier = before / KERNELS / folder_name(version)
        if not _is_whole(kept, key) and _is_whole(earlier, key):
            found[folder_name(version)] = earlier
            continue
        try:
            made |= _keep(version, key, kept, progress)
            found[folder_name(version)] = kept
        except GipfelError as error:
            failed[version] = error.problem
        except OSError as error:
            failed[version] = str(error)
    if made:
        # Of several versions most files are the same: in the cache once, and so in every runtime.
        share_content(cache)
    if failed:
        reason = next(iter(failed.values())).rstrip(".")
        progress(f"without kernels for an image's Python {', '.join(failed)}: {reason}")
    return found


def place_kernels(folders: Mapping[str, Path], tree: Path) -> None:
    """Put folders, the program that starts kernels, and Gipfel's own packages into a runtime's folder."""
    top = tree / KERNELS
    top.mkdir(mode=0o755, exist_ok=True)
    copies: dict[int, Path] = {}
    for name, folder in folders.items():
        _link(folder, top / name, copies)
    for program in ("start.py", "kernel_launch.py"):
        shutil.copyfile(Path(__file__).with_name(program), top / program)
        (top / program).chmod(0o644)
    # Gipfel's own are the runtime's: nothing is there twice. Below 3.11 only the package is there whose `log`
    # runs with any Python, and which says in one line what its other names need.
    packages = tree / SITE_PACKAGES
    own = sorted(packages.glob("gipfel*"))
    for folder, paths in ((top / "gipfel", own), (top / "older", [packages / "gipfel_widgets"])):
        folder.mkdir()
        for path in paths:
            (folder / path.name).symlink_to(os.path.relpath(path, folder))


def _requirements(version: str) -> tuple[str, ...]:
    """Requirements of a kernel, as gipfel's own metadata has them."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - only where runtimes are built

    wants_widgets = tuple(int(part) for part in version.split(".")) >= _WIDGETS_FROM
    extra = (*_KERNEL, *_WIDGETS) if wants_widgets else _KERNEL
    chosen = set(_WITH_NUMPY_1) if wants_widgets else set()
    for text in distribution("gipfel").requires or ():
        requirement = Requirement(text)
        of_extra = requirement.marker is not None
        if (of_extra and requirement.name in extra) or (wants_widgets and not of_extra):
            requirement.marker = None
            chosen.add(str(requirement))
    return tuple(sorted(chosen))


def _is_whole(folder: Path, key: str) -> bool:
    try:
        content = json.loads((folder / FOLDER_DESCRIPTION).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("key") == key


def _keep(version: str, key: str, kept: Path, progress: Callable[[str], None]) -> bool:
    if _is_whole(kept, key):
        return False
    kept.parent.mkdir(parents=True, exist_ok=True)
    with (kept.parent / f".{kept.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_whole(kept, key):
            progress(f"fetching the kernel for an image's Python {version}")
            building = Path(tempfile.mkdtemp(dir=kept.parent, prefix=f".{kept.name}.building-"))
            try:
                _make(version, key, building)
                shutil.rmtree(kept, ignore_errors=True)
                building.rename(kept)
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
    _thin_out(folder)
    content = {
        "key": key,
        "python": version,
        "glibc": list(GLIBC),
        "versions": versions,
        # With which of the modules an older package of the image can be passed over.
        "modules": modules,
    }
    (folder / FOLDER_DESCRIPTION).write_text(json.dumps(content, indent=1) + "\n")
    for parent, folders, names in os.walk(folder):
        for each in folders:
            Path(parent, each).chmod(0o755)
        for each in names:
            Path(parent, each).chmod(0o644)
    folder.chmod(0o755)


def _top_modules(record: str) -> Iterable[str]:
    for line in record.splitlines():
        path = line.split(",")[0].strip('"')
        first, slash, _ = path.partition("/")
        if first.endswith((".dist-info", ".data", ".libs")) or first in _SKIPPED_TOP | {".."}:
            continue
        name = first if slash else first.split(".")[0]
        if name.isidentifier() and (slash or first.endswith((".py", ".so"))):
            yield name


def _thin_out(folder: Path) -> None:
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
            # Those that are empty now; one that is not stays.
            with contextlib.suppress(OSError):
                Path(parent, name).rmdir()


def _link(source: Path, target: Path, copies: dict[int, Path]) -> None:
    """Make a folder of links to files that nobody writes to, or of copies where links can't be."""

    def link(origin: str, goal: str) -> str:
        inode = os.stat(origin).st_ino  # noqa: PTH116 - copytree's own paths are texts
        try:
            os.link(copies.get(inode, origin), goal)
        except OSError:
            shutil.copy(origin, goal)
            copies[inode] = Path(goal)
        return goal

    shutil.copytree(source, target, copy_function=link)
    target.chmod(0o755)
