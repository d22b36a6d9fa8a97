"""Scalars of MLflow's file store and of its SQLite store, the default since 3.7.

The file store is ``mlruns/EXPERIMENT/RUN/metrics/KEY``, one file per metric. A line is ``milliseconds value
[step [dataset digest]]``; a key may contain slashes, which are directories. Source:
mlflow/store/tracking/file_store.py, ``_log_run_metric`` and ``_get_metric_from_line``.

``mlflow.db`` has rows ``key value timestamp step is_nan run_uuid`` in its table ``metrics``; timestamps are
in milliseconds. The file may be anything: it is opened read-only, only a plain table is read, in pieces,
and each query has a time limit. Source: mlflow/store/tracking/dbmodels/models.py, ``SqlMetric``.
"""

import math
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ..telemetry.files import open_regular
from .growing_file import GrowingFile, LineReader
from .scalar import Names, Scalar, number, plausible_time, step_number

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


MAGIC = b"SQLite format 3\x00"
_ROWS = 20_000
_QUERY_S = 5.0
_STEPS_PER_CHECK = 20_000
_MAX_VALUE_BYTES = 1 << 16
_TABLE = "SELECT count(*) FROM sqlite_master WHERE name = 'metrics' AND type = 'table' AND rootpage > 0"
_NEXT = (
    "SELECT rowid, key, value, timestamp, step, is_nan, run_uuid FROM metrics "
    "WHERE rowid > ? ORDER BY rowid LIMIT ?"
)
#: Parts of SQLite's error messages while MLflow writes or creates its tables; reading is tried again.
_PASSING = ("locked", "no such column", "no such table")
_NAME = "SELECT name FROM runs WHERE run_uuid = ?"


class MlflowDatabaseReader:
    """Reader of the metrics of all runs in a database.

    The newest run's metrics keep their names. Metrics of earlier runs, and of others that are written
    at the same time, get the run's name as a prefix: ``bold-cat-7/loss``.
    """

    def __init__(self, path: Path, rank: int | None = None) -> None:
        self._path = path
        self._rank = rank
        self._names = Names()
        self._row = 0
        self._identity: tuple[int, int] | None = None
        self._prefixes: dict[str, str] = {}
        self._plain = ""
        self.damaged = 0

    def read(self, *, last: bool = False) -> list[Scalar] | None:  # noqa: ARG002 - rows are always whole
        """Return the scalars of the next rows; None where there are no more.

        Raises
        ------
        OSError
            The file can't be read, or is not an MLflow database.
        """
        try:
            with open_regular(self._path) as file:
                about = os.fstat(file.fileno())
        except FileNotFoundError:
            return None
        if (about.st_dev, about.st_ino) != self._identity:
            self._identity, self._row = (about.st_dev, about.st_ino), 0
        try:
            with _opened(self._path) as database:
                if not database.execute(_TABLE).fetchone()[0]:
                    return None
                rows = database.execute(_NEXT, (self._row, _ROWS)).fetchall()
                newest = max((row[0] for row in rows), default=self._row)
                if newest <= self._row:
                    # There are no more, or a damaged tree leads back to rows that were read.
                    return None
                self._row = newest
                self._assign(database, [str(row[6]) for row in rows])
        except sqlite3.OperationalError as error:
            if any(word in str(error) for word in _PASSING):
                return None
            raise OSError(f"SQLite says {str(error)[:200]}") from error
        except sqlite3.Error as error:
            raise OSError(f"SQLite says {str(error)[:200]}") from error
        return [scalar for row in rows if (scalar := self._scalar(row)) is not None]

    def _assign(self, database: sqlite3.Connection, runs: list[str]) -> None:
        """Choose the prefix of new runs: none for the newest, unless another run is being written."""
        new = [run for run in dict.fromkeys(runs) if run not in self._prefixes]
        if not new:
            return
        newest = max(new, key=lambda run: len(runs) - runs[::-1].index(run))
        for run in new:
            if run == newest and self._plain not in runs:
                self._plain, self._prefixes[run] = run, ""
            else:
                found = database.execute(_NAME, (run,)).fetchone()
                self._prefixes[run] = f"{str(found[0]) if found and found[0] else run}/"

    def _scalar(self, row: tuple[object, ...]) -> Scalar | None:
        _, key, value, timestamp, step, is_nan, run = row
        name = self._names.get(f"{self._prefixes.get(str(run), '')}{key}") if isinstance(key, str) else None
        found = math.nan if is_nan else number(value)
        if name is None or found is None:
            self.damaged += 1
            return None
        time_ns = plausible_time(timestamp * 10**6) if isinstance(timestamp, int) else None
        return Scalar(name, step_number(step), time_ns, found, self._rank)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database of unknown origin for reading."""
    address = f"file:{quote(str(path.resolve()))}?mode=ro"
    database = sqlite3.connect(address, uri=True, timeout=1.0, isolation_level=None)
    try:
        deadline = time.monotonic() + _QUERY_S
        database.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_CHECK)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA query_only = ON")
        database.execute("PRAGMA cell_size_check = ON")
        yield database
    finally:
        database.close()


def is_mlflow_database(path: Path) -> bool:
    """Return whether a file is a SQLite database with MLflow's tables."""
    try:
        with open_regular(path) as file:
            if file.read(len(MAGIC)) != MAGIC:
                return False
        with _opened(path) as database:
            return bool(database.execute(_TABLE).fetchone()[0])
    except (OSError, sqlite3.Error):
        return False
