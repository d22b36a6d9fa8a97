"""Send requests to the broker of this process's job; `BrokerScheduler` uses it as a scheduler."""

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
from ..model import DEFER_BUILD, Frozen, GipfelError
from ..scheduler.machine import run_sync
from ..scheduler.protocol import JobRequest, JobStatus, Partition, Quota
from . import messages

AnyAnswer = TypeVar("AnyAnswer", bound=Frozen)
#: Time limits in seconds: of a request, longer than the broker's own limits, and of connecting.
_LIMIT_S = 75.0
_CONNECT_S = 10.0
#: Seconds between two attempts to connect while the broker's queue is full.
_PAUSE_S = 0.05
_Reply = messages.Refusal | messages.Started | messages.Ended
_REPLIES: TypeAdapter[_Reply] = TypeAdapter(_Reply, config=DEFER_BUILD)
#: Job ids in one `QueryRequest`.
_MAX_JOBS = 1000


class NoAnswerError(GipfelError):
    """The broker sent no valid response; ``sent`` is true if it may have received the request."""

    def __init__(self, problem: str, fix: str = "", *, sent: bool = True) -> None:
        super().__init__(problem, fix)
        self.sent = sent


async def send_request(
    path: Path, request: messages.Request, answer: type[AnyAnswer], *, limit: float = _LIMIT_S
) -> AnyAnswer:
    """Send one request and return its answer.

    Raises
    ------
    GipfelError
        The broker refused the request, and gave the reason.
    NoAnswerError
        The broker disconnected, or did not answer within `limit` seconds.
    """
    line = messages.to_line(request)
    sent = False
    try:
        async with asyncio.timeout(limit):
            connected = await _connected(path)
            reader, writer = await asyncio.open_unix_connection(sock=connected, limit=4 * messages.MAX_BYTES)
            try:
                sent = True
                writer.write(line)
                await writer.drain()
                reply = await reader.readline()
            finally:
                writer.close()
    except TimeoutError as error:
        raise _timed_out(limit, sent=sent) from error
    except (OSError, ValueError) as error:
        raise no_answer(sent=sent) from error
    return read_answer(reply, answer)


def send_request_sync(
    path: Path, request: messages.Request, answer: type[AnyAnswer], *, limit: float = _LIMIT_S
) -> AnyAnswer:
    """Call `send_request` from synchronous code, even where an event loop runs, as in a notebook's cell."""
    return run_sync(send_request(path, request, answer, limit=limit))


def run_in_container(
    path: Path,
    request: messages.RunRequest | messages.KernelRequest,
    *,
    files: tuple[int, int, int] = (0, 1, 2),
    note: Callable[[str], object] = str,
    limit: float = _LIMIT_S,
) -> int:
    """Run a command through the broker to its end, and forward signals to it; call it in the main thread.

    Parameters
    ----------
    files
        Descriptors of the command's standard input, output and error.
    note
        Called with each note of the engine, such as an option that it does not support.
    limit
        Time limit in seconds for the start of the command.

    Raises
    ------
    GipfelError
        The broker refused the request, or disconnected.
    """
    line = messages.to_line(request)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        try:
            connected.settimeout(_CONNECT_S)
            _connect(connected, path)
            sent = socket.send_fds(connected, [line], files)
            if sent < len(line):
                # A broker that refuses closes its end, but its answer can still be read below. If nothing is
                # left to send, sendall is not called, because it would fail as well.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connected.sendall(line[sent:])
            connected.settimeout(limit)
        except OSError as error:
            raise no_answer() from error
        before = {number: signal.signal(number, _signal_sender(connected)) for number in FORWARDED}
        try:
            return _follow(connected, note)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _connected(path: Path) -> socket.socket:
    """Connect; retry while the broker's queue is full, which asyncio would regard as connected."""
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
    """Connect without an event loop; while the broker's queue is full, retry for at most `_CONNECT_S`."""
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
        # If the broker has disconnected, the command ends.
        with contextlib.suppress(OSError):
            connected.sendall(messages.to_line(messages.Signal(signal=number)))

    return send


def _follow(connected: socket.socket, note: Callable[[str], object]) -> int:
    with connected.makefile("rb") as lines:
        while True:
            try:
                line = lines.readline(messages.MAX_BYTES)
            except TimeoutError as error:
                raise _timed_out(connected.gettimeout() or 0) from error
            except OSError as error:
                raise no_answer() from error
            match _parse_reply(line):
                case messages.Started(notes=notes):
                    connected.settimeout(None)
                    for each in notes:
                        note(each)
                case messages.Ended(status=status):
                    return status
                case messages.Refusal(problem=problem, fix=fix):
                    raise GipfelError(problem, fix)


def _parse_reply(line: bytes) -> _Reply:
    if not line:
        raise no_answer()
    try:
        return _REPLIES.validate_json(line)
    except ValidationError as error:
        raise no_answer() from error


def read_answer(line: bytes, answer: type[AnyAnswer]) -> AnyAnswer:
    """Return a broker's answer; raise its refusal, or `NoAnswerError` for anything else."""
    if not line:
        raise no_answer()
    try:
        refused = messages.Refusal.model_validate_json(line)
    except ValidationError:
        try:
            return answer.model_validate_json(line)
        except ValidationError as error:
            raise NoAnswerError(
                "The job's broker answered with another version of its protocol.",
                "Use the gipfel command of this job's runtime.",
            ) from error
    raise GipfelError(refused.problem, refused.fix)


def _timed_out(limit: float, *, sent: bool = True) -> NoAnswerError:
    problem = f"The job's broker did not answer within {limit:g} s."
    return NoAnswerError(problem, "Try again in a moment.", sent=sent)


def no_answer(*, sent: bool = True) -> NoAnswerError:
    """Return the error about a broker that does not answer."""
    return NoAnswerError("This job's broker does not answer.", "Restart the server.", sent=sent)


class BrokerScheduler:
    """A scheduler that uses the broker of a job, which acts as its own user only."""

    name = "broker"

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def submit(self, request: JobRequest) -> str:
        """Submit through the broker, which validates the request again."""
        return (await self._ask(messages.SubmitRequest(job=request), messages.Answer[str])).value

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job, with one request per thousand jobs."""
        unique, statuses = list(dict.fromkeys(job_ids)), dict[str, JobStatus]()
        for start in range(0, len(unique), _MAX_JOBS):
            some = tuple(unique[start : start + _MAX_JOBS])
            try:
                statuses |= (
                    await self._ask(
                        messages.QueryRequest(job_ids=some), messages.Answer[dict[str, JobStatus]]
                    )
                ).value
            except (GipfelError, ValueError) as error:
                reason = error.problem if isinstance(error, GipfelError) else "A job id is not valid."
                statuses |= dict.fromkeys(some, JobStatus(answer="unknown", reason=reason))
        return {each: statuses.get(each, JobStatus(answer="unknown")) for each in unique}

    async def cancel(self, job_id: str, *, user: str = "") -> None:  # noqa: ARG002 - the Protocol's
        """Cancel through the broker, as the broker's user."""
        await self._ask(messages.CancelRequest(job_id=job_id), messages.Answer[None])

    async def address(self, node: str) -> str:
        """Return the address of a node as seen from the job's node."""
        return (await self._ask(messages.AddressRequest(node=node), messages.Answer[str])).value

    async def partitions(self) -> tuple[Partition, ...]:
        """Return all partitions."""
        return (await self._ask(messages.PartitionsRequest(), messages.Answer[tuple[Partition, ...]])).value

    async def quota(self, user: str) -> Quota:  # noqa: ARG002 - the Protocol's
        """Return the quota of the job's user; empty if the scheduler has none."""
        return (await self._ask(messages.QuotaRequest(), messages.Answer[Quota | None])).value or Quota()

    async def _ask(self, request: messages.Request, answer: type[AnyAnswer]) -> AnyAnswer:
        return await send_request(self._socket, request, answer)
