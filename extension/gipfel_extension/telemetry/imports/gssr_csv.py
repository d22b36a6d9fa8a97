"""gssr-record 2.x: ``proc_<rank>.csv``, a row per second and GPU, minimum, mean and maximum per field."""

import csv
import re
from array import array
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..files import open_regular, read_regular
from ..sample import Device, SampleTable
from .dcgm_names import MIB, metric_of, number_of
from .recording import Recording, gpu_columns

_LONGEST_LINE = 1 << 20
_MOST_META_BYTES = 1 << 20
_DATE = re.compile(r'"date"\s*:\s*"([^"]+)"')
_JOB = re.compile(r'"jobid"\s*:\s*"([^"]+)"')
#: Recorders that don't write PIPE_TENSOR_ACTIVE write these; the highest of them is its lower bound.
_TENSORS = tuple(f"DCGM_FI_PROF_PIPE_TENSOR_{part}_ACTIVE_avg" for part in ("IMMA", "HMMA", "DFMA"))
_LINKS = ("PCIE_", "NVLINK_", "C2C_")


def read_gssr_csv(path: Path) -> Recording:
    """One node's file; ``proc_0.meta.txt`` beside it, where there is one, says when it began.

    Raises
    ------
    ValueError
        Not a CSV of gssr-record, or an empty one.
    """
    header, numbers, torn = _read(path)
    start_ns, job = _meta(path.parent)
    # It names no node; the files of one step are one node each.
    step = path.resolve().parent.name
    node = f"{step}/{path.stem}" if step.startswith("step_") else path.stem
    devices, columns, zeroed = [], {}, False
    for gpu in np.unique(numbers[np.isfinite(numbers[:, 1]), 1]):
        mine = numbers[numbers[:, 1] == gpu]
        values, lost = _values(header, mine)
        zeroed |= lost
        uuid = f"{node}:{int(gpu)}"
        devices.append(Device(uuid, "gpu", "", int(gpu), node=node))
        columns[uuid] = gpu_columns(start_ns + (mine[:, 0] * 1e9).astype(np.int64), values)
    table = SampleTable(tuple(devices), columns, f"gssr-record {path.name}", 1.0)
    return Recording(table, f"job {job}" if job else path.name, _notes(torn, zeroed, start_ns))


def _read(path: Path) -> tuple[list[str], NDArray[np.float64], int]:
    """Titles and rows of time, GPU and the means, and how many lines were torn.

    A day of a node is hundreds of megabytes of text: no more than the numbers is kept.
    """
    numbers, torn = array("d"), 0
    with open_regular(path, follow=True) as file:
        rows = _rows(csv.reader(_lines(file)))
        header = next(rows, [])
        if header[:2] != ["timestamp", "gpuId"]:
            raise ValueError("it is no CSV of gssr-record")
        kept = [place for place, title in enumerate(header) if place < 2 or title.endswith("_avg")]
        for cells in rows:
            # A killed recorder leaves half a line.
            if len(cells) == len(header):
                numbers.extend(number_of(cells[place]) for place in kept)
            else:
                torn += 1
    return [header[place] for place in kept], np.array(numbers, np.float64).reshape(-1, len(kept)), torn


def _lines(file: BinaryIO) -> Iterator[str]:
    """Lines of text; a longer one comes in pieces, none of which is a row."""
    while line := file.readline(_LONGEST_LINE):
        yield line.decode(errors="replace")


def _rows(lines: Iterator[list[str]]) -> Iterator[list[str]]:
    while True:
        try:
            yield next(lines)
        except StopIteration:
            return
        except csv.Error:
            # A field that is too long: a line that is torn.
            yield []


def _values(header: Sequence[str], rows: NDArray[np.float64]) -> tuple[dict[str, NDArray[np.float64]], bool]:
    """The means, by our names, and whether any rate of a link was zeroed."""
    values, zeroed = {}, False
    for place, title in enumerate(header):
        found = metric_of(title.removesuffix("_avg")) if title.endswith("_avg") else None
        if found is None:
            continue
        metric, factor = found
        means = rows[:, place] * factor
        if metric.startswith(_LINKS):
            # Above 2e9 it writes 0, so nobody can tell a quiet link from a busy one.
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
    """When the recording began, in UTC nanoseconds or 0, and the job's number or nothing."""
    path = folder / "proc_0.meta.txt"
    # Arguments with line breaks make it invalid JSON, so the two values are looked for.
    text = _text(path)
    date, job = _DATE.search(text), _JOB.search(text)
    try:
        start_ns = int(datetime.fromisoformat(date[1]).timestamp()) * 10**9 if date else 0
    except ValueError:
        start_ns = 0
    return start_ns, job[1] if job else ""


def _text(path: Path) -> str:
    try:
        return read_regular(path, _MOST_META_BYTES, follow=True).decode(errors="replace")
    except OSError:
        return ""


def _notes(torn: int, zeroed: bool, start_ns: int) -> tuple[str, ...]:  # noqa: FBT001
    notes = [
        "gssr-record rounds fractions to 0.01 and times to seconds.",
        "gssr-record records the whole node: GPUs of other jobs may be among these.",
        "gssr-record records neither GR_ENGINE_ACTIVE nor the host: waiting for input looks idle.",
    ]
    if zeroed:
        notes.insert(
            0, "gssr-record writes 0 for rates above 2 GB/s: its zeros of PCIe, NVLink and C2C are unknown."
        )
    if torn:
        notes.append(f"{torn} lines are torn and left out.")
    if not start_ns:
        notes.append("There is no proc_0.meta.txt with a date: times count from 1970.")
    return tuple(notes)
