"""Output of a launch's ranks: their logs, and the progress and curve that they log as metrics.

Lines of programs have no times, so `LogTimes` regularly writes the size of each log to ``times.jsonl``.
Progress comes from the end of ``metrics.jsonl``. Several launches may log into one run, so `metric_lines`
selects the lines of the launch's ranks.
"""

import json
import math
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from gipfel_cluster.model import Frozen
from gipfel_cluster.regular_files import read_tail_lines
from gipfel_cluster.workloads.logs import LogFiles, LogLine

from ...telemetry.files import open_log
from ..record import LaunchState

if TYPE_CHECKING:
    from ...tracking.run_metrics import MetricsDirectory, OpenFile

__all__ = [
    "RATES",
    "ErrorLines",
    "LogTimes",
    "MetricLine",
    "Progress",
    "TrainingCurve",
    "launch_logs",
    "metric_lines",
    "read_progress",
    "read_training_curve",
]


TIMES = "times.jsonl"
_EVERY_S = 1.0
_MAX_RANKS = 256
#: Rank, text, milliseconds since 1970 or None, and whether the line is about an error.
LogRow = tuple[int, str, int | None, bool]
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(
    r"\b[A-Za-z_.]*(?:Error|Exception|Interrupt)\b|\b(?:error|fatal|failed|failure|killed|segfault|abort(?:ed)?)\b"
    r"|Segmentation fault|out of memory|Signal \d+",
    re.IGNORECASE,
)


def launch_logs(folder: Path) -> LogFiles:
    """Return the logs of a launch's ranks."""
    numbers = {path: path.stem.removeprefix("rank-") for path in folder.glob("rank-*.log")}
    found = {int(number): path for path, number in numbers.items() if number.isdecimal()}
    return LogFiles(found, folder / TIMES)


class ErrorLines:
    """Detector of lines about errors, which include all lines of a traceback.

    Parameters
    ----------
    in_traceback
        Ranks whose next line belongs to a traceback.
    """

    def __init__(self, in_traceback: Iterable[int] = ()) -> None:
        self.in_traceback = set(in_traceback)

    def is_error(self, line: LogLine) -> bool:
        """Return whether a line is about an error; it must be the next line of its rank."""
        # Prefix that torch's launcher and papermill add to a line.
        text = re.sub(r"^\[[^\]]{0,60}\]:", "", line.text)
        if _TRACEBACK in text:
            self.in_traceback.add(line.rank)
            return True
        if line.rank in self.in_traceback:
            if text[:1] not in {" ", "\t", ""}:
                self.in_traceback.discard(line.rank)
            return True
        return bool(_ERROR.search(text))

    def mark(self, lines: Iterable[LogLine]) -> list[LogRow]:
        """Return the lines as `LogRow`."""
        return [
            (
                line.rank,
                line.text.encode(errors="replace").decode(),
                None if line.time_ns is None else line.time_ns // 1_000_000,
                self.is_error(line),
            )
            for line in lines
        ]


class LogTimes:
    """Recorder of the sizes of the ranks' logs, at most once per second.

    Parameters
    ----------
    metrics
        Follower of the metrics in the lines of the logs, if there is one.
    """

    def __init__(self, folder: Path, metrics: "MetricsDirectory | None" = None) -> None:
        self._folder = folder
        self._metrics = metrics
        self._sizes: dict[str, int] = {}
        self._recorded_at = 0.0

    def record_growth(self) -> None:
        """Write the sizes of logs that have grown."""
        now = time.monotonic()
        if now - self._recorded_at < _EVERY_S:
            return
        self._recorded_at = now
        if self._metrics is not None:
            self._metrics.poll()
        grown, written_ns = {}, 0
        with suppress(OSError):
            for path in self._folder.glob("rank-*.log"):
                rank = path.stem.removeprefix("rank-")
                if rank.isdecimal() and int(rank) < _MAX_RANKS:
                    status = path.stat()
                    if status.st_size != self._sizes.get(rank):
                        self._sizes[rank] = grown[rank] = status.st_size
                        written_ns = max(written_ns, status.st_mtime_ns)
            if grown:
                # Readers take this for lines without a recorded time: a line keeps the time it had first.
                content = [min(written_ns, time.time_ns()), grown]
                with os.fdopen(open_log(self._folder / TIMES), "a") as file:
                    file.write(json.dumps(content, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Read the rest of the logs' metrics; takes up to 10 s."""
        if self._metrics is not None:
            self._metrics.close()


class RankLogs:
    """The ranks' logs of a launch as files with metrics, for `MetricsDirectory`."""

    inside_run = True

    def __init__(self, folder: Path, pattern: str) -> None:
        from ...tracking.find import log_kind  # noqa: PLC0415 - pyarrow is slow to import
        from ...tracking.text_formats import LogPattern  # noqa: PLC0415

        self._folder = folder
        self._kind = log_kind(LogPattern(pattern))

    def find(self) -> "list[OpenFile]":
        """Return the log of each rank."""
        from ...tracking.run_metrics import OpenFile  # noqa: PLC0415

        files = launch_logs(self._folder).files
        return [OpenFile(path.resolve(), self._kind, rank) for rank, path in files.items()]


def metrics_of_logs(folder: Path, run: str, pattern: str, node: str) -> "MetricsDirectory | None":
    """Return a follower that copies metrics from the ranks' logs into a run; None without run or pattern."""
    if not pattern or not run:
        return None
    from ...telemetry.sources import SystemClock  # noqa: PLC0415
    from ...tracking.run_metrics import MetricsDirectory  # noqa: PLC0415

    clock = SystemClock()
    name = f"{folder.parent.parent.name}/{folder.name}"
    logs = RankLogs(folder, pattern)
    return MetricsDirectory(
        None, Path(run), node, clock, since_ns=clock.time_ns(), open_files=logs, launch=name
    )


#: Rank, time since 1970 in ns, finite numbers by name.
MetricLine = tuple[int, int, dict[str, float]]
_TAIL_BYTES = 64 << 10
_TOTALS = ("total_steps", "max_steps", "steps")
_CURVE_TAIL_BYTES = 256 << 10
_MAX_POINTS = 120
_LOSSES = ("loss", "train_loss", "train/loss")
RATES = ("tokens_per_s", "samples_per_s", "images_per_s")
#: Number of the last lines from which steps per second are computed.
_RECENT_LINES = 20


class Progress(Frozen):
    """The last metrics of rank 0, or of the lowest rank that logs any.

    ``step`` and ``total`` are the current step and the number of steps, if logged; ``fraction`` is the
    finished share, from 0 to 1. ``time_ns`` is the time of the last line (UTC).
    """

    values: dict[str, float] = Field(default={})
    step: float | None = None
    total: float | None = None
    time_ns: int | None = None
    fraction: float | None = None


def read_progress(folder: Path, state: LaunchState) -> Progress:
    """Read the end of the launch's metrics, else of the metrics in its run since the launch started."""
    lines = _lowest_rank(folder, state, _TAIL_BYTES)
    if not lines:
        return Progress()
    values = {name: value for _, numbers in lines for name, value in numbers.items()}
    total = next((values[name] for name in _TOTALS if name in values), None)
    step = values.get("step")
    fraction = max(0.0, min(1.0, step / total)) if total and step is not None else None
    return Progress(values=values, step=step, total=total, time_ns=lines[-1][0], fraction=fraction)


class TrainingCurve(Frozen):
    """Recent metrics of a rank: pairs of step and loss, steps per second, and a rate that it logs itself.

    ``rate_name`` is the name of that metric, such as ``tokens_per_s``; empty if there is none.
    """

    losses: tuple[tuple[float, float], ...] = Field(default=())
    steps_per_s: float | None = None
    rate: float | None = None
    rate_name: str = ""


def read_training_curve(folder: Path, state: LaunchState) -> TrainingCurve:
    """Read the end of the metrics of the lowest rank that logs: those of the launch, else of its run."""
    lines = _lowest_rank(folder, state, _CURVE_TAIL_BYTES)
    steps = [(time_ns, values["step"]) for time_ns, values in lines if "step" in values]
    losses = [
        (values.get("step", float(number)), next(values[name] for name in _LOSSES if name in values))
        for number, (_, values) in enumerate(lines)
        if not values.keys().isdisjoint(_LOSSES)
    ]
    recent = steps[-_RECENT_LINES:]
    steps_per_s = None
    if len(recent) > 1 and recent[-1][0] > recent[0][0] and recent[-1][1] > recent[0][1]:
        steps_per_s = (recent[-1][1] - recent[0][1]) / ((recent[-1][0] - recent[0][0]) / 1e9)
        # The difference of two finite numbers may overflow.
        steps_per_s = steps_per_s if math.isfinite(steps_per_s) else None
    found = [(name, values[name]) for _, values in lines for name in RATES if name in values]
    rate_name, rate = found[-1] if found else ("", None)
    every = max(1, -(-len(losses) // _MAX_POINTS))
    return TrainingCurve(
        losses=tuple(losses[::-every][::-1]), steps_per_s=steps_per_s, rate=rate, rate_name=rate_name
    )


def _lowest_rank(folder: Path, state: LaunchState, max_bytes: int) -> list[tuple[int, dict[str, float]]]:
    """Return times and numbers of the lowest rank at the end of the launch's metrics, else of its run's."""
    for path in (folder / "metrics.jsonl", Path(state.run, "metrics.jsonl") if state.run else None):
        lines = metric_lines(path, folder, state, max_bytes=max_bytes) if path is not None else []
        if lines:
            lowest = min(rank for rank, _, _ in lines)
            return [(time_ns, numbers) for rank, time_ns, numbers in lines if rank == lowest]
    return []


def metric_lines(path: Path, folder: Path, state: LaunchState, *, max_bytes: int) -> list[MetricLine]:
    """Return the lines that a launch's ranks have logged, in the order of the file; empty if unreadable.

    Lines without the name of a launch, from an older ``gipfel_widgets``, are used only if no line has one.
    """
    own_lines: list[MetricLine] = []
    unnamed_lines: list[MetricLine] = []
    name = f"{folder.parents[1].name}/{folder.name}"
    for line in read_tail_lines(path, max_bytes):
        try:
            logged = json.loads(line)
            rank, time_ns = int(logged.get("rank") or 0), int(logged["time_ns"])
            numbers = {
                str(key): float(each)
                for key, each in logged["values"].items()
                if isinstance(each, int | float) and math.isfinite(each)
            }
            launch = logged.get("launch")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
        if (state.started_ns or 0) <= time_ns <= (state.ended_ns or time_ns) and launch in (None, name):
            (unnamed_lines if launch is None else own_lines).append((rank, time_ns, numbers))
    return own_lines or unnamed_lines
