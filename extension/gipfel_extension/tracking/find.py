"""Metric files of a training: their kinds by name and first line, and a bounded search below a directory.

:class:`Follower` reads any number of them together: afterwards, or while they grow.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..telemetry.files import modified_ns, open_regular
from .growing_file import GrowingFile
from .mlflow import MlflowDatabaseReader, MlflowReader, is_mlflow_database, run_directory
from .scalar import Reader, Scalar
from .tensorboard import open_tensorboard
from .text_formats import STEPS, TIMES, CsvReader, JsonLinesReader, LogPattern, LogPatternReader
from .trainer_state import STATE_FILE, TrainerStateReader, output_directory
from .wandb_file import open_wandb

_MAX_DEPTH = 12
_MAX_ENTRIES = 200_000
#: Maximum number of files of one search; further ones are not read, and `Search.cut` is set.
MAX_FILES = 2_000
_FIRST_LINE = 64 << 10
_LOGS = (".log", ".out", ".err", ".txt")
_NO_METRICS = frozenset(("node_modules", "__pycache__", "site-packages"))
#: A path component that names a rank: ``rank3``, ``rank_3``, ``rank-3`` or ``rank=3``.
_RANK = re.compile(r"(?:^|[^a-z0-9])rank[-_=]?(\d{1,7})(?:[^0-9]|$)", re.IGNORECASE)

Opener = Callable[[Path, int | None], Reader]


@dataclass(frozen=True)
class Kind:
    """A format of metric files.

    Parameters
    ----------
    name
        Name that the command line shows.
    fits
        Whether a file has this format, from its path alone or also from its beginning.
    opener
        Function that opens a reader for a path and a rank.
    source
        Function that returns the source of a file's values. Values of one name from files of the same source
        are one series.
    """

    name: str
    fits: Callable[[Path], bool]
    opener: Opener
    source: Callable[[Path], Path] = lambda path: path


def _is_event_file(path: Path) -> bool:
    return ".tfevents." in path.name and not path.name.endswith(".profile-empty")


def _is_state(path: Path) -> bool:
    return path.name == STATE_FILE


def _is_mlflow(path: Path) -> bool:
    return "metrics" in path.parts[-_MAX_DEPTH:-1] and run_directory(path) is not None


def _is_csv(path: Path) -> bool:
    if path.suffix != ".csv":
        return False
    columns = {cell.strip() for cell in _first_line(path).decode("utf-8", "replace").split(",")}
    return bool(columns & {*STEPS, "epoch"})


def _is_json_lines(path: Path) -> bool:
    if path.suffix not in (".jsonl", ".ndjson"):
        return False
    try:
        first = json.loads(_first_line(path))
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and any(name in first for name in (*STEPS, *TIMES))


def _is_mlflow_database(path: Path) -> bool:
    return path.suffix in (".db", ".sqlite", ".sqlite3") and is_mlflow_database(path)


KINDS = (
    Kind(
        "TensorBoard",
        _is_event_file,
        open_tensorboard,
        lambda path: path.parent,
    ),
    Kind("trainer_state.json", _is_state, TrainerStateReader, output_directory),
    Kind("W&B", lambda path: path.suffix == ".wandb", open_wandb, lambda path: path.parent),
    Kind("MLflow database", _is_mlflow_database, MlflowDatabaseReader),
    Kind("MLflow", _is_mlflow, MlflowReader, lambda path: run_directory(path) or path.parent),
    Kind("CSV", _is_csv, lambda path, rank: CsvReader(GrowingFile(path), rank)),
    Kind("JSON lines", _is_json_lines, lambda path, rank: JsonLinesReader(GrowingFile(path), rank)),
)


def log_kind(pattern: LogPattern) -> Kind:
    """Return the format of logs whose lines a pattern describes."""
    return Kind(
        "log",
        lambda path: path.suffix in _LOGS,
        lambda path, rank: LogPatternReader(GrowingFile(path), pattern, rank),
    )


def kind_of(path: Path) -> Kind | None:
    """Return the format of a file; None where it holds no metrics."""
    return next((kind for kind in KINDS if kind.fits(path)), None)


def rank_of(path: Path) -> int | None:
    """Return the rank that a path names, its last part first, such as ``logs/rank3/events…``."""
    for part in reversed(path.parts):
        if found := _RANK.search(part):
            return int(found[1])
    return None


@dataclass
class Search:
    """Result of :func:`search`: files with formats; ``cut`` is True if there were more than the limit."""

    files: list[tuple[Path, Kind]]
    cut: bool


def search(
    directory: Path,
    *,
    exclude: Path | None = None,
    known: Mapping[Path, Kind] = MappingProxyType({}),
    logs: Kind | None = None,
) -> Search:
    """Return the metric files below a directory, sorted by path; links are not followed.

    Parameters
    ----------
    exclude
        Directory that is left out, such as the run folder to which the values are copied.
    known
        Formats of files that were found before: their first lines are not read again.
    logs
        Format of logs; only these are returned then.

    Raises
    ------
    OSError
        The directory itself cannot be read.
    """
    files: dict[Path, Kind] = {}
    cut = False
    left_out = exclude and exclude.resolve()
    waiting = [(directory.resolve(), 0)]
    looked_at = 0
    while waiting:
        place, depth = waiting.pop()
        if place == left_out:
            continue
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            if depth == 0:
                raise
            continue
        looked_at += len(entries)
        if looked_at > _MAX_ENTRIES or len(files) >= MAX_FILES:
            cut = True
            break
        for entry in entries:
            path = place / entry.name
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if depth < _MAX_DEPTH and entry.name not in _NO_METRICS and entry.name[0] != ".":
                        waiting.append((path, depth + 1))
                elif entry.is_file(follow_symlinks=False) and (
                    kind := known.get(path) or (kind_of(path) if logs is None else _if_fits(logs, path))
                ):
                    if kind.opener is TrainerStateReader:
                        # All checkpoints of a training repeat the same history, which is read as one file.
                        path = output_directory(path) / STATE_FILE
                    files[path] = kind
    return Search(sorted(files.items(), key=lambda each: each[0]), cut)


def _if_fits(kind: Kind, path: Path) -> Kind | None:
    return kind if kind.fits(path) else None


def _first_line(path: Path) -> bytes:
    with suppress(OSError), open_regular(path) as file:
        return file.read(_FIRST_LINE).partition(b"\n")[0]
    return b""


_JSON_LINES = next(kind for kind in KINDS if kind.name == "JSON lines")


@dataclass
class FileSummary:
    """Summary of a file that was read.

    Parameters
    ----------
    source
        File or directory whose values of one name are one series.
    rank
        The rank that its path names.
    scalars
        Number of values read.
    damaged
        Number of records, lines, cells or names that were dropped.
    problem
        Why the file cannot be read; empty where it can.
    """

    path: Path
    kind: str
    source: Path
    rank: int | None
    scalars: int = 0
    damaged: int = 0
    problem: str = ""


@dataclass
class _File:
    summary: FileSummary
    reader: Reader
    #: True for a file last changed before ``since_ns``, until its content has been read once.
    old: bool


class Follower:
    """Readers of any number of files.

    Parameters
    ----------
    since_ns
        Older values are left out. Values without a time are left out if they are in a file that was not
        changed since then.
    """

    def __init__(self, *, since_ns: int | None = None) -> None:
        self._since_ns = since_ns
        self._files: dict[Path, _File] = {}
        self._kinds: dict[Path, Kind] = {}
        self.notes: list[str] = []

    @property
    def files(self) -> list[FileSummary]:
        """Return the summary of each file."""
        return [each.summary for each in self._files.values()]

    def search(self, directory: Path, *, exclude: Path | None = None, logs: Kind | None = None) -> None:
        """Add the metric files below a directory that are not known yet, except those below `exclude`.

        Parameters
        ----------
        logs
            Format of logs, from :func:`.find.log_kind`: only these are added then.

        Raises
        ------
        OSError
            The directory cannot be read.
        """
        found = search(directory, exclude=exclude, known=self._kinds, logs=logs)
        for path, kind in found.files:
            self.add(path, kind)
        note = f"{directory} has more files than are looked at. Name a directory within it."
        if found.cut and note not in self.notes:
            self.notes.append(note)

    def add(self, path: Path, kind: Kind | None = None, rank: int | None = None) -> None:
        """Add a file; if its format can't be recognized, it is read as JSON lines.

        Parameters
        ----------
        rank
            The rank that writes the file, used if its path names none.
        """
        if path not in self._files:
            chosen = kind or kind_of(path) or _JSON_LINES
            of_path = rank_of(path)
            rank = rank if of_path is None else of_path
            summary = FileSummary(path, chosen.name, chosen.source(path), rank)
            reader = chosen.opener(path, rank)
            old = self._since_ns is not None and _modified_ns(path, reader) < self._since_ns
            self._files[path] = _File(summary, reader, old)
            self._kinds[path] = chosen

    def poll(self, *, last: bool = False) -> Iterator[tuple[FileSummary, Sequence[Scalar]]]:
        """Yield what is new in each file, in pieces.

        Parameters
        ----------
        last
            True where the files will not grow any more.
        """
        for file in list(self._files.values()):
            while True:
                try:
                    found = file.reader.read(last=last)
                except OSError as error:
                    file.summary.problem = f"it can't be read: {error.strerror or error}"
                    break
                file.summary.problem = ""
                file.summary.damaged = file.reader.damaged
                if found is None:
                    file.old = False
                    break
                kept = self._kept(file, found)
                file.summary.scalars += len(kept)
                if kept:
                    yield file.summary, kept

    def _kept(self, file: _File, found: Sequence[Scalar]) -> Sequence[Scalar]:
        since = self._since_ns
        if since is None:
            return found
        return [each for each in found if (not file.old if each.time_ns is None else each.time_ns >= since)]


def _modified_ns(path: Path, reader: Reader) -> int:
    """Return when a file was changed last; 0 where it does not exist."""
    return reader.modified_ns if isinstance(reader, TrainerStateReader) else modified_ns(path)
