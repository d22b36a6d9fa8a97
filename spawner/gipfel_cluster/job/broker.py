"""Start a job's broker before the job and end it after the job; the job can also run without it.

`broker_process` starts ``python -m gipfel_cluster.broker``, which waits for the first client and then calls
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
def broker_process(context: JobContext) -> Iterator[None]:
    """Run a broker during this block; the block also runs if the broker can't start, or dies."""
    try:
        process, job_pipe = _start(context)
    except OSError as error:
        sys.stderr.write(f"gipfel: the job runs without its broker: {error}\n")
        yield
        return
    try:
        yield
    finally:
        # Closing the pipe ends the broker. The kernel closes it as well when this process is killed.
        os.close(job_pipe)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(context: JobContext) -> tuple[subprocess.Popen[bytes], int]:
    """Start the broker in its own session, so that signals to the workload do not reach it."""
    context_file = os.memfd_create("job-context")
    reader, writer = os.pipe()
    try:
        with os.fdopen(os.dup(context_file), "wb") as file:
            file.write(context.model_dump_json().encode())
        os.lseek(context_file, 0, os.SEEK_SET)
        # Created here, so that the socket exists before the first client starts.
        with listen(context.socket) as listener:
            # LISTENER, JOB_PIPE and MODULE of `gipfel_cluster.broker.__main__`, which calls `serve_job`.
            arguments = (str(listener.fileno()), str(reader), __name__)
            process = subprocess.Popen(
                (sys.executable, "-I", "-m", "gipfel_cluster.broker", *arguments),
                env=without_tokens(context.host_environment),
                stdin=context_file,
                stdout=subprocess.DEVNULL,
                pass_fds=(listener.fileno(), reader),
                start_new_session=True,
                cwd="/",
            )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(context_file)
        os.close(reader)
    return process, writer


async def serve(
    context: JobContext, listener: socket.socket, job_pipe: int, ignored_signals: Sequence[signal.Signals]
) -> None:
    """Serve until the job closes its pipe or SIGTERM arrives."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(job_pipe, ended.set)
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    for number in ignored_signals:
        loop.add_signal_handler(number, lambda: None)
    # Imported late: the job's own process imports this module as well, and does not need these.
    from ..broker.server import Broker  # noqa: PLC0415
    from ..steps.broker import BrokerSteps  # noqa: PLC0415

    broker = Broker(context, scheduler_of(context), BrokerSteps(context))
    await broker.serve(listener, ended)
    loop.remove_reader(job_pipe)


def scheduler_of(context: JobContext) -> Scheduler:
    """Return the scheduler that runs the job."""
    from ..scheduler.local import LocalScheduler  # noqa: PLC0415
    from ..scheduler.slurm import SlurmScheduler  # noqa: PLC0415

    if context.scheduler == "slurm":
        return SlurmScheduler(environment=context.host_environment)
    return LocalScheduler(Path(context.home) / ".gipfel" / "jobs", environment=context.host_environment)


def serve_job(listener: int, job_pipe: int, *, ignored_signals: Sequence[signal.Signals]) -> None:
    """Serve the job whose `JobContext` is on standard input.

    `listener` and `job_pipe` are descriptors: the listening socket, and the pipe that the job keeps open.
    """
    for number in (listener, job_pipe):
        os.set_inheritable(number, False)  # noqa: FBT003 - positional only
    context = JobContext.model_validate_json(sys.stdin.buffer.read())
    with socket.socket(fileno=listener) as listening:
        listening.settimeout(0)
        asyncio.run(serve(context, listening, job_pipe, ignored_signals))
