"""Kernelspecs that ``gipfel kernel`` writes: their content and the directories where Jupyter finds them.

The probes check whether a Python can run a kernel, by running that Python where the kernel will run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gipfel_cluster.broker.client import run_in_container
from gipfel_cluster.broker.container import IMAGE_KERNEL_PROGRAM
from gipfel_cluster.broker.messages import RunRequest, broker_socket
from gipfel_cluster.model import PYTHON, Frozen, GipfelError, OneLine, one_line
from gipfel_cluster.runs import write_atomically

from ..telemetry.files import read_regular

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILE = "kernel.json"
_MAX_BYTES = 1 << 20
# Jupyter replaces the first word with its own interpreter, and {prefix} with its own prefix.
_ENTER = ("python3", "-I", "-m", "gipfel_cluster.broker.kernel")
_START = "{prefix}/kernels/start.py"
_OF_THE_SERVER = frozenset(("python3", "python", "gipfel", "image"))


class Origin(Frozen):
    """Origin of a kernel: another EDF's container, or a virtual environment."""

    edf: OneLine = ""
    python: OneLine = ""
    venv: OneLine = ""

    def __str__(self) -> str:
        if self.edf:
            return f"EDF {self.edf}, Python: {self.python}"
        return f"virtual environment {self.venv}"


class _Metadata(Frozen, extra="allow"):
    gipfel: Origin


class KernelSpec(Frozen, extra="ignore"):
    """Content of a ``kernel.json`` that `gipfel kernel` writes."""

    argv: tuple[str, ...]
    display_name: str
    language: str = "python"
    interrupt_mode: Literal["signal"] = "signal"
    env: dict[str, str] = Field(default_factory=dict)
    metadata: _Metadata

    @property
    def origin(self) -> Origin:
        """EDF or virtual environment of the kernel."""
        return self.metadata.gipfel


def edf_kernel(edf: str, python: str, display_name: str) -> KernelSpec:
    """Return a kernel's spec in another EDF's container; `python` is ``image``, ``runtime`` or a path."""
    argv = (*_ENTER, "--edf", edf, "--python", python, "-f", "{connection_file}")
    return KernelSpec(
        argv=argv, display_name=display_name, metadata=_Metadata(gipfel=Origin(edf=edf, python=python))
    )


def venv_kernel(venv: Path, display_name: str, *, started: bool) -> KernelSpec:
    """Return a kernel's spec in a virtual environment; `started` by the runtime if it lacks ipykernel."""
    first = (_START,) if started else ("-m", "ipykernel_launcher")
    return KernelSpec(
        argv=(str(venv / "bin" / "python"), *first, "-f", "{connection_file}"),
        display_name=display_name,
        env={"VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:${{PATH}}"},
        metadata=_Metadata(gipfel=Origin(venv=str(venv))),
    )


def kernel_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return a user's kernel directories, for servers with and without a mounted home directory."""
    home = Path(environment.get("HOME") or Path.home())
    own = Path(environment.get("JUPYTER_DATA_DIR") or home / ".local" / "share" / "jupyter")
    apart = home / ".gipfel" / "server" / "data"
    return tuple(dict.fromkeys(folder / "kernels" for folder in (own, apart)))


def name_for(text: str) -> str:
    """Return a valid kernel name for a text."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:64] or "kernel"


def write_kernel(name: str, spec: KernelSpec, folders: tuple[Path, ...]) -> list[Path]:
    """Write a kernelspec into every directory, replacing one that `gipfel kernel` wrote.

    Raises
    ------
    GipfelError
        The name is not valid or belongs to another kernel, or a directory can't be written to.
    """
    if not _NAME.fullmatch(name) or name in _OF_THE_SERVER:
        raise GipfelError(
            f"{name!r} is not a valid kernel name.", "Give --name with letters, digits, '.', '-' and '_'."
        )
    for folder in folders:
        if (folder / name).exists() and _read(folder / name) is None:
            raise GipfelError(
                f"{folder / name} is a kernel that gipfel did not make.", "Give another --name."
            )
    content = json.dumps(spec.model_dump(mode="json"), indent=1) + "\n"
    for folder in folders:
        try:
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(folder / name / _FILE, content)
        except OSError as error:
            raise GipfelError(
                f"The kernel can't be written to {folder / name}: {error.strerror}.",
                "Set JUPYTER_DATA_DIR to a directory that you can write to.",
            ) from error
    return [folder / name for folder in folders]


def registered_kernels(folders: tuple[Path, ...]) -> Iterator[tuple[str, KernelSpec]]:
    """Yield the kernels that `gipfel kernel` wrote, each name once."""
    seen = set[str]()
    for folder in folders:
        for each in sorted(folder.iterdir()) if folder.is_dir() else ():
            spec = _read(each)
            if spec is not None and each.name not in seen:
                seen.add(each.name)
                yield each.name, spec


def remove_kernel(name: str, folders: tuple[Path, ...]) -> None:
    """Remove a kernel that `gipfel kernel` wrote from every directory.

    Raises
    ------
    GipfelError
        There is no such kernel, or `gipfel kernel` did not write it.
    """
    known = dict(registered_kernels(folders))
    if name not in known:
        there = _NAME.fullmatch(name) and any((folder / name).exists() for folder in folders)
        problem = (
            f"The kernel {name!r} is not gipfel's." if there else f"There is no kernel {name!r} of gipfel's."
        )
        have = ", ".join(sorted(known))
        raise GipfelError(problem, f"There are: {have}." if have else "See `jupyter kernelspec list`.")
    for folder in folders:
        if _read(folder / name) is not None:
            shutil.rmtree(folder / name)


def _read(folder: Path) -> KernelSpec | None:
    """Return a kernel that `gipfel kernel` wrote; None for any other directory."""
    try:
        return KernelSpec.model_validate_json(read_regular(folder / _FILE, _MAX_BYTES, follow=True))
    except (OSError, ValidationError):
        return None


_LIMIT_S = 30
_MAX_OUTPUT_BYTES = 1 << 16

# Program for any Python since 3.9: prints what the runtime's start file says about it, or whether it has
# ipykernel.
_OF_A_PYTHON = """
import json, os, runpy, sys
messages, usable = [], True
try:
    if os.path.isfile(sys.argv[1]):
        messages = runpy.run_path(sys.argv[1])["prepare"]()
    from ipykernel import kernelapp
except Exception as error:  # noqa: BLE001 - any error of the set-up is the answer
    usable, messages = False, ["%s: %s" % (type(error).__name__, error)]
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "usable": usable, "messages": messages}))
"""

# Program for the runtime's Python in the container: it finds and probes the other Python, which may hang,
# print without end, or leave a process behind that keeps its output open.
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
        messages = [line for line in texts[1] if line.strip() and "no Python frame" not in line] or [""]
        if process.returncode == 0:
            why, messages = "%s does not answer as a Python does." % found, [""]
        answer = {"version": "?", "usable": False, "messages": [why + " " + messages[-1][:300]]}
print(json.dumps(answer))  # noqa: T201
"""


class KernelPython(Frozen):
    """Result of a probe of a Python: its version, whether it can run a kernel, and messages."""

    version: str
    usable: bool
    messages: tuple[str, ...] = ()


def probe_container(edf: str, python: str) -> KernelPython | None:
    """Probe a Python in the container of an EDF, ``python3`` or a path; None if there is none.

    Raises
    ------
    GipfelError
        The container can't be started.
    """
    arguments = (_OF_A_CONTAINER, python, _OF_A_PYTHON, IMAGE_KERNEL_PROGRAM, str(_LIMIT_S))
    request = RunRequest(edf=edf, command=(PYTHON, "-I", "-c", *arguments))
    socket = broker_socket(os.environ)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, open(os.devnull) as nothing:  # noqa: PTH123
        files = nothing.fileno(), output.fileno(), errors.fileno()
        if socket is not None:
            status = run_in_container(socket, request, files=files)
        else:
            from gipfel_cluster.broker.container import run_directly  # noqa: PLC0415

            status = run_directly(request, os.environ, files=files)
        output.seek(0)
        errors.seek(0)
        printed = output.read(_MAX_OUTPUT_BYTES).decode(errors="replace")
        words = errors.read(_MAX_OUTPUT_BYTES).decode(errors="replace").strip().splitlines()
    if status:
        why = one_line(words[-1]).removeprefix("gipfel: ") if words else f"exit status {status}"
        raise GipfelError(f"The container of {edf} can't be tried: {why}", "Or give --no-check.")
    return _parse_answer(printed)


def probe_local(python: Path) -> KernelPython:
    """Probe a Python on this file system.

    Raises
    ------
    GipfelError
        The Python can't be started.
    """
    argv = [str(python), "-c", _OF_A_PYTHON, str(Path(sys.prefix, IMAGE_KERNEL_PROGRAM))]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer within {_LIMIT_S} s"
        raise GipfelError(f"{python} can't be started: {why}.", "Recreate the environment here.") from error
    found = _parse_answer(done.stdout)
    if found is None:
        words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise GipfelError(f"{python} does not work here: {words[-1]}", "Recreate the environment.")
    return found


def _parse_answer(printed: str) -> KernelPython | None:
    lines = printed.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
        return KernelPython.model_validate(answer) if answer else None
    except (ValueError, ValidationError) as error:
        raise GipfelError(
            "The output of the Python is not valid.", "Check it, or give --no-check."
        ) from error
