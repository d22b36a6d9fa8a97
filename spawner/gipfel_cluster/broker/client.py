"""Ask the broker of the job that this process is in; `BrokerScheduler` is a scheduler over it."""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from ..engines.sandbox.supervise import FORWARDED
from ..model import Frozen, GipfelError
from ..scheduler.command import run_sync
from ..scheduler.protocol import JobRequest, JobStatus, Partition
from .messages import (
    MOST_BYTES,
    AddressAnswer,
    AddressRequest,
    CancelRequest,
    Done,
    Ended,
    KernelRequest,
    PartitionsAnswer,
    PartitionsRequest,
    QueryAnswer,
    QueryRequest,
    Refusal,
    Request,
    RunRequest,
    Signal,
    Started,
    SubmitAnswer,
    SubmitRequest,
    to_line,
)

Answer = TypeVar("Answer", bound=Frozen)
_LIMIT_S = 75.0
_CONNECT_S = 10.0
_PAUSE_S = 0.05
_REPLIES: TypeAdapter[Refusal | Started | Ended] = TypeAdapter(Refusal | Started | Ended)
_MOST_JOBS = 1000


class NoAnswerError(GipfelError):
    """A broker without a readable answer; ``asked`` is whether it may have taken the request."""

    def __init__(self, problem: str, fix: str = "", *, asked: bool = True) -> None:
        super().__init__(problem, fix)
        self.asked = asked


async def ask(path: Path, request: Request, answer: type[Answer], *, limit: float = _LIMIT_S) -> Answer:
    """Send one request and return its answer.

    Raises
    ------
    GipfelError
        The broker refused, in its own words.
    NoAnswerError
        It disconnected, or did not answer within `limit` seconds.
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
                reply = await reader.readline()
            finally:
                writer.close()
    except TimeoutError as error:
        raise _timed_out(limit, asked=asked) from error
    except (OSError, ValueError) as error:
        raise _no_answer(asked=asked) from error
    return _read(reply, answer)


def ask_now(path: Path, request: Request, answer: type[Answer], *, limit: float = _LIMIT_S) -> Answer:
    """Call `ask` from synchronous code, a notebook's cell included."""
    return run_sync(ask(path, request, answer, limit=limit))


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
        Descriptors for the command's input, output and errors.
    note
        Called with what the engine can't honour, one line each.
    limit
        Seconds until it has started.

    Raises
    ------
    GipfelError
        The broker refused, or disconnected.
    """
    line = to_line(request)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        try:
            connected.settimeout(_CONNECT_S)
            _connect(connected, path)
            sent = socket.send_fds(connected, [line], files)
            if sent < len(line):
                # A broker that refuses does so at once, and its answer is still to be read. Nothing to send
                # is left out, because sending nothing fails as well.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connected.sendall(line[sent:])
            connected.settimeout(limit)
        except OSError as error:
            raise _no_answer() from error
        before = {number: signal.signal(number, _signal_sender(connected)) for number in FORWARDED}
        try:
            return _follow(connected, note)
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
    """Connect without an event loop, waiting for a turn at most `_CONNECT_S`."""
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


def _signal_sender(connected: socket.socket) -> Callable[[int, FrameType | None], None]:
    def send(number: int, _frame: FrameType | None) -> None:
        try:
            connected.sendall(to_line(Signal(signal=number)))
        except OSError:
            return  # It is ending anyway.

    return send


def _follow(connected: socket.socket, note: Callable[[str], object]) -> int:
    with connected.makefile("rb") as lines:
        while True:
            try:
                line = lines.readline(MOST_BYTES)
            except TimeoutError as error:
                raise _timed_out(connected.gettimeout() or 0) from error
            except OSError as error:
                raise _no_answer() from error
            match _parse_reply(line):
                case Started(notes=notes):
                    connected.settimeout(None)
                    for each in notes:
                        note(each)
                case Ended(status=status):
                    return status
                case Refusal(problem=problem, fix=fix):
                    raise GipfelError(problem, fix)


def _parse_reply(line: bytes) -> Refusal | Started | Ended:
    if not line:
        raise _no_answer()
    try:
        return _REPLIES.validate_json(line)
    except ValidationError as error:
        raise _no_answer() from error


def _read(line: bytes, answer: type[Answer]) -> Answer:
    if not line:
        raise _no_answer()
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


def _timed_out(limit: float, *, asked: bool = True) -> NoAnswerError:
    problem = f"The job's broker did not answer within {limit:g} s."
    return NoAnswerError(problem, "Try again in a moment.", asked=asked)


def _no_answer(*, asked: bool = True) -> NoAnswerError:
    return NoAnswerError("This job's broker does not answer.", "Restart the server.", asked=asked)


class BrokerScheduler:
    """A scheduler behind the broker's socket; it acts as its own user only."""

    name = "broker"

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def submit(self, request: JobRequest) -> str:
        """Submit through the broker, which checks the request again."""
        return (await self._ask(SubmitRequest(job=request), SubmitAnswer)).job_id

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Ask the broker, at most a thousand jobs at a time."""
        asked, found = list(dict.fromkeys(job_ids)), dict[str, JobStatus]()
        for start in range(0, len(asked), _MOST_JOBS):
            some = tuple(asked[start : start + _MOST_JOBS])
            try:
                found |= (await self._ask(QueryRequest(job_ids=some), QueryAnswer)).jobs
            except (GipfelError, ValueError) as error:
                why = error.problem if isinstance(error, GipfelError) else "A job's number can't be one."
                found |= dict.fromkeys(some, JobStatus(answer="unknown", reason=why))
        return {each: found.get(each, JobStatus(answer="unknown")) for each in asked}

    async def cancel(self, job_id: str, *, user: str = "") -> None:  # noqa: ARG002 - the Protocol's
        """Cancel through the broker, as its user."""
        await self._ask(CancelRequest(job_id=job_id), Done)

    async def address(self, node: str) -> str:
        """Return the address at which the job's node reaches another one."""
        return (await self._ask(AddressRequest(node=node), AddressAnswer)).address

    async def partitions(self) -> tuple[Partition, ...]:
        """Return every partition."""
        return (await self._ask(PartitionsRequest(), PartitionsAnswer)).partitions

    async def _ask(self, request: Request, answer: type[Answer]) -> Answer:
        return await ask(self._socket, request, answer)
