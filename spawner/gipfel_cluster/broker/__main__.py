"""``python -m gipfel_cluster.broker LISTENER LIFE``: serve until LIFE ends; stdin holds the surroundings.

LISTENER and LIFE are descriptors: the socket, and a pipe whose other end the job holds.
"""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from ..scheduler.local import LocalScheduler
from ..scheduler.protocol import Scheduler
from ..scheduler.slurm import SlurmScheduler
from .server import Broker
from .surroundings import Surroundings

# A scheduler warns jobs with them; a handler, unlike ignoring, is not inherited by containers.
_UNHEARD = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


async def serve(surroundings: Surroundings, listener: socket.socket, life: int) -> None:
    """Serve until the job ends or somebody asks this process to."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(life, ended.set)
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    for number in _UNHEARD:
        loop.add_signal_handler(number, lambda: None)
    await Broker(surroundings, scheduler_of(surroundings)).serve(listener, ended)
    loop.remove_reader(life)


def scheduler_of(surroundings: Surroundings) -> Scheduler:
    """The scheduler that runs the job."""
    if surroundings.scheduler == "slurm":
        return SlurmScheduler(environment=surroundings.host)
    return LocalScheduler(Path(surroundings.home) / ".gipfel" / "jobs", environment=surroundings.host)


def main() -> None:
    """Serve what stdin describes."""
    numbers = [int(word) for word in sys.argv[1:3]]
    for number in numbers:
        os.set_inheritable(number, False)  # noqa: FBT003 - positional only
    listener, life = numbers
    surroundings = Surroundings.model_validate_json(sys.stdin.buffer.read())
    with socket.socket(fileno=listener) as listening:
        listening.settimeout(0)
        asyncio.run(serve(surroundings, listening, life))


if __name__ == "__main__":
    main()
    # A thread may wait for a file system that never answers.
    os._exit(0)
