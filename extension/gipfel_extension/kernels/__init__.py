"""Jupyter kernels in an image's own Python and in the Python of a launch's ranks.

`offer_image_kernel` is called when a server or a batch notebook starts in a container. `offer_rank_kernel` is
called for a notebook launch without a container. Both check the Python first with `check_python`, which runs
it with limits of time and output.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.model import Frozen, one_line

from ..telemetry.files import edf_name, read_record_file

_SECONDS = 15.0
_LOOK_S = 0.005
_MAX_BYTES = 1 << 14
_NUMBERS = re.compile(r"([0-9]{1,2})\.([0-9]{1,3})")
#: Oldest Python that can parse ``start.py``, which starts a kernel.
_OLDEST = (3, 8)
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_FIND_PACKAGE = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


class _CheckResult(Frozen, extra="ignore"):
    """Last output line of ``start.py --check``."""

    version: str
    problem: str


class ImagePython(Frozen):
    """A Python of the image: path, version, and the reason why it cannot be a kernel; empty where it can."""

    path: str
    version: str
    problem: str = ""


def check_python(python: str, start: Path, *, limit: float = _SECONDS) -> ImagePython:
    """Check whether a Python can be a kernel, with the program that would start the kernel.

    Parameters
    ----------
    limit
        Time limit in seconds for the whole check: a server waits for it.
    """
    end = time.monotonic() + limit
    lines = (_output([python, str(start), "--check"], end) or "").splitlines()
    with contextlib.suppress(ValidationError):
        result = _CheckResult.model_validate_json(lines[-1] if lines else "")
        return ImagePython(
            path=python, version=one_line(result.version)[:16], problem=one_line(result.problem)
        )
    version = _output([python, "-c", _VERSION], end)
    found = _NUMBERS.fullmatch((version or "").strip())
    if version is None and time.monotonic() >= end:
        problem = f"The image's {python} does not answer within {limit:g} s."
    elif not found:
        problem = f"The image's {python} does not run."
    elif (int(found[1]), int(found[2])) < _OLDEST:
        problem = f"The image's Python {found[0]} is too old for the runtime's kernels."
    else:
        problem = f"The image's Python {found[0]} is broken: `{python} {start} --check` shows how."
    return ImagePython(path=python, version=found[0] if found else "?", problem=problem)


def has_package(python: str, name: str, environment: Mapping[str, str]) -> bool:
    """Return whether a Python finds a package; False where it does not respond within 15 seconds."""
    end = time.monotonic() + _SECONDS
    return _output([python, "-c", _FIND_PACKAGE, name], end, environment) is not None


def _output(command: list[str], end: float, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a command's output; None where it fails, times out or prints 16 KiB or more."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd="/", env=dict(environment), bufsize=0,
        )  # fmt: skip
    except (OSError, ValueError):
        return None
    printed, status = b"", None
    assert process.stdout is not None  # noqa: S101 - stdout is a pipe
    os.set_blocking(process.stdout.fileno(), False)
    try:
        # The end of the process counts, because its child processes may keep the pipe open.
        while status is None and time.monotonic() < end and len(printed) < _MAX_BYTES:
            time.sleep(_LOOK_S)
            status = process.poll()
            printed += process.stdout.read(_MAX_BYTES) or b""
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    return printed.decode(errors="replace") if status == 0 and len(printed) < _MAX_BYTES else None


#: Kernel name of most notebooks: the default Python.
NATIVE_KERNEL = "python3"
#: Kernel name of the runtime's own Python where the image's Python is `NATIVE_KERNEL`.
RUNTIME_KERNEL = "gipfel"
#: Kernel name of an image's unusable Python, whose kernel answers with the problem.
UNUSABLE_KERNEL = "image"


def offer_image_kernel(environment: MutableMapping[str, str], *, runtime: Path | None = None) -> str:
    """Make the image's Python a kernel of the Jupyter program that this process starts next.

    A usable Python becomes ``python3``, the kernel of new and of most existing notebooks; the runtime's own
    kernel is then ``gipfel``. Outside of a container, and without a Python in the image, nothing changes.

    Parameters
    ----------
    environment
        Variables of this process; ``JUPYTER_PATH`` is extended.
    runtime
        Directory where the runtime is mounted; by default this interpreter's prefix.

    Returns
    -------
    str
        Reason in one line why the image's Python cannot be a kernel; empty where it can or does not exist.
    """
    prefix = runtime or Path(sys.prefix)
    start = prefix / "kernels" / "start.py"
    folder = environment.get("JUPYTER_RUNTIME_DIR", "")
    if environment.get("GIPFEL_ENGINE", "host") == "host" or not folder or not start.is_file():
        return ""
    python = find_image_python(environment.get("PATH", os.defpath), prefix)
    if python is None:
        return ""
    found = check_python(python, start)
    image = edf_name(read_record_file(Path(environment.get("GIPFEL_RUN", "")))) or "image"
    data = Path(folder, "image")
    try:
        _offer(found, data, prefix, image)
    except OSError as error:
        return f"The image's Python can't be offered as a kernel: {one_line(str(error))}."
    _extend_jupyter_path(environment, data)
    return found.problem


def _offer(python: ImagePython, data: Path, prefix: Path, image: str) -> None:
    name = f"{f'Python {python.version}'.removesuffix(' ?')} ({image})"
    if python.problem:
        program = [str(prefix / "bin/python3"), "-I", "-m", "gipfel_extension.kernels.unusable"]
        argv = [*program, python.problem, "-f", "{connection_file}"]
        write_kernel(data, UNUSABLE_KERNEL, f"{name}: no kernel", argv)
        return
    # The runtime's own kernel first: if it cannot be written, nothing has changed.
    own = prefix / "share/jupyter/kernels" / NATIVE_KERNEL / "kernel.json"
    if own.is_file():
        _write_spec(data, RUNTIME_KERNEL, own.read_text())
    start = str(prefix / "kernels" / "start.py")
    write_kernel(data, NATIVE_KERNEL, name, [python.path, start, "-f", "{connection_file}"])


def find_image_python(path: str, runtime: Path) -> str | None:
    """Return the first ``python3`` in a PATH outside of the runtime, else ``python``; None without either.

    A virtual or Conda environment is found if the EDF or a setup step put it first in the PATH.
    """
    for name in ("python3", "python"):
        for folder in path.split(os.pathsep):
            candidate = Path(folder, name)
            if not folder.startswith("/") or not os.access(candidate, os.X_OK) or candidate.is_dir():
                continue
            if not any(path.is_relative_to(runtime) for path in (candidate, candidate.resolve())):
                return str(candidate)
    return None


def write_kernel(data: Path, name: str, display_name: str, argv: list[str]) -> None:
    """Write a kernelspec below a directory for ``JUPYTER_PATH``."""
    content = {
        "argv": argv,
        "display_name": display_name,
        "language": "python",
        "metadata": {"debugger": name == NATIVE_KERNEL},
    }
    _write_spec(data, name, json.dumps(content, indent=1))


def _write_spec(data: Path, name: str, content: str) -> None:
    folder = data / "kernels" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.json").write_text(content)


#: Fix in messages about a Python that cannot be a kernel.
INSTALL_IPYKERNEL = "Install ipykernel into it: `python -m pip install ipykernel` in that environment."
_FILE = ("-f", "{connection_file}")


def rank_kernel(python: str, prefix: Path) -> tuple[tuple[str, ...], str]:
    """Return the argv of a kernel in a Python of this machine, or the reason why it cannot be a kernel.

    Its own ipykernel is used; without one, the runtime's ipykernel for images.

    Parameters
    ----------
    python
        Path of the interpreter, within its virtual environment.
    prefix
        Prefix of the environment that runs Gipfel, which may be a built runtime.

    Returns
    -------
    tuple
        The argv, which is empty where the Python cannot be a kernel, and the reason as one sentence.
    """
    if _same_folder(python, prefix / "bin/python3") or has_package(python, "ipykernel", os.environ):
        return (python, "-m", "ipykernel_launcher", *_FILE), ""
    start = prefix / "kernels" / "start.py"
    reason = "it has no ipykernel."
    if start.is_file():
        reason = check_python(python, start).problem.replace("The image's Python", "this Python")
        if not reason:
            return (python, str(start), *_FILE), ""
    return (), f"The ranks' Python {python} can't be the kernel of rank 0: {reason}"


def offer_rank_kernel(python: str, prefix: Path, environment: MutableMapping[str, str]) -> str:
    """Make a Python of this machine the kernel ``python3`` of the Jupyter program that is started next.

    Returns
    -------
    str
        Reason in one sentence why it cannot be a kernel; empty where it can.
    """
    argv, problem = rank_kernel(python, prefix)
    if problem:
        return problem
    data = Path(environment["JUPYTER_RUNTIME_DIR"], "ranks")
    write_kernel(data, NATIVE_KERNEL, "Python of the ranks", list(argv))
    _extend_jupyter_path(environment, data)
    return ""


def _extend_jupyter_path(environment: MutableMapping[str, str], data: Path) -> None:
    environment["JUPYTER_PATH"] = os.pathsep.join(filter(None, (str(data), environment.get("JUPYTER_PATH"))))


def _same_folder(first: str, second: Path) -> bool:
    try:
        return Path(first).parent.samefile(second.parent)
    except OSError:
        return False


__all__ = ["INSTALL_IPYKERNEL", "NATIVE_KERNEL", "offer_image_kernel", "offer_rank_kernel", "rank_kernel"]
