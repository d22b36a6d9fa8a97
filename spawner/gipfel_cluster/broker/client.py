"""Asking the broker of the job that this process is in."""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from ..at_once import at_once
from ..engines.sandbox.supervise import FORWARDED
from ..model import Frozen, GipfelError
from .messages import (
    MOST_BYTES,
    Ended,
    KernelRequest,
    Refusal,
    Request,
    RunRequest,
    Signal,
    Started,
    to_line,
)

Answer = TypeVar("Answer", bound=Frozen)
_LIMIT_S = 75.0
_CONNECT_S = 10.0
_PAUSE_S = 0.05
_SAID: TypeAdapter[Refusal | Started | Ended] = TypeAdapter(Refusal | Started | Ended)


class NoAnswerError(GipfelError):
    """A broker that said nothing that can be read; ``asked`` is whether it may have taken the request."""

    def __init__(self, problem: str, fix: str = "", *, asked: bool = True) -> None:
        super().__init__(problem, fix)
        self.asked = asked


async def ask(path: Path, request: Request, answer: type[Answer], *, limit: float = _LIMIT_S) -> Answer:
    """Ask one thing.

    Raises
    ------
    GipfelError
        The broker refused, in its own words.
    NoAnswerError
        It is gone, or did not answer within `limit` seconds.
    """
    line = to_line(request)
    asked = False
    try:
        async with asyncio.timeout(limit):
            connected = await _connected(path)
            reader, writer = await asyncio.open_unix_connection(sock=connected, limit=4 * MOST_BYTES)
            try:
                asked = True
                writer.write(line)
                await writer.drain()
                said = await reader.readline()
            finally:
                writer.close()
    except TimeoutError as error:
        raise _silent(limit, asked=asked) from error
    except (OSError, ValueError) as error:
        raise _gone(asked=asked) from error
    return _read(said, answer)


def ask_now(path: Path, request: Request, answer: type[Answer], *, limit: float = _LIMIT_S) -> Answer:
    """`ask` for callers that do not await, a notebook's cell among them."""
    return at_once(ask(path, request, answer, limit=limit))


def run(
    path: Path,
    request: RunRequest | KernelRequest,
    *,
    files: tuple[int, int, int] = (0, 1, 2),
    note: Callable[[str], object] = str,
    limit: float = _LIMIT_S,
) -> int:
    """Run a command through the broker to its end, passing signals on; to be called in the main thread.

    Parameters
    ----------
    files
        What the command gets as input, output and errors.
    note
        Is told what the engine can't honour, one line each.
    limit
        Seconds until it has started.

    Raises
    ------
    GipfelError
        The broker refused, or is gone.
    """
    line = to_line(request)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        try:
            connected.settimeout(_CONNECT_S)
            _connect(connected, path)
            sent = socket.send_fds(connected, [line], files)
            if sent < len(line):
                # A broker that refuses does so at once, and what it says is still to be read. Nothing to send
                # is left out, because sending nothing fails as well.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connected.sendall(line[sent:])
            connected.settimeout(limit)
        except OSError as error:
            raise _gone() from error
        before = {number: signal.signal(number, _sender(connected)) for number in FORWARDED}
        try:
            return _followed(connected, note)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _connected(path: Path) -> socket.socket:
    """Connect, and wait for a turn where the broker's queue is full, which asyncio takes for a connection."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.setblocking(False)  # noqa: FBT003 - positional only
    try:
        while True:
            try:
                connected.connect(str(path))
            except BlockingIOError:
                await asyncio.sleep(_PAUSE_S)
            else:
                return connected
    except BaseException:
        connected.close()
        raise


def _connect(connected: socket.socket, path: Path) -> None:
    """The same for callers without an event loop, for `_CONNECT_S`."""
    end = time.monotonic() + _CONNECT_S
    while True:
        try:
            connected.connect(str(path))
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _sender(connected: socket.socket) -> Callable[[int, FrameType | None], None]:
    def send(number: int, _frame: FrameType | None) -> None:
        try:
            connected.sendall(to_line(Signal(signal=number)))
        except OSError:
            return  # It is ending anyway.

    return send


def _followed(connected: socket.socket, note: Callable[[str], object]) -> int:
    with connected.makefile("rb") as lines:
        while True:
            try:
                line = lines.readline(MOST_BYTES)
            except TimeoutError as error:
                raise _silent(connected.gettimeout() or 0) from error
            except OSError as error:
                raise _gone() from error
            match _said(line):
                case Started(notes=notes):
                    connected.settimeout(None)
                    for each in notes:
                        note(each)
                case Ended(status=status):
                    return status
                case Refusal(problem=problem, fix=fix):
                    raise GipfelError(problem, fix)


def _said(line: bytes) -> Refusal | Started | Ended:
    if not line:
        raise _gone()
    try:
        return _SAID.validate_json(line)
    except ValidationError as error:
        raise _gone() from error


def _read(line: bytes, answer: type[Answer]) -> Answer:
    if not line:
        raise _gone()
    try:
        refused = Refusal.model_validate_json(line)
    except ValidationError:
        try:
            return answer.model_validate_json(line)
        except ValidationError as error:
            raise NoAnswerError(
                "The job's broker gave an answer of another version.",
                "Use the gipfel of the runtime that this job runs with.",
            ) from error
    raise GipfelError(refused.problem, refused.fix)


def _silent(limit: float, *, asked: bool = True) -> NoAnswerError:
    problem = f"The job's broker did not answer within {limit:g} s."
    return NoAnswerError(problem, "Try again in a moment.", asked=asked)


def _gone(*, asked: bool = True) -> NoAnswerError:
    return NoAnswerError("This job's broker does not answer.", "Start the server anew.", asked=asked)
