"""A site's Prometheus that scrapes DCGM exporter: the job's GPUs where nothing may run on its nodes."""

from collections.abc import Mapping

from ..imports.dcgm_names import metric_of
from ..imports.exporter_text import device_of
from ..sample import GPU_METRICS, Device, Sample, SourceError
from .dcgm_fields import scaled
from .promql import Series, query_samples
from .protocol import SourceRequest
from .scraped import node_of, own_devices
from .web import checked_url

#: A site scrapes every 15 to 60 s; two of them are sure to be in here.
_FIRST_SECONDS = 150.0
_OVERLAP_SECONDS = 90.0


class PrometheusSource:
    """The job's GPUs of this node, with what a Prometheus has stored of them.

    Samples carry the times at which they were scraped, so they come late, and none comes twice.

    Parameters
    ----------
    url
        As ``http://prometheus:9090``.

    Raises
    ------
    SourceError
        It doesn't answer, or has no GPU of this job.
    """

    name = "prometheus"
    simulated = False

    def __init__(self, url: str, request: SourceRequest) -> None:
        self._url = url
        self._request = request
        self._node = request.environment.get("GIPFEL_NODE", "")
        if not self._node:
            raise SourceError("This node has no name.", "Set GIPFEL_NODE to what the site calls it.")
        self._newest: dict[str, int] = {}
        found = self._query(_FIRST_SECONDS)
        scraped = [(each.field, each.labels, "") for each in found]
        self.devices: tuple[Device, ...] = own_devices(scraped, request.environment, node=self._node)
        if not self.devices:
            raise SourceError(
                f"{url} has no GPU of this job on {self._node}.", "Does it scrape DCGM exporter there?"
            )

    def read(self) -> list[Sample]:
        """The samples that were scraped since the last call; often none."""
        monotonic_ns = self._request.clock.monotonic_ns()
        rows = rows_of(self._query(_OVERLAP_SECONDS if self._newest else _FIRST_SECONDS))
        wanted = (*GPU_METRICS, *self._request.metrics)
        samples = []
        for device in self.devices:
            first = self._newest.get(device.uuid)
            own = sorted(rows.get(device.uuid, {}).items())
            # What was stored before the recording began is no part of it, but for the newest.
            fresh = own[-1:] if first is None else [row for row in own if row[0] > first]
            for time_ns, values in fresh:
                picked = {metric: values.get(metric) for metric in wanted}
                samples.append(Sample(time_ns, monotonic_ns, device.uuid, picked))
                self._newest[device.uuid] = time_ns
        return samples

    def close(self) -> None:
        """Hold nothing, give nothing back."""

    def _query(self, seconds: float) -> list[Series]:
        seconds += self._request.interval
        end_ns = self._request.clock.time_ns()
        found = query_samples(
            self._url, [self._node], end_ns=end_ns, seconds=seconds, environment=self._request.environment
        )
        return list(found)


def rows_of(series: list[Series]) -> dict[str, dict[int, dict[str, float | None]]]:
    """UUID to time of a scrape to metrics; blanks are None."""
    rows: dict[str, dict[int, dict[str, float | None]]] = {}
    for each in series:
        found, device = metric_of(each.field), device_of(each.labels, node=node_of(each.labels))
        if found is None or device is None:
            continue
        own = rows.setdefault(device.uuid, {})
        for time_ns, text in each.points:
            own.setdefault(time_ns, {})[found[0]] = scaled(text, found[1])
    return rows


def devices_of(series: list[Series]) -> Mapping[str, Device]:
    """The GPUs that series are of, by UUID."""
    found: dict[str, Device] = {}
    for each in series:
        device = device_of(each.labels, node=node_of(each.labels))
        if device is not None:
            found.setdefault(device.uuid, device)
    return found


def open_prometheus(argument: str, request: SourceRequest) -> PrometheusSource:
    """``prometheus:URL``."""
    return PrometheusSource(checked_url("prometheus", argument), request)
