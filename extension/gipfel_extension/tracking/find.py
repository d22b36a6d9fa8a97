"""Finding metric files: kinds by name and first line, and a bounded search below a directory."""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..telemetry.files import open_regular
from .csv_table import CsvReader
from .growing_file import GrowingFile
from .json_lines import STEPS, TIMES, JsonLinesReader
from .log_pattern import LogPattern, LogPatternReader
from .mlflow_database import MlflowDatabaseReader, is_mlflow_database
from .mlflow_store import MlflowReader, run_directory
from .scalar import Reader
from .tensorboard import open_tensorboard
from .trainer_state import STATE_FILE, TrainerStateReader, output_directory
from .wandb_file import open_wandb

_MAX_DEPTH = 12
_MAX_ENTRIES = 200_000
#: Files of one search; the rest is not read, and the search says so.
MAX_FILES = 2_000
_FIRST_LINE = 64 << 10
_LOGS = (".log", ".out", ".err", ".txt")
_NO_METRICS = frozenset(("node_modules", "__pycache__", "site-packages"))
#: A part of a path that names a rank: ``rank3``, ``rank_3``, ``rank-3`` or ``rank=3``.
_RANK = re.compile(r"(?:^|[^a-z0-9])rank[-_=]?(\d{1,7})(?:[^0-9]|$)", re.IGNORECASE)

Opener = Callable[[Path, int | None], Reader]


@dataclass(frozen=True)
class Kind:
    """A format of metric files.

    Parameters
    ----------
    name
        As the command line shows it.
    fits
        Whether a file has this format, from its path alone or also from its beginning.
    opener
        Function that opens a reader for a path and a rank.
    source
        Function that returns what the values of a file belong to: two files of one source have one series of
        each name.
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
    """Result of :func:`search`: files with their formats, and whether there were more than it may look at."""

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
                        # All checkpoints of one training have one history, which is read as one file.
                        path = output_directory(path) / STATE_FILE
                    files[path] = kind
    return Search(sorted(files.items(), key=lambda each: each[0]), cut)


def _if_fits(kind: Kind, path: Path) -> Kind | None:
    return kind if kind.fits(path) else None


def _first_line(path: Path) -> bytes:
    with suppress(OSError), open_regular(path) as file:
        return file.read(_FIRST_LINE).partition(b"\n")[0]
    return b""
