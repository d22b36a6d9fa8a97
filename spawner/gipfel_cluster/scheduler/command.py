"""Runs one command of the scheduler: an argv list, a time limit, no shell."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from ..model import Frozen, GipfelError

_PIECE_BYTES = 1 << 16
_MOST_BYTES = 4 << 20
_END_SECONDS = 5.0


class CommandResult(Frozen):
    """What a command printed and how it ended."""

    code: int
    output: str
    errors: str


class PrintedTooMuchError(GipfelError):
    """A command was killed for what it printed; what it had done by then is not known."""


async def run_command(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    limit: float,
    given: str = "",
    most_bytes: int = _MOST_BYTES,
) -> CommandResult:
    """Run a command to its end and return what it printed; ``limit`` is in seconds.

    ``most_bytes`` is what it may print, on its output and on its errors each.

    Raises
    ------
    GipfelError
        The program is missing, or printed too much; it is killed then.
    TimeoutError
        It did not end in time; it is killed then.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        raise GipfelError(
            f"{argv[0]} can't be run: {error.strerror}.", "Install it, or put its folder on PATH."
        ) from error

    def kill() -> None:
        # The whole group: the program may run below one that acts as another user.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    try:
        talk = asyncio.gather(
            _read(process.stdout, most_bytes, kill),
            _read(process.stderr, most_bytes, kill),
            process.wait(),
            _give(process.stdin, given.encode()),
        )
        # Who is cancelled meanwhile hears of it; asyncio would log it a second time, with its stack.
        talk.add_done_callback(lambda done: done.cancelled() or done.exception())
        output, errors, *_ = await asyncio.wait_for(talk, limit)
    finally:
        if process.returncode is None:
            kill()
            # Its end is seen only once its pipes are empty; one of another user may not be ours to kill.
            rest = asyncio.gather(
                _read(process.stdout, 0, kill), _read(process.stderr, 0, kill), process.wait()
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rest, _END_SECONDS)
    if max(len(output), len(errors)) > most_bytes:
        raise PrintedTooMuchError(
            f"{argv[0]} printed more than {most_bytes} bytes and was killed.",
            "Tell the cluster's administrators.",
        )
    return CommandResult(
        code=process.returncode or 0,
        output=output.decode(errors="replace"),
        errors=errors.decode(errors="replace").strip(),
    )


async def _read(stream: asyncio.StreamReader | None, most: int, stop: Callable[[], None]) -> bytes:
    """What comes, to its end; of more than ``most`` bytes one more, after ``stop`` was called."""
    kept = bytearray()
    while stream and (piece := await stream.read(_PIECE_BYTES)):
        kept += piece[: most + 1 - len(kept)]
        if len(kept) > most:
            stop()
    return bytes(kept)


async def _give(stream: asyncio.StreamWriter | None, given: bytes) -> None:
    if stream is None:
        return
    # A command that does not read its input is no error.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(given)
        await stream.drain()
    stream.close()
