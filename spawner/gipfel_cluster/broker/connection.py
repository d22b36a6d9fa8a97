"""One connection of the broker: lines in with a limit, descriptors with the first, lines out in time."""

import array
import asyncio
import contextlib
import os
import socket
import struct

from ..model import Frozen, GipfelError
from .messages import MOST_BYTES, to_line

#: Input, output, errors.
STREAMS = 3
_PIECE = 1 << 16
_SEND_S = 10.0
_CREDENTIALS = struct.Struct("iII")


def peer_uid(connected: socket.socket) -> int:
    """The unix user at the other end, as the kernel knows it."""
    content = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(content)
    return int(uid)


class Connection:
    """A connected, non-blocking socket of a client that nobody trusts; descriptors are closed with it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._rest = b""
        self.files: tuple[int, ...] = ()

    async def first_line(self) -> bytes:
        """The first line, with the descriptors that came along in `files`.

        Raises
        ------
        GipfelError
            It is too long, or more came along than `STREAMS`.
        EOFError
            The client went before the end of the line.
        """
        while b"\n" not in self._rest:
            await _readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                self._keep(self._receive())
        return self._line()

    async def next_line(self, most: int) -> bytes:
        """A later line of at most so many bytes; the kernel drops descriptors that come along.

        Raises
        ------
        GipfelError
            It is longer.
        EOFError
            The client is gone.
        """
        loop = asyncio.get_running_loop()
        while b"\n" not in self._rest:
            if len(self._rest) > most:
                raise GipfelError("The line is too long.")
            piece = await loop.sock_recv(self._socket, most)
            if not piece:
                raise EOFError
            self._rest += piece
        return self._line()

    async def send(self, message: Frozen) -> None:
        """Send one message; raises TimeoutError where the client does not read."""
        async with asyncio.timeout(_SEND_S):
            await asyncio.get_running_loop().sock_sendall(self._socket, to_line(message))

    def close(self) -> None:
        """Close the socket and what came over it."""
        self.close_files()
        self._socket.close()

    def close_files(self) -> None:
        """Close the descriptors that came along."""
        for each in self.files:
            with contextlib.suppress(OSError):
                os.close(each)
        self.files = ()

    def _receive(self) -> bytes:
        space = socket.CMSG_SPACE(STREAMS * array.array("i").itemsize)
        piece, others, flags, _ = self._socket.recvmsg(_PIECE, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in others:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                self.files += tuple(numbers)
        if flags & socket.MSG_CTRUNC or len(self.files) > STREAMS:
            raise GipfelError("The broker takes no more than input, output and errors.")
        return piece

    def _keep(self, piece: bytes) -> None:
        if not piece:
            raise EOFError
        self._rest += piece
        if len(self._rest) > MOST_BYTES:
            raise GipfelError(f"The broker takes no request longer than {MOST_BYTES >> 10} KiB.")

    def _line(self) -> bytes:
        line, _, self._rest = self._rest.partition(b"\n")
        return line


async def _readable(connected: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connected, note)
    try:
        await ready
    finally:
        loop.remove_reader(connected)
