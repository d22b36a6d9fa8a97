"""History of a hub's servers: the sessions of users in SQLite, and the audit log as JSON lines."""

import asyncio
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.regular_files import open_log

from .form.options import UserOptions

#: Kinds of `AuditEvent`.
Event = Literal["start", "failure", "stop", "end", "cull", "extend", "share", "unshare", "network"]
#: How a session ended: on request, by itself, before its server answered, or culled because it was idle.
SessionEnd = Literal["stopped", "ended", "failed", "culled"]
#: Number of sessions that are kept for each user.
MAX_SESSIONS = 500
#: Seconds that SQLite waits for a locked file, and that a reader waits for the thread.
_BUSY_S = 1.0
_READ_S = 2.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY,
    user TEXT NOT NULL,
    server TEXT NOT NULL,
    cluster TEXT NOT NULL,
    job_id TEXT NOT NULL,
    options TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    submitted REAL NOT NULL,
    started REAL,
    ended REAL,
    how TEXT,
    reason TEXT
);
CREATE INDEX IF NOT EXISTS sessions_of_user ON sessions (user, id);
"""
_COLUMNS = "id, server, cluster, job_id, options, gpus, submitted, started, ended, how, reason"

_MAX_REASON_CHARACTERS = 300
_MAX_READ_BYTES = 64 << 20


class AuditEvent(Frozen):
    """One event in the life of a server.

    ``stop`` was requested, ``end`` happened without a request, ``failure`` is a failed start, ``share`` gives
    others access to a service, and ``network`` ended the network of what runs behind gates. ``gpus`` is the
    total over all nodes, ``reason`` is why a server was stopped or failed, or what was shared with whom.
    Events contain no token, no environment and no other user options.
    """

    event: Event
    user: str
    server: str = ""
    cluster: str = ""
    job_id: str = ""
    edf: str = ""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    state: str = ""
    """Last state of the job that the scheduler reported."""
    reason: str = ""
    by: str = ""
    """Name of the administrator or service that requested it; empty for the user, and without a request."""
    gpu_hours_saved: float | None = Field(None, ge=0)


class AuditLog:
    """Audit log in a file. Each event is one write: readers never see a partial line, rotation loses none.

    Parameters
    ----------
    path
        The file. It is created when needed, with mode 0600, and reopened for each line, so that it can be
        rotated.
    """

    def __init__(self, path: Path, log: logging.Logger) -> None:
        self.path = path
        self._log = log
        self._saved: tuple[int, int, float] = (0, 0, 0.0)

    def write(self, event: AuditEvent) -> None:
        """Append one line; if the file can't be written, log a warning instead of failing the start."""
        content = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **event.model_dump(mode="json", exclude_none=True),
        }
        content["reason"] = one_line(event.reason)[:_MAX_REASON_CHARACTERS]
        line = (json.dumps(content, ensure_ascii=False) + "\n").encode(errors="replace")
        try:
            with os.fdopen(open_log(self.path), "ab") as file:
                file.write(line)
        except OSError as error:
            self._log.warning("The audit log %s can't be written: %s", self.path, error.strerror)

    def saved_gpu_hours(self) -> float:
        """Return the GPU hours that culling has saved so far; lines read by earlier calls are not read again.

        Raises
        ------
        GipfelError
            The file can't be read.
        """
        inode, offset, hours = self._saved
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != inode or stat.st_size < offset:
                    offset, hours = 0, 0.0
                file.seek(offset)
                lines = file.read(_MAX_READ_BYTES)
        except FileNotFoundError:
            return 0.0
        except OSError as error:
            raise GipfelError(f"The audit log {self.path} can't be read: {error.strerror}.") from error
        complete = lines[: lines.rfind(b"\n") + 1]
        hours += sum(_saved_hours(line) for line in complete.splitlines() if b'"cull"' in line)
        self._saved = (stat.st_ino, offset + len(complete), hours)
        return hours


def _saved_hours(line: bytes) -> float:
    try:
        content = json.loads(line)
        return float(content["gpu_hours_saved"]) if content["event"] == "cull" else 0.0
    except (ValueError, KeyError, TypeError):
        return 0.0


class Session(Frozen):
    """One session of a user; times are seconds since 1970.

    ``gpus`` is the total over all nodes; ``started`` is when its server first reported, None if it never did;
    ``ended`` and ``how`` are None while the session runs, and if the hub did not see its end; ``reason`` is
    why it ended.
    """

    id: int
    server: str
    cluster: str
    job_id: str
    options: UserOptions
    gpus: int
    submitted: float
    started: float | None = None
    ended: float | None = None
    how: SessionEnd | None = None
    reason: str | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds from the server's first report to the session's end; None if one of them is unknown."""
        return None if self.started is None or self.ended is None else max(self.ended - self.started, 0.0)


class SessionHistory:
    """Sessions of all users of a hub. A failure to read or write is logged and never raised.

    The connection belongs to one thread, because a locked file or a slow file system would stop the event
    loop. A write returns before it is done; writes are done in order, and Python finishes them before it
    exits. A read sees all earlier writes.

    Parameters
    ----------
    path
        The file, created with mode 0600 when it is first needed.
    clock
        Returns the time in seconds since 1970.
    """

    def __init__(self, path: Path, log: logging.Logger, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._log = log
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        # A thread of the executor starts with the first statement. It is not a daemon.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="gipfel-history")

    def begin(self, user: str, server: str, *, cluster: str, job_id: str, options: UserOptions) -> None:
        """Add a session that was just submitted, and delete the user's oldest above `MAX_SESSIONS`."""
        gpus = (options.gpus or 0) * options.nodes
        stored = options.model_dump_json(exclude_defaults=True)
        self._write(
            "INSERT INTO sessions (user, server, cluster, job_id, options, gpus, submitted) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (user, server, cluster, job_id, stored, gpus, self._clock()),
        )
        self._write(
            "DELETE FROM sessions WHERE user = ? AND id <= "
            "(SELECT id FROM sessions WHERE user = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
            (user, user, MAX_SESSIONS),
        )

    def on_running(self, user: str, server: str, job_id: str) -> None:
        """Record that the server of a session has reported, once."""
        self._write(
            "UPDATE sessions SET started = ? WHERE id = "
            "(SELECT max(id) FROM sessions WHERE user = ? AND server = ? AND job_id = ?) AND started IS NULL",
            (self._clock(), user, server, job_id),
        )

    def end(self, user: str, server: str, job_id: str, how: SessionEnd, reason: str = "") -> None:
        """Record the end of a session, once."""
        self._write(
            "UPDATE sessions SET ended = ?, how = ?, reason = ? WHERE id = "
            "(SELECT max(id) FROM sessions WHERE user = ? AND server = ? AND job_id = ?) AND ended IS NULL",
            (self._clock(), how, one_line(reason)[:_MAX_REASON_CHARACTERS], user, server, job_id),
        )

    async def last(
        self, user: str, count: int, *, running: Sequence[str] = (), since: float = 0.0
    ) -> tuple[Session, ...]:
        """Return the last sessions of a user, newest first, without those of the ``running`` job IDs.

        Parameters
        ----------
        since
            When the hub created the user, in seconds since 1970. Earlier sessions are those of a deleted user
            of the same name.
        """
        rows = await self._read(
            f"SELECT {_COLUMNS} FROM sessions WHERE user = ? AND submitted >= ? "  # noqa: S608 - a constant
            "ORDER BY id DESC LIMIT ?",
            (user, since, count + len(running)),
        )
        found = (_session(row) for row in rows)
        kept = [each for each in found if each and (each.how or each.job_id not in running)]
        return tuple(kept[:count])

    async def get(self, user: str, number: int, *, since: float = 0.0) -> Session | None:
        """Return one session of this user by its number; None if there is none; see `last`."""
        rows = await self._read(
            f"SELECT {_COLUMNS} FROM sessions "  # noqa: S608 - a constant
            "WHERE user = ? AND id = ? AND submitted >= ?",
            (user, number, since),
        )
        return _session(rows[0]) if rows else None

    async def gpu_hours(
        self, user: str, since: float, *, clusters: Collection[str], running: Sequence[str] = ()
    ) -> float:
        """Return the GPU hours on some clusters after ``since``, from each server's first report to its end.

        Sessions of the ``running`` job IDs count until now. A session whose end the hub did not see counts 0.
        """
        now = self._clock()
        rows = await self._read(
            "SELECT cluster, job_id, gpus, started, ended FROM sessions "
            "WHERE user = ? AND gpus > 0 AND started IS NOT NULL ORDER BY id DESC LIMIT ?",
            (user, MAX_SESSIONS),
        )
        total = 0.0
        for cluster, job_id, gpus, started, ended in rows:
            if cluster not in clusters:
                continue
            until = ended if ended is not None else now if job_id in running else started
            total += gpus * max(until - max(started, since), 0.0)
        return total / 3600

    def close(self) -> None:
        """Finish the writes, and close the file; nothing can be read or written afterwards."""
        with suppress(RuntimeError):
            self._worker.submit(self._close)
        self._worker.shutdown()

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            self._worker.submit(self._write_now, statement, values)
        except RuntimeError as error:
            self._log.warning("The session history %s can't be written: %s", self.path, error)

    async def _read(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        try:
            # A read that has not begun within the limit is taken out of the queue.
            reading = asyncio.wrap_future(self._worker.submit(self._read_now, statement, values))
            return await asyncio.wait_for(reading, _READ_S)
        except TimeoutError:
            self._log.warning("The session history %s was not read within %g s", self.path, _READ_S)
        except RuntimeError as error:
            self._log.warning("The session history %s can't be read: %s", self.path, error)
        return []

    def _write_now(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            with self._open() as connection:
                connection.execute(statement, values)
        except (sqlite3.Error, OSError, ValueError) as error:
            self._log.warning("The session history %s can't be written: %s", self.path, error)

    def _read_now(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        try:
            return self._open().execute(statement, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            self._log.warning("The session history %s can't be read: %s", self.path, error)
            return []

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite would create the file with the process's default mode.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            number = os.open(self.path, flags, 0o600)
            try:
                # A file that was restored from a backup may have another mode.
                os.fchmod(number, 0o600)
            finally:
                os.close(number)
            connection = sqlite3.connect(self.path, timeout=_BUSY_S)
            try:
                # A lost last row after a power failure costs less than a sync of the disk for each write.
                connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {_SCHEMA}")
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _session(row: tuple[Any, ...]) -> Session | None:
    names = _COLUMNS.split(", ")
    content = dict(zip(names, row, strict=True))
    try:
        content["options"] = UserOptions.model_validate(json.loads(content["options"]))
        return Session.model_validate(content)
    except (ValueError, ValidationError):
        # The row was written by another version of Gipfel, with options that do not exist in this one.
        return None
