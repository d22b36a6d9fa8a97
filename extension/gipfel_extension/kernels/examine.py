"""Asking a Python of the image whether it can be a kernel; it may hang, or print anything."""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.model import Frozen, one_line

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
