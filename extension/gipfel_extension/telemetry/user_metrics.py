"""User metrics of a run: ``metrics.jsonl``, which ``gipfel_widgets.log`` appends to.

A line is an object with ``time_ns``, ``monotonic_ns``, ``node``, ``rank`` and ``values``, and with ``launch``
where a launch's rank wrote it. Any other line, such as the last line of a killed process, is counted and
skipped.
"""

import errno
import json
import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .files import open_regular

#: Name of the file in a run folder.
METRICS_FILE = "metrics.jsonl"

#: From this size on, lines are parsed together by Arrow.
_MANY_BYTES = 1 << 17
#: Bytes that are read at a time.
_PIECE_BYTES = 16 << 20
#: Of a longer file, only the end is read. This size holds a day of a hundred ranks that log every second.
_MAX_BYTES = 1 << 30
#: A longer line does not hold metrics.
_MAX_LINE = 1 << 20
#: Maximum number of series (metric, rank, launch); further ones are skipped and counted.
_MAX_SERIES = 20_000
_MAX_PASSES = 1_000_000
#: Limits for parsing lines with Arrow, see `_is_flat`: brackets in a line, and distinct names.
_MAX_BRACKETS = 64
_MAX_NAMES = 500
_NAME = re.compile(rb'"([^"]*)"\s*:')
_NO_RANK = -1

_Key = tuple[str, str, int | None, str]
_Part = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


@dataclass(frozen=True)
class UserMetric:
    """One metric of one rank of one launch, sorted by time.

    Parameters
    ----------
    rank
        None where the process did not set one.
    launch
        ``RUN/N`` of the rank's launch; empty outside of launches.
    time_ns
        UTC since the epoch, the same clock as that of the samples.
    values
        NaN where null was logged.
    """

    name: str
    node: str
    rank: int | None
    time_ns: NDArray[np.int64]
    monotonic_ns: NDArray[np.int64]
    values: NDArray[np.float64]
    launch: str = ""


@dataclass(frozen=True)
class UserMetrics:
    """User metrics that the processes of a run logged.

    Parameters
    ----------
    damaged_lines
        Number of lines that could not be parsed. Text values are skipped too, but not counted.
    lost_calls
        Number of log calls that a process could not write, as it reported later.
    """

    series: tuple[UserMetric, ...] = ()
    damaged_lines: int = 0
    lost_calls: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order in which they first occurred."""
        return tuple(dict.fromkeys(series.name for series in self.series))

    def find(self, name: str, rank: int | None = None, launch: str | None = None) -> UserMetric | None:
        """Return a metric by name; by default that of the newest launch and of its lowest rank."""
        found = [
            each
            for each in self.series
            if each.name == name and rank in (None, each.rank) and launch in (None, each.launch)
        ]
        if launch is None and found:
            newest = max(found, key=lambda each: int(each.time_ns[-1]) if len(each.time_ns) else 0).launch
            found = [each for each in found if each.launch == newest]
        return min(found, key=lambda each: -1 if each.rank is None else each.rank, default=None)

    def launches(self, name: str | None = None) -> tuple[str, ...]:
        """Return the launches that logged the metric, or any metric, by first time; "" for no launch."""
        first_times: dict[str, int] = {}
        for each in self.series:
            if name in (None, each.name) and len(each.time_ns):
                first = int(each.time_ns[0])
                first_times[each.launch] = min(first, first_times.get(each.launch, first))
        return tuple(sorted(first_times, key=lambda launch: first_times[launch]))

    @classmethod
    def union(cls, parts: Sequence["UserMetrics"]) -> "UserMetrics":
        """Return the metrics of several runs; of a metric that several have, the first."""
        series: dict[_Key, UserMetric] = {}
        for part in parts:
            for each in part.series:
                series.setdefault((each.name, each.node, each.rank, each.launch), each)
        return cls(
            tuple(series.values()),
            sum(part.damaged_lines for part in parts),
            sum(part.lost_calls for part in parts),
        )

    def between(self, first_ns: int, last_ns: int = 2**63 - 1) -> "UserMetrics":
        """Return the values from `first_ns` to `last_ns`, both included; drop metrics without such values."""
        kept = []
        for each in self.series:
            start = int(np.searchsorted(each.time_ns, first_ns))
            end = int(np.searchsorted(each.time_ns, last_ns, side="right"))
            if end > start:
                rows = slice(start, end)
                columns = {name: getattr(each, name)[rows] for name in ("time_ns", "monotonic_ns", "values")}
                kept.append(replace(each, **columns))
        return UserMetrics(tuple(kept), self.damaged_lines, self.lost_calls)


class MetricsReader:
    """Incremental reader of a metrics file; a poll reads only what was appended.

    Parameters
    ----------
    path
        ``metrics.jsonl``, which may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""
        self._skipping = False
        self._parts: dict[_Key, list[_Part]] = {}
        self._damaged = self._lost = 0
        self._known: UserMetrics | None = None

    def poll(self) -> bool:
        """Read what was appended, or all of a replaced file; return whether there were new lines.

        Raises
        ------
        OSError
            The file exists and cannot be read.
        """
        found = False
        try:
            with open_regular(self._path) as file:
                about = os.fstat(file.fileno())
                if (about.st_dev, about.st_ino) != self._file or about.st_size < self._offset:
                    self._begin(about)
                while data := _next_piece(file, self._offset):
                    self._offset, piece = data
                    found |= self._add(piece)
        except FileNotFoundError:
            return False
        return found

    def metrics(self) -> UserMetrics:
        """Return all metrics read so far; an unfinished last line is neither included nor counted."""
        if self._known is None:
            self._known = self._joined()
        return self._known

    def _begin(self, status: os.stat_result) -> None:
        self._file = status.st_dev, status.st_ino
        self._offset = max(0, status.st_size - _MAX_BYTES)
        # The last part of a long file starts within a line.
        self._rest, self._skipping = b"", self._offset > 0
        self._parts = {}
        self._damaged = self._lost = 0
        self._known = None

    def _add(self, data: bytes) -> bool:
        """Parse a piece of the file; return whether a line ended in it."""
        whole, end, rest = (self._rest + data).rpartition(b"\n")
        if len(rest) > _MAX_LINE:
            self._damaged += not self._skipping
            rest, self._skipping = b"", True
        self._rest = rest
        if not end:
            return False
        if self._skipping:
            _, _, whole = whole.partition(b"\n")
            self._skipping = False
        self._known = None
        parts = _read_many(whole) if len(whole) > _MANY_BYTES else None
        for key, part in (self._read_each(whole) if parts is None else parts).items():
            if key in self._parts or len(self._parts) < _MAX_SERIES:
                self._parts.setdefault(key, []).append(part)
            else:
                self._damaged += len(part[0])
        return True

    def _joined(self) -> UserMetrics:
        series = []
        for key, parts in self._parts.items():
            time_ns, monotonic_ns, values = (np.concatenate(each) for each in zip(*parts, strict=True))
            self._parts[key] = [(time_ns, monotonic_ns, values)]
            # Several processes with one rank, or a clock that was set, write out of order.
            order = np.argsort(time_ns, kind="stable")
            name, node, rank, launch = key
            columns = (time_ns[order], monotonic_ns[order], values[order])
            series.append(UserMetric(name, node, rank, *columns, launch))
        return UserMetrics(tuple(series), self._damaged, self._lost)

    def _read_each(self, lines: bytes) -> dict[_Key, _Part]:
        rows: dict[_Key, list[tuple[int, int, float]]] = {}
        for line in filter(None, lines.split(b"\n")):
            try:
                content = json.loads(line)
                when = _when(content)
                rank = None if content["rank"] is None else int(content["rank"])
                node, values = str(content["node"]), dict(content["values"])
                launch = content.get("launch")
                self._lost += int(content.get("lost", 0))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
                self._damaged += 1
                continue
            for name, value in values.items():
                if value is None or isinstance(value, int | float):
                    key = (name, node, rank, launch if isinstance(launch, str) else "")
                    rows.setdefault(key, []).append((*when, _number(value)))
        return {key: _part(*zip(*found, strict=True)) for key, found in rows.items()}


def _next_piece(file: BinaryIO, offset: int) -> tuple[int, bytes] | None:
    """Return the end offset and the bytes of the next piece of a file; skip the holes of a sparse file."""
    try:
        offset = os.lseek(file.fileno(), offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
    data = os.pread(file.fileno(), _PIECE_BYTES, offset)
    return (offset + len(data), data) if data else None


def _when(content: Any) -> tuple[int, int]:
    times = content["time_ns"], content["monotonic_ns"]
    if any(type(each) is not int or abs(each) >= 2**63 for each in times):
        raise ValueError("it has no valid times")
    return times


def _part(times: Sequence[int], monotonic: Sequence[int], values: Sequence[float]) -> _Part:
    return np.array(times, np.int64), np.array(monotonic, np.int64), np.array(values, np.float64)


def _read_many(lines: bytes) -> dict[_Key, _Part] | None:
    """Parse many lines at once, several times as fast; return None where each line must be checked."""
    if not _is_flat(lines):
        return None
    if lines.count(b"null") != lines.count(b'"rank":null') or b'"lost"' in lines:
        # In a column, a logged null looks like a value that was not logged.
        return None
    import pyarrow.json  # noqa: PLC0415 - most runs have few lines

    fields = [(name, pa.int64()) for name in ("time_ns", "monotonic_ns", "rank")]
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(lines),
            read_options=pyarrow.json.ReadOptions(block_size=1 << 23),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([*fields, ("node", pa.string()), ("launch", pa.string())])
            ),
        ).combine_chunks()
        needed = [table.column(name) for name in ("time_ns", "monotonic_ns", "node", "values")]
        values = table.column("values").combine_chunks()
        columns = {
            values.type.field(index).name: values.field(index) for index in range(values.type.num_fields)
        }
    except (pa.ArrowException, KeyError, AttributeError):
        return None
    if any(column.null_count for column in needed):
        return None
    times, monotonic = (column.to_numpy() for column in needed[:2])
    launches = table.column("launch").combine_chunks().fill_null("")
    writers = _writers(needed[2].combine_chunks(), table.column("rank").combine_chunks(), launches)
    if len(writers) * len(columns) > _MAX_PASSES:
        return None
    parts = {}
    for name, column in columns.items():
        kind = column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            continue
        numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        for writer, writer_rows in writers.items():
            rows = writer_rows[valid[writer_rows]]
            if len(rows):
                parts[(name, *writer)] = times[rows], monotonic[rows], numbers[rows]
    return parts


def _is_flat(lines: bytes) -> bool:
    """Return whether the lines have few distinct names and no line has many brackets.

    Arrow allocates a full column for each name and recurses into each nesting level until it crashes.
    """
    few_names = len(set(_NAME.findall(lines))) <= _MAX_NAMES
    return few_names and all(
        line.count(b"{") + line.count(b"[") <= _MAX_BRACKETS for line in lines.split(b"\n")
    )


def _writers(nodes: Any, ranks: Any, launches: Any) -> dict[tuple[str, int | None, str], NDArray[np.int64]]:
    """Return the rows of each writer; a writer is identified by node, rank and launch."""
    node_codes, launch_codes = nodes.dictionary_encode(), launches.dictionary_encode()
    node_names, launch_names = node_codes.dictionary.to_pylist(), launch_codes.dictionary.to_pylist()
    codes = ranks.fill_null(_NO_RANK).to_numpy() * len(node_names) + node_codes.indices.to_numpy()
    codes = codes * len(launch_names) + launch_codes.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    unique_codes, first = np.unique(codes[order], return_index=True)
    writers = {}
    for code, rows in zip(unique_codes.tolist(), np.split(order, first[1:]), strict=True):
        rank_and_node, launch = divmod(code, len(launch_names))
        rank, node = divmod(rank_and_node, len(node_names))
        writers[(node_names[node], None if rank == _NO_RANK else rank, launch_names[launch])] = rows
    return writers


def read_metrics(run: Path) -> UserMetrics:
    """Return the user metrics of a run folder; empty where the file is missing.

    Raises
    ------
    OSError
        The file exists and cannot be read.
    """
    reader = MetricsReader(run / METRICS_FILE)
    reader.poll()
    return reader.metrics()


def _number(value: float | None) -> float:
    with suppress(OverflowError):
        return math.nan if value is None else float(value)
    return math.nan
