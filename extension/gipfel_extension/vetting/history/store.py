"""Store of the user's vetting history: one file per run and cluster, so that parallel runs do not collide.

`record_from_results` makes a `VettingRecord`, `History` stores and reads records, and `locked` serialises
writers, also those on other nodes, where the file system supports locks.
"""

import os
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, OneLine, one_line
from gipfel_cluster.process.locks import lock_within
from gipfel_cluster.runs import make_private, write_atomically

from ...telemetry.files import read_regular
from ..model import CheckResult, Measurement, Owner, Scope, Severity, Verdict

_MAX_RESULTS = 200_000
_MAX_CODES = 32
#: Evidence key of a verdict that the history decided: the verdict before.
BEFORE_HISTORY = "before_history"
_LOCK_LIMIT_S = 10.0
_TIME_TO_LIVE_S = 30 * 86400.0
_MAX_FILES = 500
_MAX_BYTES = 64 << 20
_MAX_CLOCK_SKEW_NS = 3600 * 10**9


class HistoryEntry(Frozen):
    """One result of a check on one node, without the details that only a report needs."""

    node: OneLine = Field(max_length=255)
    check: OneLine = Field(max_length=200)
    type: OneLine = Field(max_length=200)
    scope: Scope
    subject: OneLine = Field("", max_length=512)
    verdict: Verdict
    severity: Severity = Severity.ERROR
    owner: Owner = Owner.NODE
    reason: OneLine = Field("", max_length=500)
    measurement: Measurement = None
    unit: OneLine = Field("", max_length=32)
    gpu_model: OneLine = Field("", max_length=128)
    codes: tuple[Annotated[int, Field(ge=0, le=9999)], ...] = Field((), max_length=_MAX_CODES)
    """XID numbers, which the registry's recovery rules use."""
    started_ns: int = Field(0, ge=0)


class VettingRecord(Frozen):
    """One vetting run in the history.

    ``vetted`` are the nodes that the run vetted, ``digest`` is that of its protocol.
    """

    version: Literal[1] = 1
    cluster: OneLine = Field(max_length=128)
    job: OneLine = Field("", max_length=64)
    protocol: OneLine = Field(max_length=200)
    digest: OneLine = Field("", max_length=64)
    started_ns: int = Field(ge=0)
    ended_ns: int = Field(ge=0)
    complete: bool = False
    vetted: tuple[OneLine, ...] = ()
    entries: tuple[HistoryEntry, ...] = Field((), max_length=_MAX_RESULTS)


def record_from_results(
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
) -> VettingRecord:
    """Return the record of a report's results.

    Parameters
    ----------
    vetted
        The nodes that the report lists as vetted.

    A result that does not count for a single node (a link, or all nodes) is not stored.
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
        entries=tuple(_entry(each) for each in results if each.node),
    )


def _entry(result: CheckResult) -> HistoryEntry:
    return HistoryEntry(
        node=one_line(result.node)[:255],
        check=one_line(result.check)[:200],
        type=one_line(result.type)[:200],
        scope=result.scope,
        subject=one_line(result.subject)[:512],
        verdict=_verdict_before_history(result),
        severity=result.severity,
        owner=result.owner or Owner.NODE,
        reason=one_line(result.reason)[:500],
        measurement=result.measurement,
        unit=one_line(result.unit)[:32],
        gpu_model=one_line(str(result.evidence.get("model") or ""))[:128],
        codes=_codes(result.evidence.get("xids")),
        started_ns=result.started_ns,
    )


def _verdict_before_history(result: CheckResult) -> Verdict:
    """Return the verdict before the history changed it, so that a bad verdict does not cause further ones."""
    before = result.evidence.get(BEFORE_HISTORY)
    return Verdict(before) if before in set(Verdict) else result.verdict


def _codes(xids: object) -> tuple[int, ...]:
    """Return the XID numbers in a list, or in the keys of a mapping; other values are ignored."""
    listed = xids if isinstance(xids, list | tuple | dict) else ()
    texts = [str(each.get("xid", "") if isinstance(each, dict) else each) for each in listed]
    numbers = {int(text) for text in texts if text.isascii() and text.isdecimal()}
    return tuple(sorted(number for number in numbers if number <= 9999)[:_MAX_CODES])


@contextmanager
def locked(
    path: Path, problem: str = "The vetting history is in use.", *, limit_s: float = _LOCK_LIMIT_S
) -> Iterator[None]:
    """Lock a file; continue without a lock where the file system, such as Lustre, does not support locks.

    Raises
    ------
    GipfelError
        The file can't be created, or another process holds the lock for longer than ``limit_s`` seconds; the
        latter is the `problem`.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        fix = "Set GIPFEL_RUNS and GIPFEL_VETTING_HISTORY to directories that you can write to on every node."
        raise GipfelError(f"{path} can't be written: {error.strerror}.", fix) from error
    try:
        if not lock_within(handle, limit_s):
            raise GipfelError(problem, "Wait for the end of the other vetting run, or stop it.")
        yield
    finally:
        os.close(handle)


def history_root(environment: Mapping[str, str]) -> Path:
    """Return ``$GIPFEL_VETTING_HISTORY``, else ``~/.gipfel/vetting``."""
    if given := environment.get("GIPFEL_VETTING_HISTORY"):
        return Path(given).expanduser()
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "vetting"


@dataclass(frozen=True)
class HistoryContent:
    """Content of a history: unexpired records, oldest first, and a sentence for each unreadable file."""

    records: tuple[VettingRecord, ...] = ()
    problems: tuple[str, ...] = ()


class History:
    """Vetting runs of this user on one cluster.

    Parameters
    ----------
    root
        The directory of all clusters; it is created when needed, with mode 0700.
    cluster
        Name of the cluster. Each cluster has its own directory, because node names repeat across clusters.
    time_to_live_s
        Seconds for which a run is used: 30 days by default.
    """

    def __init__(self, root: Path, cluster: str, *, time_to_live_s: float = _TIME_TO_LIVE_S) -> None:
        if not cluster or cluster.startswith(".") or "/" in cluster or one_line(cluster) != cluster:
            raise GipfelError(
                f"{cluster!r} can't name a cluster.", "Name it with letters, digits and dashes."
            )
        self.folder = root / cluster
        self.cluster = cluster
        self._live_ns = int(time_to_live_s * 1e9)

    def store(self, record: VettingRecord, *, now_ns: int | None = None) -> None:
        """Store a run, and delete expired or surplus ones.

        Raises
        ------
        GipfelError
            The directory can't be created or written.
        """
        runs = self.folder / "runs"
        try:
            make_private(runs)
            name = f"{record.started_ns:020d}-{secrets.token_hex(4)}.json"
            write_atomically(runs / name, record.model_dump_json())
            with locked(self.folder / ".lock"):
                self._delete_expired(time.time_ns() if now_ns is None else now_ns)
        except OSError as error:
            raise GipfelError(
                f"The vetting history {self.folder} can't be written: {error.strerror}.",
                "Set GIPFEL_VETTING_HISTORY to a directory that you can write to.",
            ) from error

    def read(self, *, now_ns: int | None = None) -> HistoryContent:
        """Return the stored records; a file that can't be read is renamed and reported, not raised."""
        now = time.time_ns() if now_ns is None else now_ns
        records, problems = [], []
        try:
            paths = sorted((self.folder / "runs").glob("*.json"))[-_MAX_FILES:]
        except OSError as error:
            return HistoryContent(problems=(f"{self.folder} can't be read: {error.strerror}.",))
        for path in paths:
            try:
                record = _read(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problems.append(set_aside(path, error))
                continue
            # A record from the future would never expire; clocks of nodes may differ a little.
            is_current = now - self._live_ns <= record.ended_ns <= now + _MAX_CLOCK_SKEW_NS
            if is_current and record.cluster == self.cluster:
                records.append(record)
        return HistoryContent(tuple(records), tuple(problems))

    def _delete_expired(self, now_ns: int) -> None:
        paths = sorted((self.folder / "runs").glob("*.json"))
        for index, path in enumerate(paths):
            started = path.name.partition("-")[0]
            old = started.isdecimal() and int(started) < now_ns - self._live_ns
            if old or index < len(paths) - _MAX_FILES:
                path.unlink(missing_ok=True)


def _read(path: Path) -> VettingRecord:
    content = read_regular(path, _MAX_BYTES)
    if path.lstat().st_uid != os.geteuid():
        # Another user must not decide which nodes need no test.
        raise ValueError("it belongs to another user")
    try:
        return VettingRecord.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = ".".join(map(str, first["loc"]))
        raise ValueError(f"{first['msg']} {location}".strip()) from None


def set_aside(path: Path, error: Exception) -> str:
    """Rename a file that can't be read; return a sentence about it."""
    aside = path.with_suffix(".corrupt")
    text = error.strerror if isinstance(error, OSError) else str(error)
    try:
        path.rename(aside)
    except OSError:
        return one_line(f"{path} can't be read and is ignored: {text}")
    return one_line(f"{path} can't be read and is ignored; it was renamed to {aside.name}: {text}")
