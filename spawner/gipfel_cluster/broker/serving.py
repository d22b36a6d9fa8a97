"""Listen on a Unix socket, and answer one request on each connection.

`Server` accepts clients of one Unix user, and a limited number of connections. `Connection` reads lines of
limited length, and file descriptors. `relay_until_end` forwards a client's signals to a process until the
client disconnects or the process ends.
"""

import array
import asyncio
import contextlib
import os
import signal
import socket
import struct
import sys
from abc import ABC, abstractmethod
from asyncio.subprocess import Process
from pathlib import Path

from pydantic import ValidationError

from ..engines.sandbox.supervise import FORWARDED, shell_status
from ..model import Frozen, GipfelError
from ..process.tree import kill_tree
from .messages import MAX_BYTES, Ended, Refusal, Signal, to_line

#: Number of descriptors of a command: standard input, output and error.
STREAMS = 3
_PIECE = 1 << 16
#: Seconds that a client has to read an answer.
_SEND_S = 10.0
_CREDENTIALS = struct.Struct("iII")
_MAX_CONNECTIONS = 96
#: Length of the socket's queue of clients that are not accepted yet.
_MAX_WAITING = 512
#: Seconds that a client has to send its request.
_READ_S = 10.0
#: Seconds until the next attempt to accept a client if that failed.
_PAUSE_S = 0.1
#: Maximum size in bytes of a `Signal`, the only message that may follow a request.
_LINE_BYTES = 256


def peer_uid(connected: socket.socket) -> int:
    """Return the uid of the process at the other end of a Unix socket, from the kernel."""
    content = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(content)
    return int(uid)


class Connection:
    """A connected, non-blocking socket to an untrusted client, and the descriptors that the client sent."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._rest = b""
        self.files: tuple[int, ...] = ()

    async def first_line(self) -> bytes:
        """Return the first line; put descriptors that were sent with it into `files`.

        Raises
        ------
        GipfelError
            The line is too long, or more descriptors than `STREAMS` were sent with it.
        EOFError
            The client disconnected before the end of the line.
        """
        while b"\n" not in self._rest:
            await _readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                self._append(self._receive())
        return self._line()

    async def next_line(self, max_bytes: int) -> bytes:
        """Return the next line, of at most `max_bytes`; the kernel discards descriptors sent with it.

        Raises
        ------
        GipfelError
            The line is longer.
        EOFError
            The client disconnected.
        """
        loop = asyncio.get_running_loop()
        while b"\n" not in self._rest:
            if len(self._rest) > max_bytes:
                raise GipfelError("The line is too long.")
            piece = await loop.sock_recv(self._socket, max_bytes)
            if not piece:
                raise EOFError
            self._rest += piece
        return self._line()

    async def send(self, message: Frozen) -> None:
        """Send one message; raise TimeoutError if the client does not read it."""
        async with asyncio.timeout(_SEND_S):
            await asyncio.get_running_loop().sock_sendall(self._socket, to_line(message))

    def close(self) -> None:
        """Close the socket and the received descriptors."""
        self.close_files()
        self._socket.close()

    def close_files(self) -> None:
        """Close the received descriptors."""
        for each in self.files:
            with contextlib.suppress(OSError):
                os.close(each)
        self.files = ()

    def _receive(self) -> bytes:
        space = socket.CMSG_SPACE(STREAMS * array.array("i").itemsize)
        piece, ancillary, flags, _ = self._socket.recvmsg(_PIECE, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                self.files += tuple(numbers)
        if flags & socket.MSG_CTRUNC or len(self.files) > STREAMS:
            raise GipfelError(f"The broker accepts at most {STREAMS} descriptors.")
        return piece

    def _append(self, piece: bytes) -> None:
        if not piece:
            raise EOFError
        self._rest += piece
        if len(self._rest) > MAX_BYTES:
            raise GipfelError(f"The broker accepts no request longer than {MAX_BYTES >> 10} KiB.")

    def _line(self) -> bytes:
        line, _, self._rest = self._rest.partition(b"\n")
        return line


async def _readable(connected: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connected, set_ready)
    try:
        await ready
    finally:
        loop.remove_reader(connected)


class Server(ABC):
    """A server on a Unix socket; subclasses implement `answer`.

    Parameters
    ----------
    path
        Path of the socket, which is removed at the end.
    peer
        Uid of the clients that are served; by default that of this process.
    """

    def __init__(self, path: Path, *, peer: int | None = None) -> None:
        self._path = path
        self._peer = os.getuid() if peer is None else peer
        self._connections: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def answer(self, line: bytes, client: Connection) -> None:
        """Answer the request of this line on its connection.

        Raises
        ------
        GipfelError
            The request is refused; the client receives problem and fix.
        """

    async def serve(self, listener: socket.socket, ended: asyncio.Event) -> None:
        """Serve until `ended` is set; when this returns, all connections are closed.

        Parameters
        ----------
        listener
            The socket that `listen` returned.
        """
        listener.settimeout(0)
        accepting = asyncio.create_task(self._accept(listener))
        try:
            await ended.wait()
        finally:
            accepting.cancel()
            self._path.unlink(missing_ok=True)
            for each in self._connections:
                each.cancel()
            await asyncio.gather(accepting, *self._connections, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while len(self._connections) >= _MAX_CONNECTIONS:  # Further clients wait in the socket's backlog.
                await asyncio.wait(self._connections, return_when=asyncio.FIRST_COMPLETED)
            try:
                connected, _ = await loop.sock_accept(listener)
            except OSError:  # Out of descriptors, or the client has disconnected already.
                await asyncio.sleep(_PAUSE_S)
                continue
            if peer_uid(connected) != self._peer:
                connected.close()
                continue
            connected.settimeout(0)
            task = asyncio.create_task(self._handle(Connection(connected)))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _handle(self, client: Connection) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                line = await client.first_line()
            await self.answer(line, client)
        except GipfelError as error:
            await _refuse(client, error.problem, error.fix)
        except TimeoutError:
            await _refuse(client, "The broker's time limit for this request was reached.", "Try again later.")
        except (OSError, EOFError):
            return  # The client disconnected.
        except Exception as error:  # noqa: BLE001 - no request may end the broker
            sys.stderr.write(f"gipfel: the broker failed to answer a request: {type(error).__name__}\n")
            await _refuse(client, f"The broker failed: {type(error).__name__}.", "Report this bug in Gipfel.")
        finally:
            client.close()


async def _refuse(client: Connection, problem: str, fix: str = "") -> None:
    with contextlib.suppress(OSError, TimeoutError, GipfelError):
        await client.send(Refusal(problem=problem, fix=fix))


def listen(path: Path, *, owner: int | None = None) -> socket.socket:
    """Return a listening Unix socket that only its owner can use (0600); root may choose another owner."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        if owner is not None and owner != os.getuid():
            os.chown(path, owner, -1, follow_symlinks=False)
        listener.listen(_MAX_WAITING)
    except BaseException:
        listener.close()
        raise
    return listener


async def relay_until_end(process: Process, client: Connection) -> None:
    """Forward signals until the client disconnects or the process ends; if it ended, send its exit status."""
    ended = asyncio.create_task(process.wait())
    forwarding = asyncio.create_task(_forward_signals(client, process))
    try:
        await asyncio.wait({ended, forwarding}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            await client.send(Ended(status=shell_status(ended.result())))
    finally:
        forwarding.cancel()
        ended.cancel()
        await asyncio.gather(ended, forwarding, return_exceptions=True)


async def end_process(process: Process, grace_s: float, first: signal.Signals = signal.SIGTERM) -> None:
    """End a process: send `first`, and wait up to `grace_s` seconds for its end.

    If it still runs then, or at once if `grace_s` is 0, kill it and its descendants with SIGKILL.
    """
    if process.returncode is not None:
        return
    if grace_s:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(first)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await process.wait()
                return
    kill_tree(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    await process.wait()


async def _forward_signals(client: Connection, process: Process) -> None:
    """Forward signals until the client disconnects or sends anything else."""
    with contextlib.suppress(EOFError, OSError, GipfelError, ValidationError):
        while True:
            message = Signal.model_validate_json(await client.next_line(_LINE_BYTES))
            if message.signal in FORWARDED:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.Signals(message.signal))
