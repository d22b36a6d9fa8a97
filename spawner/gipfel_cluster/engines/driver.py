"""The user-space part of NVIDIA's driver on this machine, which belongs to its kernel and to no image."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from .sandbox.plan import DriverFile

#: Without it there is no driver.
_FIRST = "libcuda.so.1"
#: Libraries for computing, for tools and for video. Source: libnvidia-container, ``nvc_info.c``.
_LIBRARIES = re.compile(
    r"lib(cuda|cudadebugger|nvcuvid|vdpau_nvidia|nvidia-(ml|cfg|nscq|opencl|gpucomp|ptxjitcompiler|fatbinaryloader"
    r"|allocator|compiler|nvvm|nvvm70|pkcs11|pkcs11-openssl3|encode|opticalflow|sandboxutils|tileiras))\.so\.[\d.]+"
)
_PROGRAMS = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"),
    *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
)
_LISTED = re.compile(r"\s*(\S+) \(([^)]*)\) => (/.*)")
_KINDS = {"x86_64": "x86-64", "aarch64": "AArch64", "ppc64le": "64bit", "riscv64": "64bit"}
_LIBRARY = re.compile(r"lib[^/]*\.so(\.[^/]*)?")
_SECONDS = 10


def listed_libraries() -> str:
    """Say which libraries the host's loader knows, as ``ldconfig -p`` writes it; empty without ldconfig."""
    program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        return ""
    try:
        done = subprocess.run((program, "-p"), capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="surrogateescape")


def host_driver(
    listed: str, *, machine: str = platform.machine(), which: Callable[[str], str | None] = shutil.which
) -> tuple[DriverFile, ...]:
    """Find the driver's libraries and programs; nothing where this machine has no driver.

    Parameters
    ----------
    listed
        What `listed_libraries` gives.
    """
    found: dict[str, None] = {}
    names: set[str] = set()
    for line in listed.splitlines():
        match = _LISTED.fullmatch(line)
        if match and _LIBRARIES.fullmatch(match[1]) and _KINDS.get(machine, "") in match[2]:
            path = os.path.realpath(match[3])
            if match[1] not in names and Path(path).is_file():
                found[path] = None
                names.add(match[1])
    if _FIRST not in names:
        return ()
    programs = ((program, which(program)) for program in _PROGRAMS)
    return (
        *(DriverFile(path, links=_links(path)) for path in found),
        *(DriverFile(os.path.realpath(path), f"/usr/bin/{name}") for name, path in programs if path),
    )


def driver_files(files: Iterable[tuple[str, str]]) -> tuple[DriverFile, ...]:
    """Take the files of a device's specification: libraries go where the image keeps its own."""
    return tuple(
        DriverFile(os.path.realpath(host), links=_links(os.path.realpath(host)))
        if _LIBRARY.fullmatch(os.path.basename(container)) and container.count("/") > 1  # noqa: PTH119
        else DriverFile(host, container)
        for host, container in files
        if os.path.exists(host)  # noqa: PTH110 - a Path raises where others may not look
    )


def _links(path: str) -> tuple[str, ...]:
    """The other names of a library beside it: what ldconfig and the driver's installer made there."""
    folder, name = os.path.split(path)
    stem = name.partition(".so")[0] + ".so"
    try:
        beside = [each for each in os.scandir(folder) if each.name.startswith(stem) and each.is_symlink()]
    except OSError:
        return ()
    return tuple(sorted(each.name for each in beside if os.path.realpath(each.path) == path))
