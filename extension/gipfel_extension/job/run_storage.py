"""A run's input and output: verdicts on its file systems, advice on its files, and a figure.

`storage_report` reads a run folder; `gipfel io`, `gipfel diagnose` and the job page show it.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosis.file_system import StorageJudgement, StorageSeries, judge_storage
from ..diagnosis.verdict import Verdict
from ..storage import FilesRow, MountRow, Period, StorageRecord, read_storage
from ..storage.file_systems import SiteStripes, mending
from ..telemetry.figures.palette import COLORS
from ..telemetry.figures.stack import Plot, stacked
from ..telemetry.sources.file_systems import CLASSES

_Floats = NDArray[np.float64]
#: Maximum time between a probe and periods of other nodes that count as simultaneous.
_NEAR_NS = 15 * 10**9
#: Files per second that a client opens for the node itself.
_FEW_OPENS = 20.0
_MOST_ADVICE, _MOST_PLOTTED, _MOST_NOTES = 6, 4, 8
_COLORS = ("blue", "orange", "green", "purple")
_DASHES = ("solid", "dot", "dash", "dashdot")


@dataclass(frozen=True)
class StorageReport:
    """Recorded input and output of a run.

    Parameters
    ----------
    judgements
        One for each mount that was probed, or whose client measures times of operations.
    advice
        Sentences with a command: files on the wrong tier, images without stripes.
    """

    record: StorageRecord
    judgements: tuple[StorageJudgement, ...]
    advice: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the record lacks and why counters are missing, without duplicates."""
        found = dict.fromkeys(self.record.notes)
        for period in self.record.periods:
            found.setdefault(period.why)
            if period.pressure is not None:
                found.setdefault(period.pressure.why)
            for mount in period.mounts:
                found.setdefault(f"{mount.mount}: {mount.why}" if mount.why else "")
            for row in period.probes:
                found.setdefault(f"{row.mount}: {row.why}" if row.why else "")
        return tuple(each for each in found if each)[:_MOST_NOTES]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts on the file systems; file systems that are slow for all users come first."""
        found = [verdict for each in self.judgements for verdict in each.verdicts()]
        return tuple(sorted(found, key=lambda each: ("file_system", "own_io", "unknown").index(each.kind)))


def storage_report(run: Path, environment: Mapping[str, str] = os.environ) -> StorageReport | None:
    """Return the report on a run; None if its input and output were not recorded."""
    record = read_storage(run)
    if record is None:
        return None
    notes = list(record.notes)
    try:
        stripes = SiteStripes.from_environment(environment)
    except ValueError as error:
        notes.append(f"{error}. The default applies.")
        stripes = SiteStripes()
    judgements = tuple(judge_storage(each) for each in series_of(record.periods, record.files))
    record = StorageRecord(record.periods, record.files, tuple(notes))
    return StorageReport(record, judgements, tuple(_advice(record.files, stripes))[:_MOST_ADVICE])


def series_of(periods: Sequence[Period], files: Sequence[FilesRow] = ()) -> list[StorageSeries]:
    """Return the latency of each mount over time, with the load that the job caused there from all nodes."""
    latencies: dict[str, list[tuple[int, float]]] = {}
    for period in periods:
        for row in period.probes:
            value = row.worst_ms
            latencies.setdefault(row.mount, []).append((period.time_ns, np.nan if value is None else value))
    for period in periods:
        for mount in period.mounts:
            # Without probes, use the latency that the NFS client measured.
            if mount.metadata_ms is not None and mount.mount not in latencies:
                latencies.setdefault(mount.mount, []).append((period.time_ns, mount.metadata_ms))
    found = []
    for name, pairs in latencies.items():
        times = np.array([time for time, _ in pairs], np.int64)
        opens = _sum_of_nodes(times, _by_node(periods, lambda each, name=name: _opened(each, name)))
        least, most = (
            _sum_of_nodes(
                times, _by_node(periods, lambda each, name=name, place=place: _moved(each, name)[place])
            )
            for place in (0, 1)
        )
        tiers = {row.tier for each in periods for row in each.mounts if row.mount == name}
        values = np.array([value for _, value in pairs], np.float64)
        shared = not tiers or "shared" in tiers
        by_client = any(_client_opens(row) for each in periods for row in each.mounts if row.mount == name)
        waiting, waited = _waited(times, periods)
        found.append(
            StorageSeries(
                name, times, values, opens, least, shared=shared, most=most, waited=waited, waiting=waiting,
                opening="The nodes of your job" if by_client else "Your job", classes=_classes(name, files),
            )
        )  # fmt: skip
    return found


def _waited(times: NDArray[np.int64], periods: Sequence[Period]) -> tuple[str, _Floats | None]:
    """Return whose share of time waiting for storage is known, and the mean of the nodes at some times."""
    rows = [(each.node, each.time_ns, each.pressure) for each in periods if each.pressure is not None]
    of_job = any(row.of_job is not None for _, _, row in rows)
    nodes: dict[str, tuple[list[int], list[float]]] = {}
    for node, time_ns, row in rows:
        share = row.of_job if of_job else row.of_node
        if share is not None:
            own = nodes.setdefault(node, ([], []))
            own[0].append(time_ns)
            own[1].append(share)
    if not nodes:
        return "", None
    arrays = {
        node: (np.array(ns, np.int64), np.array(shares, np.float64)) for node, (ns, shares) in nodes.items()
    }
    return ("the job's" if of_job else "the node's") + " processes", _sum_of_nodes(times, arrays) / len(nodes)


def _classes(mount: str, files: Sequence[FilesRow]) -> str:
    """Return the classes of the job's files at a mount, the one with most files first, for people."""
    counts: dict[str, int] = {}
    for each in files:
        if each.mount == mount and not each.written:
            counts[each.kind] = counts.get(each.kind, 0) + each.files
    most = sorted(counts, key=lambda kind: -counts[kind])
    return ", ".join(CLASSES.get(each, each) for each in most if counts[each] * 10 >= counts[most[0]])


def storage_figure(
    record: StorageRecord, span_ns: tuple[int, int], *, dark: bool = False, width: int = 320
) -> dict[str, Any]:
    """Return plots over time: latency of mounts, files opened by the job, bytes of its ranks."""
    inside = [each for each in record.periods if span_ns[0] <= each.time_ns <= span_ns[1]]
    answers: dict[str, list[tuple[int, float | None]]] = {}
    opened: dict[str, list[tuple[int, float | None]]] = {}
    moved: dict[str, list[tuple[int, float | None]]] = {}
    nodes = {each.node for each in inside}
    for period in inside:
        for row in period.probes:
            answers.setdefault(row.mount, []).append((period.time_ns, row.worst_ms))
        name = f" on {period.node}" if len(nodes) > 1 else ""
        opened.setdefault(f"opened{name}", []).append((period.time_ns, period.opened))
        moved.setdefault(f"read{name}", []).append(
            (period.time_ns, sum(each.read for each in period.ranks) / 1e6)
        )
        moved.setdefault(f"written{name}", []).append(
            (period.time_ns, sum(each.written for each in period.ranks) / 1e6)
        )
    plots = [
        Plot(title, _lines(lines, unit, dark=dark), pixels=90, width=width)
        for title, lines, unit in (
            ("Answers of file systems, ms", answers, "ms"),
            ("Files opened per second, at least", opened, "/s"),
            ("Read and written, MB/s", moved, "MB/s"),
        )
        if any(value is not None for line in lines.values() for _, value in line)
    ]
    return stacked(
        plots,
        span_ms=(span_ns[0] // 1_000_000, span_ns[1] // 1_000_000),
        dark=dark,
        empty="Nothing of the job's files was recorded in this time.",
    )


def _lines(
    lines: Mapping[str, Sequence[tuple[int, float | None]]], unit: str, *, dark: bool
) -> tuple[dict[str, Any], ...]:
    most = sorted(lines, key=lambda name: -sum(value or 0.0 for _, value in lines[name]))[:_MOST_PLOTTED]
    return tuple(
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "uid": f"storage/{unit}/{name}",
            "x": [time // 1_000_000 for time, _ in lines[name]],
            "y": [value for _, value in lines[name]],
            "line": {"color": COLORS[_COLORS[place]][dark], "dash": _DASHES[place], "width": 1.6},
            "marker": {"size": 3},
            "hovertemplate": f"{name} %{{y:.3~s}} {unit}<extra></extra>",
        }
        for place, name in enumerate(most)
    )


def _advice(files: Sequence[FilesRow], stripes: SiteStripes) -> list[str]:
    """Return advice about files, those with most bytes first, each once for all nodes."""
    found: dict[str, None] = {}
    for each in files:
        folder = each.directory.removesuffix("/*")
        where = f"{each.mount} ({each.filesystem}, {each.tier})"
        if each.tier == "shared" and not each.written and each.kind in ("data", "shard", "checkpoint"):
            if each.pattern == "small files":
                mean = each.bytes / each.files / 1000
                found.setdefault(
                    f"{folder} has small files ({mean:,.0f} kB on average) on {where}: each costs a request. "
                    f"Pack them: gipfel data pack {shlex.quote(folder)} {shlex.quote(folder + '.sqsh')}"
                )
            elif each.pattern == "random":
                found.setdefault(
                    f"{each.largest_path} is read at random on {where}. Node-local disks and memory answer "
                    f"sooner: gipfel data stage {shlex.quote(each.largest_path)}"
                )
        found.setdefault(mending(each.largest_path, each.largest, each.stripes, stripes))
    return [each for each in found if each]


def _by_node(periods: Sequence[Period], value: Any) -> dict[str, tuple[NDArray[np.int64], _Floats]]:
    grouped: dict[str, list[tuple[int, float]]] = {}
    for each in periods:
        grouped.setdefault(each.node, []).append((each.time_ns, value(each)))
    return {
        node: (
            np.array([time for time, _ in pairs], np.int64),
            np.array([rate for _, rate in pairs], np.float64),
        )
        for node, pairs in grouped.items()
    }


def _sum_of_nodes(
    times: NDArray[np.int64], nodes: Mapping[str, tuple[NDArray[np.int64], _Floats]]
) -> _Floats:
    """Return the sum over nodes of the value nearest to each time; NaN where no node has one."""
    total, known = np.zeros(len(times)), np.zeros(len(times), np.bool_)
    for all_times, all_values in nodes.values():
        counted = np.isfinite(all_values)
        own, values = all_times[counted], all_values[counted]
        if not len(own):
            continue
        right = np.clip(np.searchsorted(own, times), 0, len(own) - 1)
        left = np.maximum(right - 1, 0)
        nearest = np.where(np.abs(own[left] - times) <= np.abs(own[right] - times), left, right)
        near = np.abs(own[nearest] - times) <= _NEAR_NS
        total += np.where(near, values[nearest], 0.0)
        known |= near
    return np.where(known, total, np.nan)


def _opened(period: Period, mount: str) -> float:
    """Return the files opened per second at a mount; 0 without files of the job, NaN if not counted.

    Directories that the recorder does not watch count only in the client, which counts all jobs of the node.
    """
    for row in period.mounts:
        if row.mount == mount:
            known = row.opens if row.opened is None else row.opened
            return _client_opens(row) or (np.nan if known is None else known)
    return np.nan if period.why else 0.0


def _client_opens(row: MountRow) -> float:
    """Return the files per second that the client counted; 0 if few beyond the recorder's count."""
    least = max(_FEW_OPENS, 2 * (row.opened or 0.0))
    return row.opens if row.opens is not None and row.opens > least else 0.0


def _moved(period: Period, mount: str) -> tuple[float, float]:
    """Return a lower and an upper bound of the bytes per second that the job moved at a mount.

    They are equal if the mount's client has counters. Otherwise the upper bound is what the job's processes
    read and wrote at all mounts, including caches and connections, and the lower bound is what the kernel
    counts as storage I/O: this includes block devices and NFS, but not FUSE, for which it is 0.
    """
    for row in period.mounts:
        if row.mount == mount and row.read_bytes is not None:
            exact = row.read_bytes + (row.written_bytes or 0.0)
            return exact, exact
    counted = sum(each.storage_read + each.storage_written for each in period.ranks)
    kinds = {row.kind for row in period.mounts if row.mount == mount}
    return (0.0 if any(each.startswith("fuse") for each in kinds) else counted), max(counted, period.moved)
