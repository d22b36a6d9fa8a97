"""Import of DCGM exporter's metrics: a time range from a Prometheus, or the text of one or more scrapes."""

import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ..files import read_regular
from ..sample import Columns, Device, SampleTable, SourceError
from ..sources.dcgm import device_of, metric_of, scaled, scraped_lines
from ..sources.prometheus import Series, query_samples, scraped_devices, scraped_rows
from ..sources.web import checked_url
from .recording import Recording, gpu_columns

#: Time range of one query: servers limit the number of samples in a response.
_CHUNK_NS = 3600 * 10**9
_MAX_SECONDS = 30 * 86400.0
_FIX = "Use prometheus:http://HOST:PORT?nodes=n1,n2&start=TIME&end=TIME with times in ISO 8601 or since 1970."
_MAX_TEXT_BYTES = 512 << 20
#: Values of one GPU in one scrape, and the time in milliseconds where the text has one.
_Scrape = tuple[dict[str, float | None], int | None]


def open_prometheus_range(spec: str, environment: Mapping[str, str]) -> Recording:
    """Read ``URL?nodes=n1,n2&start=TIME&end=TIME``; ``&gpus=UUID,…`` selects some of the nodes' GPUs.

    Raises
    ------
    SourceError
        The query is invalid, the server does not respond, or it has no samples of these nodes.
    """
    address, _, query = spec.partition("?")
    url = checked_url("prometheus", address)
    parameters = dict(urllib.parse.parse_qsl(query))
    nodes = tuple(node for node in parameters.get("nodes", "").split(",") if node)
    start_ns, end_ns = _time(parameters.get("start", "")), _time(parameters.get("end", ""))
    if not nodes or start_ns >= end_ns or (end_ns - start_ns) / 1e9 > _MAX_SECONDS:
        raise SourceError("The Prometheus query names no nodes, or no time range of up to 30 days.", _FIX)
    gpus = tuple(gpu for gpu in parameters.get("gpus", "").split(",") if gpu)
    return read_prometheus(url, nodes, start_ns, end_ns, gpus=gpus, environment=environment)


def read_prometheus(
    url: str,
    nodes: Sequence[str],
    start_ns: int,
    end_ns: int,
    *,
    gpus: Sequence[str] = (),
    environment: Mapping[str, str],
) -> Recording:
    """Read the samples of some nodes in a time range from a Prometheus, with the times of its scrapes.

    Parameters
    ----------
    gpus
        UUIDs of the job's GPUs; empty for all GPUs of the nodes.

    Raises
    ------
    SourceError
        The server does not respond, or has no samples of these nodes.
    """
    found: list[Series] = []
    for first_ns in range(start_ns, end_ns, _CHUNK_NS):
        last_ns = min(end_ns, first_ns + _CHUNK_NS)
        seconds = (last_ns - first_ns) / 1e9
        found += query_samples(url, nodes, end_ns=last_ns, seconds=seconds, environment=environment)
    rows = scraped_rows(found)
    devices = {uuid: each for uuid, each in scraped_devices(found).items() if not gpus or uuid in gpus}
    if not rows or not devices:
        raise SourceError(
            f"{url} has no GPU of {', '.join(nodes)} in this time range.",
            "Check that it scrapes DCGM exporter there.",
        )
    table = _range_table(devices, rows, start_ns, end_ns)
    notes = [
        "Prometheus has only scraped GPU metrics: no host metrics, no events, nothing between two scrapes."
    ]
    if not gpus:
        notes.append("Every GPU of these nodes is counted, including those of other jobs on shared nodes.")
    return Recording(table, f"Prometheus, {', '.join(nodes)}", tuple(notes))


def _range_table(
    devices: Mapping[str, Device],
    rows: Mapping[str, Mapping[int, Mapping[str, float | None]]],
    start_ns: int,
    end_ns: int,
) -> SampleTable:
    columns: dict[str, Columns] = {}
    steps: list[float] = []
    for uuid in devices:
        own = {time: values for time, values in rows.get(uuid, {}).items() if start_ns <= time <= end_ns}
        columns[uuid] = _columns(own)
        steps += (np.diff(columns[uuid]["time_ns"]) / 1e9).tolist()
    interval = round(float(np.median(steps)), 3) if steps else 0.0
    return SampleTable(tuple(devices.values()), columns, "prometheus", interval)


def _time(text: str) -> int:
    with suppress(ValueError, OverflowError):
        return int(float(text) * 1e9)
    try:
        # The plus sign of a time zone is decoded as a space in a URL's query.
        when = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
    except ValueError:
        raise SourceError(f"{text!r} is not a valid time.", _FIX) from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e9)


def read_exporter_text(path: Path) -> Recording:
    """Read a file of scrapes of DCGM exporter; the repetition of a GPU's metric starts the next scrape.

    Raises
    ------
    ValueError
        The file has no line of DCGM exporter.
    """
    text = read_regular(path, _MAX_TEXT_BYTES, follow=True).decode(errors="replace")
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
        own[-1][0][found[0]] = scaled(value, found[1])
    if not devices:
        raise ValueError("it has no metric of DCGM exporter")
    timed = all(time is not None for own in scrapes.values() for _, time in own)
    columns = {
        uuid: _columns(
            {
                (time or 0) * 10**6 if timed else place * 10**9: values
                for place, (values, time) in enumerate(own)
            }
        )
        for uuid, own in scrapes.items()
    }
    interval = 0.0 if timed else 1.0
    table = SampleTable(tuple(devices.values()), columns, f"dcgm-exporter {path.name}", interval)
    return Recording(table, path.name, _notes(table, timed=timed))


def _columns(rows: Mapping[int, Mapping[str, float | None]]) -> Columns:
    """Return the columns of a GPU from its values by time."""
    metrics = dict.fromkeys(metric for values in rows.values() for metric in values)
    held = {m: np.array([values.get(m) for values in rows.values()], np.float64) for m in metrics}
    return gpu_columns(np.array(list(rows), np.int64), held)


def _notes(table: SampleTable, *, timed: bool) -> tuple[str, ...]:
    scrapes = max((len(table[device.uuid]["time_ns"]) for device in table.devices), default=0)
    notes = {
        "DCGM exporter records no host: waiting for input looks idle.": True,
        "The text has no times: samples are assumed to be one second apart, starting in 1970.": not timed,
        "The text is a single scrape: one sample is not enough to score a run.": scrapes == 1,
    }
    return tuple(note for note, applies in notes.items() if applies)
