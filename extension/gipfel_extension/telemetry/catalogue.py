"""The catalogue: everything that a run folder records, by name, unit, source, rate and meaning.

Metrics come from ``metric_table``, events from ``events.KINDS``. Its page, ``CATALOGUE.md``, is made by
``gipfel catalogue --markdown``; ``store/load.py`` reads all of it by these names.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby

from .events import KINDS
from .metric_table import GPU, HOST, NIC, ON_REQUEST, SCORE_PARTS, Metric, meaning_of

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

    def to_json(self) -> dict[str, str | int | None]:
        """Return the entry as a dictionary that JSON can hold."""
        return asdict(self)


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
