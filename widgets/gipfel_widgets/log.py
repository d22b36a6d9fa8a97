"""Log of a training loop's own numbers, by one line: ``log(step=step, tokens_per_s=rate, loss=loss)``.

Each call appends one line to ``metrics.jsonl`` in the run folder, on the clocks of the recorder's samples. It
runs with any CPython since 3.9 and imports the standard library only.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import time
from typing import Any

#: Name of the file in a run folder.
METRICS_FILE = "metrics.jsonl"

_LONGEST_TEXT = 200
_LONGEST_NAME = 100
_MOST = 64
_LARGEST = 2**63
#: A disk that is full or a folder that is gone is asked again after so many seconds.
_PATIENCE_NS = 2 * 10**9
_NOWHERE = (
    "log() writes to metrics.jsonl of a run, and this process belongs to none: nothing is kept. "
    "Start it with `gipfel record -- COMMAND`."
)


def log(*given: Any, **values: Any) -> None:
    """Log numbers of this moment, such as step, loss and tokens per second.

    Costs some ten microseconds and never raises: what can't be noted is said once on stderr. Outside a run
    nothing is written.

    Parameters
    ----------
    given
        A dictionary of values, for names that are not Python names: ``log({"train/loss": 0.5})``.
    values
        Numbers, booleans, short strings, or whatever ``float()`` takes: a tensor on a GPU is waited for. NaN
        and infinity are noted as missing.
    """
    time_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    try:
        _writer().write(time_ns, monotonic_ns, given, values)
    except Exception as error:  # noqa: BLE001 - nothing here may end a training loop
        _warn(f"bug {type(error).__name__}", f"log() failed: {type(error).__name__}: {error}")


class _Writer:
    """Appends lines to one run's file, for one process and one rank."""

    def __init__(self, folder: str, rank: str) -> None:
        self._path = os.path.join(folder, METRICS_FILE) if folder else ""  # noqa: PTH118 - quick to import
        self._rank = int(rank) if rank.isdecimal() else None
        self._node = _node()
        self._launch = _launch()
        self._file: int | None = None
        self._lost = 0
        self._torn = False
        self._again_ns = 0

    def write(self, time_ns: int, monotonic_ns: int, given: tuple[Any, ...], values: dict[str, Any]) -> None:
        if not self._path:
            if not self._rank:
                _warn("nowhere", _NOWHERE)
            return
        noted = _json_values(given, values)
        if monotonic_ns < self._again_ns:
            self._lost += 1
            return
        content = {"time_ns": time_ns, "monotonic_ns": monotonic_ns, "node": self._node, "rank": self._rank}
        if self._launch:
            content["launch"] = self._launch
        if self._lost:
            content["lost"] = self._lost
        content["values"] = noted
        try:
            self._append(json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        except OSError as error:
            self._lost += 1
            self._again_ns = monotonic_ns + _PATIENCE_NS
            self._file = None
            _warn("disk", f"{self._path} can't be written: {error.strerror}. The work continues without it.")
        else:
            self._lost = 0

    def _append(self, line: bytes) -> None:
        if self._file is None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._file = os.open(self._path, flags, 0o600)
            end = os.fstat(self._file).st_size
            self._torn = end > 0 and os.pread(self._file, 1, end - 1) != b"\n"
        # One write, so that the lines of several ranks don't mix; one that was cut gets an end of its own.
        line = b"\n" + line if self._torn else line
        written = os.write(self._file, line)
        self._torn = written < len(line)
        if self._torn:
            raise OSError(28, os.strerror(28))


_writers: dict[tuple[str, str, int], _Writer] = {}
_warned: set[str] = set()


def _writer() -> _Writer:
    # Looked up each time: a fork, or a launcher that names the rank late, makes another one.
    environment = os.environ
    rank = environment.get("RANK") or environment.get("SLURM_PROCID") or ""
    key = (environment.get("GIPFEL_RUN") or "", rank, os.getpid())
    found = _writers.get(key)
    return found if found is not None else _writers.setdefault(key, _Writer(key[0], rank))


def _node() -> str:
    named = os.environ.get("GIPFEL_NODE") or os.environ.get("SLURMD_NODENAME")
    return named or socket.gethostname().partition(".")[0]


def _launch() -> str:
    """Return ``RUN/N`` of the launch that this process is a rank of: several may run in one run."""
    parts = os.environ.get("GIPFEL_LAUNCH", "").rstrip("/").split("/")
    return f"{parts[-3]}/{parts[-1]}"[:_LONGEST_TEXT] if len(parts) > 3 else ""


def _json_values(given: tuple[Any, ...], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values as JSON can hold them; None with a warning for what can't be logged."""
    for each in given:
        if isinstance(each, dict):
            values = {**each, **values}
        else:
            _warn("given", f"log() takes names and values, not {_kind(each)}.")
    if len(values) > _MOST:
        _warn("many", f"log() notes {_MOST} values at a time; the others are left out.")
        values = dict(list(values.items())[:_MOST])
    return {str(name)[:_LONGEST_NAME]: _value(name, value) for name, value in values.items()}


def _value(name: Any, value: Any) -> Any:
    try:
        item = getattr(value, "item", None)
        # Of tensors and NumPy's scalars; a tensor's own float() warns of its gradient.
        value = item() if callable(item) else value
        kind = type(value)
        if value is None or kind is bool or (kind is int and -_LARGEST <= value < _LARGEST):
            return value
        if isinstance(value, str):
            if len(value) > _LONGEST_TEXT:
                _warn(f"long {name}", f"log({name}=…) keeps {_LONGEST_TEXT} characters of a string.")
            return str(value[:_LONGEST_TEXT])
        number = float(value)
    except Exception:  # noqa: BLE001 - whatever a tensor's own float() raises
        _warn(f"kind {name}", f"log({name}=…) takes a number or a short string, not {_kind(value)}.")
        return None
    if math.isfinite(number):
        return number
    _warn(f"number {name}", f"log({name}={number}) is noted as missing.")
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
