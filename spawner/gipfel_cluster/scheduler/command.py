"""Run a scheduler's commands: argv lists with a time limit and no shell, as this user or another one."""

import asyncio
import contextlib
import os
import pwd
import shlex
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..model import Frozen, GipfelError

_PIECE_BYTES = 1 << 16
_MOST_BYTES = 4 << 20
_END_SECONDS = 5.0
_T = TypeVar("_T")


class CommandResult(Frozen):
    """The output and exit status of a command."""

    code: int
    output: str
    errors: str


class PrintedTooMuchError(GipfelError):
    """A command was killed for printing too much; what it had done by then is unknown."""


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
        # The caller is notified of a cancellation; asyncio would log it a second time, with its stack.
        talk.add_done_callback(lambda done: done.cancelled() or done.exception())
        # asyncio.wait_for of Python 3.11 forgets a cancellation that comes with the end of what it waits for.
        async with asyncio.timeout(limit):
            output, errors, *_ = await talk
    finally:
        if process.returncode is None:
            kill()
            # Its end is seen only once its pipes are empty; one of another user may not be ours to kill.
            rest = asyncio.gather(
                _read(process.stdout, 0, kill), _read(process.stderr, 0, kill), process.wait()
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await rest
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
    """Read to the end; of more than ``most`` bytes one more, after ``stop`` was called."""
    kept = bytearray()
    while stream and (piece := await stream.read(_PIECE_BYTES)):
        kept += piece[: most + 1 - len(kept)]
        if len(kept) > most:
            stop()
    return bytes(kept)


async def _give(stream: asyncio.StreamWriter | None, given: bytes) -> None:
    if stream is None:
        return
    # A command that does not read its input is not an error.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(given)
        await stream.drain()
    stream.close()


def own_name() -> str:
    """Return the unix user's name of this process; its number where it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def acting_as(user: str, exec_prefix: str = "") -> tuple[str, ...]:
    """Return the words to put before an argv so that it runs as `user` with the same environment.

    Nothing for an empty name or the own one. Else `exec_prefix`, whose words are split first and then filled
    (``{username}``, ``{uid}``, ``{gid}``), so that no name can become two words; where it is empty
    ``runuser`` for root and ``sudo`` for everybody else. A hub that is not root but may change users
    (CAP_SETUID and CAP_SETGID) takes ``setpriv --reuid={uid} --regid={gid} --init-groups --``.

    Raises
    ------
    GipfelError
        The prefix has another field, or the user whose numbers it needs does not exist.
    """
    if user in {"", own_name()}:
        return ()
    if not exec_prefix:
        root = "runuser -u {username} --"
        exec_prefix = root if os.getuid() == 0 else "sudo --non-interactive --preserve-env -u {username} --"
    fields = {"username": user}
    if "{uid}" in exec_prefix or "{gid}" in exec_prefix:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise GipfelError(f"There is no unix user {user!r} on this machine.") from None
        fields |= {"uid": str(entry.pw_uid), "gid": str(entry.pw_gid)}
    try:
        return tuple(word.format_map(fields) for word in shlex.split(exec_prefix))
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise GipfelError(
            f"The exec_prefix {exec_prefix!r} can't be used: {error}.",
            "Its fields are {username}, {uid} and {gid}.",
        ) from error


def run_sync(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end from synchronous code; in its own thread where this one runs a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, "gipfel-ask") as pool:
        return pool.submit(asyncio.run, coroutine).result()
