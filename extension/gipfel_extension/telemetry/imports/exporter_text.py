"""DCGM exporter: Prometheus text, one scrape or several one after the other."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ..files import read_regular
from ..sample import Device, SampleTable
from ..sources.dcgm_fields import scaled
from .dcgm_names import metric_of
from .recording import Recording, gpu_columns

_LINE = re.compile(r"^(DCGM_FI_\w+)\{(.*)\}\s+(\S+)(?:\s+(-?\d+))?\s*$")
#: From the beginning of a word: else a long one is tried again from each of its letters.
_LABEL = re.compile(r'(?<!\w)(\w+)="((?:[^"\\]|\\.)*)"')

_MOST_DIGITS = 6
_MOST_BYTES = 512 << 20

#: One GPU's values in one scrape, and its time in milliseconds where the text has one.
_Scrape = tuple[dict[str, float], int | None]


def read_exporter_text(path: Path) -> Recording:
    """Scrapes of DCGM exporter; where a GPU's metric comes again, the next scrape has begun.

    Raises
    ------
    ValueError
        No line of DCGM exporter in it.
    """
    text = read_regular(path, _MOST_BYTES, follow=True).decode(errors="replace")
    devices: dict[str, Device] = {}
    scrapes: dict[str, list[_Scrape]] = {}
    for field, labels, value, time_ms in scraped_lines(text.splitlines()):
        found = metric_of(field)
        device = device_of(labels)
        if found is None or device is None:
            continue
        devices.setdefault(device.uuid, device)
        own = scrapes.setdefault(device.uuid, [])
        if not own or found[0] in own[-1][0]:
            own.append(({}, time_ms))
        number = scaled(value, found[1])
        own[-1][0][found[0]] = np.nan if number is None else number
    if not devices:
        raise ValueError("it holds no metric of DCGM exporter")
    timed = all(time is not None for own in scrapes.values() for _, time in own)
    columns = {uuid: _columns(own, timed=timed) for uuid, own in scrapes.items()}
    interval = 0.0 if timed else 1.0
    table = SampleTable(tuple(devices.values()), columns, f"dcgm-exporter {path.name}", interval)
    return Recording(table, path.name, _notes(table, timed=timed))


def scraped_lines(lines: Iterable[str]) -> Iterator[tuple[str, Mapping[str, str], str, int | None]]:
    """Field, labels, value as text and time in milliseconds of each line that is DCGM exporter's."""
    for line in lines:
        matched = _LINE.match(line.strip())
        if matched:
            yield matched[1], dict(_LABEL.findall(matched[2])), matched[3], _milliseconds(matched[4] or "")


def device_of(labels: Mapping[str, str], *, node: str = "") -> Device | None:
    """The GPU or MIG instance that labels name; None where they name none."""
    node = node or labels.get("Hostname") or labels.get("hostname") or ""
    number = labels.get("gpu", "")
    uuid = labels.get("UUID") or labels.get("uuid") or (f"{node}:{number}" if number else "")
    if not uuid:
        return None
    instance = labels.get("GPU_I_ID", "")
    name = " ".join(part for part in (labels.get("modelName", ""), labels.get("GPU_I_PROFILE", "")) if part)
    counted = number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
    index = int(number) if counted else None
    return Device(f"{uuid}/{instance}" if instance else uuid, "gpu", name, index, node=node)


def _milliseconds(text: str) -> int | None:
    """A time as the text has it; None for none, and for one that nanoseconds can't say."""
    found = int(text) if text and len(text) < 18 else None
    return found if found is None or abs(found) < 2**63 // 10**6 else None


def _columns(own: list[_Scrape], *, timed: bool) -> dict[str, np.typing.NDArray[np.float64]]:
    times = [(time or 0) * 10**6 if timed else place * 10**9 for place, (_, time) in enumerate(own)]
    metrics = dict.fromkeys(metric for values, _ in own for metric in values)
    held = {m: np.array([values.get(m, np.nan) for values, _ in own], np.float64) for m in metrics}
    return gpu_columns(np.array(times, np.int64), held)


def _notes(table: SampleTable, *, timed: bool) -> tuple[str, ...]:
    notes = ["DCGM exporter records no host: waiting for input looks idle."]
    if not timed:
        notes.append("The text holds no times: samples are taken as equally far apart, counted from 1970.")
    if max((len(table.of(device.uuid)["time_ns"]) for device in table.devices), default=0) == 1:
        notes.append("It is a single scrape: one sample says little about a run.")
    return tuple(notes)
