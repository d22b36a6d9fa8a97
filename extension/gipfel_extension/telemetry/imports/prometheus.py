"""A time range of a site's Prometheus as a recording: what DCGM exporter said of a job's GPUs, afterwards."""

import urllib.parse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from ..sample import Columns, Device, SampleTable, SourceError
from ..sources.prometheus import devices_of, rows_of
from ..sources.promql import Series, query_samples
from ..sources.web import checked_url
from .recording import Recording, gpu_columns

#: One question asks for so many seconds: servers limit the samples of an answer.
_CHUNK_SECONDS = 3600.0
_MOST_SECONDS = 30 * 86400.0
_FIX = "Use prometheus:http://HOST:PORT?nodes=n1,n2&start=TIME&end=TIME with times in ISO 8601 or since 1970."


def open_prometheus_range(spec: str, environment: Mapping[str, str]) -> Recording:
    """``URL?nodes=n1,n2&start=TIME&end=TIME`` as a recording; ``&gpus=UUID,…`` keeps some of the nodes' GPUs.

    Raises
    ------
    SourceError
        It isn't understood, doesn't answer, or has nothing of these nodes.
    """
    address, _, words = spec.partition("?")
    url = checked_url("prometheus", address)
    given = dict(urllib.parse.parse_qsl(words))
    nodes = tuple(node for node in given.get("nodes", "").split(",") if node)
    start_ns, end_ns = _time(given.get("start", "")), _time(given.get("end", ""))
    if not nodes or start_ns >= end_ns or (end_ns - start_ns) / 1e9 > _MOST_SECONDS:
        raise SourceError(
            "The question to Prometheus names no nodes, or no time range of up to 30 days.", _FIX
        )
    gpus = tuple(gpu for gpu in given.get("gpus", "").split(",") if gpu)
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
    """What a Prometheus stored of some nodes in a time range, at the times at which it was scraped.

    Parameters
    ----------
    gpus
        UUIDs of the job's GPUs; none keeps all of the nodes.

    Raises
    ------
    SourceError
        It doesn't answer, or has nothing of these nodes.
    """
    found: list[Series] = []
    first_ns = start_ns
    while first_ns < end_ns:
        last_ns = min(end_ns, first_ns + int(_CHUNK_SECONDS * 1e9))
        seconds = (last_ns - first_ns) / 1e9
        found += query_samples(url, nodes, end_ns=last_ns, seconds=seconds, environment=environment)
        first_ns = last_ns
    rows = rows_of(found)
    devices = {uuid: each for uuid, each in devices_of(found).items() if not gpus or uuid in gpus}
    if not rows or not devices:
        raise SourceError(
            f"{url} has no GPU of {', '.join(nodes)} in this time.", "Does it scrape DCGM exporter there?"
        )
    table = _table(devices, rows, start_ns, end_ns)
    notes = ["Prometheus keeps what was scraped: no host, no event, and nothing between two scrapes."]
    if not gpus:
        notes.append("Every GPU of these nodes is counted: where jobs share nodes, others' too.")
    return Recording(table, f"Prometheus, {', '.join(nodes)}", tuple(notes))


def _table(
    devices: Mapping[str, Device],
    rows: Mapping[str, Mapping[int, Mapping[str, float | None]]],
    start_ns: int,
    end_ns: int,
) -> SampleTable:
    columns: dict[str, Columns] = {}
    steps: list[float] = []
    for uuid in devices:
        own = {time: values for time, values in rows.get(uuid, {}).items() if start_ns <= time <= end_ns}
        times = np.array(sorted(own), np.int64)
        names = dict.fromkeys(name for values in own.values() for name in values)
        held = {
            name: np.array([own[time].get(name) for time in times.tolist()], np.float64) for name in names
        }
        columns[uuid] = gpu_columns(times, held)
        steps += (np.diff(times) / 1e9).tolist()
    interval = round(float(np.median(steps)), 3) if steps else 0.0
    return SampleTable(tuple(devices.values()), columns, "prometheus", interval)


def _time(text: str) -> int:
    try:
        return int(float(text) * 1e9)
    except (ValueError, OverflowError):
        pass
    try:
        # A plus sign of a time zone reads as a space in a question.
        when = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
    except ValueError:
        raise SourceError(f"{text!r} is no time.", _FIX) from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e9)
