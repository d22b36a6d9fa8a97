"""Metrics of DCGM exporter as labelled numbers: which GPU they are of, and which of ours."""

from collections.abc import Iterable, Mapping

from ..imports.dcgm_names import metric_of
from ..imports.exporter_text import device_of
from ..sample import GPU_METRICS, Device
from .dcgm_fields import scaled
from .own_gpus import ShownGpu, own_gpus

#: One scraped value: field, labels, number as text.
Scraped = tuple[str, Mapping[str, str], str]


def node_of(labels: Mapping[str, str]) -> str:
    """The short name of the node, by the exporter's label or Prometheus' own."""
    named = labels.get("Hostname") or labels.get("hostname") or labels.get("node") or ""
    instance = labels.get("instance", "")
    # Prometheus names its target by host and port.
    host = instance.rpartition(":")[0] or instance
    return (named or host).partition(".")[0]


def own_devices(
    scraped: Iterable[Scraped], environment: Mapping[str, str], *, node: str
) -> tuple[Device, ...]:
    """The job's GPUs among those of one node that were scraped, in order of their numbers."""
    found: dict[str, Device] = {}
    for _, labels, _ in scraped:
        device = device_of(labels, node=node)
        if device is not None:
            found.setdefault(device.uuid, device)
    ordered = sorted(
        found.values(), key=lambda device: (device.index is None, device.index or 0, device.uuid)
    )
    own = own_gpus([ShownGpu(device.uuid, device.index) for device in ordered], environment)
    return tuple(device for device in ordered if device.uuid in own)


def values_of(scraped: Iterable[Scraped], *, node: str) -> dict[str, dict[str, float | None]]:
    """UUID to the metrics that were scraped of it; blanks are None."""
    values: dict[str, dict[str, float | None]] = {}
    for field, labels, text in scraped:
        found, device = metric_of(field), device_of(labels, node=node)
        if found is None or device is None:
            continue
        values.setdefault(device.uuid, dict.fromkeys(GPU_METRICS))[found[0]] = scaled(text, found[1])
    return values
