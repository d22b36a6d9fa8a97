"""The node's DCGM daemon, for GPUs without GPM: ``dcgmi dmon`` runs beside us and is read line by line."""

import re
import shutil
import subprocess
import threading
from collections.abc import Sequence

from ..metric_table import GPU_METRICS, TABLE, Metric
from ..sample import Device, Sample, SourceError
from . import SourceRequest, no_argument
from .dcgm_text import scaled
from .own_gpus import VisibleGpu, opens_nvidia, own_gpus

_SECONDS = 10.0
_END_SECONDS = 2.0
#: A line this old is not the present state.
_OLD_INTERVALS = 3.0
_ROW = re.compile(r"^GPU(?:-I)?\s+(\d+)\s+(.*)$")
_LISTED = re.compile(r"^\|\s*(\d*)\s*\|\s*(.*?)\s*\|$")
_FIX = "Is nv-hostengine running here, and may this user reach it? See dcgmi discovery -l."


class DcgmSource:
    """The job's GPUs, by UUID, with what DCGM's profiling gives.

    Before Hopper that takes a lock on the whole system: a profiler beside it fails, and so do we beside one.

    Parameters
    ----------
    program
        ``dcgmi``, by name or path.

    Raises
    ------
    SourceError
        No daemon answers, or the job has no GPU.
    """

    name = "dcgm"
    simulated = False

    def __init__(self, request: SourceRequest, *, program: str = "dcgmi") -> None:
        self._clock = request.clock
        self._environment = dict(request.environment)
        self._interval = request.interval
        self._program = shutil.which(program) or ""
        if not self._program:
            raise SourceError(f"{program} is not on this node.", "Ask the site for DCGM, or use nvml.")
        listed = parse_discovery(self._output("discovery", "-l").splitlines())
        shown = [VisibleGpu(gpu.uuid, gpu.index) for gpu in listed]
        own = own_gpus(shown, request.environment, opens=opens_nvidia)
        node = request.environment.get("GIPFEL_NODE", "")
        chosen = [gpu for gpu in listed if gpu.uuid in own]
        if not chosen:
            raise SourceError("This job has no GPU.", "Ask for one when you start it.")
        self.devices: tuple[Device, ...] = tuple(
            Device(gpu.uuid, "gpu", gpu.name, gpu.index, node=node) for gpu in chosen
        )
        self._fields = tuple(
            TABLE[name] for name in (*GPU_METRICS, *request.metrics) if name in TABLE and TABLE[name].dcgm
        )
        self._latest: dict[int, tuple[int, int, dict[str, float | None]]] = {}
        self._lock = threading.Lock()
        self._message = ""
        self._process = self._start()

    def read(self) -> list[Sample]:
        """Return the newest line of each GPU, under the time at which it came."""
        with self._lock:
            latest = dict(self._latest)
            message = self._message
        if self._process.poll() is not None:
            status = self._process.returncode
            self._process = self._start()
            raise SourceError(f"dcgmi dmon ended with status {status}: {message or 'no message'}.", _FIX)
        now_ns = self._clock.monotonic_ns()
        oldest_ns = now_ns - int(_OLD_INTERVALS * max(self._interval, 1.0) * 1e9)
        samples = []
        for device in self.devices:
            time_ns, monotonic_ns, values = latest.get(device.index or 0, (0, 0, {}))
            if not values or monotonic_ns < oldest_ns:
                # Nothing has come, or nothing for long: that is missing, not what it was.
                time_ns, monotonic_ns, values = self._clock.time_ns(), now_ns, dict.fromkeys(GPU_METRICS)
            samples.append(Sample(time_ns, monotonic_ns, device.uuid, values))
        return samples

    def close(self) -> None:
        """End ``dcgmi``."""
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        numbers = ",".join(str(field.dcgm) for field in self._fields)
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
            raise SourceError(f"dcgmi doesn't answer: {error}.", _FIX) from error
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise SourceError(f"dcgmi: {lines[-1] if lines else done.returncode}.", _FIX)
        return done.stdout


def parse_discovery(lines: Sequence[str]) -> list[Device]:
    """Return the GPUs of ``dcgmi discovery -l``, by DCGM's number."""
    found: dict[int, dict[str, str]] = {}
    number: int | None = None
    for line in lines:
        cells = _LISTED.match(line.strip())
        if cells is None:
            # The table of switches follows that of GPUs.
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
    """Return GPU number and values of a line of ``dcgmi dmon``; None for its titles and for half a line."""
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


def open_dcgm(argument: str, request: SourceRequest) -> DcgmSource:
    """Open ``dcgm``."""
    no_argument("dcgm", argument)
    return DcgmSource(request)
