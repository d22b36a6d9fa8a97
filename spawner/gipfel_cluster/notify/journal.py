"""A user's events of all jobs: report them, limit the rate of messages, and keep the last outcomes.

``state.json`` has the rate limit's state and the outcomes, ``journal.jsonl`` the newest events. Supervisors
use `Reporter`.
"""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import Field, ValidationError

from ..environment import without_tokens
from ..model import Frozen
from ..process.locks import lock_within
from ..regular_files import read_regular, read_tail
from ..runs import make_private, write_atomically
from . import Event, PlainText, settings_file

HOUR_NS = 3600 * 10**9
_STATE, _LOCK = "state.json", "lock"
_MAX_STATE_BYTES = 1 << 20
#: Most keys that the state remembers, the newest ones.
_MAX_KEYS = 500
#: Seconds to wait for the lock.
_LOCK_S = 2.0
#: The file is filled up to a multiple of this, so that it can be overwritten in place.
_BLOCK_BYTES = 4096
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
#: Longest time in seconds that `Reporter.finish` waits, counted from the last report. A sending process
#: normally ends by itself before.
FINISH_S = 11.0
_KILL_S = 1.0


class Outcome(Frozen, extra="ignore"):
    """The last message to a service: its time in UTC, and the problem, empty if the service accepted it."""

    time_ns: int = Field(ge=0, lt=1 << 63)
    problem: PlainText = Field("", max_length=600)


class SendState(Frozen, extra="ignore"):
    """State of the rate limit, and the last outcomes; times are UTC in nanoseconds.

    ``times_ns`` are the times of the last hour's messages, ``keys`` the time of the last one by `Event.key`.
    ``held_back`` counts messages that the limit held back since the last one that was sent; ``outcomes`` are
    by service; ``problem`` is why the settings could not be used, or empty.
    """

    times_ns: tuple[int, ...] = ()
    keys: dict[str, int] = Field(default={})
    held_back: int = Field(0, ge=0)
    outcomes: dict[str, Outcome] = Field(default={})
    problem: PlainText = Field("", max_length=600)


def admit(state: SendState, key: str, *, now_ns: int, per_hour: int) -> tuple[SendState, bool]:
    """Return the new state, and whether a message with this key may be sent now.

    It may not if one with the same key was sent in the last hour, or `per_hour` messages were. Times in the
    future, which a clock that was set back leaves behind, are ignored.
    """
    since = now_ns - HOUR_NS
    times = tuple(each for each in state.times_ns if since < each <= now_ns)[-per_hour:]
    keys = {name: each for name, each in state.keys.items() if since < each <= now_ns}
    state = state.model_copy(update={"times_ns": times, "keys": keys})
    if key in keys:
        return state, False
    if len(times) >= per_hour:
        return state.model_copy(update={"held_back": state.held_back + 1}), False
    newest = dict(sorted({**keys, key: now_ns}.items(), key=lambda each: each[1])[-_MAX_KEYS:])
    return state.model_copy(update={"times_ns": (*times, now_ns), "keys": newest, "held_back": 0}), True


def state_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of the state, which containers of servers mount, unlike the user's secrets."""
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "server" / "notices"


def read_state(environment: Mapping[str, str]) -> SendState:
    """Return the state; an empty one if there is none or it is damaged."""
    try:
        content = read_regular(state_directory(environment) / _STATE, _MAX_STATE_BYTES)
        return SendState.model_validate_json(content)
    except (OSError, ValidationError):
        return SendState()


@contextmanager
def locked_state(
    environment: Mapping[str, str],
) -> Iterator[tuple[SendState, Callable[[SendState], None]]]:
    """Hold the lock, and yield the state and a function that replaces it.

    Raises
    ------
    OSError
        The directory can't be written, or another process holds the lock for longer than 2 s.
    """
    folder = state_directory(environment)
    with hold_lock(folder):
        yield (
            read_state(environment),
            lambda state: _replace(folder / _STATE, state.model_dump_json().encode()),
        )


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the directory, which is created if it is missing. Raises as `locked_state`."""
    make_private(folder)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # If the file system has no locks, a message may be sent twice.
        if not lock_within(descriptor, _LOCK_S):
            raise TimeoutError(f"{folder / _LOCK} is held by another process")
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    """Replace the file; on a full disk, which makes jobs fail, overwrite it in place."""
    content += b" " * (-len(content) % _BLOCK_BYTES - 1) + b"\n"
    try:
        write_atomically(path, content)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = os.fstat(handle).st_size
            if size < len(content):
                raise
            os.pwrite(handle, content.ljust(size), 0)
        finally:
            os.close(handle)


_NAME = "journal.jsonl"
#: Size from which the journal is shortened, and the size of the newest events that are kept, and that readers
#: read.
_MAX_BYTES, _KEPT_BYTES = 256 << 10, 64 << 10


def append_event(event: Event, environment: Mapping[str, str]) -> bool:
    """Append an event, and return True; return False if one with the same key was appended in the last hour.

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
        with os.fdopen(os.open(path, flags, 0o600), "ab", 0) as file:
            end = os.fstat(file.fileno()).st_size
            # A full disk may have cut the last line.
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                line = b"\n" + line
            file.write(line)
        return True


def read_events(environment: Mapping[str, str], since_ns: int = 0) -> tuple[Event, ...]:
    """Return the newest events after a time in UTC nanoseconds, the newest last; skip damaged lines."""
    try:
        content = read_tail(state_directory(environment) / _NAME, _KEPT_BYTES)
    except OSError:
        return ()
    events = []
    for line in content.split(b"\n"):
        with suppress(ValidationError, json.JSONDecodeError):
            event = Event.model_validate_json(line)
            if event.time_ns > since_ns:
                events.append(event)
    return tuple(events)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


class Reporter:
    """Reports events of one job or launch; usable from several threads."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = without_tokens(environment)
        self._lock = threading.Lock()
        self._senders: list[subprocess.Popen[bytes]] = []
        self._last = time.monotonic()
        self._reported: dict[str, int] = {}

    def report(self, event: Event) -> None:
        """Append an event to the journal; if the user has set up a service, start sending it.

        An event with the same key within an hour is ignored, even if the journal can't be written. Never
        raises.
        """
        if not self._is_first(event.key):
            return
        is_new = True
        # A full disk: send nevertheless.
        with suppress(OSError, ValueError):
            is_new = append_event(event, self._environment)
        if not is_new:
            return
        with suppress(OSError, RuntimeError, ValueError):
            if os.path.lexists(settings_file(self._environment)):
                self._start_sender(event)

    def pids(self) -> frozenset[int]:
        """Return the ids of the running processes that send events."""
        with self._lock:
            return frozenset(each.pid for each in self._senders if each.poll() is None)

    def finish(self, limit_s: float = FINISH_S) -> None:
        """Wait for sending processes until `limit_s` seconds after the last report, and kill the others."""
        with self._lock:
            senders, self._senders = self._senders, []
            deadline = self._last + limit_s
        for each in senders:
            with suppress(subprocess.TimeoutExpired):
                each.wait(max(0.0, deadline - time.monotonic()))
            if each.poll() is None:
                each.kill()
                # A process that waits for a lost file system does not end.
                with suppress(subprocess.TimeoutExpired):
                    each.wait(_KILL_S)

    def _is_first(self, key: str) -> bool:
        with self._lock:
            now = time.monotonic_ns()
            self._reported = {name: at for name, at in self._reported.items() if now - at < HOUR_NS}
            is_first = key not in self._reported
            if is_first:
                self._reported[key] = now
            return is_first

    def _start_sender(self, event: Event) -> None:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "gipfel_cluster.notify"],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        with self._lock:
            self._senders = [each for each in self._senders if each.poll() is None] + [process]
            self._last = time.monotonic()
        if process.stdin is not None:
            # Shorter than a pipe's buffer, so this does not wait.
            with suppress(OSError), process.stdin as pipe:
                pipe.write(event.model_dump_json().encode())
