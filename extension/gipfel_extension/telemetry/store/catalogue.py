"""The catalogue: everything that a run folder records, by name, unit, source, rate and meaning.

Metrics come from ``metric_table``, events from ``events.KINDS``. Its page, ``CATALOGUE.md``, is made by
``gipfel catalogue --markdown``; `load` returns any of it by these names as an Arrow table.
"""

import difflib
import fnmatch
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..events import KINDS, read_events
from ..metric_table import (
    GPU,
    HOST,
    HOST_METRICS,
    NIC,
    NIC_METRICS,
    ON_REQUEST,
    SCORE_PARTS,
    TABLE,
    Metric,
    meaning_of,
    unit_of,
)
from ..ranks import gpu_uuids_by_rank, read_ranks
from ..sample import SampleTable, SourceError, metric_names
from ..user_metrics import UserMetrics, read_metrics
from .fine import read_finest
from .segments import read_samples

_SEGMENTS = "telemetry/*.arrows, telemetry/*.parquet"
_EVENTS = "telemetry/*.events.jsonl"
_HEAD = """\
# Everything that a run records

Made by `gipfel catalogue --markdown` from `metric_table.py` and `events.py`; `gipfel catalogue --json` prints
the same for programs. A notebook loads any of it by name: `gipfel_widgets.load("alps-48812", "SM_ACTIVE")`.
Units: "1" is a fraction from 0 to 1. A missing value is null, never 0. Time is UTC in nanoseconds. Samples of
GPUs and hosts are in `telemetry/` of the run folder, logged metrics in `metrics.jsonl`, events in
`telemetry/*.events.jsonl`.
"""
_GPU_RATE, _HOST_RATE = "1 s; 0.1 s where GPUs have GPM", "1 s"


@dataclass(frozen=True)
class Entry:
    """One name of the catalogue.

    Parameters
    ----------
    kind
        ``gpu``, ``host``, ``logged`` or ``event``.
    unit
        "1" is a fraction from 0 to 1, "bits" a bit mask; empty where there is none.
    recorded
        ``always``, ``on request`` (``gipfel record --metric``), or ``with fine samples``.
    dcgm_id, dcgm_name, gpm_id
        Field of DCGM and metric of NVML's GPM with this meaning.
    """

    name: str
    kind: str
    unit: str
    source: str
    rate: str
    meaning: str
    recorded: str
    file: str
    dcgm_id: int | None = None
    dcgm_name: str = ""
    gpm_id: int | None = None


def catalogue() -> tuple[Entry, ...]:
    """Return everything that can be recorded."""
    return (
        *(_of_gpu(each, "always") for each in GPU),
        *(_of_gpu(each, "on request") for each in ON_REQUEST),
        *(_of_host(each) for each in HOST),
        *(_of_nic(each) for each in NIC),
        *(
            Entry(name, "gpu", unit, "recorder", "1 s", meaning_of(name), "with fine samples", _SEGMENTS)
            for name, unit in SCORE_PARTS.items()
        ),
        Entry(
            "any other name",
            "logged",
            "",
            "gipfel_widgets.log, gipfel record --metrics",
            "as logged",
            "what a program logs or writes into metric files, by rank",
            "if logged",
            "metrics.jsonl",
        ),
        *(
            Entry(name, "event", "", "recorder, job", "when it happens", meaning, "always", _EVENTS)
            for name, meaning in KINDS.items()
        ),
    )


def markdown() -> str:
    """Return the page of the catalogue."""
    lines = _HEAD.splitlines()
    titles = {
        ("gpu", "always"): "GPUs: always",
        ("gpu", "on request"): "GPUs: on request (`gipfel record --metric NAME`)",
        ("host", "always"): "Hosts",
        ("nic", "always"): "NICs of Slingshot, InfiniBand and RoCE, each a device",
        ("gpu", "with fine samples"): "Intermediate results of the score",
        ("logged", "if logged"): "Logged by programs",
        ("event", "always"): "Events",
    }
    for key, entries in groupby(catalogue(), lambda each: (each.kind, each.recorded)):
        lines += ["", f"## {titles[key]}", ""]
        lines += _table(key[0], list(entries))
    return "\n".join(lines) + "\n"


def _table(kind: str, entries: list[Entry]) -> Iterator[str]:
    if kind == "event":
        yield from ("| kind | meaning |", "| --- | --- |")
        yield from (f"| `{each.name}` | {each.meaning} |" for each in entries)
        return
    if kind == "gpu":
        yield "| name | unit | meaning | source | rate | DCGM | GPM |"
        yield "| --- | --- | --- | --- | --- | --- | --- |"
        for each in entries:
            dcgm = f"{each.dcgm_id} {each.dcgm_name}" if each.dcgm_id else ""
            own = f"`{each.name}` | {each.unit} | {each.meaning} | {each.source} | {each.rate}"
            yield f"| {own} | {dcgm} | {each.gpm_id or ''} |"
        return
    yield from ("| name | unit | meaning | source | rate |", "| --- | --- | --- | --- | --- |")
    for each in entries:
        yield f"| `{each.name}` | {each.unit or ''} | {each.meaning} | {each.source} | {each.rate} |"


def _of_gpu(metric: Metric, recorded: str) -> Entry:
    nvml = "NVML GPM" if metric.gpm_id is not None else "NVML"
    return Entry(
        metric.name,
        "gpu",
        metric.unit,
        f"{nvml}, DCGM" if metric.dcgm_id else nvml,
        _GPU_RATE,
        meaning_of(metric.name),
        recorded,
        _SEGMENTS,
        metric.dcgm_id,
        metric.dcgm_name if metric.dcgm_id else "",
        metric.gpm_id,
    )


def _of_host(metric: Metric) -> Entry:
    source = metric.name.partition("_")[0]
    text = {
        "NET": "/proc/net/dev, /sys/class",
        "LUSTRE": "llite/*/stats",
        "NFS": "/proc/self/mountstats",
    }.get(source, "powercap, hwmon" if metric.name == "HOST_POWER" else "cgroup, else /proc")
    return Entry(
        metric.name, "host", metric.unit, text, _HOST_RATE, meaning_of(metric.name), "always", _SEGMENTS
    )


def _of_nic(metric: Metric) -> Entry:
    source = "/sys/class/cxi, /sys/class/infiniband"
    rate = "5 s" if metric.name == "NIC_ERRORS" else _HOST_RATE
    return Entry(metric.name, "nic", metric.unit, source, rate, meaning_of(metric.name), "always", _SEGMENTS)


#: Name under which events are loaded.
EVENTS = "events"
_SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("ns", tz="UTC")),
        ("metric", pa.dictionary(pa.int32(), pa.string())),
        ("node", pa.dictionary(pa.int32(), pa.string())),
        ("device", pa.dictionary(pa.int32(), pa.string())),
        ("rank", pa.int32()),
        ("value", pa.float64()),
    ]
)


def load_run(
    run: Path,
    names: Sequence[str],
    *,
    ranks: Collection[int] | None = None,
    gpus: Collection[str] | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    fine: bool = False,
) -> pa.Table:
    """Return the values of metrics, sorted by metric, node, device, rank and time.

    Columns are ``time``, ``metric``, ``node``, ``device`` (UUID of a GPU, or a host), ``rank`` (null
    where there is none; the lowest where several ranks use a GPU) and ``value`` (null where it is missing).
    Those of ``events`` are ``time``, ``node``, ``kind``, ``device`` and ``message``. Units are in the
    schema's metadata.

    Parameters
    ----------
    names
        Names of the catalogue or of logged metrics; ``*`` stands for any characters. Or ``("events",)``.
    ranks, gpus
        Ranks, and UUIDs of GPUs, to which the values are restricted; None for all.
    fine
        Whether fine samples (ten per second) are returned where all of them still exist.

    Raises
    ------
    SourceError
        Nothing has this name in the run, or the run can't be read.
    """
    if not (run / "telemetry").is_dir() and not (run / "metrics.jsonl").is_file():
        raise SourceError(f"{run} is not a run folder.", "`gipfel runs` lists yours.")
    try:
        if tuple(names) == (EVENTS,):
            return _events(run, since_ns, until_ns)
        logged = read_metrics(run)
        wanted = [each for each in (*TABLE, *SCORE_PARTS) if _is_wanted(each, names)]
        read = read_finest if fine else read_samples
        recorded = (
            read(run / "telemetry", since_ns=since_ns, until_ns=until_ns, metrics=wanted)
            if wanted
            else SampleTable()
        )
    except OSError as error:
        raise SourceError(f"{run} can't be read: {error.strerror}.", "Check its permissions.") from error
    first, last = since_ns or 0, 2**63 - 1 if until_ns is None else until_ns - 1
    own = {uuid: rank for rank, uuids in _reversed(run) for uuid in uuids}
    parts = [
        *_of_devices(recorded, wanted, own, ranks, gpus),
        *(_of_ranks(logged.between(first, last), names, ranks) if gpus is None else ()),
    ]
    for name in names:
        if not any(fnmatch.fnmatchcase(part["metric"][0].as_py(), name) for part in parts):
            raise _unknown(name, logged)
    found = pa.concat_tables(parts).unify_dictionaries()
    present = found.column("metric").unique().to_pylist()
    return found.replace_schema_metadata({f"unit:{name}": unit_of(name) for name in present if unit_of(name)})


def _reversed(run: Path) -> list[tuple[int, list[str]]]:
    """Return each rank with its GPUs, lowest rank last, so that it wins in a dictionary by GPU."""
    return sorted(gpu_uuids_by_rank(read_ranks(run / "telemetry")).items(), reverse=True)


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, each) for each in patterns)


def _kind_of(metric: str) -> str:
    """Return the kind of the devices that a metric is recorded of."""
    return "host" if metric in HOST_METRICS else "nic" if metric in NIC_METRICS else "gpu"


def _of_devices(
    table: SampleTable,
    wanted: Sequence[str],
    own: dict[str, int],
    ranks: Collection[int] | None,
    gpus: Collection[str] | None,
) -> Iterator[pa.Table]:
    for name in wanted:
        for device in (*table.gpus, *table.hosts, *table.nics):
            columns = table[device.uuid]
            rank = own.get(device.uuid)
            is_selected = (gpus is None or device.uuid in gpus) and (ranks is None or rank in ranks)
            if is_selected and name in metric_names(columns) and _kind_of(name) == device.kind:
                part = _part(columns["time_ns"], columns[name], name, (device.node, device.uuid, rank))
                if part is not None:
                    yield part


def _of_ranks(logged: UserMetrics, names: Sequence[str], ranks: Collection[int] | None) -> Iterator[pa.Table]:
    for each in logged.series:
        if _is_wanted(each.name, names) and (ranks is None or each.rank in ranks):
            part = _part(each.time_ns, each.values, each.name, (each.node, "", each.rank))
            if part is not None:
                yield part


def _part(
    times: NDArray[np.int64], values: NDArray[np.float64], metric: str, where: tuple[str, str, int | None]
) -> pa.Table | None:
    node, device, rank = where
    count = len(times)
    if not count:
        return None
    indices = pa.array(np.zeros(count, np.int32))
    texts = [pa.DictionaryArray.from_arrays(indices, pa.array([text])) for text in (metric, node, device)]
    number = pa.nulls(count, pa.int32()) if rank is None else pa.array(np.full(count, rank, np.int32))
    when = pa.array(times).cast(_SCHEMA.field("time").type)
    return pa.Table.from_arrays([when, *texts, number, pa.array(values, from_pandas=True)], schema=_SCHEMA)


def _events(run: Path, since_ns: int | None, until_ns: int | None) -> pa.Table:
    found = [
        each
        for each in read_events(run / "telemetry")
        if (since_ns or 0) <= each.time_ns < (2**63 if until_ns is None else until_ns)
    ]
    return pa.table(
        {
            "time": pa.array([each.time_ns for each in found], pa.int64()).cast(_SCHEMA.field("time").type),
            **{
                name: pa.array([getattr(each, name) for each in found], pa.string())
                for name in ("node", "kind", "device", "message")
            },
        }
    )


def _unknown(name: str, logged: UserMetrics) -> SourceError:
    if name in TABLE:
        return SourceError(f"{name} was not recorded here.", "`gipfel catalogue` says when it is.")
    similar = difflib.get_close_matches(name, [*TABLE, *logged.names, EVENTS], 3, 0.5)
    fix = (
        f"Did you mean {' or '.join(similar)}?"
        if similar
        else "`gipfel catalogue` and `gipfel metrics` list all."
    )
    return SourceError(f"This run has no {name[:80]!r}.", fix)
