"""The broker of a job as a process, from its first client to the end of the job."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from ..scheduler.local import LocalScheduler
from ..scheduler.protocol import Scheduler
from ..scheduler.slurm import SlurmScheduler
from .server import Broker
from .surroundings import Surroundings


async def serve(
    surroundings: Surroundings, listener: socket.socket, life: int, unheard: Sequence[signal.Signals]
) -> None:
    """Serve until the job ends or SIGTERM comes; the signals of `unheard` do nothing."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(life, ended.set)
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    for number in unheard:
        loop.add_signal_handler(number, lambda: None)
    await Broker(surroundings, scheduler_of(surroundings)).serve(listener, ended)
    loop.remove_reader(life)


def scheduler_of(surroundings: Surroundings) -> Scheduler:
    """The scheduler that runs the job."""
    if surroundings.scheduler == "slurm":
        return SlurmScheduler(environment=surroundings.host)
    return LocalScheduler(Path(surroundings.home) / ".gipfel" / "jobs", environment=surroundings.host)


def serve_job(listener: int, life: int, *, unheard: Sequence[signal.Signals]) -> None:
    """Serve on a descriptor what stdin describes."""
    for number in (listener, life):
        os.set_inheritable(number, False)  # noqa: FBT003 - positional only
    surroundings = Surroundings.model_validate_json(sys.stdin.buffer.read())
    with socket.socket(fileno=listener) as listening:
        listening.settimeout(0)
        asyncio.run(serve(surroundings, listening, life, unheard))
