"""The program of a pre-flight inside the container: it prints what is there, as one JSON line.

It runs with the image's own Python, 3.9 or newer, and imports the standard library only; torch, whose import
takes seconds, is not imported.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any


def probe(words: list[str]) -> int:
    """Print what this container has: Python, packages, the target, room for checkpoints, GPUs in use."""
    asked = json.loads(words[0]) if words else {}
    packages = {name: package_version(name) for name in asked.get("packages", ())}
    kind, target = asked.get("kind"), asked.get("target") or ""
    if kind == "module":
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        there = bool(package_folder(target.partition(".")[0]))
    else:
        there = os.access(target, os.R_OK) and os.path.isfile(target)  # noqa: PTH113
    gpus = _gpus()
    answer = {
        "python": sys.version.split()[0], "executable": sys.executable, "packages": packages,
        "engine": os.environ.get("GIPFEL_ENGINE", ""),
        "target": there, "checkpoint": _room(asked.get("checkpoint") or ""), "gpus": gpus,
        "starts": {row[1]: _start(row[1]) for row in gpus if row[0] == "process"}, "space": _space(),
    }  # fmt: skip
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def package_folder(name: str) -> str:
    """Return the path of a package; empty without it."""
    import importlib.machinery  # noqa: PLC0415

    found = importlib.machinery.PathFinder.find_spec(name)
    if found is None:
        return ""
    return next(iter(found.submodule_search_locations or ()), found.origin or "")


def package_version(name: str) -> str | None:
    """Version of a package that can be imported; None without it."""
    import importlib.metadata  # noqa: PLC0415

    if not package_folder(name):
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _room(folder: str) -> dict[str, Any] | None:
    if not folder:
        return None
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        path = os.path.join(folder, f".gipfel-{os.getpid()}")  # noqa: PTH118
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(b"x")
        os.unlink(path)  # noqa: PTH108
        about = os.statvfs(folder)
    except OSError as error:
        return {"problem": error.strerror or str(error), "free": 0}
    return {"problem": "", "free": about.f_bavail * about.f_frsize}


def _gpus() -> list[list[str]]:
    """Index, UUID, compute mode of each GPU and then ``pid uuid name`` of each process on one."""
    program = shutil.which("nvidia-smi")
    rows: list[list[str]] = []
    # Not the names of processes: that of another user's could hold further lines.
    for query in ("--query-gpu=index,uuid,compute_mode", "--query-compute-apps=pid,gpu_uuid"):
        if program is None:
            break
        try:
            done = subprocess.run(
                [program, query, "--format=csv,noheader"], stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, timeout=15, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            break
        kind = "gpu" if "query-gpu" in query else "process"
        lines = done.stdout.decode(errors="replace").splitlines() if done.returncode == 0 else []
        rows += [[kind, *(cell.strip() for cell in line.split(","))] for line in lines]
    return [[*row[:3], _who(row[1])] if row[0] == "process" else row for row in rows]


def _start(pid: str) -> str:
    """Return the start of a process in clock ticks: with its number its identity, as numbers are reused."""
    try:
        with open(f"/proc/{int(pid)}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, ValueError, IndexError):
        return ""


def _space() -> str:
    """Return the machine, boot and namespace in which process numbers are those seen here."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


def _who(pid: str) -> str:
    """Return a process's program; of a notebook's kernel the notebook, if its server tells it."""
    key = b"JPY_SESSION_NAME="
    found = [each[len(key) :] for each in _strings(pid, "environ") if each.startswith(key)]
    if found and found[0]:
        return f"the kernel of {_shown(found[0])}"
    return _shown(_strings(pid, "cmdline")[0]) or "unknown"


def _strings(pid: str, name: str) -> list[bytes]:
    try:
        with open(f"/proc/{int(pid)}/{name}", "rb") as file:  # noqa: PTH123
            return file.read(1 << 20).split(b"\0")
    except (OSError, ValueError):
        return [b""]


def _shown(name: bytes) -> str:
    """Return the end of a name, in one line."""
    text = name.decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in text)[-200:].strip()


if __name__ == "__main__":
    sys.exit(probe(sys.argv[1:]))
