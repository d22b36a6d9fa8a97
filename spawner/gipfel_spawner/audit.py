"""Audit log of servers: JSON lines in one file that only its owner reads."""

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError, one_line

#: What an `AuditEvent` can be of.
Event = Literal["start", "failure", "stop", "end", "cull", "extend"]
_LONGEST_WORDS = 300
_MOST_READ_BYTES = 64 << 20


class AuditEvent(Frozen):
    """One event in the life of a server.

    ``stop`` is asked for, ``end`` came by itself, ``failure`` is a start that came to nothing. ``gpus`` are
    all that the job asked for. No token, no environment and no option but these.
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
    """The scheduler's last word on the job."""
    reason: str = ""
    by: str = ""
    """Who asked for it through the hub's pages of servers; empty for the user, and where nobody did."""
    gpu_hours_saved: float | None = Field(None, ge=0)


class AuditLog:
    """Audit log in a file, each event one write: a reader never sees half a line, a rotation loses none.

    Parameters
    ----------
    path
        The file; it is made when needed, for its owner alone, and opened anew for each line.
    """

    def __init__(self, path: Path, log: logging.Logger) -> None:
        self.path = path
        self._log = log
        self._saved: tuple[int, int, float] = (0, 0, 0.0)

    def write(self, event: AuditEvent) -> None:
        """Append one line; a file that can't be written is a warning in the hub's log, not a failed start."""
        content = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **event.model_dump(mode="json", exclude_none=True),
        }
        content["reason"] = one_line(event.reason)[:_LONGEST_WORDS]
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
        """Return the GPU hours that culling has saved, from the lines since the last call and before.

        Raises
        ------
        GipfelError
            The file can't be read.
        """
        inode, offset, hours = self._saved
        try:
            with self.path.open("rb") as file:
                about = os.fstat(file.fileno())
                if about.st_ino != inode or about.st_size < offset:
                    offset, hours = 0, 0.0
                file.seek(offset)
                lines = file.read(_MOST_READ_BYTES)
        except FileNotFoundError:
            return 0.0
        except OSError as error:
            raise GipfelError(f"The audit log {self.path} can't be read: {error.strerror}.") from error
        whole = lines[: lines.rfind(b"\n") + 1]
        hours += sum(_saved(line) for line in whole.splitlines() if b'"cull"' in line)
        self._saved = (about.st_ino, offset + len(whole), hours)
        return hours


def _saved(line: bytes) -> float:
    try:
        content = json.loads(line)
        return float(content["gpu_hours_saved"]) if content["event"] == "cull" else 0.0
    except (ValueError, KeyError, TypeError):
        return 0.0
