"""Store of the user's own history: one file per run and cluster, so that parallel runs keep each other's.

`record_of` makes a `VettingRecord` of results, `History` keeps and reads them, and `locked` serialises
writers, also on other nodes, as far as the file system supports locks.
"""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line, one_line
from gipfel_cluster.runs import make_private, write_atomically

from ...telemetry.files import read_regular
from ..model import CheckResult, Measurement, Owner, Scope, Severity, Verdict

_MOST_RESULTS = 200_000
_MOST_CODES = 32
#: In the evidence of a verdict that history decided: what it was before.
BEFORE = "before_history"
_LIMIT_S = 10.0
_PAUSE_S = 0.02
# Lustre mounted without flock, and some network file systems.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
_TIME_TO_LIVE_S = 30 * 86400.0
_MOST_FILES = 500
_MOST_BYTES = 64 << 20
_AHEAD_NS = 3600 * 10**9


class HistoryEntry(Frozen):
    """One verdict on one node, without what only its report needs."""

    node: Line = Field(max_length=255)
    check: Line = Field(max_length=200)
    type: Line = Field(max_length=200)
    scope: Scope
    subject: Line = Field("", max_length=512)
    verdict: Verdict
    severity: Severity = Severity.ERROR
    owner: Owner = Owner.NODE
    reason: Line = Field("", max_length=500)
    figure: Measurement = None
    unit: Line = Field("", max_length=32)
    gpu_model: Line = Field("", max_length=128)
    codes: tuple[Annotated[int, Field(ge=0, le=9999)], ...] = Field((), max_length=_MOST_CODES)
    """XID numbers, which rules of recovery go by."""
    started_ns: int = Field(0, ge=0)


class VettingRecord(Frozen):
    """One run in the history.

    ``vetted`` are the nodes that the run itself called good, ``digest`` names what its protocol demanded.
    """

    version: Literal[1] = 1
    cluster: Line = Field(max_length=128)
    job: Line = Field("", max_length=64)
    protocol: Line = Field(max_length=200)
    digest: Line = Field("", max_length=64)
    started_ns: int = Field(ge=0)
    ended_ns: int = Field(ge=0)
    complete: bool = False
    vetted: tuple[Line, ...] = ()
    entries: tuple[HistoryEntry, ...] = Field((), max_length=_MOST_RESULTS)


def record_of(
    results: Sequence[CheckResult],
    *,
    cluster: str,
    job: str,
    protocol: str,
    started_ns: int,
    ended_ns: int,
    complete: bool,
    vetted: Collection[str],
    digest: str = "",
    models: Mapping[str, str] | None = None,
) -> VettingRecord:
    """Return the record of a report's results.

    Parameters
    ----------
    vetted
        The nodes that the report calls good, by its own rules for severities and tolerated verdicts.
    models
        The GPU model of each node, for results whose evidence has no ``model``.

    A result that counts for no single node (a link between two, all of them) is not kept: it says nothing of
    one node alone.
    """
    return VettingRecord(
        cluster=one_line(cluster)[:128],
        job=one_line(job)[:64],
        protocol=one_line(protocol)[:200],
        digest=digest,
        started_ns=started_ns,
        ended_ns=ended_ns,
        complete=complete,
        vetted=tuple(sorted(vetted)),
        entries=tuple(_entry(each, models or {}) for each in results if each.node),
    )


def _entry(result: CheckResult, models: Mapping[str, str]) -> HistoryEntry:
    model = result.evidence.get("model")
    return HistoryEntry(
        node=one_line(result.node)[:255],
        check=one_line(result.check)[:200],
        type=one_line(result.type)[:200],
        scope=result.scope,
        subject=one_line(result.subject)[:512],
        verdict=_own_verdict(result),
        severity=result.severity,
        owner=result.owner or Owner.NODE,
        reason=one_line(result.reason)[:500],
        figure=result.figure,
        unit=one_line(result.unit)[:32],
        gpu_model=one_line(model if isinstance(model, str) else models.get(result.node, ""))[:128],
        codes=_codes(result.evidence.get("xids")),
        started_ns=result.started_ns,
    )


def _own_verdict(result: CheckResult) -> Verdict:
    """Return the verdict before history changed it, so that no node is bad because it was called bad."""
    before = result.evidence.get(BEFORE)
    return Verdict(before) if before in set(Verdict) else result.verdict


def _codes(given: object) -> tuple[int, ...]:
    """Return the XID numbers of a list or of the keys of counts; other values are skipped."""
    found = set()
    for each in given if isinstance(given, list | tuple | dict) else ():
        text = str(each.get("xid", "")) if isinstance(each, dict) else str(each)
        if text.isascii() and text.isdecimal() and int(text) <= 9999:
            found.add(int(text))
    return tuple(sorted(found)[:_MOST_CODES])


@contextmanager
def locked(path: Path, *, limit_s: float = _LIMIT_S) -> Iterator[None]:
    """Hold the lock of a file; continue without one where the file system does not support locks.

    Raises
    ------
    GipfelError
        Somebody holds it for longer than ``limit_s`` seconds.
    OSError
        The file can't be made.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _wait(handle, path, time.monotonic() + limit_s)
        yield
    finally:
        os.close(handle)


def _wait(handle: int, path: Path, end: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise GipfelError(
                    f"{path} is locked by another process.", "Try again when the other vetting run has ended."
                ) from None
            time.sleep(_PAUSE_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return
        else:
            return


def history_root(environment: Mapping[str, str] | None = None) -> Path:
    """Return ``$GIPFEL_VETTING_HISTORY``, else ``~/.gipfel/vetting``."""
    given = (os.environ if environment is None else environment).get("GIPFEL_VETTING_HISTORY")
    if given:
        return Path(given).expanduser()
    home = (os.environ if environment is None else environment).get("HOME")
    return Path(home or Path.home()) / ".gipfel" / "vetting"


@dataclass(frozen=True)
class HistoryContent:
    """Records that have not expired, oldest run first, and a sentence for each unreadable file."""

    records: tuple[VettingRecord, ...] = ()
    problems: tuple[str, ...] = ()

    def of_node(self, node: str, check: str = "") -> tuple[HistoryEntry, ...]:
        """Return the verdicts on a node, oldest first; of one check where it is named."""
        return tuple(
            entry
            for record in self.records
            for entry in record.entries
            if entry.node == node and (not check or entry.check == check)
        )


class History:
    """Vetting runs of one cluster, of this user.

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
        """Store a run, and delete expired or surplus ones.

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
        """Return what is stored; a foreign or torn file is set aside and named, and never an exception."""
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
