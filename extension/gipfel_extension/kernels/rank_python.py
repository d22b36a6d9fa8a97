"""The Python of a launch's ranks as a kernel, where they run in no container."""

import os
from collections.abc import MutableMapping
from pathlib import Path

from .examine import examine, has_package
from .image_python import NATIVE, write_kernel

#: What to do where it can't be one.
INSTALL = "Install ipykernel into it: `python -m pip install ipykernel` in that environment."
_FILE = ("-f", "{connection_file}")


def rank_kernel(python: str, prefix: Path) -> tuple[tuple[str, ...], str]:
    """Return the argv of a kernel in a Python of this machine, or why there can't be one.

    Its own ipykernel is used; without one, what the runtime brings for images without ipykernel.

    Parameters
    ----------
    python
        The interpreter's path, through the virtual environment that it belongs to.
    prefix
        The environment that runs Gipfel, which may be a built runtime.

    Returns
    -------
    tuple
        The argv, empty where it can't be a kernel, and then the reason as one sentence.
    """
    if _same_folder(python, prefix / "bin/python3") or has_package(python, "ipykernel"):
        return (python, "-m", "ipykernel_launcher", *_FILE), ""
    start = prefix / "kernels" / "start.py"
    why = "it has no ipykernel."
    if start.is_file():
        why = examine(python, start).problem.replace("The image's Python", "this Python")
        if not why:
            return (python, str(start), *_FILE), ""
    return (), f"The ranks' Python {python} can't be the kernel of rank 0: {why}"


def offer_rank_kernel(python: str, prefix: Path, environment: MutableMapping[str, str]) -> str:
    """Make a Python of this machine the kernel ``python3`` of what Jupyter starts next in this process.

    Returns
    -------
    str
        Why it can't be, in one sentence; empty where it is.
    """
    argv, problem = rank_kernel(python, prefix)
    if problem:
        return problem
    data = Path(environment["JUPYTER_RUNTIME_DIR"], "ranks")
    write_kernel(data, NATIVE, "Python of the ranks", list(argv))
    before = environment.get("JUPYTER_PATH", "")
    environment["JUPYTER_PATH"] = f"{data}{os.pathsep}{before}" if before else str(data)
    return ""


def _same_folder(first: str, second: Path) -> bool:
    try:
        return Path(first).parent.samefile(second.parent)
    except OSError:
        return False
