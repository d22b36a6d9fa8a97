"""Runs one command of the scheduler: an argv list, a time limit, no shell."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from ..model import Frozen, GipfelError


class CommandResult(Frozen):
    """What a command printed and how it ended."""

    code: int
    output: str
    errors: str


async def run_command(
    argv: Sequence[str], *, environment: Mapping[str, str], limit: float, given: str = ""
) -> CommandResult:
    """Run a command to its end and return what it printed; ``limit`` is in seconds.

    Raises
    ------
    GipfelError
        The program is missing.
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
    try:
        output, errors = await asyncio.wait_for(process.communicate(given.encode()), limit)
    finally:
        if process.returncode is None:
            # The whole group: the program may run below one that acts as another user.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return CommandResult(
        code=process.returncode or 0,
        output=output.decode(errors="replace"),
        errors=errors.decode(errors="replace").strip(),
    )
