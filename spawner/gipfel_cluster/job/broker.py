"""The broker beside a job: started before it, ended after it, and never in its way.

`broker_beside` starts ``python -m gipfel_cluster.broker``, which waits for the first client and then calls
`serve_job` in its own process.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..broker.context import JobContext
from ..broker.serving import listen
from ..environment import without_tokens
from ..scheduler.protocol import Scheduler

_END_S = 10.0


@contextlib.contextmanager
def broker_beside(context: JobContext) -> Iterator[None]:
    """Run a broker during this block; the job keeps running without one that can't start or dies."""
    try:
        process, life = _start(context)
    except OSError as error:
        sys.stderr.write(f"gipfel: the job runs without its broker: {error}\n")
        yield
        return
    try:
        yield
    finally:
        # The end of the pipe, which the kernel brings about too when this process is killed.
        os.close(life)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(context: JobContext) -> tuple[subprocess.Popen[bytes], int]:
    """Start the broker in a session of its own, so that a signal to the workload does not reach it."""
    given = os.memfd_create("job-context")
    reader, writer = os.pipe()
    try:
        with os.fdopen(os.dup(given), "wb") as file:
            file.write(context.model_dump_json().encode())
        os.lseek(given, 0, os.SEEK_SET)
        # Made here, so that no client comes before the socket is there.
        with listen(context.socket) as listener:
            words = (str(listener.fileno()), str(reader), __name__)
            process = subprocess.Popen(
                (sys.executable, "-I", "-m", "gipfel_cluster.broker", *words),
                env=without_tokens(context.host),
                stdin=given,
                stdout=subprocess.DEVNULL,
                pass_fds=(listener.fileno(), reader),
                start_new_session=True,
                cwd="/",
            )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(given)
        os.close(reader)
    return process, writer


async def serve(
    context: JobContext, listener: socket.socket, life: int, unheard: Sequence[signal.Signals]
) -> None:
    """Serve until the job ends or SIGTERM comes; the signals of `unheard` do nothing."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(life, ended.set)
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    for number in unheard:
        loop.add_signal_handler(number, lambda: None)
    # Not where a job runs, which only starts its broker.
    from ..broker.server import Broker  # noqa: PLC0415
    from ..steps.served import Steps  # noqa: PLC0415

    broker = Broker(context, scheduler_of(context), Steps(context))
    await broker.serve(listener, ended)
    loop.remove_reader(life)


def scheduler_of(context: JobContext) -> Scheduler:
    """Return the scheduler that runs the job."""
    from ..scheduler.local import LocalScheduler  # noqa: PLC0415
    from ..scheduler.slurm import SlurmScheduler  # noqa: PLC0415

    if context.scheduler == "slurm":
        return SlurmScheduler(environment=context.host)
    return LocalScheduler(Path(context.home) / ".gipfel" / "jobs", environment=context.host)


def serve_job(listener: int, life: int, *, unheard: Sequence[signal.Signals]) -> None:
    """Serve, on a descriptor, the job that stdin describes."""
    for number in (listener, life):
        os.set_inheritable(number, False)  # noqa: FBT003 - positional only
    context = JobContext.model_validate_json(sys.stdin.buffer.read())
    with socket.socket(fileno=listener) as listening:
        listening.settimeout(0)
        asyncio.run(serve(context, listening, life, unheard))
