"""Pre-flight program that runs inside the container: it prints its properties as one JSON line.

It runs with the image's Python, 3.9 or newer, and imports only the standard library. It does not import
torch, which takes seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any


def probe(arguments: list[str]) -> int:
    """Print this container's Python, packages, target, free space for checkpoints, and processes on GPUs."""
    question = json.loads(arguments[0]) if arguments else {}
    packages = {name: package_version(name) for name in question.get("packages", ())}
    kind, target = question.get("kind"), question.get("target") or ""
    if kind == "module":
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        exists = bool(package_folder(target.partition(".")[0]))
    else:
        exists = os.access(target, os.R_OK) and os.path.isfile(target)  # noqa: PTH113
    gpus = _gpus()
    result = {
        "python": sys.version.split()[0], "executable": sys.executable, "packages": packages,
        "engine": os.environ.get("GIPFEL_ENGINE", ""),
        "target": exists, "checkpoint": _free_space(question.get("checkpoint") or ""), "gpus": gpus,
        "start_ticks": {row[1]: _start_ticks(row[1]) for row in gpus if row[0] == "process"},
        "pid_namespace": _pid_namespace(),
    }  # fmt: skip
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def package_folder(name: str) -> str:
    """Return the path of a package; empty if it is not installed."""
    import importlib.machinery  # noqa: PLC0415

    found = importlib.machinery.PathFinder.find_spec(name)
    if found is None:
        return ""
    return next(iter(found.submodule_search_locations or ()), found.origin or "")


def package_version(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    import importlib.metadata  # noqa: PLC0415

    if not package_folder(name):
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _free_space(folder: str) -> dict[str, Any] | None:
    if not folder:
        return None
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        path = os.path.join(folder, f".gipfel-{os.getpid()}")  # noqa: PTH118
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(b"x")
        os.unlink(path)  # noqa: PTH108
        file_system = os.statvfs(folder)
    except OSError as error:
        return {"problem": error.strerror or str(error), "free": 0}
    return {"problem": "", "free": file_system.f_bavail * file_system.f_frsize}


def _gpus() -> list[list[str]]:
    """Return index, UUID and mode of each GPU, then PID, UUID and name of each process on a GPU.

    The list is empty if nvidia-smi can't list both.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    rows: list[list[str]] = []
    # Names of processes are not queried, because another user's process could have line breaks in its name.
    for query in ("--query-gpu=index,uuid,compute_mode", "--query-compute-apps=pid,gpu_uuid"):
        try:
            done = subprocess.run(
                [program, query, "--format=csv,noheader"], stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, timeout=15, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return []
        kind = "gpu" if "query-gpu" in query else "process"
        lines = done.stdout.decode(errors="replace").splitlines()
        rows += [[kind, *(cell.strip() for cell in line.split(","))] for line in lines]
    return [[*row[:3], _program_name(row[1])] if row[0] == "process" else row for row in rows]


def _start_ticks(pid: str) -> str:
    """Return the start time of a process in clock ticks, which identifies it together with its PID."""
    try:
        with open(f"/proc/{int(pid)}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, ValueError, IndexError):
        return ""


def _pid_namespace() -> str:
    """Return an identifier of this boot and PID namespace, in which PIDs of this container are valid."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


def _program_name(pid: str) -> str:
    """Return the program of a process; for a kernel, the notebook if its server has set it."""
    key = b"JPY_SESSION_NAME="
    found = [each[len(key) :] for each in _strings(pid, "environ") if each.startswith(key)]
    if found and found[0]:
        return f"the kernel of {_printable(found[0])}"
    return _printable(_strings(pid, "cmdline")[0]) or "unknown"


def _strings(pid: str, name: str) -> list[bytes]:
    try:
        with open(f"/proc/{int(pid)}/{name}", "rb") as file:  # noqa: PTH123
            return file.read(1 << 20).split(b"\0")
    except (OSError, ValueError):
        return [b""]


def _printable(name: bytes) -> str:
    """Return the end of a name, as one line of printable characters."""
    text = name.decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in text)[-200:].strip()


if __name__ == "__main__":
    sys.exit(probe(sys.argv[1:]))
