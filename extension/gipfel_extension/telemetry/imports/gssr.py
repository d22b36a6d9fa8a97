"""Import of gssr's files: gssr 2.x (gssr-record) writes CSV, gssr 0.4.0 wrote JSON.

CSV: ``proc_<rank>.csv``, with a row per second and GPU, and minimum, mean and maximum of each field.
JSON: one file per process, ``{"metadata": …, "data": {<gpu>: {<metric>: […]}}}``.
"""

import csv
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..files import open_regular, read_json, read_regular
from ..metric_table import MIB
from ..sample import Device, SampleTable
from ..sources.dcgm import metric_of, number_or_nan
from .recording import Recording, gpu_columns

_MAX_LINE = 1 << 20
_MAX_META_BYTES = 1 << 20
_DATE = re.compile(r'"date"\s*:\s*"([^"]+)"')
_JOB = re.compile(r'"jobid"\s*:\s*"([^"]+)"')
#: Fields of recordings that lack PIPE_TENSOR_ACTIVE; the highest of them is a lower bound of it.
_TENSORS = tuple(f"DCGM_FI_PROF_PIPE_TENSOR_{part}_ACTIVE_avg" for part in ("IMMA", "HMMA", "DFMA"))
_LINKS = ("PCIE_", "NVLINK_", "C2C_")
_MAX_JSON_BYTES = 512 << 20
#: The largest time that 64 bits of nanoseconds since 1970 can hold.
_LATEST_S = 9e9
#: Metric and factor by gssr's name; ``gpu_utilization`` is a percentage, profiling metrics are fractions.
_JSON_METRICS: Mapping[str, tuple[str, float]] = {
    "gpu_utilization": ("GPU_UTIL", 0.01),
    "sm_active": ("SM_ACTIVE", 1.0),
    "sm_occupancy": ("SM_OCCUPANCY", 1.0),
    "dram_active": ("DRAM_ACTIVE", 1.0),
    "tensor_active": ("PIPE_TENSOR_ACTIVE", 1.0),
    "fp64_active": ("PIPE_FP64_ACTIVE", 1.0),
    "fp32_active": ("PIPE_FP32_ACTIVE", 1.0),
    "fp16_active": ("PIPE_FP16_ACTIVE", 1.0),
    "pcie_tx_bytes": ("PCIE_TX_BYTES", 1.0),
    "pcie_rx_bytes": ("PCIE_RX_BYTES", 1.0),
    "nvlink_tx_bytes": ("NVLINK_TX_BYTES", 1.0),
    "nvlink_rx_bytes": ("NVLINK_RX_BYTES", 1.0),
    "fb_used": ("FB_USED", MIB),
    "fb_total": ("FB_TOTAL", MIB),
}


def read_gssr_csv(path: Path) -> Recording:
    """Read one node's CSV file, and its start time from ``proc_0.meta.txt`` in the same directory.

    Raises
    ------
    ValueError
        The file is not a CSV file of gssr-record, or is empty.
    """
    header, numbers, torn = _read(path)
    start_ns, job = _meta(path.parent)
    # The file does not contain the node's name; a step has one file per node.
    step = path.resolve().parent.name
    node = f"{step}/{path.stem}" if step.startswith("step_") else path.stem
    devices, columns, zeroed = [], {}, False
    for gpu in np.unique(numbers[np.isfinite(numbers[:, 1]), 1]):
        rows = numbers[numbers[:, 1] == gpu]
        values, has_zeros = _values(header, rows)
        zeroed |= has_zeros
        uuid = f"{node}:{int(gpu)}"
        devices.append(Device(uuid, "gpu", "", int(gpu), node=node))
        columns[uuid] = gpu_columns(start_ns + (rows[:, 0] * 1e9).astype(np.int64), values)
    table = SampleTable(tuple(devices), columns, f"gssr-record {path.name}", 1.0)
    return Recording(table, f"job {job}" if job else path.name, _csv_notes(torn, zeroed, start_ns))


def read_gssr_json(path: Path) -> Recording:
    """Read one process's JSON file.

    Raises
    ------
    ValueError
        The file is not JSON, or not gssr's.
    """
    try:
        content = read_json(path, _MAX_JSON_BYTES, follow=True)
        return _recording(path.name, dict(content["metadata"]), dict(content["data"]))
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        raise ValueError(f"it is not a JSON file of gssr ({error!r})") from error


def _read(path: Path) -> tuple[list[str], NDArray[np.float64], int]:
    """Return column titles, rows of time, GPU and means, and the number of truncated lines.

    A day of a node is hundreds of megabytes of text, of which only the numbers are kept in memory.
    """
    numbers, torn = array("d"), 0
    with open_regular(path, follow=True) as file:
        rows = _rows(csv.reader(_lines(file)))
        header = next(rows, [])
        if header[:2] != ["timestamp", "gpuId"]:
            raise ValueError("it is not a CSV file of gssr-record")
        kept = [column for column, title in enumerate(header) if column < 2 or title.endswith("_avg")]
        for cells in rows:
            # A killed recorder leaves a truncated line.
            if len(cells) == len(header):
                numbers.extend(number_or_nan(cells[column]) for column in kept)
            else:
                torn += 1
    return [header[column] for column in kept], np.array(numbers, np.float64).reshape(-1, len(kept)), torn


def _lines(file: BinaryIO) -> Iterator[str]:
    """Yield lines of text; a line that is too long is split into pieces, which are not valid rows."""
    while line := file.readline(_MAX_LINE):
        yield line.decode(errors="replace")


def _rows(lines: Iterator[list[str]]) -> Iterator[list[str]]:
    while True:
        try:
            yield next(lines)
        except StopIteration:
            return
        except csv.Error:
            # Too long fields: count the line as truncated.
            yield []


def _values(header: Sequence[str], rows: NDArray[np.float64]) -> tuple[dict[str, NDArray[np.float64]], bool]:
    """Return the means by metric, and whether any rate of a link is 0."""
    values, zeroed = {}, False
    for column, title in enumerate(header):
        found = metric_of(title.removesuffix("_avg")) if title.endswith("_avg") else None
        if found is None:
            continue
        metric, factor = found
        means = rows[:, column] * factor
        if metric.startswith(_LINKS):
            # gssr-record writes 0 for rates above 2e9 B/s, so an idle link looks like a busy one.
            zeroed |= bool((means == 0).any())
            means = np.where(means == 0, np.nan, means)
        values[metric] = means
    tensor = [header.index(title) for title in _TENSORS if title in header]
    if "PIPE_TENSOR_ACTIVE" not in values and tensor:
        values["PIPE_TENSOR_ACTIVE"] = np.fmax.reduce(rows[:, tensor], axis=1)
    used, free = (_mib(header, rows, name) for name in ("USED", "FREE"))
    if used is not None and free is not None:
        values["FB_TOTAL"] = used + free + (r if (r := _mib(header, rows, "RESERVED")) is not None else 0.0)
    return values, zeroed


def _mib(header: Sequence[str], rows: NDArray[np.float64], name: str) -> NDArray[np.float64] | None:
    title = f"DCGM_FI_DEV_FB_{name}_avg"
    return rows[:, header.index(title)] * MIB if title in header else None


def _meta(folder: Path) -> tuple[int, str]:
    """Return the start in UTC nanoseconds, 0 where unknown, and the job id, empty where unknown."""
    path = folder / "proc_0.meta.txt"
    # Arguments with line breaks make the file invalid JSON, so the two values are searched in the text.
    text = ""
    with suppress(OSError):
        text = read_regular(path, _MAX_META_BYTES, follow=True).decode(errors="replace")
    date, job = _DATE.search(text), _JOB.search(text)
    try:
        start_ns = int(datetime.fromisoformat(date[1]).timestamp()) * 10**9 if date else 0
    except ValueError:
        start_ns = 0
    return start_ns, job[1] if job else ""


def _csv_notes(torn: int, zeroed: bool, start_ns: int) -> tuple[str, ...]:  # noqa: FBT001
    notes = {
        "gssr-record writes 0 for rates above 2 GB/s: its zeros of PCIe, NVLink and C2C are unknown.": zeroed,
        "gssr-record rounds fractions to 0.01 and times to seconds.": True,
        "gssr-record records the whole node: GPUs of other jobs may be among these.": True,
        "gssr-record records neither GR_ENGINE_ACTIVE nor the host: waiting for input looks idle.": True,
        f"{torn} truncated lines are skipped.": torn > 0,
        "There is no proc_0.meta.txt with a date: times count from 1970.": not start_ns,
    }
    return tuple(note for note, applies in notes.items() if applies)


def _recording(name: str, metadata: Mapping[str, Any], data: Mapping[str, Any]) -> Recording:
    node, process = str(metadata.get("hostname", "")), int(_number_or(metadata.get("proc_id"), 0))
    devices, columns, interval = [], {}, 0.0
    for gpu, series in data.items():
        uuid = f"{node}:{gpu}"
        index = int(gpu) if str(gpu).isdigit() else None
        devices.append(Device(uuid, "gpu", "", index, node=node))
        length = max((len(values) for values in series.values()), default=0)
        times, interval = _times(metadata, length)
        values = {
            _JSON_METRICS[each][0]: _padded(series[each], length) * _JSON_METRICS[each][1]
            for each in series
            if each in _JSON_METRICS
        }
        columns[uuid] = gpu_columns(times, values)
    label = f"job {metadata.get('job_id', '?')} step {metadata.get('step_id', '?')}"
    table = SampleTable(tuple(devices), columns, f"gssr {name}", interval)
    return Recording(
        table, label, _json_notes(metadata, len(data)), {process: [device.uuid for device in devices]}
    )


def _number_or(text: object, fallback: float) -> float:
    """Return the number in a text, else the fallback."""
    value = number_or_nan(text)
    return fallback if np.isnan(value) else value


def _times(metadata: Mapping[str, Any], length: int) -> tuple[np.typing.NDArray[np.int64], float]:
    """Return evenly spaced times up to the recording's end, and the seconds between them."""
    nominal = _number_or(metadata.get("sampling_time"), 500.0) / 1000.0
    start, end = (_number_or(metadata.get(name), 0.0) for name in ("start_time", "end_time"))
    if not all(0 <= each < _LATEST_S for each in (nominal, start, end)):
        raise ValueError("its times are not seconds since 1970")
    interval = max(nominal, (end - start) / length) if length and end > start else nominal
    end = end or start + interval * length
    steps = np.arange(length - 1, -1, -1, dtype=np.float64)
    return ((end - steps * interval) * 1e9).astype(np.int64), interval


def _padded(values: list[object], length: int) -> np.typing.NDArray[np.float64]:
    """Return a series padded with NaN at its start to a length."""
    numbers = [number_or_nan(value) for value in values]
    return np.array([float("nan")] * (length - len(numbers)) + numbers, np.float64)


def _json_notes(metadata: Mapping[str, Any], count: int) -> tuple[str, ...]:
    gpus = int(_number_or(metadata.get("n_gpus"), count))
    notes = {
        f"gssr wrote {count} of the {gpus} GPUs of its process: the others are missing.": gpus > count,
        "gssr writes no time per sample: they are spread evenly between start and end.": True,
        "gssr records neither GR_ENGINE_ACTIVE nor the host: waiting for input looks idle.": True,
        "gssr keeps samples in memory until the end: a killed run has no samples.": True,
    }
    return tuple(note for note, applies in notes.items() if applies)
