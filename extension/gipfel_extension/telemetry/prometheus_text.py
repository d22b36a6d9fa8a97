"""The newest samples as Prometheus text with DCGM exporter's names and labels, without simulated GPUs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from .metric_table import GPU, HOST, Metric
from .sample import Device, SampleTable

#: Content type of Prometheus' text format.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Samples are omitted if they are older than this many intervals and also older than this many seconds.
_MAX_AGE_INTERVALS = 3.0
_MAX_AGE_S = 15.0
#: DCGM field ids above this one are profiling fields.
_LAST_DEVICE_FIELD_ID = 1000

_Labels = dict[str, str]


def prometheus_text(
    table: SampleTable,
    document: Mapping[str, Any] | None,
    *,
    run: str = "",
    cluster: str = "",
    job_id: str = "",
    now_ns: int,
) -> str:
    """Return a table's newest samples as Prometheus text; missing and old values have no line.

    Parameters
    ----------
    document
        The score of ``saturation.document_of``; None where nothing was scored.
    run, cluster, job_id
        The job that the metrics belong to, for the labels of every line.
    now_ns
        UTC time of the request.
    """
    registry = CollectorRegistry()
    # The names of DCGM exporter where it has them.
    labels = {"hpc_job": job_id, "cluster": cluster, "run": run}
    registry.register(_Exposition(table, document or {}, labels, now_ns))
    return generate_latest(registry).decode()


class _Exposition:
    """Collector of one table for prometheus-client."""

    def __init__(self, table: SampleTable, document: Mapping[str, Any], labels: _Labels, now_ns: int) -> None:
        self._table = table
        self._document = document
        self._labels = labels
        self._oldest_ns = now_ns - int(1e9 * max(_MAX_AGE_S, _MAX_AGE_INTERVALS * table.interval))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metric families that have a value."""
        table, labels = self._table, self._labels
        for metric in GPU:
            found = self._newest(table.gpus, metric.name)
            rows = [(self._gpu_labels(gpu), value / metric.dcgm_factor) for gpu, value in found]
            yield from _family(_dcgm_name(metric), f"{metric.name}, {_dcgm_unit(metric)}", rows)
        for metric in HOST:
            rows = [
                ({"Hostname": host.node, "scope": host.scope, **labels}, value)
                for host, value in self._newest(table.hosts, metric.name)
            ]
            text = f"{metric.name} of the job on its node, {metric.unit}"
            yield from _family(f"gipfel_host_{metric.name.lower()}", text, rows)
        if not self._document.get("simulated"):
            yield from self._scores()

    def _scores(self) -> Iterator[GaugeMetricFamily]:
        document, labels = self._document, self._labels
        gpus = {gpu.uuid: gpu for gpu in self._table.gpus}
        scored = [each for each in document.get("gpus", ()) if each["uuid"] in gpus]
        gpu_scores = [(self._gpu_labels(gpus[each["uuid"]]), each["score"]) for each in scored]
        yield from _family("gipfel_gpu_saturation_score", "Saturation score of a GPU, 0 to 100", gpu_scores)
        score = document.get("score")
        yield from _family(
            "gipfel_saturation_score", "Saturation score of the job, 0 to 100", [(labels, score)]
        )
        losses = [({**labels, "loss": name}, lost) for name, lost in document.get("losses", {}).items()]
        yield from _family(
            "gipfel_saturation_loss", "Points lost, by cause; with the score they make 100", losses
        )
        confidence = [(labels, None if score is None else document.get("confidence"))]
        yield from _family("gipfel_saturation_confidence", "Confidence of the score, 0 to 1", confidence)

    def _newest(self, devices: Sequence[Device], metric: str) -> Iterator[tuple[Device, float]]:
        for device in devices:
            columns = self._table[device.uuid]
            if device.simulated or metric not in columns or not len(columns["time_ns"]):
                continue
            value = float(columns[metric][-1])
            if columns["time_ns"][-1] >= self._oldest_ns and np.isfinite(value):
                yield device, value

    def _gpu_labels(self, gpu: Device) -> _Labels:
        number = "" if gpu.index is None else str(gpu.index)
        return {
            "gpu": number,
            "UUID": gpu.uuid,
            "device": f"nvidia{number}" if number else "",
            "modelName": gpu.name,
            "Hostname": gpu.node,
            **self._labels,
        }


def _family(
    name: str, text: str, rows: Sequence[tuple[_Labels, float | None]]
) -> Iterator[GaugeMetricFamily]:
    """Yield a metric family; nothing where no value is known."""
    family = GaugeMetricFamily(name, text)
    for labels, value in rows:
        if value is not None:
            # Round away the last bits: 28.999999999999996 % becomes 29 %.
            rounded = float(f"{value:.10g}")
            family.add_sample(name, {key: text for key, text in labels.items() if text}, rounded)
    if family.samples:
        yield family


def _dcgm_name(metric: Metric) -> str:
    kind = "PROF" if (metric.dcgm_id or 0) > _LAST_DEVICE_FIELD_ID else "DEV"
    return f"DCGM_FI_{kind}_{metric.name}"


def _dcgm_unit(metric: Metric) -> str:
    units = {"B": "MiB", "1": "%" if metric.dcgm_factor != 1.0 else "ratio"}
    return units.get(metric.unit, metric.unit)
