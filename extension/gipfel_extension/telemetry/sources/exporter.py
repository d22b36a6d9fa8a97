"""DCGM exporter over HTTP: the text that Prometheus would scrape, asked for by ourselves."""

from ..imports.exporter_text import scraped_lines
from ..sample import GPU_METRICS, Device, Sample, SourceError
from .protocol import SourceRequest
from .scraped import Scraped, node_of, own_devices, values_of
from .web import checked_url, get

_MOST_SECONDS = 10.0
#: A node of 16 GPUs in 112 instances with every field of DCGM has 2 MiB.
_MOST_BYTES = 16 << 20


class ExporterSource:
    """The job's GPUs of this node, from one exporter.

    An exporter renews its numbers at a pace of its own, often every 30 s: sampling faster repeats them.

    Parameters
    ----------
    url
        As ``http://localhost:9400/metrics``; without a path ``/metrics`` is asked for.

    Raises
    ------
    SourceError
        It doesn't answer, or has no GPU of this job.
    """

    simulated = False

    def __init__(self, url: str, request: SourceRequest) -> None:
        self.name = "dcgm-exporter"
        self._url = url if url.count("/") > 2 else f"{url}/metrics"
        self._request = request
        self._seconds = min(_MOST_SECONDS, max(1.0, request.interval))
        self._node = request.environment.get("GIPFEL_NODE", "")
        self.devices: tuple[Device, ...] = own_devices(self._scrape(), request.environment, node=self._node)
        if not self.devices:
            raise SourceError(
                f"{self._url} shows no GPU of this job.", "Is it an exporter of DCGM, and on this node?"
            )

    def read(self) -> list[Sample]:
        """One sample per GPU; the request took place between this and the last call."""
        time_ns, monotonic_ns = self._request.clock.time_ns(), self._request.clock.monotonic_ns()
        values = values_of(self._scrape(), node=self._node)
        wanted = {*GPU_METRICS, *self._request.metrics}
        return [
            Sample(time_ns, monotonic_ns, device.uuid, {m: own.get(m) for m in wanted})
            for device in self.devices
            if (own := values.get(device.uuid, {})) is not None
        ]

    def close(self) -> None:
        """Hold nothing, give nothing back."""

    def _scrape(self) -> list[Scraped]:
        body = get(
            self._url,
            seconds=self._seconds,
            most_bytes=_MOST_BYTES,
            environment=self._request.environment,
        )
        lines = list(scraped_lines(body.decode(errors="replace").splitlines()))
        nodes = {node_of(labels) for _, labels, _, _ in lines}
        here = self._node if self._node in nodes else ""
        return [
            (field, labels, text) for field, labels, text, _ in lines if not here or node_of(labels) == here
        ]


def open_exporter(argument: str, request: SourceRequest) -> ExporterSource:
    """``exporter:URL``."""
    return ExporterSource(checked_url("exporter", argument), request)
