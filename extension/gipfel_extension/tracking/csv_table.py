"""Scalars of CSV files with a header, such as ``metrics.csv`` of Lightning's CSVLogger.

A column with a name of :mod:`json_lines` is the step, the time or the rank of a row; each other number is a
metric. Empty cells, which Lightning writes for metrics that a row does not hold, are no values.
"""

import csv

from .growing_file import GrowingFile
from .json_lines import RANKS, STEPS, TIMES
from .repeats import Repeats
from .scalar import Scalar, nanoseconds, plausible_time, step_number
from .text_lines import LineReader

_MAX_COLUMNS = 1000


class CsvReader(LineReader):
    """Reader of a CSV file whose first line is its header."""

    def __init__(self, file: GrowingFile, rank: int | None = None) -> None:
        super().__init__(file, rank)
        self._repeats = Repeats()
        self._restarts = 0
        self._header: list[str] | None = None

    def read(self, *, last: bool = False) -> list[Scalar] | None:
        """Return the scalars of the next rows; None where there are no more."""
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
            # The rest of the piece is lost; a quote that is never closed, or a cell beyond csv's own limit.
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
