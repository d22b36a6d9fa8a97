"""Logging of a training loop's metrics, ``log(step=step, loss=loss)``, and of its ranks' roles.

A role is a rank's position in the parallel layout, such as ``dp=0, pp=1``. Each call appends one line to
``metrics.jsonl`` in the run folder, with times of the same two clocks as the recorder's samples. This module
runs with CPython 3.9 or later and imports the standard library only.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import sys
import time
from typing import Any

#: Name of the file in a run folder.
METRICS_FILE = "metrics.jsonl"
#: Name of the file with the ranks' roles in a run folder.
ROLES_FILE = "roles.jsonl"

_MAX_TEXT = 200
_MAX_NAME = 100
_MAX_VALUES = 64
_MAX_INTEGER = 2**63
_MAX_AXES = 8
_AXIS = re.compile(r"[a-z][a-z0-9_]{0,15}")
#: Nanoseconds without an attempt to write after a failure, such as a full disk.
_RETRY_NS = 2 * 10**9
_NO_RUN = (
    "log() writes to metrics.jsonl of a run, but this process does not belong to a run: nothing is saved. "
    "Start it with `gipfel record -- COMMAND`."
)


def log(*given: Any, **values: Any) -> None:
    """Log metrics with the current time, such as step, loss and tokens per second.

    A call takes about ten microseconds and never raises: problems are reported once on stderr. Outside of a
    run nothing is written.

    Parameters
    ----------
    given
        A dictionary of values, for names that are not Python names: ``log({"train/loss": 0.5})``.
    values
        Numbers, booleans, short strings, or values that ``float()`` accepts; a tensor on a GPU is
        synchronized. NaN and infinity are logged as missing. The name ``roles`` is special: its dictionary
        reports the rank's coordinates, as :func:`gipfel_widgets.roles` does.
    """
    time_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    try:
        if values.get("roles") is not None:
            _log_roles(values.pop("roles"))
            if not given and not values:
                return
        _writer().write(time_ns, monotonic_ns, given, values)
    except Exception as error:  # noqa: BLE001 - logging must not stop the training
        _warn(f"bug {type(error).__name__}", f"log() failed: {type(error).__name__}: {error}")


def roles(rank: int | None = None, world_size: int | None = None, **coordinates: int) -> None:
    """Report the coordinates of this rank in the job's parallel layout, such as ``roles(dp=0, pp=1, tp=0)``.

    The job page and ``gipfel diagnose`` group ranks by them. Call it once on every rank, with the same axes.
    It appends one line to ``roles.jsonl`` in the run folder and never raises: problems are reported once on
    stderr. Outside of a run nothing is written.

    Parameters
    ----------
    rank, world_size
        This rank and the number of ranks; by default ``RANK`` and ``WORLD_SIZE``, which launchers set.
    coordinates
        Position of this rank on each axis, counted from 0; axes are dp, pp, tp, ep, cp or any other name.
    """
    try:
        _report_roles(rank, world_size, coordinates)
    except Exception as error:  # noqa: BLE001 - reporting must not stop the training
        _warn("roles bug", f"roles() failed: {type(error).__name__}: {error}")


def _log_roles(given: Any) -> None:
    if isinstance(given, dict):
        roles(**{str(name): value for name, value in given.items()})
    else:
        _warn("roles kind", f"log(roles=…) takes a dictionary such as {{'dp': 0}}, not {_kind(given)}.")


def _report_roles(rank: int | None, world_size: int | None, coordinates: dict[str, Any]) -> None:
    environment = os.environ
    run = environment.get("GIPFEL_RUN") or ""
    number = _number(rank, ("RANK", "SLURM_PROCID"))
    valid = [name for name, value in coordinates.items() if _is_coordinate(name, value)]
    odd = next((str(each)[:40] for each in coordinates if each not in valid), "…")
    problems = (
        (not run, "nowhere", "roles() writes to a run, but this process does not belong to one."),
        (number is None, "rank", "roles() needs a rank: set RANK, or call roles(rank=…, dp=…)."),
        (
            len(valid) < len(coordinates) or len(valid) > _MAX_AXES,
            "axis",
            f"roles({odd}=…) takes up to {_MAX_AXES} axes with whole numbers from 0.",
        ),
    )
    for is_wrong, subject, line in problems:
        if is_wrong:
            _warn(f"roles {subject}", line)
            return
    content = {
        "time_ns": time.time_ns(),
        "rank": number,
        "world_size": _number(world_size, ("WORLD_SIZE", "SLURM_NTASKS")),
        "node": _node(),
        "pid": os.getpid(),
        "launch": _launch(),
        "source": "rank",
        "roles": {name: int(value) for name, value in coordinates.items()},
    }
    path = os.path.join(run, ROLES_FILE)  # noqa: PTH118 - quick to import
    try:
        # Unbuffered: one write, so that lines of several ranks don't mix.
        with os.fdopen(_open_to_append(path), "wb", buffering=0) as file:
            file.write(json.dumps(content).encode() + b"\n")
    except OSError as error:
        _warn("roles disk", f"{path} can't be written: {error.strerror}. The work continues without it.")


def _number(given: Any, names: tuple[str, ...]) -> int | None:
    if given is not None:
        return int(given)
    text = next((os.environ[name] for name in names if os.environ.get(name)), "")
    return int(text) if text.isdecimal() else None


def _is_coordinate(name: Any, value: Any) -> bool:
    is_axis = isinstance(name, str) and _AXIS.fullmatch(name) is not None and name != "rank"
    return is_axis and not isinstance(value, bool) and 0 <= int(value) < _MAX_INTEGER and int(value) == value


def _open_to_append(path: str) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(path, flags, 0o600)


class _Writer:
    """Writer of the lines of one process and one rank."""

    def __init__(self, folder: str, rank: str) -> None:
        self._path = os.path.join(folder, METRICS_FILE) if folder else ""  # noqa: PTH118 - quick to import
        self._rank = int(rank) if rank.isdecimal() else None
        self._node = _node()
        self._launch = _launch()
        self._file: int | None = None
        self._lost = 0
        self._torn = False
        self._retry_ns = 0

    def write(
        self, time_ns: int, monotonic_ns: int, positional: tuple[Any, ...], values: dict[str, Any]
    ) -> None:
        if not self._path:
            if not self._rank:
                _warn("nowhere", _NO_RUN)
            return
        logged = _json_values(positional, values)
        _count(logged)
        if monotonic_ns < self._retry_ns:
            self._lost += 1
            return
        content = {
            "time_ns": time_ns,
            "monotonic_ns": monotonic_ns,
            "node": self._node,
            "rank": self._rank,
            **({"launch": self._launch} if self._launch else {}),
            **({"lost": self._lost} if self._lost else {}),
            "values": logged,
        }
        try:
            self._append(json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        except OSError as error:
            self._lost += 1
            self._retry_ns = monotonic_ns + _RETRY_NS
            self._file = None
            _warn("disk", f"{self._path} can't be written: {error.strerror}. The work continues without it.")
        else:
            self._lost = 0

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self._file = _open_to_append(self._path)
            end = os.fstat(self._file).st_size
            self._torn = end > 0 and os.pread(self._file, 1, end - 1) != b"\n"
        # One write, so that lines of several ranks don't mix; a line that was cut is ended first.
        line = b"\n" + line if self._torn else line
        written = os.write(self._file, line)
        self._torn = written < len(line)
        if self._torn:
            raise OSError(28, os.strerror(28))


# The step hooks of a launch read these three, by name and perhaps from another version of Gipfel.
#: Number of calls of `log` so far.
calls = 0
#: Whether the program itself logs ``step``.
logs_steps = False
#: Whether the program itself logs ``step_s`` or ``work_s``.
logs_durations = False
_writers: dict[tuple[str, str, int], _Writer] = {}
_warned: set[str] = set()


def _count(logged: dict[str, Any]) -> None:
    global calls, logs_steps, logs_durations  # noqa: PLW0603 - the step hooks read them
    calls += 1
    logs_steps = logs_steps or "step" in logged
    logs_durations = logs_durations or "step_s" in logged or "work_s" in logged


def _writer() -> _Writer:
    # Looked up on each call: the process may have forked, or the launcher may have set the rank later.
    environment = os.environ
    rank = environment.get("RANK") or environment.get("SLURM_PROCID") or ""
    key = (environment.get("GIPFEL_RUN") or "", rank, os.getpid())
    found = _writers.get(key)
    return found if found is not None else _writers.setdefault(key, _Writer(key[0], rank))


def _node() -> str:
    named = os.environ.get("GIPFEL_NODE") or os.environ.get("SLURMD_NODENAME")
    return named or socket.gethostname().partition(".")[0]


def _launch() -> str:
    """Return the launch of this process as ``RUN/N``, since a run can have several; empty outside of one."""
    parts = os.environ.get("GIPFEL_LAUNCH", "").rstrip("/").split("/")
    return f"{parts[-3]}/{parts[-1]}"[:_MAX_TEXT] if len(parts) > 3 else ""


def _json_values(positional: tuple[Any, ...], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values as JSON can hold them; None with a warning for what can't be logged."""
    for each in positional:
        if isinstance(each, dict):
            values = {**each, **values}
        else:
            _warn("given", f"log() takes names and values, not {_kind(each)}.")
    if len(values) > _MAX_VALUES:
        _warn("many", f"log() takes at most {_MAX_VALUES} values per call; the others are dropped.")
        values = dict(list(values.items())[:_MAX_VALUES])
    return {str(name)[:_MAX_NAME]: _value(name, value) for name, value in values.items()}


def _value(name: Any, value: Any) -> Any:
    try:
        item = getattr(value, "item", None)
        # For tensors and NumPy scalars; float() of a tensor warns about its gradient.
        value = item() if callable(item) else value
        kind = type(value)
        if value is None or kind is bool or (kind is int and -_MAX_INTEGER <= value < _MAX_INTEGER):
            return value
        if isinstance(value, str):
            if len(value) > _MAX_TEXT:
                _warn(f"long {name}", f"log({name}=…) keeps {_MAX_TEXT} characters of a string.")
            return str(value[:_MAX_TEXT])
        number = float(value)
    except Exception:  # noqa: BLE001 - a tensor's own float() may raise anything
        _warn(f"kind {name}", f"log({name}=…) takes a number or a short string, not {_kind(value)}.")
        return None
    if math.isfinite(number):
        return number
    _warn(f"number {name}", f"log({name}={number}) is logged as missing.")
    return None


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def _warn(what: str, line: str) -> None:
    """Print one line on stderr, once for each subject."""
    if what in _warned or len(_warned) > 100:
        return
    _warned.add(what)
    try:
        sys.stderr.write(f"gipfel: {' '.join(line.split())}\n")
        sys.stderr.flush()
    except Exception:  # noqa: BLE001 - a notebook's stderr is not a file
        return
