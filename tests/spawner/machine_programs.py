"""Programs of this machine, with the libraries that they need, for the roots of small images."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path


def libraries(program: str) -> list[str]:
    """The paths of what a program's loader opens."""
    answer = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", answer)


def add_programs(root: Path, names: Iterable[str]) -> None:
    """Copy programs into ``usr/bin`` of a root, and their libraries to where they are on this machine."""
    for name in names:
        program = os.path.realpath(shutil.which(name))
        shutil.copy(program, root / "usr/bin" / name)
        for library in libraries(program):
            target = root / os.path.realpath(os.path.dirname(library)).lstrip("/") / os.path.basename(library)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(library), target)
