"""The image's own Python as a kernel, which a server or a batch notebook offers when it starts."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from gipfel_cluster.model import Frozen

#: The name by which every notebook asks for "the Python here".
NATIVE = "python3"
#: The runtime's own Python, beside an image's that took its name.
RUNTIMES_OWN = "gipfel"
#: An image's Python that can't be a kernel, and says so when it is asked.
UNUSABLE = "image"

_SECONDS = 20
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


class ImagePython(Frozen):
    """A Python of the image: its path there, its version, and why it can't be a kernel if it can't."""

    path: str
    version: str
    problem: str = ""


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
    name = f"Python {found.version} ({_image_name(environment)})"
    if found.problem:
        refuse = [str(prefix / "bin/python3"), "-I", "-m", "gipfel_extension.kernels.refusing"]
        _write(data, UNUSABLE, name, [*refuse, found.problem, "-f", "{connection_file}"])
    else:
        _write(data, NATIVE, name, [found.path, str(start), "-f", "{connection_file}"])
        own = prefix / "share/jupyter/kernels" / NATIVE / "kernel.json"
        if own.is_file():
            _place(data, RUNTIMES_OWN, own.read_text())
    before = environment.get("JUPYTER_PATH", "")
    environment["JUPYTER_PATH"] = f"{data}{os.pathsep}{before}" if before else str(data)
    return found.problem


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


def examine(python: str, start: Path) -> ImagePython:
    """Ask a Python whether it can be a kernel, by the program that would start it."""
    answer = _output([python, str(start), "--check"])
    if answer:
        said = json.loads(answer.splitlines()[-1])
        return ImagePython(path=python, version=said["version"], problem=said["problem"])
    version = _output([python, "-c", _VERSION]).strip()
    if not version:
        return ImagePython(path=python, version="?", problem=f"The image's {python} does not run.")
    return ImagePython(
        path=python,
        version=version,
        problem=f"The image's Python {version} is too old for the runtime's kernels.",
    )


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def _image_name(environment: Mapping[str, str]) -> str:
    """What the user calls the environment: the EDF's name, from the record of this run."""
    try:
        record = json.loads(Path(environment.get("GIPFEL_RUN", ""), "record.json").read_bytes())
        return str(record["edf"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return "image"


def _write(data: Path, name: str, display_name: str, argv: list[str]) -> None:
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
