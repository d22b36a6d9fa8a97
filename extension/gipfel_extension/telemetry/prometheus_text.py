"""The newest samples as Prometheus text: DCGM exporter's names and labels for GPUs; nothing simulated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .imports.dcgm_names import FIELDS
from .sample import GPU_METRICS, HOST_METRICS, Device, SampleTable

#: What scrapers ask for and servers answer with.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Older samples than this many intervals, and at least so many seconds, are no present state.
_PRESENT_INTERVALS = 3.0
_PRESENT_S = 15.0
#: The fields that DCGM counts to the device; the others are profiling's.
_DEVICE_FIELDS = frozenset(
    {"GPU_UTIL", "FB_USED", "FB_TOTAL", "POWER_USAGE", "GPU_TEMP", "SM_CLOCK", "CLOCKS_EVENT_REASONS"}
)


@dataclass(frozen=True)
class Target:
    """Whose numbers these are: labels of every line."""

    run: str = ""
    cluster: str = ""
    job_id: str = ""


def prometheus_text(
    table: SampleTable, document: Mapping[str, Any] | None, target: Target, *, now_ns: int
) -> str:
    """The exposition of a table's newest samples; what is missing or old has no line.

    Parameters
    ----------
    document
        A score's, of ``saturation.document_of``; None where nothing was scored.
    now_ns
        UTC time of the question.
    """
    oldest = now_ns - int(1e9 * max(_PRESENT_S, _PRESENT_INTERVALS * table.interval))
    lines: list[str] = []
    for metric, unit in GPU_METRICS.items():
        field, factor = _field(metric)
        values = _newest(table, table.gpus, metric, oldest)
        rows = [(_gpu_labels(gpu, target), value / factor) for gpu, value in values]
        lines += _family(field, f"{metric}, {'%' if factor == 0.01 else _unit(field, unit)}", rows)
    for metric, unit in HOST_METRICS.items():
        rows = [
            ({"Hostname": host.node, "scope": host.scope, **_job_labels(target)}, value)
            for host, value in _newest(table, table.hosts, metric, oldest)
        ]
        lines += _family(f"gipfel_host_{metric.lower()}", f"{metric} of the job on its node, {unit}", rows)
    lines += _scores(table, document or {}, target)
    return "\n".join([*lines, ""])


def _scores(table: SampleTable, document: Mapping[str, Any], target: Target) -> Iterator[str]:
    gpus = {gpu.uuid: gpu for gpu in table.gpus}
    if document.get("simulated"):
        return
    scored = [each for each in document.get("gpus", ()) if each["uuid"] in gpus]
    own = [(_gpu_labels(gpus[each["uuid"]], target), each["score"]) for each in scored]
    yield from _family("gipfel_gpu_saturation_score", "Saturation score of a GPU, 0 to 100", own)
    labels = _job_labels(target)
    job = [(labels, document.get("score"))]
    yield from _family("gipfel_saturation_score", "Saturation score of the job, 0 to 100", job)
    losses = [({**labels, "loss": name}, lost) for name, lost in document.get("losses", {}).items()]
    yield from _family(
        "gipfel_saturation_loss", "Points lost, by cause; with the score they make 100", losses
    )
    trust = [(labels, document.get("confidence") if document.get("score") is not None else None)]
    yield from _family("gipfel_saturation_confidence", "How far the score can be trusted, 0 to 1", trust)


def _family(name: str, words: str, rows: Sequence[tuple[dict[str, str], float | None]]) -> Iterator[str]:
    known = [(labels, value) for labels, value in rows if value is not None]
    if known:
        yield f"# HELP {name} {words}"
        yield f"# TYPE {name} gauge"
    for labels, value in known:
        told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items() if text)
        yield f"{name}{{{told}}} {value:.10g}"


def _newest(
    table: SampleTable, devices: tuple[Device, ...], metric: str, oldest_ns: int
) -> Iterator[tuple[Device, float]]:
    for device in devices:
        columns = table.of(device.uuid)
        if device.simulated or metric not in columns or not len(columns["time_ns"]):
            continue
        value = float(columns[metric][-1])
        if columns["time_ns"][-1] >= oldest_ns and np.isfinite(value):
            yield device, value


def _field(metric: str) -> tuple[str, float]:
    """DCGM's name of a metric, and the factor from its unit to ours."""
    known = dict(FIELDS.values())
    kind = "DEV" if metric in _DEVICE_FIELDS else "PROF"
    return f"DCGM_FI_{kind}_{metric}", known.get(metric, 1.0)


def _unit(field: str, unit: str) -> str:
    if field.startswith("DCGM_FI_DEV_FB"):
        return "MiB"
    return "ratio" if unit == "1" else unit


def _gpu_labels(gpu: Device, target: Target) -> dict[str, str]:
    number = "" if gpu.index is None else str(gpu.index)
    return {
        "gpu": number,
        "UUID": gpu.uuid,
        "device": f"nvidia{number}" if number else "",
        "modelName": gpu.name,
        "Hostname": gpu.node,
        **_job_labels(target),
    }


def _job_labels(target: Target) -> dict[str, str]:
    return {"hpc_job": target.job_id, "cluster": target.cluster, "run": target.run}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
