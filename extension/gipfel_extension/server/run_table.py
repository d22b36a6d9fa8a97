"""The table of a user's runs: columns, conditions and order, for ``gipfel runs list`` and the panel."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.workloads.run_folders import Run, list_runs

from ..telemetry.files import read_tail
from ..telemetry.redaction import redact_value
from ..training.launches.logs import RATES
from ..training.results import program_of_run

_MAX_PARAMETERS, _MAX_VALUE = 50, 200
_CONDITION = re.compile(r"\s*([a-z_][\w.]*)\s*(<=|>=|!=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_MAX_CONDITION = 300
_METRICS_BYTES, _LAST_VALUES = 64 << 10, 20
_PARAMETER = "parameters."
Value = str | float | None


class TableRow(Run):
    """A run with the parameters of its program, in which secrets are hidden, and how fast it was.

    ``throughput`` is the mean of the last values of a rate that rank 0 logged, such as ``tokens_per_s``;
    ``throughput_name`` is its name. Without such a rate they are None and empty.
    """

    parameters: dict[str, str] = Field(default_factory=dict)
    throughput: float | None = None
    throughput_name: str = ""


@dataclass(frozen=True)
class Condition:
    """A condition on a column, such as ``score>=50``; ``~`` finds a substring, ignoring case."""

    column: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Return the condition of a text.

        Raises
        ------
        GipfelError
            The text is not a condition on a column of the table.
        """
        found = _CONDITION.fullmatch(text) if len(text) <= _MAX_CONDITION else None
        if found is None:
            raise GipfelError(
                f"{text[:80]!r} is not a valid condition.", "Use COLUMN, an operator and a value: score>=50."
            )
        _check_column(found[1])
        return cls(found[1], found[2], found[3])

    def holds(self, row: TableRow) -> bool:
        """Return whether a run meets the condition; an unknown value meets only ``!=``."""
        value = value_of(row, self.column)
        if self.operator == "~":
            return value is not None and self.value.lower() in str(value).lower()
        if self.operator in {"=", "!="} and self.column == "tags":
            return (self.value in row.tags) == (self.operator == "=")
        left, right = _comparable(value, self.value)
        if self.operator in {"=", "!="}:
            return (left == right) == (self.operator == "=")
        return left is not None and _ORDER[self.operator](left, right)


_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def run_table(
    environment: Mapping[str, str],
    *,
    conditions: Sequence[Condition] = (),
    sort: str = "modified",
    descending: bool = False,
    max_rows: int | None = None,
) -> list[TableRow]:
    """Return the runs that meet all conditions, sorted by a column; runs without a value come first.

    Parameters
    ----------
    sort
        A column of `TableRow`, or ``parameters.NAME``.
    max_rows
        Number of runs to keep, from the end of the table; None for all.

    Raises
    ------
    GipfelError
        There is no such column.
    """
    _check_column(sort)
    rows = [table_row(each) for each in list_runs(environment)]
    kept = [row for row in rows if all(condition.holds(row) for condition in conditions)]
    known = [row for row in kept if value_of(row, sort) not in {None, ""}]
    known.sort(key=lambda row: _key(value_of(row, sort)), reverse=descending)
    ordered = [*(row for row in kept if value_of(row, sort) in {None, ""}), *known]
    return ordered if max_rows is None else ordered[max(0, len(ordered) - max_rows) :]


def table_row(run: Run) -> TableRow:
    """Return a run with its parameters; reads its record, or the plan of its launch."""
    program = program_of_run(Path(run.folder))
    given = {} if program is None else dict(islice(program.options.items(), _MAX_PARAMETERS))
    shown = {one_line(name)[:80]: one_line(redact_value(name, value)) for name, value in given.items()}
    parameters = {name: value[:_MAX_VALUE] for name, value in shown.items()}
    name, throughput = _throughput(Path(run.folder))
    return TableRow(**run.model_dump(), parameters=parameters, throughput=throughput, throughput_name=name)


def _throughput(run: Path) -> tuple[str, float | None]:
    """Return the first rate of `RATES` in the end of ``metrics.jsonl``, and the mean of its last values."""
    try:
        lines = read_tail(run / "metrics.jsonl", _METRICS_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return "", None
    found: dict[str, list[float]] = {}
    for line in reversed(lines):
        if not any(f'"{name}"' in line for name in RATES):
            continue
        try:
            content = json.loads(line)
            values = content["values"] if content.get("rank") in {None, 0} else {}
            rates = {name: values[name] for name in RATES if name in values}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # The first line may be cut off, and the last one incomplete.
            continue
        for name, value in rates.items():
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(name, []).append(float(value))
    name = next((each for each in RATES if each in found), "")
    last = found.get(name, [])[:_LAST_VALUES]
    return name, math.fsum(last) / len(last) if last else None


def columns() -> tuple[str, ...]:
    """Return the names of the columns; a parameter is ``parameters.NAME``."""
    return tuple(sorted(TableRow.model_fields))


def value_of(row: TableRow, column: str) -> Value:
    """Return the value of a column, texts joined by spaces; None if it is unknown."""
    if column.startswith(_PARAMETER):
        return row.parameters.get(column.removeprefix(_PARAMETER))
    value = getattr(row, column)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, dict):
        return " ".join(f"{name}={each}" for name, each in value.items())
    return value if value is None or isinstance(value, str) else float(value)


def _check_column(name: str) -> None:
    if name in TableRow.model_fields or (name.startswith(_PARAMETER) and len(name) > len(_PARAMETER)):
        return
    raise GipfelError(
        f"The table of runs has no column {name[:40]!r}.", f"Choose one of {', '.join(columns())}."
    )


def _comparable(value: Value, text: str) -> tuple[Value, Value]:
    """Return both as numbers if both are, else as texts; None for an unknown value."""
    if value is None or value == "":
        return None, text
    try:
        return float(value), float(text)
    except ValueError:
        return str(value), text


def _key(value: Value) -> tuple[bool, float, str]:
    """Return a key that sorts numbers before texts; a parameter that is a number is one."""
    try:
        number = float(value or 0)
    except ValueError:
        return True, 0.0, str(value)
    # Sort NaN as text: comparisons with it would leave the numbers in arbitrary order.
    return (True, 0.0, str(value)) if math.isnan(number) else (False, number, "")
