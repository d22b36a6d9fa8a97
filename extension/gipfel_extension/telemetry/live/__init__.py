"""The live stream of a node: each recorder publishes a tick per interval on a ZeroMQ socket.

`fan_in` sends the ticks of all nodes to the head node, and `feed` makes them the table of a view.
"""

import contextlib
import json
import os
import time
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zmq

from ..events import Event
from ..sample import Provenance, Sample, SourceError

#: Maximum length of a Unix socket's path in bytes (Linux' ``sun_path`` without its terminator).
MAX_PATH = 107

_SCAN_SECONDS = 0.5


@dataclass(frozen=True)
class Tick:
    """Message that a recorder publishes once per interval.

    Parameters
    ----------
    seq
        Sequence number of the tick within one recorder process; a gap means lost ticks.
    origin
        Provenance of the samples, that of the recorder's segments.
    events
        Events since the previous tick.
    ended
        True in the last tick of a recorder that was stopped.
    dropped
        Number of ticks that were dropped on the way to the head node; their samples are in the segments.
    """

    seq: int
    origin: Provenance
    samples: tuple[Sample, ...]
    events: tuple[Event, ...] = ()
    ended: bool = False
    dropped: int = 0

    def encode(self) -> bytes:
        """Return the tick as JSON in UTF-8."""
        return json.dumps(asdict(self) | {"origin": self.origin.to_metadata()}).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Tick":
        """Return the tick that :meth:`encode` encoded.

        Raises
        ------
        ValueError
            The bytes are not a valid tick.
        """
        try:
            content: dict[str, Any] = json.loads(data)
            return cls(
                seq=int(content["seq"]),
                origin=Provenance.from_metadata(content["origin"]),
                samples=tuple(Sample.from_json(sample) for sample in content["samples"]),
                events=tuple(Event.from_json(event) for event in content.get("events", ())),
                ended=bool(content.get("ended", False)),
                dropped=int(content.get("dropped", 0)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a tick: {error!r}") from error


def open_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, options: Mapping[zmq.SocketOption, Any]
) -> "zmq.Socket[bytes]":
    """Return a new socket with some options."""
    socket = context.socket(kind)
    for option, value in options.items():
        socket.setsockopt(option, value)
    return socket


class Publisher:
    """Publisher of a recorder's ticks on ``<folder>/<name>.sock``; never waits for a reader.

    Raises
    ------
    SourceError
        The socket cannot be created.
    """

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.sock"
        if len(str(path).encode()) > MAX_PATH:
            raise SourceError(
                f"The socket's path {path} is longer than {MAX_PATH} bytes.",
                "Use a directory with a short path.",
            )
        self._context = zmq.Context()
        self._socket = open_socket(self._context, zmq.PUB, {zmq.LINGER: 500})
        try:
            self._socket.bind(f"ipc://{path}")
        except zmq.ZMQError as error:
            self.close()
            raise SourceError(
                f"The socket {path} can't be created: {error}.", "Check that its directory exists."
            ) from error
        path.chmod(0o600)

    def send(self, tick: Tick) -> None:
        """Publish a tick; without a reader it is discarded."""
        self._socket.send(tick.encode())

    def close(self) -> None:
        """Close the socket; sent ticks have half a second to reach the readers."""
        self._context.destroy()


class LiveReader:
    """Reader of the ticks of all recorders with a socket in a directory, including those that start later.

    It is used by one thread.

    Parameters
    ----------
    folder
        Directory of the recorders' sockets, which may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = zmq.Context()
        options = {
            zmq.LINGER: 0,
            zmq.RECONNECT_IVL: 100,
            zmq.RECONNECT_IVL_MAX: 1000,
            # Enough for ten seconds of 1 000 nodes, for a reader that was delayed.
            zmq.RCVHWM: 10_000,
            zmq.SUBSCRIBE: b"",
        }
        self._socket = open_socket(self._context, zmq.SUB, options)
        self._connected: set[str] = set()
        self._scan = 0.0
        # Garbage collection of a context with an open socket would block forever.
        self._finish = weakref.finalize(self, _end, self._socket, self._context)

    def receive(self, timeout: float) -> Tick | None:
        """Return the next tick, or None if none arrives within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            self._connect()
            remaining = deadline - time.monotonic()
            # Poll for short periods, to find new sockets in between.
            if self._socket.poll(int(1000 * max(0.0, min(remaining, _SCAN_SECONDS)))):
                try:
                    return Tick.decode(self._socket.recv(zmq.NOBLOCK))
                except ValueError:
                    continue
            if remaining <= _SCAN_SECONDS:
                return None

    def close(self) -> None:
        """Close the socket; garbage collection of the reader closes it too."""
        self._finish()

    def _connect(self) -> None:
        if time.monotonic() < self._scan:
            return
        self._scan = time.monotonic() + _SCAN_SECONDS
        # ZeroMQ reconnects by itself when a recorder with the same name restarts.
        # Not `Path.glob`, which takes longer than to receive a tick.
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            found = {each.path for each in entries if each.name.endswith(".sock")}
            for path in sorted(found - self._connected):
                self._socket.connect(f"ipc://{path}")
                self._connected.add(path)


def _end(socket: "zmq.Socket[bytes]", context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    socket.close(0)
    context.term()
