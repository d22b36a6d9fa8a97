"""Audit log of servers: JSON lines in one file that only its owner can read."""

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError, one_line

#: Kinds of `AuditEvent`.
Event = Literal["start", "failure", "stop", "end", "cull", "extend", "share", "unshare", "network"]
_MAX_REASON_CHARACTERS = 300
_MAX_READ_BYTES = 64 << 20


class AuditEvent(Frozen):
    """One event in the life of a server.

    ``stop`` was requested, ``end`` happened without a request, ``failure`` is a failed start, ``share`` gives
    others access to a service, and ``network`` ended the network of what runs behind gates. ``gpus`` is the
    total over all nodes. Events contain no token, no environment and no other user options.
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
        The file. It is created when needed, with mode 0600, and reopened for each line.
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
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            file = os.open(self.path, flags, 0o600)
            try:
                os.write(file, line)
            finally:
                os.close(file)
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
