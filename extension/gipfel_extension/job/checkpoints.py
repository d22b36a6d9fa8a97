"""Checkpoints of a run or a directory: their state, what they cost, what may be deleted, and the space left.

The checkpoints in a directory are found by `data.checkpoints`; the time that a run lost is computed from its
steps by `diagnosis.checkpoint_cost`. The figure shows the throughput, with each write and its dip marked.
"""

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gipfel_cluster.model import BREAKS
from gipfel_cluster.process.tree import read_output

from ..data.checkpoints import (
    Checkpoint,
    deletable,
    find_checkpoints,
    other_models,
    read_failures,
    read_writes,
)
from ..diagnosis.checkpoint_cost import CheckpointCost, Write, checkpoint_cost
from ..diagnosis.phases import NAMES, duration_text, step_intervals
from ..diagnosis.steps import StepTable, steps_of_run
from ..saturation.advice.checkpoint import daly
from ..saturation.settings import Settings
from ..telemetry.figures.palette import COLORS
from ..telemetry.figures.stack import Plot, stacked, with_time_range
from ..telemetry.files import read_object
from ..telemetry.sample import SourceError
from ..vetting.history.queries import known_failures, site_failure_s
from .run_diagnosis import samples_of_run

#: Variable with the site's command that prints the storage quota of the user who runs it.
STORAGE_VARIABLE = "GIPFEL_STORAGE_QUOTA"
_STORAGE_S = 20.0
_MAX_STORAGE_BYTES = 20_000
_MAX_LAUNCHES = 1000
_MAX_PLAN_BYTES = 4 << 20
_MAX_POINTS = 2000
_MAX_MARKED = 100
_GIB = 1 << 30
_DAY_S = 86_400.0
#: Minimum number of intervals between writes for which their median is reported.
_LEAST_BETWEEN = 2


@dataclass(frozen=True)
class Space:
    """Free bytes for a directory of checkpoints, and bytes that the next one needs; None if unknown."""

    directory: Path
    free: int | None
    needed: int | None

    @property
    def warning(self) -> str:
        """Sentence that another checkpoint won't fit; empty if it fits or if that is unknown."""
        if self.free is None or self.needed is None or self.free >= self.needed:
            return ""
        return (
            f"Another checkpoint won't fit: {self.directory} has {self.free / _GIB:.1f} GiB free, and it "
            f"needs {self.needed / _GIB:.1f} GiB. Delete old ones, or keep fewer."
        )


@dataclass(frozen=True)
class Interval:
    """The interval between checkpoints that costs least time, and the one that was used.

    Parameters
    ----------
    best_s
        Daly's interval in seconds, but at least twice the time that writing takes.
    used_s
        Median seconds between the writes; None for fewer than three.
    cost_s
        Seconds of training that a checkpoint costs: the time lost in its dip of throughput; where there is no
        dip, the pause that the writer recorded.
    failure_s
        Expected seconds between failures of the job.
    source
        Source of the failure rate, for people.
    """

    best_s: float
    used_s: float | None
    cost_s: float
    failure_s: float
    source: str

    def sentence(self) -> str:
        """Return the best interval and the values from which it was computed, in words."""
        used = "" if self.used_s is None else f" They came every {duration_text(self.used_s)}."
        return (
            f"Write a checkpoint every {duration_text(self.best_s)} (Daly): one costs "
            f"{duration_text(self.cost_s)}, and a failure is expected every {duration_text(self.failure_s)} "
            f"({self.source}).{used}"
        )


@dataclass(frozen=True)
class CheckpointReport:
    """Result of `read_checkpoints`.

    ``old`` are checkpoints that may be deleted; ``others`` has, for each Trainer checkpoint whose
    tensors differ from the newest's, the name of the newest; ``notes`` are sentences about missing data.
    """

    checkpoints: tuple[Checkpoint, ...]
    old: frozenset[Path]
    others: Mapping[Path, str]
    writes: tuple[Write, ...]
    spaces: tuple[Space, ...]
    cost: CheckpointCost | None
    steps: StepTable | None
    notes: tuple[str, ...] = ()
    interval: Interval | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``gipfel checkpoints --json``, to which the command adds its options."""
        return {
            "checkpoints": [
                each.document() | {"deletable": each.path in self.old} for each in self.checkpoints
            ],
            "writes": [
                vars(each) | {"begin_ns": each.begin_ns, "rank_seconds": list(each.rank_seconds)}
                for each in self.writes
            ],
            "cost": None if self.cost is None else self.cost.to_json(),
            "space": [
                {
                    "directory": str(each.directory),
                    "free": each.free,
                    "needed": each.needed,
                    "warning": each.warning,
                }
                for each in self.spaces
            ],
            "notes": list(self.notes),
            "interval": None if self.interval is None else vars(self.interval),
        }

    def sentences(self) -> list[str]:
        """Return sentences on what checkpoints cost and how often to write them."""
        advised = [] if self.interval is None else [self.interval.sentence()]
        return [*(self.cost.sentences() if self.cost else ()), *advised]


def checkpoint_directories(run: Path) -> list[Path]:
    """Return the checkpoint directories in the plans of a run's launches."""
    named = set()
    for path in sorted((run / "launches").glob("*/plan.json"))[:_MAX_LAUNCHES]:
        directory = read_object(path, _MAX_PLAN_BYTES).get("checkpoint")
        if isinstance(directory, str) and directory.startswith("/"):
            named.add(Path(directory))
    return sorted(named)


def read_checkpoints(
    directories: Sequence[Path], run: Path | None = None, *, verify: bool = False, keep: int = 2
) -> CheckpointReport:
    """Read directories of checkpoints, and the steps of the run that wrote them.

    Parameters
    ----------
    run
        The run's folder; None where it is not known.

    Raises
    ------
    OSError
        A directory can't be read.
    """
    found = {each: find_checkpoints(each, verify=verify) for each in directories}
    listed = [each for several in found.values() for each in several]
    writes = tuple(
        Write(
            int(each["step"]), int(each["time_ns"]), float(each["stall_s"]), float(each["write_s"]),
            int(each["bytes"]), tuple(each["rank_seconds"]),
        )
        for directory in directories
        for each in read_writes(directory)
    )  # fmt: skip
    steps, notes = None, list[str]()
    if run is not None:
        try:
            steps, _ = steps_of_run(run)
        except SourceError as error:
            notes.append(str(error))
        if steps is None:
            notes.append("The run has no steps, which show what checkpoints cost: log step_s on every rank.")
    cost = None
    if run is not None and steps is not None:
        cost = checkpoint_cost(steps, writes, lambda: samples_of_run(run))
    if steps is not None and cost is None:
        notes.append("The run has too few steps to know how long one usually takes.")
    return CheckpointReport(
        tuple(listed),
        frozenset(each.path for several in found.values() for each in deletable(several, keep)),
        {path: name for several in found.values() for path, name in other_models(several).items()},
        writes,
        tuple(_space(directory, several) for directory, several in found.items()),
        cost,
        steps,
        tuple(notes),
        _interval(directories, writes, cost, run),
    )


def _interval(
    directories: Sequence[Path],
    writes: Sequence[Write],
    cost: CheckpointCost | None,
    run: Path | None,
) -> Interval | None:
    """Return the interval that costs least; None where no write was recorded."""
    if not writes:
        return None
    dips = [each.seconds for each in cost.dips] if cost else []
    cost_s = max(0.0, float(np.median(dips or [each.stall_s for each in writes])))
    failure_s, source = _failure_s(directories, max(1, len(writes[-1].rank_seconds)), _record_of(run))
    write_s = float(np.median([each.write_s for each in writes]))
    # At least twice the duration of a write, so that it ends before the next one begins.
    best = max(daly(cost_s, failure_s), 2 * write_s)
    between = np.diff(sorted(each.end_ns for each in writes)) / 1e9
    used = float(np.median(between)) if len(between) >= _LEAST_BETWEEN else None
    return Interval(best, used, cost_s, failure_s, source)


def _failure_s(directories: Sequence[Path], ranks: int, record: Mapping[str, Any]) -> tuple[float, str]:
    """Return the expected seconds between failures of a job, and the source of this number for people."""
    default_s = 3600.0 * Settings().gpu_hours_per_failure / ranks
    failure_s, source = default_s, f"default: one in {Settings().gpu_hours_per_failure:,.0f} GPU hours"
    nodes, cluster, site_s = record.get("nodes"), record.get("cluster"), site_failure_s(os.environ)
    if isinstance(nodes, list) and nodes and isinstance(cluster, str):
        if site_s:
            failure_s = site_s / len(nodes)
            source = f"your site: one in {site_s / _DAY_S:.3g} node days"
        known = known_failures(cluster, os.environ)
        if known.node_s > 0:
            failure_s = known.between_s(failure_s * len(nodes)) / len(nodes)
            days, times = known.node_s / _DAY_S, "failure" if known.failures == 1 else "failures"
            source = f"your vettings: {known.failures} {times} in {days:.3g} node days; {source}"
    # Failures of this training itself count too: they are combined with the expected rate.
    starts = [read_failures(each) for each in directories]
    failed, seconds = sum(each[0] for each in starts), sum(each[1] for each in starts)
    if failed:
        failure_s = (seconds + failure_s / 2) / (failed + 0.5)
        source = f"{failed} failures in {duration_text(seconds)} of this training; {source}"
    return failure_s, source


def _record_of(run: Path | None) -> Mapping[str, Any]:
    return read_object(run / "record.json", _MAX_PLAN_BYTES) if run is not None else {}


def _space(directory: Path, checkpoints: Sequence[Checkpoint]) -> Space:
    whole = [each.bytes for each in checkpoints if each.can_resume]
    try:
        about = os.statvfs(directory)
    except OSError:
        return Space(directory, None, None)
    return Space(directory, about.f_bavail * about.f_frsize, whole[-1] if whole else None)


def storage_quota(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the output of the site's quota command, and the reason if it failed; both may be empty."""
    command = environment.get(STORAGE_VARIABLE, "")
    if not command:
        return "", ""
    failed = f"The command in ${STORAGE_VARIABLE} failed"
    try:
        process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except (OSError, ValueError) as error:
        return "", f"{failed}: {error}."
    deadline = time.monotonic() + _STORAGE_S
    text = read_output(process, _MAX_STORAGE_BYTES, deadline).decode(errors="replace")
    if time.monotonic() >= deadline:
        return "", f"{failed}: it took more than {_STORAGE_S:.0f} s."
    lines = [BREAKS.sub(" ", line.expandtabs()).rstrip() for line in text.split("\n")]
    shown = "\n".join(lines)[:_MAX_STORAGE_BYTES].rstrip()
    if process.returncode and not shown:
        return "", f"{failed}: it printed nothing, and its exit status is {process.returncode}."
    return shown, ""


def checkpoint_figure(report: CheckpointReport, *, dark: bool = False) -> dict[str, Any] | None:
    """Return the steps per second of a run over time, with checkpoints marked; None without steps."""
    if report.steps is None or report.cost is None:
        return None
    seconds, numbers = step_intervals(report.steps)
    ends = report.steps.time_ns[-len(seconds) :]
    known = np.flatnonzero(seconds > 0)
    # Many steps are averaged in groups, with one point per group.
    groups = np.array_split(known, min(len(known), _MAX_POINTS))
    times = [int(ends[each[-1]] // 1_000_000) for each in groups if len(each)]
    rates = [float(numbers[each].sum() / seconds[each].sum()) for each in groups if len(each)]
    color = COLORS["blue"][dark]
    line = {
        "type": "scatter", "mode": "lines", "uid": "checkpoints/rate", "name": "steps per second",
        "x": times, "y": [round(each, 4) for each in rates],
        "line": {"color": color, "dash": "solid", "width": 1.6},
        "hovertemplate": "%{y:.3~g} steps per second<extra></extra>",
    }  # fmt: skip
    usual = {
        **line, "uid": "checkpoints/usual", "name": "usual", "x": [times[0], times[-1]],
        "y": [round(1 / report.cost.step_s, 4)] * 2,
        "line": {"color": COLORS["grey"][dark], "dash": "dot", "width": 1.2},
    }  # fmt: skip
    # Marked are the dips at recorded writes, and interruptions that are, or may be, writes without a record.
    dips = [(each.begin_ns, each.end_ns) for each in report.cost.dips]
    marked = sorted((*dips, *report.cost.interruptions_ns))[-_MAX_MARKED:]
    noun = NAMES["regular" if report.cost.regular_count else "checkpoint"][len(marked) != 1]
    plot = Plot(f"Steps per second, {len(marked)} {noun} marked", (line, usual), pixels=160)
    figure = stacked([plot], span_ms=(times[0], times[-1]), dark=dark)
    for begin_ns, end_ns in marked:
        figure = with_time_range(figure, begin_ns, end_ns, dark=dark)
    return figure
