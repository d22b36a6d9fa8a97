"""Build a runtime: copy this environment, its interpreter, its libraries and libc into one folder."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path

from ..model import GipfelError
from .check import check_runtime
from .distributions import SITE_PACKAGES, closure, files
from .interpreter import (
    CERTIFICATES,
    PROGRAM,
    certificates,
    commands,
    kernel,
    lab_defaults,
    program,
    standard_library,
    start_file,
)
from .model import DESCRIPTION, Description, Runtime, read_description
from .place import Place, share_content
from .relocate import is_elf, patchelf, relocate, shared_libraries

_PREFIX = re.compile(r"(/[A-Za-z0-9._+@-]+)+")
_COMPILE_SECONDS = 1800


def build_runtime(
    folder: Path, *, prefix: str | None = None, extra: str = "lab", progress: Callable[[str], None]
) -> Runtime:
    """Build the runtime of ``gipfel[extra]`` from this environment, or keep the one that is already there.

    Nothing is downloaded. The folder appears complete or not at all, readable by everybody.

    Parameters
    ----------
    prefix
        Absolute path at which the runtime will be mounted; the folder's own when not given.
    progress
        Told in one line what happens now.

    Raises
    ------
    GipfelError
        A package or tool is not installed, the folder holds something else, or the result does not work.
    """
    folder = Path(os.path.abspath(folder.expanduser()))  # noqa: PTH100 - without `..`, links as they are
    prefix = prefix or str(folder)
    if not _PREFIX.fullmatch(prefix) or "/../" in f"{prefix}/":
        raise GipfelError(
            f"{prefix!r} can't be a runtime's prefix.",
            "Use an absolute path of letters, digits and . _ + @ - only.",
        )
    distributions = closure(extra)
    described = _describe(distributions, prefix)
    if _is_current(folder, described):
        return Runtime.load(folder)
    patchelf()
    try:
        with Place.beside(folder, progress=progress) as place:
            if not _is_current(folder, described):
                _fill(place.building, distributions, described, progress)
                progress("checking that it works")
                check_runtime(_runtime(folder, described), at=place.building)
                place.publish()
    except OSError as error:
        raise GipfelError(
            f"The runtime can't be built in {folder}: {error}.",
            "Choose a folder that you can write to, with 1 GB free.",
        ) from error
    closed = [parent for parent in folder.parents if not parent.stat().st_mode & 0o001]
    if closed:
        progress(f"other users can't reach it: {closed[0]} is closed to them")
    return Runtime.load(folder)


def _describe(distributions: tuple[Distribution, ...], prefix: str) -> Description:
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
    key = digest.hexdigest()
    return Description(
        prefix=prefix,
        version=f"{versions['gipfel']}+{key[:12]}",
        arch=platform.machine(),
        key=key,
        distributions=versions,
    )


def _is_current(folder: Path, described: Description) -> bool:
    if not (folder / DESCRIPTION).is_file():
        return False
    try:
        return read_description(folder).key == described.key
    except GipfelError:
        return False


def _runtime(folder: Path, described: Description) -> Runtime:
    return Runtime(
        root=str(folder),
        prefix=described.prefix,
        python=f"{described.prefix}/bin/python3",
        version=described.version,
        arch=described.arch,
    )


def _fill(
    tree: Path,
    distributions: tuple[Distribution, ...],
    described: Description,
    progress: Callable[[str], None],
) -> None:
    progress(f"copying {len(distributions)} packages and the standard library")
    wanted = dict(standard_library())
    wanted.update(files(distributions))
    wanted[PROGRAM] = program()
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
    relocate(copies, program=PROGRAM, prefix=described.prefix, loader=loader)
    for name in ("python3", "python"):
        (tree / "bin" / name).symlink_to(Path(PROGRAM).name)
    _write(tree / Path(SITE_PACKAGES).parent / "sitecustomize.py", start_file(SITE_PACKAGES))
    _write(tree / "share/jupyter/kernels/python3/kernel.json", kernel(described.prefix))
    _write(tree / "share/jupyter/lab/settings/overrides.json", lab_defaults())
    for target, text in commands(distributions, described.prefix):
        _write(tree / target, text, mode=0o755)
    progress("compiling")
    _compile(tree, described.prefix)
    share_content(tree)
    _write(tree / DESCRIPTION, described.model_dump_json(indent=2) + "\n")
    for parent, folders, _ in os.walk(tree):
        for name in folders:
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
    """Compile every module so that nothing compares it with its source, whatever a mount says of times."""
    command = [
        sys.executable, "-I", "-m", "compileall", "-q", "-q", "-j", "0",
        "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", prefix, str(tree / "lib"),
    ]  # fmt: skip
    try:
        # Packages carry templates that are no Python; what can't be compiled must not stop the build.
        subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise GipfelError(f"Compiling the runtime took more than {_COMPILE_SECONDS} s.") from error
