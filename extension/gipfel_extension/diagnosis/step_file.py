"""Steps of a file, JSON lines ``{"rank", "step", "time_ns", "step_s", "work_s"}``, or those of a run."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from ..telemetry.files import open_regular
from ..telemetry.sample import SourceError
from ..telemetry.user_metrics import METRICS_FILE, read_metrics
from .steps import Rows, StepTable, positive, steps_of_metrics

#: A longer file is refused before it is read: two million steps of eight ranks are less.
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


@dataclass
class _Rows:
    parts: list[Rows] = field(default_factory=list)
    lines: int = 0
    damaged: int = 0
    first_damaged: int = 0

    def add(self, lines: list[bytes]) -> None:
        """Take whole lines: together where they are sound, else one by one."""
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
        It can't be opened, is too large, or holds no step.
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


def steps_of_run(run: Path) -> tuple[StepTable | None, tuple[str, ...]]:
    """Return the steps that the ranks of a run logged, None where they logged none, and notes.

    Raises
    ------
    SourceError
        What they logged can't be read, or is not one job's steps.
    """
    try:
        metrics = read_metrics(run)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SourceError(f"The metrics of {run} can't be read: {reason}.", "Name another run.") from error
    noun, are = ("line", "is") if metrics.damaged_lines == 1 else ("lines", "are")
    note = f"{metrics.damaged_lines} {noun} of {METRICS_FILE} could not be read and {are} left out."
    return steps_of_metrics(metrics), (note,) if metrics.damaged_lines else ()


def _read_together(lines: list[bytes]) -> Rows | None:
    """Return the rows of many sound lines; None where each must be checked."""
    text = b"\n".join(lines)
    # Arrow calls itself for each bracket until it crashes, and takes several values on a line for rows.
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
