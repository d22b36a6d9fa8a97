"""Metrics of DCGM exporter over HTTP: from the exporter itself, or from a site's Prometheus that scrapes it.

Prometheus also provides samples of nodes on which a recorder cannot run.
"""

import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..metric_table import GPU_METRICS
from ..sample import Device, Sample, SourceError
from . import Source, SourceRequest
from .dcgm import FIELDS, device_of, metric_of, scaled, scraped_lines
from .job_gpus import job_gpus
from .web import checked_url, get, get_json

_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
#: Labels that may hold the node's name, with a suffix pattern; `instance` is Prometheus' own.
_NODE_LABELS = (("Hostname", ""), ("hostname", ""), ("node", ""), ("instance", "(:[0-9]+)?"))
_QUERY_SECONDS = 60.0
_MAX_NODES_AT_ONCE = 200
#: Time range of the first query: sites scrape every 15 to 60 s, so that it holds at least two scrapes.
_FIRST_SECONDS = 150.0
#: Time range of later queries; samples that were returned before are dropped.
_OVERLAP_SECONDS = 90.0
_EXPORTER_SECONDS = 10.0
#: Maximum size of a response; a node of 16 GPUs in 112 instances with every DCGM field has 2 MiB.
_EXPORTER_BYTES = 16 << 20


@dataclass(frozen=True)
class Series:
    """One field of one GPU; points are UTC times in nanoseconds and values as text, sorted by time.

    A value that was scraped from an exporter has the time 0.
    """

    field: str
    labels: Mapping[str, str]
    points: tuple[tuple[int, str], ...]


class ExporterSource(Source):
    """The job's GPUs of this node, from one exporter.

    An exporter updates its values at its own interval, often 30 s: faster sampling repeats them.

    Parameters
    ----------
    url
        Such as ``http://localhost:9400/metrics``; the default path is ``/metrics``.

    Raises
    ------
    SourceError
        It does not respond, or has no GPU of this job.
    """

    name = "dcgm-exporter"

    def __init__(self, url: str, request: SourceRequest) -> None:
        self._url = url if url.count("/") > 2 else f"{url}/metrics"
        self._request = request
        self._seconds = min(_EXPORTER_SECONDS, max(1.0, request.interval))
        self._node = request.environment.get("GIPFEL_NODE", "")
        self.devices: tuple[Device, ...] = own_devices(self._scrape(), request.environment, node=self._node)
        if not self.devices:
            raise SourceError(
                f"{self._url} shows no GPU of this job.", "Use the URL of DCGM exporter on this node."
            )

    def read(self) -> list[Sample]:
        """Return one sample per GPU."""
        time_ns, monotonic_ns = self._request.clock.time_ns(), self._request.clock.monotonic_ns()
        rows = scraped_rows(self._scrape(), node=self._node)
        values = {uuid: own[0] for uuid, own in rows.items()}
        metrics = (*GPU_METRICS, *self._request.metrics)
        return [
            Sample(
                time_ns, monotonic_ns, device.uuid, {m: values.get(device.uuid, {}).get(m) for m in metrics}
            )
            for device in self.devices
        ]

    def _scrape(self) -> list[Series]:
        body = get(
            self._url,
            seconds=self._seconds,
            max_bytes=_EXPORTER_BYTES,
            environment=self._request.environment,
        )
        lines = list(scraped_lines(body.decode(errors="replace").splitlines()))
        nodes = {node_of(labels) for _, labels, _, _ in lines}
        here = self._node if self._node in nodes else ""
        return [
            Series(field, labels, ((0, text),))
            for field, labels, text, _ in lines
            if not here or node_of(labels) == here
        ]


def open_exporter(argument: str, request: SourceRequest) -> ExporterSource:
    """Open ``exporter:URL``."""
    return ExporterSource(checked_url("exporter", argument), request)


class PrometheusSource(Source):
    """The job's GPUs of this node, from the samples that a Prometheus stored.

    Samples have the times of their scrapes, so they are older than the read; no sample is returned twice.

    Parameters
    ----------
    url
        Such as ``http://prometheus:9090``.

    Raises
    ------
    SourceError
        It does not respond, or has no GPU of this job.
    """

    name = "prometheus"

    def __init__(self, url: str, request: SourceRequest) -> None:
        self._url = url
        self._request = request
        self._node = request.environment.get("GIPFEL_NODE", "")
        if not self._node:
            raise SourceError("The name of this node is unknown.", "Set GIPFEL_NODE to the node's name.")
        self._newest: dict[str, int] = {}
        found = self._query(_FIRST_SECONDS)
        self.devices: tuple[Device, ...] = own_devices(found, request.environment, node=self._node)
        if not self.devices:
            raise SourceError(
                f"{url} has no GPU of this job on {self._node}.", "Check that it scrapes DCGM exporter there."
            )

    def read(self) -> list[Sample]:
        """Return the samples that were scraped since the last call; often there are none."""
        monotonic_ns = self._request.clock.monotonic_ns()
        rows = scraped_rows(self._query(_OVERLAP_SECONDS if self._newest else _FIRST_SECONDS))
        metrics = (*GPU_METRICS, *self._request.metrics)
        samples = []
        for device in self.devices:
            first = self._newest.get(device.uuid)
            own = sorted(rows.get(device.uuid, {}).items())
            # Of the samples from before the recording started, only the newest is used.
            new_rows = own[-1:] if first is None else [row for row in own if row[0] > first]
            for time_ns, values in new_rows:
                selected = {metric: values.get(metric) for metric in metrics}
                samples.append(Sample(time_ns, monotonic_ns, device.uuid, selected))
                self._newest[device.uuid] = time_ns
        return samples

    def _query(self, seconds: float) -> list[Series]:
        seconds += self._request.interval
        end_ns = self._request.clock.time_ns()
        return list(
            query_samples(
                self._url, [self._node], end_ns=end_ns, seconds=seconds, environment=self._request.environment
            )
        )


def open_prometheus(argument: str, request: SourceRequest) -> PrometheusSource:
    """Open ``prometheus:URL``."""
    return PrometheusSource(checked_url("prometheus", argument), request)


def node_of(labels: Mapping[str, str]) -> str:
    """Return the node's short host name, from the exporter's labels or Prometheus' own label."""
    named = labels.get("Hostname") or labels.get("hostname") or labels.get("node") or ""
    instance = labels.get("instance", "")
    # Prometheus' label `instance` is host and port.
    host = instance.rpartition(":")[0] or instance
    return (named or host).partition(".")[0]


def scraped_rows(
    series: Iterable[Series], *, node: str = ""
) -> dict[str, dict[int, dict[str, float | None]]]:
    """Return metrics by GPU UUID and time of scrape; blank values are None."""
    rows: dict[str, dict[int, dict[str, float | None]]] = {}
    for each in series:
        found, device = metric_of(each.field), device_of(each.labels, node=node or node_of(each.labels))
        if found is None or device is None:
            continue
        own = rows.setdefault(device.uuid, {})
        for time_ns, text in each.points:
            own.setdefault(time_ns, {})[found[0]] = scaled(text, found[1])
    return rows


def scraped_devices(series: Iterable[Series], *, node: str = "") -> dict[str, Device]:
    """Return the GPUs of some series by UUID; `node` is the node of all of them where it is known."""
    found: dict[str, Device] = {}
    for each in series:
        device = device_of(each.labels, node=node or node_of(each.labels))
        if device is not None:
            found.setdefault(device.uuid, device)
    return found


def own_devices(series: Iterable[Series], environment: Mapping[str, str], *, node: str) -> tuple[Device, ...]:
    """Return the job's GPUs among the scraped GPUs of a node, sorted by index."""
    ordered = sorted(
        scraped_devices(series, node=node).values(),
        key=lambda device: (device.index is None, device.index or 0, device.uuid),
    )
    own = job_gpus({device.uuid: device.index for device in ordered}, environment)
    return tuple(device for device in ordered if device.uuid in own)


def selectors(nodes: Sequence[str]) -> list[str]:
    """Return PromQL selectors of DCGM's fields on some nodes, one for each label that may name the node.

    Raises
    ------
    SourceError
        There are no nodes, or one is not a valid host name.
    """
    invalid = next((node for node in nodes if not _NODE_NAME.fullmatch(node)), None)
    if invalid is not None or not nodes:
        raise SourceError(
            f"{invalid!r} is not a valid node name." if nodes else "No nodes are named.",
            "Name the job's nodes.",
        )
    names = "|".join(sorted(FIELDS))
    fields = f'__name__=~"DCGM_FI_(DEV|PROF)_({names})"'
    found = []
    for first in range(0, len(nodes), _MAX_NODES_AT_ONCE):
        alternatives = "|".join(re.escape(node) for node in nodes[first : first + _MAX_NODES_AT_ONCE])
        for label, ending in _NODE_LABELS:
            # PromQL matches the whole value; its strings are quoted like JSON's.
            value = json.dumps(f"({alternatives})([.][A-Za-z0-9.-]*)?{ending}")
            found.append(f"{{{fields},{label}=~{value}}}")
    return found


def query_samples(
    url: str, nodes: Sequence[str], *, end_ns: int, seconds: float, environment: Mapping[str, str]
) -> Iterator[Series]:
    """Yield the samples of the last seconds before a time, with the times of their scrapes.

    A range selector returns the stored samples; a range query would repeat old values in gaps.

    Raises
    ------
    SourceError
        There is no response, or it is an error.
    """
    seen = set()
    for selector in selectors(nodes):
        query = {"query": f"{selector}[{max(1, round(seconds))}s]", "time": f"{end_ns / 1e9:.3f}"}
        address = f"{url}/api/v1/query?{urllib.parse.urlencode(query)}"
        answer = get_json(address, seconds=_QUERY_SECONDS, environment=environment)
        for series in _series(answer, url):
            key = (series.field, *sorted(series.labels.items()))
            if key not in seen:
                seen.add(key)
                yield series


def _series(answer: Any, url: str) -> Iterator[Series]:
    try:
        if answer["status"] != "success" or answer["data"]["resultType"] != "matrix":
            raise SourceError(
                f"{url} refuses: {str(answer.get('error', answer['status']))[:300]}.",
                "Ask the site's administrators.",
            )
        for each in answer["data"]["result"]:
            labels = {str(name): str(value) for name, value in each["metric"].items()}
            points = tuple((_nanoseconds(time), str(value)) for time, value in each["values"])
            yield Series(labels.pop("__name__", ""), labels, points)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SourceError(f"{url} does not answer as Prometheus does.", "Check the URL.") from error


def _nanoseconds(time: Any) -> int:
    """Return a time stamp of Prometheus, rounded to its resolution of milliseconds, in nanoseconds."""
    time_ns = round(float(time) * 1000) * 10**6
    if not 0 <= time_ns < 2**63:
        raise ValueError("invalid time")
    return time_ns
