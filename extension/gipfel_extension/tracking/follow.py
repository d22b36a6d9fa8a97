"""Metric files of a training, read together: afterwards, or while they grow."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .find import KINDS, Kind, kind_of, rank_of, search
from .scalar import Reader, Scalar
from .trainer_state import TrainerStateReader

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
        Number of values.
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
    #: True for a file that was changed last before the time asked for, until its content was read once.
    old: bool


class Follower:
    """Readers of any number of files.

    Parameters
    ----------
    since_ns
        Values that are older are left out; of those without a time, the ones in files that were not changed
        since.
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
        """Add the metric files below a directory that are not known yet, but for those below `exclude`.

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
        """Add a file; one whose format its name does not show is read as JSON lines.

        Parameters
        ----------
        rank
            The rank that writes it, where its path names none.
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

    def poll(self, *, last: bool = False) -> Iterator[tuple[FileSummary, list[Scalar]]]:
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

    def _kept(self, file: _File, found: list[Scalar]) -> list[Scalar]:
        since = self._since_ns
        if since is None:
            return found
        return [each for each in found if (not file.old if each.time_ns is None else each.time_ns >= since)]


def _modified_ns(path: Path, reader: Reader) -> int:
    """Return when a file was changed last; 0 where it does not exist."""
    if isinstance(reader, TrainerStateReader):
        return reader.modified_ns
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
