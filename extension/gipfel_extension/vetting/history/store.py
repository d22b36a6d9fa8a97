"""The user's own history: one file per run and cluster, so that runs side by side can't lose each other's."""

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.runs import make_private, write_atomically

from ...telemetry.files import read_regular
from .entry import HistoryEntry, VettingRecord
from .locking import locked

_TIME_TO_LIVE_S = 30 * 86400.0
_MOST_FILES = 500
_MOST_BYTES = 64 << 20
_AHEAD_NS = 3600 * 10**9


def history_root(environment: Mapping[str, str] | None = None) -> Path:
    """``$GIPFEL_VETTING_HISTORY``, else ``~/.gipfel/vetting``."""
    given = (os.environ if environment is None else environment).get("GIPFEL_VETTING_HISTORY")
    if given:
        return Path(given).expanduser()
    home = (os.environ if environment is None else environment).get("HOME")
    return Path(home or Path.home()) / ".gipfel" / "vetting"


@dataclass(frozen=True)
class HistoryContent:
    """What is kept and not too old, oldest run first, and what could not be read, one sentence each."""

    records: tuple[VettingRecord, ...] = ()
    problems: tuple[str, ...] = ()

    def of_node(self, node: str, check: str = "") -> tuple[HistoryEntry, ...]:
        """The verdicts on a node, oldest first; of one check where it is named."""
        return tuple(
            entry
            for record in self.records
            for entry in record.entries
            if entry.node == node and (not check or entry.check == check)
        )


class History:
    """The vetting runs of one cluster that this user remembers.

    Parameters
    ----------
    root
        The folder of all clusters; it is made when needed, for its owner alone (0700).
    cluster
        A list of bad nodes must never leak to another cluster: each has a folder of its own.
    time_to_live_s
        How long a run counts, in seconds: 30 days by default.
    """

    def __init__(self, root: Path, cluster: str, *, time_to_live_s: float = _TIME_TO_LIVE_S) -> None:
        if not cluster or cluster.startswith(".") or "/" in cluster or one_line(cluster) != cluster:
            raise GipfelError(
                f"{cluster!r} can't name a cluster.", "Name it with letters, digits and dashes."
            )
        self.folder = root / cluster
        self.cluster = cluster
        self._live_ns = int(time_to_live_s * 1e9)

    def remember(self, record: VettingRecord, *, now_ns: int | None = None) -> None:
        """Keep a run, and forget those that are too old or too many.

        Raises
        ------
        GipfelError
            The folder can't be made or written.
        """
        runs = self.folder / "runs"
        try:
            make_private(runs)
            name = f"{record.started_ns:020d}-{secrets.token_hex(4)}.json"
            write_atomically(runs / name, record.model_dump_json())
            with locked(self.folder / ".lock"):
                self._forget(time.time_ns() if now_ns is None else now_ns)
        except OSError as error:
            raise GipfelError(
                f"The vetting history {self.folder} can't be written: {error.strerror}.",
                "Set GIPFEL_VETTING_HISTORY to a folder that you can write to.",
            ) from error

    def read(self, *, now_ns: int | None = None) -> HistoryContent:
        """What is remembered; a file that is not ours or torn is set aside, named, and never an exception."""
        now = time.time_ns() if now_ns is None else now_ns
        records, problems = [], []
        try:
            paths = sorted((self.folder / "runs").glob("*.json"))[-_MOST_FILES:]
        except OSError as error:
            return HistoryContent(problems=(f"{self.folder} can't be read: {error.strerror}.",))
        for path in paths:
            try:
                record = _read(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problems.append(_set_aside(path, error))
                continue
            # A run of the future would never expire; clocks of nodes may differ a little.
            fresh = now - self._live_ns <= record.ended_ns <= now + _AHEAD_NS
            if fresh and record.cluster == self.cluster:
                records.append(record)
        return HistoryContent(tuple(records), tuple(problems))

    def _forget(self, now_ns: int) -> None:
        paths = sorted((self.folder / "runs").glob("*.json"))
        for place, path in enumerate(paths):
            started = path.name.partition("-")[0]
            old = started.isdecimal() and int(started) < now_ns - self._live_ns
            if old or place < len(paths) - _MOST_FILES:
                path.unlink(missing_ok=True)


def _read(path: Path) -> VettingRecord:
    content = read_regular(path, _MOST_BYTES)
    if path.lstat().st_uid != os.geteuid():
        # Whoever else can write here must not say which nodes need no test.
        raise ValueError("it belongs to another user")
    try:
        return VettingRecord.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{first['msg']} {place}".strip()) from None


def _set_aside(path: Path, error: Exception) -> str:
    aside = path.with_suffix(".corrupt")
    words = error.strerror if isinstance(error, OSError) else str(error)
    try:
        path.rename(aside)
    except OSError:
        return one_line(f"{path} can't be read and does not count: {words}")
    return one_line(f"{path} can't be read and does not count; it is set aside as {aside.name}: {words}")
