"""Asking a Python of the image whether it can be a kernel; it may hang, or print anything.

The image's own Python as a kernel, which a server or a batch notebook offers when it starts.

The Python of a launch's ranks as a kernel, where they run in no container.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.model import Frozen, one_line

from ..telemetry.files import read_record_file

_SECONDS = 15.0
_MOST_BYTES = 1 << 14
_NUMBERS = re.compile(r"([0-9]{1,2})\.([0-9]{1,3})")
# Older ones can't even read the program that would start a kernel.
_OLDEST = (3, 8)
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_HAS = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


class _Answer(Frozen, extra="ignore"):
    """The last line that ``start.py --check`` prints."""

    version: str
    problem: str


class ImagePython(Frozen):
    """A Python of the image: its path there, its version, and why it can't be a kernel if it can't."""

    path: str
    version: str
    problem: str = ""


def examine(python: str, start: Path, *, limit: float = _SECONDS) -> ImagePython:
    """Ask a Python whether it can be a kernel, by the program that would start it.

    Parameters
    ----------
    limit
        Seconds for everything: a server waits for the answer.
    """
    end = time.monotonic() + limit
    lines = (_output([python, str(start), "--check"], end) or "").splitlines()
    with contextlib.suppress(ValidationError):
        said = _Answer.model_validate_json(lines[-1] if lines else "")
        return ImagePython(path=python, version=one_line(said.version)[:16], problem=one_line(said.problem))
    version = _output([python, "-c", _VERSION], end)
    if version is None and time.monotonic() >= end:
        problem = f"The image's {python} does not answer within {limit:g} s."
        return ImagePython(path=python, version="?", problem=problem)
    found = _NUMBERS.fullmatch((version or "").strip())
    if not found:
        return ImagePython(path=python, version="?", problem=f"The image's {python} does not run.")
    if (int(found[1]), int(found[2])) < _OLDEST:
        problem = f"The image's Python {found[0]} is too old for the runtime's kernels."
    else:
        problem = f"The image's Python {found[0]} is broken: `{python} {start} --check` shows how."
    return ImagePython(path=python, version=found[0], problem=problem)


def has_package(python: str, name: str, *, limit: float = _SECONDS) -> bool:
    """Return whether a Python finds a package; False where it does not answer within `limit` seconds."""
    return _output([python, "-c", _HAS, name], time.monotonic() + limit) is not None


def _output(command: list[str], end: float) -> str | None:
    """What a command prints, at most 16 KiB; None where it fails or is not done in time."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError):
        return None
    try:
        printed = _read(process, end)
        if len(printed) >= _MOST_BYTES:
            return None
        status = process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    finally:
        # With whatever it has started, which may hold the pipe open.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()
    return None if status else printed.decode(errors="replace")


def _read(process: subprocess.Popen[bytes], end: float) -> bytes:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    printed = b""
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while len(printed) < _MOST_BYTES:
            wait = min(0.1, end - time.monotonic())
            if wait <= 0:
                break
            if not ready.select(wait):
                if process.poll() is not None:  # What it has started goes on printing, or does not.
                    break
                continue
            piece = os.read(process.stdout.fileno(), _MOST_BYTES)
            if not piece:
                break
            printed += piece
    return printed


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
