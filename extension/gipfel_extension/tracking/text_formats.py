r"""Scalars of JSON lines, CSV files and logs.

JSON lines have one object per line, such as ``{"step": 1, "loss": 0.5}``. The step is the first existing key
of ``step``, ``global_step``, ``_step``, ``iteration`` and ``iter``, the time the first of ``time_ns``,
``timestamp``, ``time``, ``_timestamp`` and ``wall_time`` (UTC; ``time_ns`` in nanoseconds, the others in
seconds since the epoch), and the rank ``rank`` or ``global_rank``. Every other number is a metric. An object
below ``values``, ``metrics`` or ``data`` holds metrics too; metrics in other objects get their key as a
prefix: ``train/loss``.

CSV files have a header, such as ``metrics.csv`` of Lightning's CSVLogger. A column with one of the names
above is the step, the time or the rank of a row; each other number is a metric. Empty cells, which
Lightning writes for metrics that a row does not hold, are not values.

Logs are read by a regular expression with named groups, ``step (?P<step>\d+) .*loss (?P<loss>\S+)``: the
group ``step`` is the step, ``time`` seconds since the epoch, ``rank`` the rank, and every other group a
metric; ``__`` in its name stands for a slash. Only the first match in a line is used. Expressions are those
of RE2, which is part of Arrow: matching takes linear time for any expression and text, so look-ahead and
back-references are not supported.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from .growing_file import GrowingFile, LineReader
from .scalar import Scalar, nanoseconds, number, plausible_time, step_number
from .trainer_state import Repeats

STEPS = ("step", "global_step", "_step", "iteration", "iter")
TIMES = ("time_ns", "timestamp", "time", "_timestamp", "wall_time")
RANKS = ("rank", "global_rank")
_PLAIN = ("values", "metrics", "data")
#: Names that describe the line or its writer, and are not metrics. ``lost`` is the number of
#: calls that Gipfel's own logger could not write.
_NO_METRICS = frozenset((*STEPS, *TIMES, *RANKS, "monotonic_ns", "lost"))
_MAX_DEPTH = 3
_MAX_VALUES = 1000


class JsonLinesReader(LineReader):
    """Reader of a file of JSON lines; lines that are not objects are dropped and counted."""

    def read(self, *, last: bool = False) -> list[Scalar] | None:
        """Return the scalars of the next lines; None where there are no more.

        `last` has the meaning that it has for `TextLines.read`.
        """
        lines = self._lines.read(last=last)
        if lines is None:
            return None
        found: list[Scalar] = []
        for line in lines:
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                content = None
            if isinstance(content, dict):
                self._add(content, found)
            else:
                self._bad += bool(line.strip())
        return found

    def _add(self, content: dict[str, Any], found: list[Scalar]) -> None:
        step = _first(content, STEPS)
        rank = _first(content, RANKS)
        at = step_number(step)
        time_ns = time_of(content)
        of_rank = rank if type(rank) is int and 0 <= rank < 2**31 else self._rank
        for count, (name, value) in enumerate(_numbers(content, "", _MAX_DEPTH)):
            # None also for a name that is too long, or one of too many.
            accepted = self._names.get(name) if count < _MAX_VALUES else None
            if accepted is None:
                self._bad += 1
                if count >= _MAX_VALUES:
                    return
            else:
                found.append(Scalar(accepted, at, time_ns, value, of_rank))


def time_of(content: Mapping[str, Any]) -> int | None:
    """Return the time of an object in UTC nanoseconds; None where it has none."""
    for name in TIMES:
        value = number(content.get(name))
        if value is not None and (found := nanoseconds(value / 1e9 if name == "time_ns" else value)):
            return int(content[name]) if name == "time_ns" else found
    return None


def _first(content: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name in content:
            return content[name]
    inner = next((content[name] for name in _PLAIN if isinstance(content.get(name), dict)), None)
    return None if inner is None else next((inner[name] for name in names if name in inner), None)


def _numbers(content: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, float]]:
    for name, value in content.items():
        if isinstance(value, dict):
            if depth:
                inner = prefix if not prefix and name in _PLAIN else f"{prefix}{name}/"
                yield from _numbers(value, inner, depth - 1)
        elif (found := number(value)) is not None and (prefix or name not in _NO_METRICS):
            yield prefix + name, found


_MAX_COLUMNS = 1000


class CsvReader(LineReader):
    """Reader of a CSV file whose first line is its header.

    A file that was rewritten, as Lightning does for a new metric, is read from its beginning again; `Repeats`
    removes the values that it had before.
    """

    def __init__(self, file: GrowingFile, rank: int | None = None) -> None:
        super().__init__(file, rank)
        self._repeats = Repeats()
        self._restarts = 0
        self._header: list[str] | None = None

    def read(self, *, last: bool = False) -> list[Scalar] | None:
        """Return the scalars of the next rows; None where there are no more.

        `last` has the meaning that it has for `TextLines.read`.
        """
        lines = self._lines.read(last=last)
        if lines is None:
            return (self._repeats.finish() if last else []) or None
        if self._lines.restarts != self._restarts:
            self._restarts, self._header = self._lines.restarts, None
            self._repeats.restart()
        found: list[Scalar] = []
        try:
            for row in csv.reader(line.decode("utf-8", "replace") for line in lines):
                if self._header is None:
                    self._set_header(row)
                else:
                    self._add(row, found)
        except csv.Error:
            # A quote that is never closed, or a cell beyond csv's own limit: the rest of these lines is lost.
            self._bad += 1
        return self._repeats.filter(found)

    def _set_header(self, row: list[str]) -> None:
        self._bad += max(0, len(row) - _MAX_COLUMNS)
        self._header = [cell.strip().lstrip("\ufeff") for cell in row[:_MAX_COLUMNS]]
        self._step = _column(self._header, STEPS)
        self._time = _column(self._header, TIMES)
        self._of_rank = _column(self._header, RANKS)
        chosen = {self._step, self._time, self._of_rank}
        names = [(column, self._names.get(name)) for column, name in enumerate(self._header)]
        self._columns = [
            (column, name) for column, name in names if name is not None and column not in chosen
        ]

    def _add(self, row: list[str], found: list[Scalar]) -> None:
        if self._header is None or len(row) > len(self._header):
            self._bad += 1
            return
        step = step_number(_float(_cell(row, self._step)))
        time_ns = self._time_ns(row)
        rank = step_number(_float(_cell(row, self._of_rank)))
        of_rank = rank if rank is not None and 0 <= rank < 2**31 else self._rank
        for column, name in self._columns:
            if column < len(row) and row[column] and (value := _float(row[column])) is not None:
                found.append(Scalar(name, step, time_ns, value, of_rank))

    def _time_ns(self, row: list[str]) -> int | None:
        text = _cell(row, self._time)
        if self._header is None or not text:
            return None
        if self._header[self._time] == "time_ns":
            return plausible_time(int(text)) if text.isdecimal() and len(text) < 20 else None
        seconds = _float(text)
        return None if seconds is None else nanoseconds(seconds)


def _column(header: list[str], names: tuple[str, ...]) -> int:
    return next((header.index(name) for name in names if name in header), -1)


def _cell(row: list[str], column: int) -> str:
    return row[column] if 0 <= column < len(row) else ""


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_LONGEST = 1000
_MOST_GROUPS = 64
_RESERVED = ("step", "time", "rank")


class PatternError(ValueError):
    """An expression that can't be used: the problem and its fix."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


class LogPattern:
    """A regular expression for lines of a log.

    Raises
    ------
    PatternError
        It is not valid, too long, or has no named group for a metric or too many groups.
    """

    def __init__(self, expression: str) -> None:
        if len(expression) > _LONGEST:
            raise PatternError(f"The expression is longer than {_LONGEST} characters.", "Shorten it.")
        self.expression = expression
        try:
            found = _extract([""], expression)
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0].rstrip(".")[:200]
            raise PatternError(
                f"The expression is not valid: {reason}.",
                "Write, for example, 'step (?P<step>\\d+) .*loss (?P<loss>\\S+)', without look-ahead.",
            ) from error
        self.groups = tuple(field.name for field in found.type)
        if len(self.groups) > _MOST_GROUPS:
            raise PatternError(f"The expression has more than {_MOST_GROUPS} named groups.", "Remove some.")
        if not set(self.groups) - set(_RESERVED):
            raise PatternError(
                "The expression has no named group for a metric.",
                "Write, for example, 'loss (?P<loss>\\S+)'.",
            )

    def match(self, lines: list[bytes]) -> dict[str, list[float | None]]:
        """Return the numbers of each group, for the lines that match."""
        matches = _extract([line.decode("utf-8", "replace") for line in lines], self.expression).drop_null()
        return {
            name: [_number(text) for text in matches.field(index).to_pylist()]
            for index, name in enumerate(self.groups)
        }


class LogPatternReader(LineReader):
    """Reader of a log, where a carriage return ends a line, too; lines without a match aren't damaged."""

    def __init__(self, file: GrowingFile, pattern: LogPattern, rank: int | None = None) -> None:
        super().__init__(file, rank)
        self._pattern = pattern

    def read(self, *, last: bool = False) -> list[Scalar] | None:
        """Return the scalars of the next lines; None where there are no more.

        `last` has the meaning that it has for `TextLines.read`.
        """
        lines = self._lines.read(last=last)
        if lines is None:
            return None
        texts = [part for line in lines for part in line.split(b"\r") if part]
        columns = self._pattern.match(texts) if texts else {}
        count = len(next(iter(columns.values()), ()))
        nothing: list[float | None] = [None] * count
        steps, times, ranks = (columns.get(name, nothing) for name in _RESERVED)
        found: list[Scalar] = []
        for group in columns:
            if group not in _RESERVED:
                name = self._names.get(group.replace("__", "/"))
                for step, when, rank, value in zip(steps, times, ranks, columns[group], strict=True):
                    if value is None or name is None:
                        self._bad += 1
                    else:
                        time_ns = None if when is None else nanoseconds(when)
                        own = self._rank if rank is None or not 0 <= rank < 2**31 else int(rank)
                        found.append(Scalar(name, step_number(step), time_ns, value, own))
        if len(self._pattern.groups) > 1:
            found.sort(key=lambda each: (each.time_ns or 0, each.step or 0))
        return found


def _extract(texts: list[str], expression: str) -> pa.StructArray:
    import pyarrow.compute as pc  # noqa: PLC0415 - few programs have such logs

    return pc.extract_regex(pa.array(texts, pa.string()), pattern=expression)


def _number(text: str | None) -> float | None:
    """Return a number as programs print it: ``1,234.5``, ``12%``, ``3e-4,``; None for other text."""
    if text is None or len(text) > 60:
        return None
    word = text.strip().rstrip(",;%)]}").replace(",", "").replace("_", "")
    try:
        return float(word)
    except ValueError:
        return None
