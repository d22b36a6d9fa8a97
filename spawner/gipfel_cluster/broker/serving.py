"""A listening Unix socket: who may ask, how many at once, and one answered request a connection."""

import asyncio
import contextlib
import os
import socket
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from ..model import GipfelError
from .connection import Connection, peer_uid
from .messages import Refusal

_MOST_CONNECTIONS = 96
_MOST_WAITING = 512
_READ_S = 10.0
_PAUSE_S = 0.1


class Server(ABC):
    """Answers on a socket; a subclass says what.

    Parameters
    ----------
    path
        The socket, which is removed at the end.
    peer
        The unix user who may ask; by default that of this process.
    """

    def __init__(self, path: Path, *, peer: int | None = None) -> None:
        self._path = path
        self._peer = os.getuid() if peer is None else peer
        self._conversations: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def answered(self, line: bytes, client: Connection) -> None:
        """Answer the request of this line on its connection.

        Raises
        ------
        GipfelError
            Why it is refused, which the client is told.
        """

    async def serve(self, listener: socket.socket, ended: asyncio.Event) -> None:
        """Answer until `ended` is set; when this returns, every conversation is over.

        Parameters
        ----------
        listener
            What `listen` made.
        """
        listener.settimeout(0)
        accepting = asyncio.create_task(self._accept(listener))
        try:
            await ended.wait()
        finally:
            accepting.cancel()
            self._path.unlink(missing_ok=True)
            for each in self._conversations:
                each.cancel()
            await asyncio.gather(accepting, *self._conversations, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while len(self._conversations) >= _MOST_CONNECTIONS:  # The others wait for their turn.
                await asyncio.wait(self._conversations, return_when=asyncio.FIRST_COMPLETED)
            try:
                connected, _ = await loop.sock_accept(listener)
            except OSError:  # Out of descriptors, or the client has gone already.
                await asyncio.sleep(_PAUSE_S)
                continue
            if peer_uid(connected) != self._peer:
                connected.close()
                continue
            connected.settimeout(0)
            task = asyncio.create_task(self._converse(Connection(connected)))
            self._conversations.add(task)
            task.add_done_callback(self._conversations.discard)

    async def _converse(self, client: Connection) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                line = await client.first_line()
            await self.answered(line, client)
        except GipfelError as error:
            await _refuse(client, error.problem, error.fix)
        except TimeoutError:
            await _refuse(client, "The broker's time for this request ran out.", "Try again later.")
        except (OSError, EOFError):
            return  # The client is gone.
        except Exception as error:  # noqa: BLE001 - no request may end the broker
            sys.stderr.write(f"gipfel: the broker failed at a request: {type(error).__name__}\n")
            await _refuse(client, f"The broker failed: {type(error).__name__}. This is a mistake in gipfel.")
        finally:
            client.close()


async def _refuse(client: Connection, problem: str, fix: str = "") -> None:
    with contextlib.suppress(OSError, TimeoutError, GipfelError):
        await client.send(Refusal(problem=problem, fix=fix))


def listen(path: Path, *, owner: int | None = None) -> socket.socket:
    """Make the socket, for its owner alone (0600): this process's user, or, as root, another one."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        if owner is not None and owner != os.getuid():
            os.chown(path, owner, -1, follow_symlinks=False)
        listener.listen(_MOST_WAITING)
    except BaseException:
        listener.close()
        raise
    return listener
