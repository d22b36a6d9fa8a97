"""Whether a Python can be a kernel, asked of that very Python where it will run."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.broker.client import run
from gipfel_cluster.broker.container import START
from gipfel_cluster.broker.messages import RunRequest, broker_socket
from gipfel_cluster.job.spec import PYTHON
from gipfel_cluster.model import Frozen, GipfelError, one_line

_LIMIT_S = 60
_MOST_BYTES = 1 << 16

# For any Python since 3.9: what the runtime's start file says of it, or whether it has an ipykernel.
_OF_A_PYTHON = """
import json, os, runpy, sys
said, usable = [], True
try:
    if os.path.isfile(sys.argv[1]):
        said = runpy.run_path(sys.argv[1])["prepare"]()
    import ipykernel
except Exception as error:
    usable, said = False, [str(error)]
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "usable": usable, "said": said}))
"""

# For the runtime's Python in the container: it looks for the other one.
_OF_A_CONTAINER = """
import json, shutil, subprocess, sys
found = shutil.which(sys.argv[1])
answer = {}
if found:
    command = [found, "-c", sys.argv[2], sys.prefix + "/" + sys.argv[3]]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    lines = done.stdout.splitlines() or ["{}"]
    answer = json.loads(lines[-1]) if lines[-1].startswith("{") else {}
    if not answer:
        words = (done.stderr.strip() or "status %d" % done.returncode).splitlines()
        answer = {"version": "", "usable": False, "said": words[-1:]}
print(json.dumps(answer))
"""


class KernelPython(Frozen):
    """A Python: its version, whether it can be a kernel, and what there is to say of that."""

    version: str
    usable: bool
    said: tuple[str, ...] = ()


def probe_container(edf: str, python: str) -> KernelPython | None:
    """Ask a Python in the container of an EDF, ``python3`` or a path; None where there is none.

    Raises
    ------
    GipfelError
        The container can't be started.
    """
    request = RunRequest(edf=edf, command=(PYTHON, "-I", "-c", _OF_A_CONTAINER, python, _OF_A_PYTHON, START))
    socket = broker_socket(os.environ)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, open(os.devnull) as nothing:  # noqa: PTH123
        files = nothing.fileno(), output.fileno(), errors.fileno()
        if socket is not None:
            status = run(socket, request, files=files)
        else:
            from gipfel_cluster.broker.direct import run_directly  # noqa: PLC0415

            status = run_directly(request, os.environ, files=files)
        output.seek(0)
        errors.seek(0)
        printed = output.read(_MOST_BYTES).decode(errors="replace")
        words = errors.read(_MOST_BYTES).decode(errors="replace").strip().splitlines()
    if status:
        why = one_line(words[-1]).removeprefix("gipfel: ") if words else f"exit status {status}"
        raise GipfelError(f"The container of {edf} can't be tried: {why}", "Or give --no-check.")
    return _read(printed)


def probe_here(python: Path) -> KernelPython:
    """Ask a Python of this file system.

    Raises
    ------
    GipfelError
        It can't be started.
    """
    argv = [str(python), "-c", _OF_A_PYTHON, str(Path(sys.prefix, START))]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer within {_LIMIT_S} s"
        raise GipfelError(f"{python} can't be started: {why}.", "Make the environment anew, here.") from error
    found = _read(done.stdout)
    if found is None:
        words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise GipfelError(f"{python} is no Python that works here: {words[-1]}", "Make the environment anew.")
    return found


def _read(printed: str) -> KernelPython | None:
    lines = printed.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
        return KernelPython.model_validate(answer) if answer else None
    except (ValueError, ValidationError) as error:
        raise GipfelError(
            "The Python gave an answer that nobody understands.", "Or give --no-check."
        ) from error
