"""Containers that a broker runs for its clients: each as long as its client, none longer than the broker."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from pathlib import Path

from ..model import GipfelError
from ..scheduler.processes import kill_tree
from .connection import STREAMS, Connection
from .container import Prepared, prepare_run
from .following import follow
from .messages import KernelRequest, RunRequest, Started
from .surroundings import Surroundings

_MOST = 48
_PREPARE_S = 30.0
_GRACE_S = 3.0
# SIGKILL of the process that was started ends the whole container.
_END_WITH_THEIR_PROCESS = frozenset(("bubblewrap", "host"))


class Containers:
    """Runs containers for clients."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._count = 0

    async def run(self, request: RunRequest | KernelRequest, client: Connection) -> None:
        """Run a command to its end, or to that of its client, and tell its exit status.

        Raises
        ------
        GipfelError
            It can't be run, or there are too many.
        """
        if len(client.files) != STREAMS:
            raise GipfelError("The broker needs input, output and errors of a command.")
        if self._count >= _MOST:
            raise GipfelError(f"The broker runs {_MOST} commands already.", "End a kernel and try again.")
        self._count += 1
        try:
            scratch = _own_folder(self._surroundings.scratch)
            try:
                prepared = await self._prepared(request, scratch)
                await self._run(prepared, client)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        finally:
            self._count -= 1

    async def _prepared(self, request: RunRequest | KernelRequest, scratch: Path) -> Prepared:
        try:
            async with asyncio.timeout(_PREPARE_S):
                return await asyncio.to_thread(
                    prepare_run, request, self._surroundings, scratch, python=sys.executable
                )
        except TimeoutError:
            raise
        except OSError as error:
            raise _unprepared(error) from error

    async def _run(self, prepared: Prepared, client: Connection) -> None:
        process = await _started(prepared, client.files)
        try:
            client.close_files()
            await client.send(Started(notes=prepared.invocation.notes))
            await follow(process, client)
        except asyncio.CancelledError:
            await _end(process, gently=True)
            raise
        finally:
            # A kernel that is started anew must not meet the one before on its sockets.
            await _end(process, gently=prepared.engine not in _END_WITH_THEIR_PROCESS)


def _own_folder(scratch: str) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="b", dir=scratch))
    except OSError as error:
        raise _unprepared(error) from error


def _unprepared(error: OSError) -> GipfelError:
    """What an error says that is the host's: raised as it is, it would pass for a client that is gone."""
    where = f" ({error.filename})" if error.filename else ""
    return GipfelError(
        f"The container can't be prepared: {error.strerror or error}{where}.",
        "Make room on the node, or end a kernel, and try again.",
    )


async def _started(prepared: Prepared, files: tuple[int, ...]) -> Process:
    invocation = prepared.invocation
    given, output, errors = files
    try:
        return await asyncio.create_subprocess_exec(
            *invocation.argv,
            env=invocation.environment,
            cwd=prepared.directory,
            stdin=given,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise GipfelError(
            f"The command can't be started: {error.strerror} ({error.filename or invocation.argv[0]}).",
            "Check the command and the EDF.",
        ) from error


async def _end(process: Process, *, gently: bool) -> None:
    if process.returncode is not None:
        return
    if gently:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await process.wait()
                return
    kill_tree(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    await process.wait()
