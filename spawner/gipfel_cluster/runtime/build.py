"""Build a runtime: copy this environment, its interpreter, its libraries and libc into one directory."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import Distribution
from pathlib import Path

from ..model import GipfelError
from .distributions import SITE_PACKAGES, closure, files
from .installation import Installation, is_file_form, mksquashfs, refuse_foreign, share_content, squash
from .interpreter import (
    CERTIFICATES,
    PROGRAM,
    certificates,
    commands,
    kernel,
    lab_defaults,
    program,
    programs,
    standard_library,
    start_file,
)
from .kernels import VERSIONS, cache_folder, folder_name, gather_kernels, kernel_folder_key, place_kernels
from .model import DESCRIPTION, Description, Runtime, check_runtime, read_description
from .relocate import is_elf, patchelf, relocate, shared_libraries

_PREFIX = re.compile(r"(/[A-Za-z0-9._+@-]+)+")
#: Default path at which a runtime that is one file is mounted.
FILE_PREFIX = "/opt/gipfel"
_COMPILE_SECONDS = 1800


def build_runtime(
    path: Path,
    *,
    prefix: str | None = None,
    extra: str = "lab",
    kernels: Sequence[str] | None = None,
    cache: Path | None = None,
    progress: Callable[[str], None],
) -> Runtime:
    """Build the runtime of ``gipfel[extra]`` from this environment, or keep the one that is already there.

    Nothing but kernels for other Pythons is downloaded, and those once. A path that ends in ``.sqsh`` becomes
    one file, any other a directory. It appears complete or not at all, readable by every user.

    Parameters
    ----------
    prefix
        Absolute path at which the runtime will be mounted; by default a directory's own, or `FILE_PREFIX`.
    kernels
        Versions of CPython in images that become kernels, such as ``3.9``; those that the runtime there has
        when not given.
    cache
        Where kernels are kept for the next build; the user's own cache when not given.
    progress
        Called with one line for each step, and for each kernel that could not be made.

    Raises
    ------
    GipfelError
        A package or tool is not installed, the path holds something else, or the result does not work.
    """
    path = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - without `..`, links as they are
    prefix = prefix or (FILE_PREFIX if is_file_form(path) else str(path))
    if not _PREFIX.fullmatch(prefix) or "/../" in f"{prefix}/":
        raise GipfelError(
            f"{prefix!r} can't be a runtime's prefix.",
            "Use an absolute path of letters, digits and . _ + @ - only.",
        )
    distributions = closure(extra)
    described = describe(distributions, prefix)
    there = described_there(path)
    if kernels is None:
        kernels = [each for each in VERSIONS if there and folder_name(each) in there.kernels]
    if is_current(there, described, kernels):
        return Runtime.load(path)
    refuse_foreign(path)
    patchelf()
    if is_file_form(path):
        mksquashfs()
    folders = gather_kernels(kernels, cache=cache or cache_folder(), before=path, progress=progress)
    had = [each for each in kernels if folder_name(each) in folders]
    described = described.model_copy(
        update={"kernels": {folder_name(each): kernel_folder_key(each) for each in had}}
    )
    try:
        with Installation.beside(path, progress=progress) as place:
            if not is_current(described_there(path), described, had):
                _build(place, distributions, described, folders, progress)
    except OSError as error:
        raise GipfelError(
            f"The runtime can't be built in {path}: {error}.",
            "Choose a place that you can write to, with 2 GB free.",
        ) from error
    closed = [parent for parent in path.parents if not parent.stat().st_mode & 0o001]
    if closed:
        progress(f"other users can't reach it: {closed[0]} is closed to them")
    return Runtime.load(path)


def _build(
    place: Installation,
    distributions: tuple[Distribution, ...],
    described: Description,
    folders: Mapping[str, Path],
    progress: Callable[[str], None],
) -> None:
    one_file = is_file_form(place.folder)
    tree = place.building / "tree" if one_file else place.building
    tree.mkdir(exist_ok=True)
    tree.chmod(0o755)
    _fill(tree, distributions, described, folders, progress)
    progress("checking that it works")
    check_runtime(_runtime(place.folder, described), at=tree)
    if not one_file:
        place.publish()
        return
    progress("making one file of it")
    file = place.building / "file"
    squash(tree, file)
    place.publish(file)


def _runtime(folder: Path, described: Description) -> Runtime:
    return Runtime(
        root=str(folder),
        prefix=described.prefix,
        python=f"{described.prefix}/bin/python3",
        version=described.version,
        arch=described.arch,
        programs=described.programs,
    )


def _fill(
    tree: Path,
    distributions: tuple[Distribution, ...],
    described: Description,
    folders: Mapping[str, Path],
    progress: Callable[[str], None],
) -> None:
    progress(f"copying {len(distributions)} packages and the standard library")
    wanted = dict(standard_library())
    wanted.update(files(distributions))
    started = dict(programs().values())
    if not started:
        progress("OpenSSH's server is not on this machine: ssh will not reach into containers")
    # The interpreter's libraries first: of two by the same name its own are taken.
    wanted |= {PROGRAM: program(), **started}
    binaries = {target: source for target, source in wanted.items() if is_elf(source)}
    libraries, loader = shared_libraries(binaries.values(), copied=wanted.values(), progress=progress)
    for name, source in libraries.items():
        wanted[f"lib/{name}"] = source
        binaries[f"lib/{name}"] = source
    bundle = certificates()
    if bundle is not None:
        wanted[CERTIFICATES] = bundle
    for target, source in wanted.items():
        _copy(source, tree / target)
    progress(f"pointing {len(binaries)} binaries at {described.prefix}")
    copies = {target: tree / target for target in binaries}
    relocate(copies, programs={PROGRAM, *started}, prefix=described.prefix, loader=loader)
    for name in ("python3", "python"):
        (tree / "bin" / name).symlink_to(Path(PROGRAM).name)
    _write(tree / Path(SITE_PACKAGES).parent / "sitecustomize.py", start_file(SITE_PACKAGES))
    _write(tree / "share/jupyter/kernels/python3/kernel.json", kernel(described.prefix))
    _write(tree / "share/jupyter/lab/settings/overrides.json", lab_defaults())
    for target, text in commands(distributions, described.prefix):
        _write(tree / target, text, mode=0o755)
    progress("compiling")
    _compile(tree, described.prefix)
    place_kernels(folders, tree)
    share_content(tree)
    _write(tree / DESCRIPTION, described.model_dump_json(indent=2) + "\n")
    for parent, inner, _ in os.walk(tree):
        for name in inner:
            (Path(parent) / name).chmod(0o755)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _write(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _compile(tree: Path, prefix: str) -> None:
    """Compile every module so that it is never compared with its source: a mount may change times."""
    command = [
        sys.executable, "-I", "-m", "compileall", "-q", "-q", "-j", "0",
        "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", prefix, str(tree / "lib"),
    ]  # fmt: skip
    try:
        # Packages carry templates that are not Python; they must not stop the build.
        subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise GipfelError(f"Compiling the runtime took more than {_COMPILE_SECONDS} s.") from error


def describe(distributions: tuple[Distribution, ...], prefix: str) -> Description:
    """Describe the runtime of these distributions, without the directories of kernels."""
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
            # Only what is copied: byte code is written by whoever imports the source.
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
    """Return the description of the runtime at a path; None where there is none."""
    try:
        return read_description(path)
    except GipfelError:
        return None


def is_current(there: Description | None, described: Description, versions: Iterable[str]) -> bool:
    """Return whether the runtime there has the same content, and kernels for these versions of Python."""
    if there is None or there.key != described.key:
        return False
    return all(there.kernels.get(folder_name(each)) == kernel_folder_key(each) for each in versions)
