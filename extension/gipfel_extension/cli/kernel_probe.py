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
from gipfel_cluster.model import PYTHON, Frozen, GipfelError, one_line

_LIMIT_S = 30
_MOST_BYTES = 1 << 16

# For any Python since 3.9: what the runtime's start file says of it, or whether it has an ipykernel.
_OF_A_PYTHON = """
import json, os, runpy, sys
said, usable = [], True
try:
    if os.path.isfile(sys.argv[1]):
        said = runpy.run_path(sys.argv[1])["prepare"]()
    from ipykernel import kernelapp
except Exception as error:
    usable, said = False, ["%s: %s" % (type(error).__name__, error)]
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "usable": usable, "said": said}))
"""

# For the runtime's Python in the container: it looks for the other one, which may hang, flood, or leave
# something behind that holds its output open.
_OF_A_CONTAINER = """
import json, os, resource, shutil, signal, subprocess, sys
found = shutil.which(sys.argv[1])
answer = {}
if found:
    command = [found, "-c", sys.argv[2], sys.prefix + "/" + sys.argv[3]]
    files = [open(os.memfd_create(name), "w+b") for name in ("output", "errors")]
    most, limit = 1 << 24, float(sys.argv[4])
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=files[0], stderr=files[1], start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )
    try:
        why = "It ends with status %d." % process.wait(limit)
    except subprocess.TimeoutExpired:
        why = "It does not answer within %d s." % limit
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    texts = []
    for file in files:
        file.seek(max(0, file.seek(0, 2) - 65536))
        texts.append(file.read().decode(errors="replace").strip().splitlines() or [""])
    try:
        answer = json.loads(texts[0][-1])
        assert isinstance(answer, dict) and "usable" in answer
    except Exception:
        said = [line for line in texts[1] if line.strip() and "no Python frame" not in line] or [""]
        if process.returncode == 0:
            why, said = "%s does not answer as a Python does." % found, [""]
        answer = {"version": "?", "usable": False, "said": [why + " " + said[-1][:300]]}
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
    asked = (_OF_A_CONTAINER, python, _OF_A_PYTHON, START, str(_LIMIT_S))
    request = RunRequest(edf=edf, command=(PYTHON, "-I", "-c", *asked))
    socket = broker_socket(os.environ)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, open(os.devnull) as nothing:  # noqa: PTH123
        files = nothing.fileno(), output.fileno(), errors.fileno()
        if socket is not None:
            status = run(socket, request, files=files)
        else:
            from gipfel_cluster.broker.container import run_directly  # noqa: PLC0415

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
