"""Read DCGM's names and values, and DCGM exporter's text: the metric and the GPU that each value is of."""

import re
from collections.abc import Iterable, Iterator, Mapping

from ..metric_table import DCGM_FIELDS, GPU_METRICS
from ..sample import Device
from .own_gpus import VisibleGpu, own_gpus

#: Others write under this name what a sample used, not the counter.
_OTHERWISE = ("TOTAL_ENERGY_CONSUMPTION",)
#: DCGM's names without ``DCGM_FI_DEV_`` or ``DCGM_FI_PROF_`` to our metric and the factor to its unit.
FIELDS: Mapping[str, tuple[str, float]] = {
    name: (metric.name, metric.dcgm_factor)
    for metric in DCGM_FIELDS.values()
    for name in (metric.dcgm_name, metric.newer)
    if name and name not in _OTHERWISE
}
#: DCGM's exact blanks (blank, not found, not supported, not permitted) for 32 and 64 bits and for floats.
BLANKS = frozenset(
    float(start + step) for start in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328) for step in range(4)
)
#: One scraped value: field, labels, number as text.
Scraped = tuple[str, Mapping[str, str], str]
_LINE = re.compile(r"^(DCGM_FI_\w+)\{(.*)\}\s+(\S+)(?:\s+(-?\d+))?\s*$")
#: From the beginning of a word: else a long one is tried again from each of its letters.
_LABEL = re.compile(r'(?<!\w)(\w+)="((?:[^"\\]|\\.)*)"')
_MOST_DIGITS = 6


def metric_of(field: str) -> tuple[str, float] | None:
    """Return our metric and factor for ``DCGM_FI_DEV_…`` or ``DCGM_FI_PROF_…``; None for others."""
    name = field.removeprefix("DCGM_FI_DEV_").removeprefix("DCGM_FI_PROF_")
    return FIELDS.get(name) if name != field else None


def number_of(text: object) -> float | None:
    """Return a value as DCGM wrote it; None for a blank, for words and for what is not finite."""
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return None if value in BLANKS or not abs(value) < float("inf") else value


def number_or_nan(text: object) -> float:
    """Return a value as :func:`number_of`, with NaN for None."""
    value = number_of(text)
    return float("nan") if value is None else value


def scaled(text: object, factor: float) -> float | None:
    """Return a value as DCGM wrote it in our unit; None where it is blank, or no longer finite."""
    value = number_of(text)
    return None if value is None or not abs(value * factor) < float("inf") else value * factor


def scraped_lines(lines: Iterable[str]) -> Iterator[tuple[str, Mapping[str, str], str, int | None]]:
    """Yield field, labels, value as text and time in milliseconds of each line of DCGM exporter."""
    for line in lines:
        matched = _LINE.match(line.strip())
        if matched:
            yield matched[1], dict(_LABEL.findall(matched[2])), matched[3], _milliseconds(matched[4] or "")


def device_of(labels: Mapping[str, str], *, node: str = "") -> Device | None:
    """Return the GPU or MIG instance that labels name; None where they name none."""
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


def node_of(labels: Mapping[str, str]) -> str:
    """Return the short name of the node, by the exporter's label or Prometheus' own."""
    named = labels.get("Hostname") or labels.get("hostname") or labels.get("node") or ""
    instance = labels.get("instance", "")
    # Prometheus names its target by host and port.
    host = instance.rpartition(":")[0] or instance
    return (named or host).partition(".")[0]


def own_devices(
    scraped: Iterable[Scraped], environment: Mapping[str, str], *, node: str
) -> tuple[Device, ...]:
    """Return the job's GPUs among those of one node that were scraped, in order of their numbers."""
    found: dict[str, Device] = {}
    for _, labels, _ in scraped:
        device = device_of(labels, node=node)
        if device is not None:
            found.setdefault(device.uuid, device)
    ordered = sorted(
        found.values(), key=lambda device: (device.index is None, device.index or 0, device.uuid)
    )
    own = own_gpus([VisibleGpu(device.uuid, device.index) for device in ordered], environment)
    return tuple(device for device in ordered if device.uuid in own)


def values_of(scraped: Iterable[Scraped], *, node: str) -> dict[str, dict[str, float | None]]:
    """Return UUID to the metrics that were scraped of it; blanks are None."""
    values: dict[str, dict[str, float | None]] = {}
    for field, labels, text in scraped:
        found, device = metric_of(field), device_of(labels, node=node)
        if found is None or device is None:
            continue
        values.setdefault(device.uuid, dict.fromkeys(GPU_METRICS))[found[0]] = scaled(text, found[1])
    return values


def _milliseconds(text: str) -> int | None:
    """Return a time as the text has it; None for none, and for one out of nanoseconds' range."""
    found = int(text) if text and len(text) < 18 else None
    return found if found is None or abs(found) < 2**63 // 10**6 else None
