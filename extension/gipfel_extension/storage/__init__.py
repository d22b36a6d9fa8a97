"""A run's record of its input and output, ``storage/<node>.jsonl``: recorders write a line per period.

It holds a job's reads, writes and open files, and the response times of its file systems, as far as an
unprivileged user can see them.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from ..telemetry.events import file_name
from ..telemetry.files import append_text, read_regular
from ..telemetry.sources.file_systems import ClientRates, Mount
from .file_systems import ProbeTimes
from .job_files import FileGroup, RankIo

DIRECTORY = "storage"
_MAX_BYTES = 16 << 20
_MAX_TEXT, _MAX_ROWS = 1000, 128
#: File size from which only every n-th period is written, and this n.
_SPARSE_BYTES, _EVERY = 8 << 20, 6
_Row = TypeVar("_Row")


@dataclass(frozen=True)
class RankRow:
    """I/O of a rank in a period, per second.

    `read` and `written` are bytes, including the page cache; `storage_read` and `storage_written` are bytes
    from and to storage. `reads` and `writes` are calls. `blocked` is the share of looks, 0 to 1, in which a
    process of the rank waited in the kernel.
    """

    rank: int | None
    read: float
    written: float
    storage_read: float
    storage_written: float
    reads: float
    writes: float
    blocked: float


@dataclass(frozen=True)
class MountRow:
    """I/O of a node at a mount in a period, per second.

    Fields from `read_bytes` to `metadata_ms` are those of ``telemetry.sources.file_systems.ClientRates``, for
    all jobs of the node.

    Parameters
    ----------
    opened
        Lower bound of the files opened in the job's directories; None where they were not counted.
    why
        Why the client's counters are missing; empty if they are not, or if the file system has none.
    """

    mount: str
    kind: str
    tier: str
    opened: float | None
    read_bytes: float | None
    written_bytes: float | None
    opens: float | None
    metadata: float | None
    metadata_ms: float | None
    why: str


@dataclass(frozen=True)
class ProbeRow:
    """Milliseconds of a round of probes of a mount; `waiting_ms` is that of a probe that is still waiting."""

    mount: str
    lookup_ms: float | None
    create_ms: float | None
    write_ms: float | None
    read_ms: float | None
    waiting_ms: float | None
    why: str

    @property
    def worst_ms(self) -> float | None:
        """The longest time of a name lookup or of a read; None without any."""
        found = (self.lookup_ms, self.create_ms, self.read_ms, self.waiting_ms)
        return max((each for each in found if each is not None), default=None)


@dataclass(frozen=True)
class PressureRow:
    """Shares (0 to 1) of a period in which some process waited for storage, as the kernel's PSI counts it.

    Parameters
    ----------
    of_job, of_node
        Of the processes in the job's control group, and of all of the node; None where they can't be read.
    why
        Why one of them can't be read; empty if both can.
    """

    of_job: float | None
    of_node: float | None
    why: str


@dataclass(frozen=True)
class FilesRow:
    """Files of one class in a directory that were seen during the run; see `job_files.FileGroup`.

    Parameters
    ----------
    stripes
        Number of storage targets over which the largest file is striped, on Lustre; None where unknown.
    """

    directory: str
    kind: str
    tier: str
    mount: str
    filesystem: str
    pattern: str
    ranks: tuple[int, ...]
    files: int
    bytes: int
    largest: int
    largest_path: str
    written: bool
    stripes: int | None
    node: str = ""


@dataclass(frozen=True)
class Period:
    """Observations of one node in a period of `seconds` until `time_ns` (UTC).

    Parameters
    ----------
    why
        Why opened files were not counted, or not all; empty where they were.
    """

    node: str
    time_ns: int
    seconds: float
    why: str
    ranks: tuple[RankRow, ...]
    mounts: tuple[MountRow, ...]
    probes: tuple[ProbeRow, ...]
    pressure: PressureRow | None = None

    @property
    def opened(self) -> float | None:
        """Lower bound of the files opened per second on this node; None where they were not counted."""
        known = [each.opened for each in self.mounts if each.opened is not None]
        return sum(known) if known else None

    @property
    def moved(self) -> float:
        """Bytes per second that the job's processes on this node read and wrote."""
        return sum(each.read + each.written for each in self.ranks)


@dataclass(frozen=True)
class StorageRecord:
    """Periods of all nodes by time, the files of the run, and notes about what is missing."""

    periods: tuple[Period, ...]
    files: tuple[FilesRow, ...]
    notes: tuple[str, ...] = ()


def rank_row(each: RankIo, seconds: float) -> RankRow:
    """Return the rates of a rank."""
    names = ("read", "written", "storage_read", "storage_written", "reads", "writes")
    rates = {name: round(getattr(each, name) / seconds, 1) for name in names}
    return RankRow(each.rank, **rates, blocked=round(each.blocked / max(1, each.looks), 3))


def mount_row(each: Mount, opened: float | None, rates: ClientRates | None, why: str) -> MountRow:
    """Return the row of a mount, with the client's rates or the reason why they are missing."""
    counted = dict.fromkeys(each.name for each in fields(ClientRates)) if rates is None else vars(rates)
    values = {name: None if value is None else round(value, 3) for name, value in counted.items()}
    return MountRow(each.path, each.kind, each.tier, opened=_rounded(opened), **values, why=why)


def probe_row(times: ProbeTimes, waiting_ms: float | None = None) -> ProbeRow:
    """Return the row of a round of probes, with its times or with the time that a probe has been waiting."""
    names = ("lookup_ms", "create_ms", "write_ms", "read_ms")
    values = {name: _rounded(getattr(times, name)) for name in names}
    return ProbeRow(times.mount, **values, waiting_ms=_rounded(waiting_ms), why=times.why[:_MAX_TEXT])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def files_row(each: FileGroup, stripes: Mapping[str, int]) -> FilesRow:
    """Return the row of a group of files."""
    ranks = tuple(sorted(rank for rank in each.ranks if rank >= 0))[:_MAX_ROWS]
    return FilesRow(
        each.directory, each.kind, each.tier, each.mount, each.filesystem, each.pattern, ranks, each.files,
        each.bytes, each.largest, each.largest_path, each.written, stripes.get(each.largest_path),
    )  # fmt: skip


class StorageFile:
    """Writer of one node's file: a line per period, and the table of files where it has changed.

    Parameters
    ----------
    run
        The run folder.
    """

    def __init__(self, run: Path, node: str) -> None:
        self._path = run / DIRECTORY / f"{file_name(node) or 'node'}.jsonl"
        self._files: list[dict[str, Any]] = []
        self._lines = 0

    def append(self, period: Period, files: Sequence[FilesRow]) -> None:
        """Append a period; skip most periods once the file has 8 MiB, and all once it has 16 MiB.

        Raises
        ------
        OSError
            The file can't be written.
        """
        line: dict[str, Any] = asdict(period)
        rows = [{name: value for name, value in asdict(each).items() if name != "node"} for each in files]
        if rows != self._files:
            line["files"] = self._files = rows
        # Names that are not text come from a file system, and JSON can hold them only escaped.
        text = json.dumps(line, separators=(",", ":")) + "\n"
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._lines += 1
        sparse = self._lines % _EVERY and "files" not in line
        append_text(self._path, text, _SPARSE_BYTES if sparse else _MAX_BYTES)


def read_storage(run: Path) -> StorageRecord | None:
    """Return the record of a run's input and output; None if there is none."""
    periods: list[Period] = []
    files: dict[str, list[FilesRow]] = {}
    notes, damaged = [], 0
    paths = sorted((run / DIRECTORY).glob("*.jsonl"))
    for path in paths:
        try:
            lines = read_regular(path, _MAX_BYTES).split(b"\n")
        except (OSError, ValueError) as error:
            notes.append(f"{path.name} can't be read: {error}.")
            continue
        for line in filter(None, lines):
            try:
                content = json.loads(line)
                period = _period(content)
                listed = content.get("files")
                rows = None if listed is None else _rows(FilesRow, listed)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                damaged += 1
                continue
            periods.append(period)
            if rows is not None:
                files[period.node] = rows
    if damaged:
        notes.append(f"{damaged} damaged lines were skipped.")
    if not paths:
        return None
    listed = [FilesRow(**{**vars(row), "node": node}) for node, rows in files.items() for row in rows]
    listed.sort(key=lambda each: (-each.bytes, each.directory, each.node))
    return StorageRecord(tuple(sorted(periods, key=lambda each: each.time_ns)), tuple(listed), tuple(notes))


def _period(content: Mapping[str, Any]) -> Period:
    time_ns, seconds = content["time_ns"], content["seconds"]
    if type(time_ns) is not int or not 0 <= time_ns < 2**63 or not 0 < _number(seconds) < 1e6:
        raise ValueError(time_ns)
    return Period(
        _text(content["node"]), time_ns, float(seconds), _text(content["why"]),
        tuple(_rows(RankRow, content["ranks"])),
        tuple(_rows(MountRow, content["mounts"])), tuple(_rows(ProbeRow, content["probes"])),
        next(iter(_rows(PressureRow, [content["pressure"]])), None) if content.get("pressure") else None,
    )  # fmt: skip


def _rows(kind: type[_Row], found: Iterable[Any]) -> list[_Row]:
    """Return rows of a dataclass; ignore keys of later versions.

    Raises
    ------
    ValueError
        A value is not of the type of its field.
    """
    rows = []
    for content in list(found)[:_MAX_ROWS]:
        values = {}
        for each in fields(kind):  # type: ignore[arg-type]
            if each.name == "node":
                continue
            values[each.name] = _value(content[each.name], str(each.type))
        rows.append(kind(**values))
    return rows


def _value(value: Any, kind: str) -> Any:
    if value is None and "None" in kind:
        return None
    if "str" in kind:
        return _text(value)
    if "bool" in kind:
        return value is True
    if "tuple" in kind:
        return tuple(int(_number(each)) for each in list(value)[:_MAX_ROWS])
    number = _number(value)
    return int(number) if "int" in kind and "float" not in kind else number


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 8 * _MAX_TEXT:
        raise ValueError(value)
    return value
