"""The image's own Python as a kernel, which a server or a batch notebook offers when it starts."""

import json
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from gipfel_cluster.model import one_line

from ..telemetry.files import read_record_file
from .examine import ImagePython, examine

#: The name by which every notebook asks for "the Python here".
NATIVE = "python3"
#: The runtime's own Python, beside an image's that took its name.
RUNTIMES_OWN = "gipfel"
#: An image's Python that can't be a kernel, and says so when it is asked.
UNUSABLE = "image"


def offer_image_kernel(environment: MutableMapping[str, str], *, runtime: Path | None = None) -> str:
    """Make the image's Python a kernel of whatever Jupyter starts next in this process.

    A usable one becomes ``python3``, the kernel of new notebooks and of notebooks from elsewhere; the
    runtime's own is then ``gipfel``. Outside of a container, and where the image has no Python, nothing
    changes.

    Parameters
    ----------
    environment
        Variables of this process; ``JUPYTER_PATH`` is extended.
    runtime
        Where the runtime is mounted; where this interpreter is when not given.

    Returns
    -------
    str
        Why the image's Python can't be a kernel, in one line; empty where it can, or where there is none.
    """
    prefix = runtime or Path(sys.prefix)
    start = prefix / "kernels" / "start.py"
    folder = environment.get("JUPYTER_RUNTIME_DIR", "")
    if environment.get("GIPFEL_ENGINE", "host") == "host" or not folder or not start.is_file():
        return ""
    python = find_image_python(environment.get("PATH", os.defpath), prefix)
    if python is None:
        return ""
    found = examine(python, start)
    data = Path(folder, "image")
    try:
        _offer(found, data, prefix, _image_name(environment))
    except OSError as error:
        return f"The image's Python can't be offered as a kernel: {one_line(str(error))}."
    before = environment.get("JUPYTER_PATH", "")
    environment["JUPYTER_PATH"] = f"{data}{os.pathsep}{before}" if before else str(data)
    return found.problem


def _offer(found: ImagePython, data: Path, prefix: Path, image: str) -> None:
    name = f"{f'Python {found.version}'.removesuffix(' ?')} ({image})"
    if found.problem:
        refuse = [str(prefix / "bin/python3"), "-I", "-m", "gipfel_extension.kernels.refusing"]
        argv = [*refuse, found.problem, "-f", "{connection_file}"]
        write_kernel(data, UNUSABLE, f"{name}: no kernel", argv)
        return
    # The runtime's own first: where that can't be written, nothing has changed.
    own = prefix / "share/jupyter/kernels" / NATIVE / "kernel.json"
    if own.is_file():
        _place(data, RUNTIMES_OWN, own.read_text())
    start = str(prefix / "kernels" / "start.py")
    write_kernel(data, NATIVE, name, [found.path, start, "-f", "{connection_file}"])


def find_image_python(path: str, runtime: Path) -> str | None:
    """First ``python3`` on a PATH, else first ``python``, that is not the runtime's; None without one.

    A virtual environment or Conda's that the EDF or a set-up step put first is found first.
    """
    for name in ("python3", "python"):
        for folder in path.split(os.pathsep):
            candidate = Path(folder, name)
            if not folder.startswith("/") or not os.access(candidate, os.X_OK) or candidate.is_dir():
                continue
            if not any(path.is_relative_to(runtime) for path in (candidate, candidate.resolve())):
                return str(candidate)
    return None


def _image_name(environment: Mapping[str, str]) -> str:
    """What the user calls the environment: the EDF's name, from the record of this run."""
    edf = read_record_file(Path(environment.get("GIPFEL_RUN", ""))).get("edf")
    return str(edf["name"]) if isinstance(edf, dict) and "name" in edf else "image"


def write_kernel(data: Path, name: str, display_name: str, argv: list[str]) -> None:
    """Write a kernelspec below a folder that ``JUPYTER_PATH`` may name."""
    content = {
        "argv": argv,
        "display_name": display_name,
        "language": "python",
        "metadata": {"debugger": name == NATIVE},
    }
    _place(data, name, json.dumps(content, indent=1))


def _place(data: Path, name: str, content: str) -> None:
    folder = data / "kernels" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.json").write_text(content)
