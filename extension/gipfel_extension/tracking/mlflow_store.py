"""Scalars of MLflow's file store, ``mlruns/EXPERIMENT/RUN/metrics/KEY``: one file per metric.

A line is ``milliseconds value [step [dataset digest]]``; a key may contain slashes, which are directories.
Source: mlflow/store/tracking/file_store.py, ``_log_run_metric`` and ``_get_metric_from_line``.
"""

from pathlib import Path

from .growing_file import GrowingFile
from .scalar import Scalar, plausible_time, step_number
from .text_lines import LineReader

_METRICS = "metrics"
_RUN_FILE = "meta.yaml"
_MAX_FIELDS = 5


class MlflowReader(LineReader):
    """Reader of one metric of one run."""

    def __init__(self, path: Path, rank: int | None = None) -> None:
        super().__init__(GrowingFile(path), rank)
        run = run_directory(path)
        self._name = self._names.get(str(path.relative_to(run / _METRICS)) if run else path.name)

    def read(self, *, last: bool = False) -> list[Scalar] | None:
        """Return the scalars of the next lines; None where there are no more."""
        lines = self._lines.read(last=last)
        if lines is None:
            return None
        found = [scalar for line in lines if (scalar := self._scalar(line)) is not None]
        self._bad += len(lines) - len(found)
        return found

    def _scalar(self, line: bytes) -> Scalar | None:
        fields = line.split()
        if self._name is None or not 2 <= len(fields) <= _MAX_FIELDS:
            return None
        try:
            time_ns = plausible_time(int(fields[0]) * 10**6)
            value = float(fields[1])
            step = step_number(int(fields[2])) if len(fields) > 2 else 0
        except (ValueError, OverflowError):
            return None
        return Scalar(self._name, step, time_ns, value, self._rank)


def run_directory(path: Path) -> Path | None:
    """Return the directory of the MLflow run that a metric belongs to; None for other files."""
    for parent in path.parents:
        if parent.name == _METRICS and (parent.parent / _RUN_FILE).is_file():
            return parent.parent
    return None
