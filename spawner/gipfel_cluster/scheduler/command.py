"""Run a scheduler's commands: argv lists with a time limit, without a shell, as this or another unix user."""

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
_MAX_BYTES = 4 << 20
_END_SECONDS = 5.0
_T = TypeVar("_T")


class CommandResult(Frozen):
    """The output and exit status of a command."""

    code: int
    output: str
    errors: str


class OutputLimitError(GipfelError):
    """A command was killed because it printed too much; whether it took effect is unknown."""


async def run_command(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    limit: float,
    stdin: str = "",
    max_bytes: int = _MAX_BYTES,
) -> CommandResult:
    """Run a command to its end, and return its output.

    Parameters
    ----------
    limit
        Time limit in seconds.
    stdin
        Standard input.
    max_bytes
        Limit for standard output and for standard error.

    Raises
    ------
    GipfelError
        The program is missing, or was killed because it printed too much.
    TimeoutError
        The command was killed at its time limit.
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
            f"{argv[0]} can't be run: {error.strerror}.", "Install it, or add its directory to PATH."
        ) from error

    def kill() -> None:
        # The whole process group, because the program may be a child of sudo or runuser.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    try:
        transfers = asyncio.gather(
            _read(process.stdout, max_bytes, kill),
            _read(process.stderr, max_bytes, kill),
            process.wait(),
            _write(process.stdin, stdin.encode()),
        )
        # Mark an exception as retrieved: the caller gets it, and asyncio would log it a second time.
        transfers.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the result.
        async with asyncio.timeout(limit):
            output, errors, *_ = await transfers
    finally:
        if process.returncode is None:
            kill()
            # asyncio sees the end only after the pipes are read. A process of another user may not be
            # killable.
            rest = asyncio.gather(
                _read(process.stdout, 0, kill), _read(process.stderr, 0, kill), process.wait()
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await rest
    if max(len(output), len(errors)) > max_bytes:
        raise OutputLimitError(
            f"{argv[0]} printed more than {max_bytes} bytes and was killed.",
            "Report this to the cluster's administrators.",
        )
    return CommandResult(
        code=process.returncode or 0,
        output=output.decode(errors="replace"),
        errors=errors.decode(errors="replace").strip(),
    )


async def _read(stream: asyncio.StreamReader | None, max_bytes: int, stop: Callable[[], None]) -> bytes:
    """Read to the end; beyond the limit call ``stop``, and return one byte more than the limit."""
    content = bytearray()
    while stream and (piece := await stream.read(_PIECE_BYTES)):
        content += piece[: max_bytes + 1 - len(content)]
        if len(content) > max_bytes:
            stop()
    return bytes(content)


async def _write(stream: asyncio.StreamWriter | None, content: bytes) -> None:
    if stream is None:
        return
    # A command that does not read its input is not an error.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(content)
        await stream.drain()
    stream.close()


def current_user_name() -> str:
    """Return the name of this process's unix user, or its uid if it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def run_as_prefix(user: str, exec_prefix: str = "") -> tuple[str, ...]:
    """Return the words that, in front of an argv, run it as `user` with the same environment.

    Parameters
    ----------
    user
        For an empty name or the own one the result is empty.
    exec_prefix
        Command with the fields ``{username}``, ``{uid}`` and ``{gid}``. It is split into words before the
        fields are replaced, so that a name can't become two words. Empty: ``runuser`` for root, else
        ``sudo``. A hub that is not root but has CAP_SETUID and CAP_SETGID can use ``setpriv --reuid={uid}
        --regid={gid} --init-groups --``.

    Raises
    ------
    GipfelError
        The prefix has another field, or it needs the uid of a user who does not exist.
    """
    if user in {"", current_user_name()}:
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
            "Use the fields {username}, {uid} and {gid} only.",
        ) from error


def run_sync(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end from synchronous code; in another thread if this one runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, "gipfel-ask") as pool:
        return pool.submit(asyncio.run, coroutine).result()
