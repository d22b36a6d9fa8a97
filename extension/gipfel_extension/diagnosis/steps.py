"""Steps of a job as a table: one row per rank, one column per step; read from a file or from a run."""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from ..telemetry.files import open_regular
from ..telemetry.sample import SourceError
from ..telemetry.user_metrics import METRICS_FILE, UserMetrics, read_metrics
from .robust import Floats, median

#: Most cells of a table, enough for 100 000 steps of 1 024 ranks.
_MOST_CELLS = 110_000_000
#: Steps that were reported by less than this share of the ranks are left out.
_LEAST_SHARE = 0.5

Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats, Floats]
#: Largest file in bytes, enough for two million steps of eight ranks; larger files are refused unread.
MOST_BYTES = 2 << 30
_PIECE_BYTES = 8 << 20
_LONGEST_LINE = 64 << 10
_MOST_RANK = 1 << 24
_FIX = 'Give JSON lines such as {"rank": 0, "step": 1, "time_ns": 0, "step_s": 1.0, "work_s": 0.9}.'
_SCHEMA = pa.schema(
    [
        ("rank", pa.int64()),
        ("step", pa.int64()),
        ("time_ns", pa.int64()),
        ("step_s", pa.float64()),
        ("work_s", pa.float64()),
    ]
)


@dataclass(frozen=True)
class StepTable:
    """Durations of the steps of each rank; NaN stands for missing.

    Parameters
    ----------
    ranks, steps
        Numbers of the ranks and steps, ascending; shapes (n,) and (m,).
    time_ns
        UTC nanoseconds at which the first rank reported each step, shape (m,).
    step_s
        Seconds of the whole step, shape (n, m).
    work_s
        Seconds of the step in which the rank did not wait for others, shape (n, m).
    """

    ranks: NDArray[np.int64]
    steps: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    step_s: Floats
    work_s: Floats

    @classmethod
    def of_rows(cls, rows: Rows) -> "StepTable":
        """Return the table for rows in any order, given as columns rank, step, time_ns, step_s and work_s.

        If a rank reported a step twice, for example after a restart from a checkpoint, the last report
        counts.

        Raises
        ------
        SourceError
            There is no row, or hardly any step was reported by more than a few ranks.
        """
        rank, step, time_ns, step_s, work_s = rows
        if not len(rank):
            raise SourceError("There is no step.", "Log them: log(step=…, step_s=…, work_s=…).")
        order = np.lexsort((time_ns, rank, step))
        # Keep the last of equal pairs of rank and step.
        last = np.append((np.diff(step[order]) != 0) | (np.diff(rank[order]) != 0), True)
        order = order[last]
        ranks, row = np.unique(rank[order], return_inverse=True)
        steps, column, count = np.unique(step[order], return_inverse=True, return_counts=True)
        kept = count >= max(1.0, _LEAST_SHARE * min(len(ranks), int(count.max())))
        if len(ranks) * int(kept.sum()) > min(_MOST_CELLS, 1000 + 4 * len(order)):
            raise SourceError(
                f"{len(order)} rows of {len(ranks)} ranks and {len(steps)} steps are not one job's steps: "
                "most ranks lack most steps.",
                "Give the steps of one job.",
            )
        place = np.cumsum(kept) - 1
        chosen = kept[column]
        row, column, order = row[chosen], place[column[chosen]], order[chosen]
        shape = len(ranks), int(kept.sum())
        matrices = []
        for values in (step_s, work_s):
            matrix = np.full(shape, np.nan)
            matrix[row, column] = values[order]
            matrices.append(matrix)
        first = np.full(shape[1], np.iinfo(np.int64).max)
        np.minimum.at(first, column, time_ns[order])
        return cls(ranks, steps[kept], first, matrices[0], matrices[1])

    def part(self, first: int, last: int | None = None) -> "StepTable":
        """Return the columns from `first` up to, but not including, `last`."""
        columns = slice(first, last)
        return replace(
            self,
            steps=self.steps[columns],
            time_ns=self.time_ns[columns],
            step_s=self.step_s[:, columns],
            work_s=self.work_s[:, columns],
        )

    def chosen(self, columns: NDArray[np.bool_]) -> "StepTable":
        """Return some of the columns."""
        return replace(
            self,
            steps=self.steps[columns],
            time_ns=self.time_ns[columns],
            step_s=self.step_s[:, columns],
            work_s=self.work_s[:, columns],
        )

    @property
    def pace(self) -> Floats:
        """Seconds of each step of the job: the ranks' median, or the time between steps if not reported."""
        found = median(self.step_s, axis=0)
        if np.isnan(found).all() and len(self.steps) > 1:
            gaps = np.diff(self.time_ns) / 1e9 / np.maximum(1, np.diff(self.steps))
            # Times that don't increase with the steps can't be used.
            return np.append(np.nan, np.where(gaps > 0, gaps, np.nan))
        return found


def steps_of_metrics(metrics: UserMetrics, launch: str | None = None) -> StepTable | None:
    """Return the steps that a run's ranks logged as ``step``, ``step_s`` and ``work_s``.

    Parameters
    ----------
    launch
        ``RUN/N``; by default the newest launch that logged either duration.

    The result is None if nothing was logged. Lines without a rank count as rank 0; without ``step``, a rank's
    values are numbered from 0.
    """
    names = ("step_s", "work_s")
    known = [each for each in metrics.series if each.name in names and len(each.time_ns)]
    if launch is None and known:
        launch = max(known, key=lambda each: int(each.time_ns[-1])).launch
    known = [each for each in known if each.launch == launch]
    numbers = {
        (each.rank, each.node): each
        for each in metrics.series
        if each.name == "step" and each.launch == launch
    }
    parts: list[Rows] = []
    for rank, node in sorted({(each.rank, each.node) for each in known}, key=str):
        own = {each.name: each for each in known if (each.rank, each.node) == (rank, node)}
        times = np.unique(np.concatenate([each.time_ns for each in own.values()]))
        columns = []
        for name in names:
            values = np.full(len(times), np.nan)
            if name in own:
                values[np.searchsorted(times, own[name].time_ns)] = own[name].values
            columns.append(values)
        counted = numbers.get((rank, node))
        step = np.arange(len(times), dtype=np.int64)
        if counted is not None:
            at = np.searchsorted(counted.time_ns, times).clip(0, len(counted.time_ns) - 1)
            there = (counted.time_ns[at] == times) & (np.abs(counted.values[at]) < 2**53)
            times, columns = times[there], [each[there] for each in columns]
            step = counted.values[at][there].astype(np.int64)
        parts.append((np.full(len(times), rank or 0, np.int64), step, times, columns[0], columns[1]))
    rows = [np.concatenate(each) for each in zip(*parts, strict=True)]
    if not rows or not len(rows[0]):
        return None
    return StepTable.of_rows((rows[0], rows[1], rows[2], positive(rows[3]), positive(rows[4])))


def positive(values: Floats) -> Floats:
    """Return durations, with NaN instead of values that are not positive numbers."""
    return np.where((values > 0) & (values < 1e9), values, np.nan)


@dataclass
class _Rows:
    parts: list[Rows] = field(default_factory=list)
    lines: int = 0
    damaged: int = 0
    first_damaged: int = 0

    def add(self, lines: list[bytes]) -> None:
        """Add complete lines: all at once if they are valid, else one by one."""
        part = _read_together(lines)
        if part is None:
            part = self._read_each(lines)
        self.parts.append(part)
        self.lines += len(lines)

    def _read_each(self, lines: list[bytes]) -> Rows:
        rows: list[tuple[int, int, int, float, float]] = []
        for number, line in enumerate(lines, self.lines + 1):
            if not line.strip():
                continue
            try:
                rows.append(_row(json.loads(line)))
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                self.damaged += 1
                self.first_damaged = self.first_damaged or number
        columns = list(zip(*rows, strict=True)) or [()] * 5
        rank, step, time_ns = (np.array(each, np.int64) for each in columns[:3])
        step_s, work_s = (np.array(each, np.float64) for each in columns[3:])
        return rank, step, time_ns, step_s, work_s


def read_step_file(path: Path) -> tuple[StepTable, tuple[str, ...]]:
    """Return the steps of a file, and notes on lines that could not be read.

    Raises
    ------
    SourceError
        The file can't be opened, is too large, or has no steps.
    """
    found = _Rows()
    try:
        with open_regular(path, follow=True) as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise SourceError(f"{path} is larger than {MOST_BYTES >> 30} GiB.", "Give a part of the run.")
            rest, skipping, left = b"", False, MOST_BYTES
            while left > 0 and (piece := file.read(min(_PIECE_BYTES, left))):
                left -= len(piece)
                *lines, rest = (rest + piece).split(b"\n")
                if skipping and lines:
                    lines, skipping = lines[1:], False
                if len(rest) > _LONGEST_LINE:
                    found.damaged += not skipping
                    found.first_damaged = found.first_damaged or found.lines + len(lines) + 1
                    rest, skipping = b"", True
                if lines:
                    found.add(lines)
            if rest.strip() and not skipping:
                found.add([rest])
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror or error}.", _FIX) from error
    whole = [np.concatenate(each) for each in zip(*found.parts, strict=True)]
    if not whole or not len(whole[0]):
        raise SourceError(f"{path} holds no step.", _FIX)
    table = StepTable.of_rows((whole[0], whole[1], whole[2], positive(whole[3]), positive(whole[4])))
    if not found.damaged:
        return table, ()
    noun, are = ("line", "is") if found.damaged == 1 else ("lines", "are")
    note = (
        f"{found.damaged} {noun} of {path.name} could not be read and {are} left out; the first is line "
        f"{found.first_damaged}."
    )
    return table, (note,)


def metrics_of_run(run: Path) -> tuple[UserMetrics, tuple[str, ...]]:
    """Return what a run's processes logged, and a note if some of it is damaged.

    Raises
    ------
    SourceError
        The logged values can't be read.
    """
    try:
        metrics = read_metrics(run)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SourceError(f"The metrics of {run} can't be read: {reason}.", "Name another run.") from error
    noun, are = ("line", "is") if metrics.damaged_lines == 1 else ("lines", "are")
    note = f"{metrics.damaged_lines} {noun} of {METRICS_FILE} could not be read and {are} left out."
    return metrics, (note,) if metrics.damaged_lines else ()


def steps_of_run(run: Path) -> tuple[StepTable | None, tuple[str, ...]]:
    """Return the steps that the ranks of a run logged (None if they logged none), and notes.

    Raises
    ------
    SourceError
        The logged values can't be read, or are not the steps of one job.
    """
    metrics, notes = metrics_of_run(run)
    return steps_of_metrics(metrics), notes


def _read_together(lines: list[bytes]) -> Rows | None:
    """Return the rows of many valid lines; None if each line must be checked."""
    text = b"\n".join(lines)
    # Arrow's parser recurses at each bracket until it crashes, and reads several values on a line as rows.
    flat = text.count(b"{") == len(lines) == text.count(b'"rank"') and b"[" not in text
    if not flat or len(lines) < 100 or any(len(line) > _LONGEST_LINE for line in lines):
        return None
    options = pyarrow.json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
    try:
        table = pyarrow.json.read_json(pa.BufferReader(text), parse_options=options)
    except pa.ArrowException:
        return None
    columns = [table.column(name).combine_chunks() for name in _SCHEMA.names]
    if table.num_rows != len(lines) or any(column.null_count for column in columns[:3]):
        return None
    rank, step, time_ns, step_s, work_s = (column.to_numpy(zero_copy_only=False) for column in columns)
    if rank.min() < 0 or rank.max() > _MOST_RANK:
        return None
    return rank, step, time_ns, step_s.astype(np.float64), work_s.astype(np.float64)


def _row(content: Any) -> tuple[int, int, int, float, float]:
    rank, step = content["rank"], content["step"]
    time_ns = content.get("time_ns") or 0
    if any(type(each) is not int or abs(each) >= 2**63 for each in (rank, step, time_ns)):
        raise ValueError("a rank, step or time is not a whole number")
    if not 0 <= rank <= _MOST_RANK:
        raise ValueError("a rank is out of range")
    return rank, step, time_ns, _seconds(content.get("step_s")), _seconds(content.get("work_s"))


def _seconds(value: Any) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a duration is not a number")
    return float(value)
