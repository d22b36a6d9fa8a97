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
from ..runs import user_cache
from .distributions import SITE_PACKAGES, files, required_distributions
from .installation import (
    Installation,
    check_replaceable,
    hardlink_duplicates,
    is_squashfs_path,
    make_squashfs,
    mksquashfs,
)
from .interpreter import (
    CERTIFICATES,
    PROGRAM,
    certificates,
    console_scripts,
    interpreter_program,
    is_elf,
    kernelspec_text,
    lab_overrides,
    openssh_programs,
    patchelf,
    relocate,
    shared_libraries,
    sitecustomize_text,
    standard_library,
)
from .kernels import VERSIONS, collect_kernels, install_kernels, kernel_directory_name, kernel_key
from .model import DESCRIPTION, Description, Runtime, check_runtime, read_description

_PREFIX = re.compile(r"(/[A-Za-z0-9._+@-]+)+")
#: The default mount point of a runtime that is one file.
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
    """Build the runtime of ``gipfel[extra]`` from this environment, or keep the existing one if current.

    Only the packages for kernels of other versions of Python are downloaded, once. If the path ends in
    ``.sqsh``, the runtime is one file, else a directory. It is installed atomically, readable by every user.

    Parameters
    ----------
    prefix
        Absolute path at which the runtime will be mounted; by default ``path`` for a directory, and
        `FILE_PREFIX` for a file.
    kernels
        Versions of CPython in images that become kernels, such as ``3.9``; by default those of the existing
        runtime.
    cache
        The directory in which kernels are stored for the next build; by default the user's own cache.
    progress
        Called with one line for each step, and for each kernel that could not be built.

    Raises
    ------
    GipfelError
        A package or tool is not installed, the path is not a runtime, or the result does not work.
    """
    path = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - without `..`, links unresolved
    prefix = prefix or (FILE_PREFIX if is_squashfs_path(path) else str(path))
    if not _PREFIX.fullmatch(prefix) or "/../" in f"{prefix}/":
        raise GipfelError(
            f"{prefix!r} can't be a runtime's prefix.",
            "Use an absolute path of letters, digits and . _ + @ - only.",
        )
    distributions = required_distributions(extra)
    description = describe(distributions, prefix)
    existing = existing_description(path)
    if kernels is None:
        kernels = [each for each in VERSIONS if existing and kernel_directory_name(each) in existing.kernels]
    if is_current(existing, description, kernels):
        return Runtime.load(path)
    check_replaceable(path)
    patchelf()
    if is_squashfs_path(path):
        mksquashfs()
    folders = collect_kernels(kernels, cache=cache or user_cache("kernels"), previous=path, progress=progress)
    available = [each for each in kernels if kernel_directory_name(each) in folders]
    description = description.model_copy(
        update={"kernels": {kernel_directory_name(each): kernel_key(each) for each in available}}
    )
    try:
        with Installation.begin(path, progress=progress) as installation:
            if not is_current(existing_description(path), description, available):
                _build(installation, distributions, description, folders, progress)
    except OSError as error:
        raise GipfelError(
            f"The runtime can't be built in {path}: {error}.",
            "Choose a directory that you can write to, with 2 GB of free space.",
        ) from error
    if private := [parent for parent in path.parents if not parent.stat().st_mode & 0o001]:
        progress(f"other users can't use it: they have no permission for {private[0]}")
    return Runtime.load(path)


def _build(
    installation: Installation,
    distributions: tuple[Distribution, ...],
    description: Description,
    folders: Mapping[str, Path],
    progress: Callable[[str], None],
) -> None:
    is_file = is_squashfs_path(installation.folder)
    tree = installation.building / "tree" if is_file else installation.building
    tree.mkdir(exist_ok=True)
    tree.chmod(0o755)
    _fill(tree, distributions, description, folders, progress)
    progress("checking that it works")
    check_runtime(Runtime.of(installation.folder, description), at=tree)
    if not is_file:
        installation.publish()
        return
    progress("writing the SquashFS file")
    file = installation.building / "file"
    make_squashfs(tree, file)
    installation.publish(file)


def _fill(
    tree: Path,
    distributions: tuple[Distribution, ...],
    description: Description,
    folders: Mapping[str, Path],
    progress: Callable[[str], None],
) -> None:
    progress(f"copying {len(distributions)} packages and the standard library")
    sources = dict(standard_library())
    sources.update(files(distributions))
    started_programs = dict(openssh_programs().values())
    if not started_programs:
        progress("OpenSSH's server is not on this machine: containers will have no ssh server")
    # The interpreter comes first: of two libraries with the same name, the first one is used.
    sources |= {PROGRAM: interpreter_program(), **started_programs}
    binaries = {target: source for target, source in sources.items() if is_elf(source)}
    libraries, loader = shared_libraries(binaries.values(), copied=sources.values(), progress=progress)
    for name, source in libraries.items():
        sources[f"lib/{name}"] = source
        binaries[f"lib/{name}"] = source
    bundle = certificates()
    if bundle is not None:
        sources[CERTIFICATES] = bundle
    for target, source in sources.items():
        _copy(source, tree / target)
    progress(f"pointing {len(binaries)} binaries at {description.prefix}")
    copies = {target: tree / target for target in binaries}
    relocate(copies, programs={PROGRAM, *started_programs}, prefix=description.prefix, loader=loader)
    for name in ("python3", "python"):
        (tree / "bin" / name).symlink_to(Path(PROGRAM).name)
    _write(tree / Path(SITE_PACKAGES).parent / "sitecustomize.py", sitecustomize_text(SITE_PACKAGES))
    _write(tree / "share/jupyter/kernels/python3/kernel.json", kernelspec_text(description.prefix))
    _write(tree / "share/jupyter/lab/settings/overrides.json", lab_overrides())
    for target, text in console_scripts(distributions, description.prefix):
        _write(tree / target, text, mode=0o755)
    progress("compiling")
    _compile(tree, description.prefix)
    install_kernels(folders, tree)
    hardlink_duplicates(tree)
    _write(tree / DESCRIPTION, description.model_dump_json(indent=2) + "\n")
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
    """Compile all modules with unchecked hashes, since a mount may change the times of sources."""
    command = [
        sys.executable, "-I", "-m", "compileall", "-q", "-q", "-j", "0",
        "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", prefix, str(tree / "lib"),
    ]  # fmt: skip
    try:
        # Packages contain templates that are not valid Python; they must not stop the build.
        subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise GipfelError(f"Compiling the runtime took more than {_COMPILE_SECONDS} s.") from error


def describe(distributions: tuple[Distribution, ...], prefix: str) -> Description:
    """Return the description of a runtime with these distributions, without the directories of kernels."""
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
    # Only files that are copied: importing the source writes byte code.
    own = sorted(files(one for one in distributions if one.name == "gipfel").items())
    programs = [(name, source) for name, (_, source) in openssh_programs().items()]
    for target, source in (*own, *programs):
        digest.update(f"{target}\0".encode())
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    key = digest.hexdigest()
    return Description(
        prefix=prefix,
        version=f"{versions['gipfel']}+{key[:12]}",
        arch=platform.machine(),
        key=key,
        distributions=versions,
        programs={name: target for name, (target, _) in openssh_programs().items()},
    )


def existing_description(path: Path) -> Description | None:
    """Return the description of the runtime at a path; None if there is none."""
    try:
        return read_description(path)
    except GipfelError:
        return None


def is_current(existing: Description | None, description: Description, versions: Iterable[str]) -> bool:
    """Return whether an existing runtime has the same content, and kernels for these versions of Python."""
    return (
        existing is not None
        and existing.key == description.key
        and all(existing.kernels.get(kernel_directory_name(each)) == kernel_key(each) for each in versions)
    )
