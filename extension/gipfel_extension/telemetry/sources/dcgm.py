"""The node's DCGM daemon, for GPUs without GPM: a child process ``dcgmi dmon`` whose lines are read.

This module also parses DCGM's names and values, and DCGM exporter's text, for other sources and imports.
"""

import re
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..metric_table import DCGM_FIELDS, GPU_METRICS, TABLE, Metric
from ..sample import Device, Sample, SourceError
from . import Source, SourceRequest
from .job_gpus import can_open_nvidia, job_gpus

#: Names to which other tools give another meaning: the energy of one sample instead of a counter.
_AMBIGUOUS_NAMES = ("TOTAL_ENERGY_CONSUMPTION",)
#: Gipfel's metric, and the factor from DCGM's unit to the metric's, by DCGM's name without ``DCGM_FI_DEV_``
#: or ``DCGM_FI_PROF_``.
FIELDS: Mapping[str, tuple[str, float]] = {
    name: (metric.name, metric.dcgm_factor)
    for metric in DCGM_FIELDS.values()
    for name in (metric.dcgm_name, metric.dcgm_new_name)
    if name and name not in _AMBIGUOUS_NAMES
}
#: DCGM's blank values (blank, not found, not supported, not permitted) for 32 and 64 bits and for floats.
BLANKS = frozenset(
    float(start + step) for start in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328) for step in range(4)
)
_LINE = re.compile(r"^(DCGM_FI_\w+)\{(.*)\}\s+(\S+)(?:\s+(-?\d+))?\s*$")
#: Anchored at the start of a word: otherwise matching restarts at each letter of a long word.
_LABEL = re.compile(r'(?<!\w)(\w+)="((?:[^"\\]|\\.)*)"')
_MAX_DIGITS = 6


def metric_of(field: str) -> tuple[str, float] | None:
    """Return metric and factor of a DCGM field ``DCGM_FI_DEV_…`` or ``DCGM_FI_PROF_…``; None for others."""
    name = field.removeprefix("DCGM_FI_DEV_").removeprefix("DCGM_FI_PROF_")
    return FIELDS.get(name) if name != field else None


def number_of(text: object) -> float | None:
    """Return a number as DCGM wrote it; None for blank values, other text and infinite values."""
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return None if value in BLANKS or not abs(value) < float("inf") else value


def number_or_nan(text: object) -> float:
    """Return a number like :func:`number_of`, with NaN instead of None."""
    value = number_of(text)
    return float("nan") if value is None else value


def scaled(text: object, factor: float) -> float | None:
    """Return a number as DCGM wrote it times a factor; None where the result is missing or infinite."""
    value = number_of(text)
    return None if value is None or not abs(value * factor) < float("inf") else value * factor


def scraped_lines(lines: Iterable[str]) -> Iterator[tuple[str, Mapping[str, str], str, int | None]]:
    """Yield field, labels, value as text, and time in milliseconds of each line of DCGM exporter."""
    for line in lines:
        matched = _LINE.match(line.strip())
        if matched:
            yield matched[1], dict(_LABEL.findall(matched[2])), matched[3], _milliseconds(matched[4] or "")


def device_of(labels: Mapping[str, str], *, node: str = "") -> Device | None:
    """Return the GPU or MIG instance that the labels identify; None without such labels."""
    node = node or labels.get("Hostname") or labels.get("hostname") or ""
    number = labels.get("gpu", "")
    uuid = labels.get("UUID") or labels.get("uuid") or (f"{node}:{number}" if number else "")
    if not uuid:
        return None
    instance = labels.get("GPU_I_ID", "")
    name = " ".join(part for part in (labels.get("modelName", ""), labels.get("GPU_I_PROFILE", "")) if part)
    is_index = number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS
    index = int(number) if is_index else None
    return Device(f"{uuid}/{instance}" if instance else uuid, "gpu", name, index, node=node)


def _milliseconds(text: str) -> int | None:
    """Return a time stamp in milliseconds; None where it is missing or outside the range of nanoseconds."""
    found = int(text) if text and len(text) < 18 else None
    return found if found is None or abs(found) < 2**63 // 10**6 else None


_SECONDS = 10.0
_END_SECONDS = 2.0
#: Lines older than this many intervals are ignored.
_MAX_AGE_INTERVALS = 3.0
_ROW = re.compile(r"^GPU(?:-I)?\s+(\d+)\s+(.*)$")
_LISTED = re.compile(r"^\|\s*(\d*)\s*\|\s*(.*?)\s*\|$")
_FIX = "Check with `dcgmi discovery -l` that nv-hostengine is running here and accepts this user."


class DcgmSource(Source):
    """The job's GPUs, by UUID, with DCGM's profiling metrics.

    Before Hopper, DCGM's profiling locks the GPUs' counters and excludes profilers such as Nsight Compute.

    Parameters
    ----------
    program
        ``dcgmi``, by name or path.

    Raises
    ------
    SourceError
        The DCGM daemon does not respond, or the job has no GPU.
    """

    name = "dcgm"

    def __init__(self, request: SourceRequest, *, program: str = "dcgmi") -> None:
        self._clock = request.clock
        self._environment = dict(request.environment)
        self._interval = request.interval
        self._program = shutil.which(program) or ""
        if not self._program:
            raise SourceError(
                f"{program} is not installed on this node.", "Ask the site to install DCGM, or use nvml."
            )
        listed = parse_discovery(self._output("discovery", "-l").splitlines())
        visible = {gpu.uuid: gpu.index for gpu in listed}
        own = job_gpus(visible, request.environment, can_open=can_open_nvidia)
        node = request.environment.get("GIPFEL_NODE", "")
        self.devices: tuple[Device, ...] = tuple(replace(gpu, node=node) for gpu in listed if gpu.uuid in own)
        if not self.devices:
            raise SourceError("This job has no GPU.", "Request a GPU when you start the job.")
        self._fields = tuple(
            TABLE[name] for name in (*GPU_METRICS, *request.metrics) if name in TABLE and TABLE[name].dcgm_id
        )
        self._latest: dict[int, tuple[int, int, dict[str, float | None]]] = {}
        self._lock = threading.Lock()
        self._message = ""
        self._process = self._start()

    def read(self) -> list[Sample]:
        """Return the newest line of each GPU, with the time at which it was received."""
        with self._lock:
            latest = dict(self._latest)
            message = self._message
        if self._process.poll() is not None:
            status = self._process.returncode
            self._process = self._start()
            raise SourceError(f"dcgmi dmon ended with status {status}: {message or 'no message'}.", _FIX)
        now_ns = self._clock.monotonic_ns()
        oldest_ns = now_ns - int(_MAX_AGE_INTERVALS * max(self._interval, 1.0) * 1e9)
        samples = []
        for device in self.devices:
            time_ns, monotonic_ns, values = latest.get(device.index or 0, (0, 0, {}))
            if not values or monotonic_ns < oldest_ns:
                # Without a recent line the values are missing, not unchanged.
                time_ns, monotonic_ns, values = self._clock.time_ns(), now_ns, dict.fromkeys(GPU_METRICS)
            samples.append(Sample(time_ns, monotonic_ns, device.uuid, values))
        return samples

    def close(self) -> None:
        """Stop ``dcgmi``."""
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        numbers = ",".join(str(field.dcgm_id) for field in self._fields)
        gpus = ",".join(str(device.index) for device in self.devices)
        milliseconds = str(max(1, round(self._interval * 1000)))
        argv = [self._program, "dmon", "-e", numbers, "-i", gpus, "-d", milliseconds]
        try:
            process = subprocess.Popen(
                argv,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise SourceError(f"dcgmi can't be started: {error.strerror}.", _FIX) from error
        threading.Thread(target=self._follow, args=(process,), daemon=True).start()
        return process

    def _follow(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            row = parse_row(line, self._fields)
            with self._lock:
                if row is not None:
                    self._latest[row[0]] = (self._clock.time_ns(), self._clock.monotonic_ns(), row[1])
                elif line.strip() and not line.startswith(("#", "ID")):
                    self._message = line.strip()[:200]

    def _output(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                (self._program, *arguments),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"dcgmi doesn't respond: {error}.", _FIX) from error
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise SourceError(f"dcgmi: {lines[-1] if lines else done.returncode}.", _FIX)
        return done.stdout


def parse_discovery(lines: Sequence[str]) -> list[Device]:
    """Return the GPUs in the output of ``dcgmi discovery -l``, with DCGM's GPU ids."""
    found: dict[int, dict[str, str]] = {}
    number: int | None = None
    for line in lines:
        cells = _LISTED.match(line.strip())
        if cells is None:
            # The table of switches follows the table of GPUs.
            number = None if not line.startswith("+--") else number
            continue
        if cells[1]:
            number = int(cells[1])
        key, colon, value = cells[2].partition(":")
        if number is not None and colon:
            found.setdefault(number, {})[key.strip()] = value.strip()
    return [
        Device(fields["Device UUID"], "gpu", fields.get("Name", ""), index)
        for index, fields in found.items()
        if "Device UUID" in fields
    ]


def parse_row(line: str, fields: Sequence[Metric]) -> tuple[int, dict[str, float | None]] | None:
    """Return GPU id and values of a line of ``dcgmi dmon``; None for headings and incomplete lines."""
    matched = _ROW.match(line.strip())
    if matched is None:
        return None
    cells = matched[2].split()
    if len(cells) != len(fields):
        return None
    values: dict[str, float | None] = dict.fromkeys(GPU_METRICS)
    for field, cell in zip(fields, cells, strict=True):
        values[field.name] = scaled(cell, field.dcgm_factor)
    return int(matched[1]), values
