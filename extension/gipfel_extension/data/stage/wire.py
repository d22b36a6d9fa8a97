"""Authenticated messages between the nodes of a staging: a handshake with a shared key, then frames.

Both sides prove with HMAC-SHA-256 over fresh random numbers that they know the key, which is in a file that
only the user can read; the key is never sent. Each frame has a JSON object and optionally data. The frame's
MAC covers the object, the length of the data and the frame's number in its direction; data is covered by the
SHA-256 in the object. Sizes are bounded before anything is read. Nothing is encrypted.
"""

import hashlib
import hmac
import json
import secrets
import socket
import struct
from typing import Any, BinaryIO

from gipfel_cluster.model import Frozen

#: Largest size in bytes of the data in one frame: a chunk of a file.
CHUNK_BYTES = 4 << 20
_MAX_OBJECT_BYTES = 1 << 20
_NONCE = 32
_MAC = 32
_HEAD = struct.Struct("!II")
_MAGIC = b"gipfel-stage-1\n"


class Rendezvous(Frozen):
    """Addresses of a staging's supervisor, and the shared key in hexadecimal; stored with mode 0600."""

    hosts: tuple[str, ...]
    port: int
    key: str


class WireError(OSError):
    """The other side does not know the key, or sent an invalid message."""


class Channel:
    """A connection to another process of the same staging.

    Parameters
    ----------
    key
        The shared key.
    accepted
        Whether this side accepted the connection.
    timeout_s
        Time limit of each send and receive.

    Raises
    ------
    WireError
        The other side does not know the key.
    OSError
        The connection broke.
    """

    def __init__(self, connected: socket.socket, key: bytes, *, accepted: bool, timeout_s: float) -> None:
        self.socket = connected
        self._buffer = bytearray(max(CHUNK_BYTES, _MAX_OBJECT_BYTES))
        connected.settimeout(timeout_s)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._handshake(key, accepted=accepted)
        except BaseException:
            connected.close()
            raise
        self._sent = self._received = 0
        self._roles = (b"s", b"c") if accepted else (b"c", b"s")

    @classmethod
    def connect(cls, address: tuple[str, int], key: bytes, timeout_s: float) -> "Channel":
        """Connect to the other side; raises as the constructor does."""
        return cls(socket.create_connection(address, timeout_s), key, accepted=False, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def send(
        self, message: dict[str, Any], file: BinaryIO | None = None, offset: int = 0, size: int = 0
    ) -> None:
        """Send an object, with `size` bytes of a file from `offset` on as data."""
        content = json.dumps(message, separators=(",", ":")).encode()
        head = _HEAD.pack(len(content), size)
        self.socket.sendall(head + content + self._mac(self._roles[0], self._sent, head + content))
        self._sent += 1
        # The kernel copies from the file's pages to the connection.
        if file is not None and size and self.socket.sendfile(file, offset, size) != size:
            raise WireError("the file ended before its end")

    def receive(self) -> tuple[dict[str, Any], memoryview]:
        """Return the next object and its data, which is valid until the next call."""
        head = bytes(self._read(_HEAD.size))
        length, size = _HEAD.unpack(head)
        if length > _MAX_OBJECT_BYTES or size > CHUNK_BYTES:
            raise WireError("a message is too long")
        content = bytes(self._read(length))
        if not hmac.compare_digest(
            bytes(self._read(_MAC)), self._mac(self._roles[1], self._received, head + content)
        ):
            raise WireError("a message was changed on its way")
        self._received += 1
        data = self._read(size)
        try:
            message = json.loads(content)
        except ValueError as error:
            raise WireError("a message is not JSON") from error
        if not isinstance(message, dict):
            raise WireError("a message is not an object")
        if size and hashlib.sha256(data).hexdigest() != message.get("sha256"):
            raise WireError("data was changed on its way")
        return message, data

    def _handshake(self, key: bytes, *, accepted: bool) -> None:
        own = secrets.token_bytes(_NONCE)
        self.socket.sendall(_MAGIC + own)
        if bytes(self._read(len(_MAGIC))) != _MAGIC:
            raise WireError("the other side is not part of a staging")
        other = bytes(self._read(_NONCE))
        both = own + other if accepted else other + own
        mine, theirs = (b"server", b"client") if accepted else (b"client", b"server")
        if accepted:
            # The client proves first, so that a client without the key gets nothing computed with it.
            self._expect(hmac.digest(key, theirs + both, "sha256"))
            self.socket.sendall(hmac.digest(key, mine + both, "sha256"))
        else:
            self.socket.sendall(hmac.digest(key, mine + both, "sha256"))
            self._expect(hmac.digest(key, theirs + both, "sha256"))
        self._session = hmac.digest(key, b"session" + both, "sha256")

    def _expect(self, proof: bytes) -> None:
        if not hmac.compare_digest(bytes(self._read(_MAC)), proof):
            raise WireError("the other side does not know the key of this staging")

    def _mac(self, role: bytes, number: int, content: bytes) -> bytes:
        return hmac.digest(self._session, role + number.to_bytes(8, "big") + content, "sha256")

    def _read(self, size: int) -> memoryview:
        view = memoryview(self._buffer)[:size]
        done = 0
        while done < size:
            count = self.socket.recv_into(view[done:], size - done)
            if not count:
                raise WireError("the other side has disconnected")
            done += count
        return view
