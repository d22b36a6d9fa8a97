"""For which processors an image is, from the header of a program in it."""

from pathlib import Path

from .inside import read_inside

#: ``e_machine`` of the ELF header, and what ``uname -m`` says there. Source: System V ABI, chapter 4.
_MACHINES = {
    3: "i386",
    20: "ppc",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}
_SAME = {"i686": "i386", "arm64": "aarch64", "amd64": "x86_64", "ppc64": "ppc64le"}
_ALSO_RUNS = {("x86_64", "i386"), ("aarch64", "armv7l")}
_HEADER = 20
#: Programs that are no links in the common distributions, and the loaders of those that have no shell.
_PROGRAMS = (
    *("usr/bin/dash", "usr/bin/bash", "usr/bin/env", "usr/bin/coreutils", "usr/bin/ls"),
    *("bin/busybox", "bin/dash", "bin/bash", "bin/ls", "usr/sbin/ldconfig.real", "sbin/ldconfig"),
    *("usr/lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2"),
    *("usr/lib/ld-linux-aarch64.so.1", "lib/ld-linux-aarch64.so.1"),
    *("lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1"),
)


def image_architecture(image: Path) -> str | None:
    """Name the processors that an image is for as ``uname -m`` does, or None where that can't be seen."""
    for name in (_PROGRAMS,) if not image.is_dir() else tuple((each,) for each in _PROGRAMS):
        head = read_inside(image, name, _HEADER)
        if head and len(head) == _HEADER and head.startswith(b"\x7fELF"):
            number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
            return _MACHINES.get(number, f"ELF machine {number}")
    return None


def can_run(machine: str, image: str) -> bool:
    """Tell whether a machine runs programs of an image's architecture without emulation."""
    machine = _SAME.get(machine, machine)
    return machine == image or (machine, image) in _ALSO_RUNS
