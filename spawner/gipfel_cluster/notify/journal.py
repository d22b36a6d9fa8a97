"""The newest events of all jobs of a user, which JupyterLab shows: ``journal.jsonl`` beside the limits."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from ..regular_files import read_tail
from ..runs import write_atomically
from .event import Event
from .limits import HOUR_NS, hold_lock, state_directory

_NAME = "journal.jsonl"
_MAX_BYTES, _KEPT_BYTES = 256 << 10, 64 << 10


def append_event(event: Event, environment: Mapping[str, str]) -> bool:
    """Append an event, and return True; False if an event of its key was appended in the last hour.

    Raises
    ------
    OSError
        The journal can't be written, or another process holds its lock for longer than 2 s.
    """
    folder = state_directory(environment)
    with hold_lock(folder):
        known = read_events(environment)
        if any(each.key == event.key and abs(event.time_ns - each.time_ns) < HOUR_NS for each in known):
            return False
        path = folder / _NAME
        line = event.model_dump_json().encode() + b"\n"
        if _size(path) > _MAX_BYTES:
            tail = read_tail(path, _KEPT_BYTES).partition(b"\n")[2]
            write_atomically(path, tail + line)
            return True
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o600)
        try:
            end = os.fstat(descriptor).st_size
            # A full disk may have cut the last line.
            if end and os.pread(descriptor, 1, end - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
        return True


def read_events(environment: Mapping[str, str], since_ns: int = 0) -> tuple[Event, ...]:
    """Return the newest events after a time in UTC nanoseconds, the newest last; skip damaged lines."""
    try:
        content = read_tail(state_directory(environment) / _NAME, _KEPT_BYTES)
    except OSError:
        return ()
    events = []
    for line in content.split(b"\n"):
        with contextlib.suppress(ValidationError, json.JSONDecodeError):
            event = Event.model_validate_json(line)
            if event.time_ns > since_ns:
                events.append(event)
    return tuple(events)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
