"""Comparison of any number of runs with the first one: configuration, commits, score, losses and rates.

Measurements are compared without regard to noise, except for the pace of runs that logged their steps, whose
noise is known.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gipfel_cluster.job.git_state import GitDifference, git_difference
from gipfel_cluster.model import Frozen, one_line
from gipfel_cluster.workloads.run_folders import find_run

from ..diagnosis.pace import LEAST_STEPS, PaceComparison, RunPace, compare_paces, pace_of
from ..diagnosis.phases import RunPhases
from ..diagnosis.steps import steps_of_run
from ..job.run_diagnosis import diagnose_run
from ..saturation.report.document import compare_documents
from ..saturation.settings import LOSSES, RESOURCES
from ..telemetry.files import read_object, read_record_file
from ..telemetry.redaction import redact_record
from ..telemetry.sample import SourceError
from .history import TimeRange
from .run_table import TableRow, table_row

MAX_RUNS = 20
_MAX_BYTES = 16 << 20
_MAX_ROWS, _MAX_DEPTH, _MAX_VALUE = 500, 8, 500
#: Keys of a record that differ between any two runs, or that are compared elsewhere.
_IDENTITY = frozenset(
    ("schema", "job_id", "started", "ended", "exit_status", "time_limit_ends", "beside", "git", "notes")
)


class ConfigurationRow(Frozen):
    """A key whose values differ between records; a value per run, as JSON or text, None if a run lacks it."""

    key: str
    values: tuple[str | None, ...]


class MeasurementRow(Frozen):
    """A measurement by run; ``changes`` and ``better`` are relative to the first run, None if unknown."""

    name: str
    unit: str
    values: tuple[float | None, ...]
    changes: tuple[float | None, ...]
    better: tuple[bool | None, ...]


class GitRow(Frozen):
    """The commit of a run, and its difference from the first run's commit."""

    commit: str = ""
    branch: str = ""
    changed_files: int | None = None
    same_changes: bool | None = None
    """True if the uncommitted changes are those of the first run; None if unknown."""
    difference: GitDifference | None = None


class RunSteps(Frozen):
    """Steps of a run: duration, interruptions, and changes with the hardware series that changed with them.

    ``phases`` is null if too few steps were logged.
    """

    phases: RunPhases | None = None
    changes: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return duration, interruptions and changes as sentences."""
        return [*(self.phases.sentences() if self.phases else ()), *self.changes]


class RunComparison(Frozen):
    """Comparison of runs with the first one; ``more`` counts differences of the configuration left out."""

    runs: tuple[TableRow, ...]
    configuration: tuple[ConfigurationRow, ...]
    more: int
    git: tuple[GitRow, ...]
    measurements: tuple[MeasurementRow, ...]
    pace: tuple[PaceComparison | None, ...] = ()
    """Comparison of each run's steps with the first run's; None for the first run and runs without steps."""
    steps: tuple[RunSteps, ...] = ()
    """The steps of each run."""


def compare_runs(names: Sequence[str], environment: Mapping[str, str] = os.environ) -> RunComparison:
    """Compare runs with the first one; reads the samples of a run that has no saved score.

    Raises
    ------
    GipfelError
        There is no such run.
    """
    rows = tuple(table_row(find_run(name, environment)) for name in names)
    folders = [Path(row.folder) for row in rows]
    records = [redact_record(read_record_file(folder)) for folder in folders]
    configuration = configuration_difference(
        [{key: value for key, value in each.items() if key not in _IDENTITY} for each in records]
    )
    return RunComparison(
        runs=rows,
        configuration=configuration[:_MAX_ROWS],
        more=max(0, len(configuration) - _MAX_ROWS),
        git=_git_rows([_git(each) for each in records], environment),
        measurements=_measurements(rows, folders),
        pace=compare_steps(folders),
        steps=tuple(_steps_of(folder) for folder in folders),
    )


def _steps_of(folder: Path) -> RunSteps:
    try:
        found = diagnose_run(folder)
    except SourceError:
        return RunSteps()
    changes = (each.evidence for each in found.verdicts if each.kind == "change")
    return RunSteps(phases=found.phases, changes=tuple(changes))


def compare_steps(folders: Sequence[Path]) -> tuple[PaceComparison | None, ...]:
    """Return the comparison of each run's steps with the first run's; None for the first and without any."""
    first = pace_in(folders[0])
    return (None, *(_pace_beside(first, pace_in(each)) for each in folders[1:]))


def _pace_beside(first: RunPace | str | None, other: RunPace | str | None) -> PaceComparison | None:
    if first is None or other is None:
        return None
    if isinstance(other, RunPace) and isinstance(first, RunPace):
        return compare_paces(other, [first])
    reason = other if isinstance(other, str) else str(first)
    return PaceComparison("cannot tell", f"Cannot tell, because {reason}")


def pace_in(folder: Path) -> RunPace | str | None:
    """Return the pace of a run, None if it logged no step, or why its pace is unknown."""
    try:
        steps, _ = steps_of_run(folder)
    except SourceError as error:
        return one_line(str(error))
    if steps is None:
        return None
    return pace_of(steps, folder.name) or f"{folder.name} has fewer than {LEAST_STEPS} steps beyond warm-up."


def configuration_difference(values: Sequence[Mapping[str, Any]]) -> tuple[ConfigurationRow, ...]:
    """Return the keys, as dotted names, whose values are not the same in all of the nested dictionaries.

    Nesting deeper than 8 levels, and lists, are compared and shown as one value.
    """
    flat = [dict(_flattened(each)) for each in values]
    keys = sorted({key for each in flat for key in each})
    rows = (
        ConfigurationRow(key=key[:200], values=tuple(each.get(key) for each in flat))
        for key in keys
        if len({each.get(key) for each in flat}) > 1
    )
    return tuple(
        row.model_copy(update={"values": tuple(v if v is None else v[:_MAX_VALUE] for v in row.values)})
        for row in rows
    )


def _flattened(value: Mapping[str, Any], prefix: str = "", depth: int = 1) -> Iterator[tuple[str, str]]:
    for name, each in value.items():
        key = f"{prefix}{one_line(str(name))}"
        if isinstance(each, Mapping) and each and depth < _MAX_DEPTH:
            yield from _flattened(each, f"{key}.", depth + 1)
        elif each is not None:
            text = each if isinstance(each, str) else json.dumps(each, sort_keys=True, default=str)
            yield key, one_line(text)


def _git(record: Mapping[str, Any]) -> Mapping[str, Any]:
    found = record.get("git")
    return found if isinstance(found, dict) else {}


def _git_rows(states: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> tuple[GitRow, ...]:
    first, rows = states[0], []
    for state in states:
        commit, base = str(state.get("commit") or ""), str(first.get("commit") or "")
        root = Path(str(state.get("root") or ""))
        known = bool(commit and base and root.is_absolute()) and state is not first
        changed, digests = state.get("changed_files"), [each.get("changes_digest") for each in (first, state)]
        both = all(isinstance(each.get("changed_files"), int) for each in (first, state))
        rows.append(
            GitRow(
                commit=one_line(commit)[:64],
                branch=one_line(str(state.get("branch") or ""))[:255],
                changed_files=changed if isinstance(changed, int) else None,
                same_changes=digests[0] == digests[1] if both else None,
                difference=git_difference(root, base, commit, environment) if known else None,
            )
        )
    return tuple(rows)


def _measurements(rows: Sequence[TableRow], folders: Sequence[Path]) -> tuple[MeasurementRow, ...]:
    ranges = [TimeRange(folder) for folder in folders]
    documents = [_document(each) for each in ranges]
    rates = [each.metric_means() for each in ranges]
    found: list[MeasurementRow] = []
    names = dict.fromkeys(name for each in rates for name in each)
    pairs = [
        {
            each.name: each
            for each in compare_documents(
                documents[0],
                document,
                {name: (rates[0].get(name), own.get(name)) for name in names},
            )
        }
        for document, own in zip(documents, rates, strict=True)
    ]
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        own = [pair.get(name) for pair in pairs]
        unit = next(each.unit for each in own if each is not None)
        found.append(
            MeasurementRow(
                name=name,
                unit=unit,
                # A pair of runs has no entry for a loss that neither of them has.
                values=tuple(None if each is None else each.second for each in own),
                changes=tuple(None if each is None else each.change for each in own),
                better=tuple(None if each is None else each.better for each in own),
            )
        )
    facts = (("duration", "s", "duration_s"), ("GPU hours", "h", "gpu_hours"), ("energy", "Wh", "energy_wh"))
    found += [_fact(name, unit, [getattr(row, field) for row in rows]) for name, unit, field in facts]
    return tuple(each for each in found if any(value is not None for value in each.values))


def _fact(name: str, unit: str, values: Sequence[float | None]) -> MeasurementRow:
    first = values[0]
    changes = tuple(None if first is None or each is None else each - first for each in values)
    return MeasurementRow(
        name=name, unit=unit, values=tuple(values), changes=changes, better=(None,) * len(values)
    )


def _document(run: TimeRange) -> Mapping[str, Any]:
    """Return the saved score of a run if it has one that can be compared, else score its samples."""
    found = read_object(run.telemetry.parent / "score.json", _MAX_BYTES)
    return found if _is_comparable(found) else run.document()


def _is_comparable(document: Mapping[str, Any]) -> bool:
    """Return whether a saved document has the numbers that are compared."""
    numbers = [document.get("score"), document.get("confidence")]
    for part, names in (("losses", LOSSES), ("binding", RESOURCES)):
        content = document.get(part)
        if not isinstance(content, dict):
            return False
        numbers += [content.get(name) for name in names]
    return all(each is None or (type(each) in {int, float} and abs(each) < 1e9) for each in numbers)
