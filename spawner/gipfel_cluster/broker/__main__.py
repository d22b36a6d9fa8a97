"""``python -m gipfel_cluster.broker LISTENER LIFE``: serve until LIFE ends; stdin holds the surroundings.

LISTENER and LIFE are descriptors: the socket, and a pipe whose other end the job holds. Until the first
client comes this process waits and imports little: many jobs never ask their broker, and it would load beside
their start.
"""

import os
import select
import signal
import sys

# A scheduler warns jobs with them; a handler, unlike ignoring, is not inherited by containers.
_UNHEARD = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def main() -> None:
    """Serve what stdin describes from the first client on, unless the job ends before."""
    listener, life = (int(word) for word in sys.argv[1:3])
    for number in _UNHEARD:
        signal.signal(number, lambda *_: None)
    ready, _, _ = select.select([listener, life], [], [])
    if life in ready:
        return
    from .process import serve_job  # noqa: PLC0415 - after the wait

    serve_job(listener, life, unheard=_UNHEARD)


if __name__ == "__main__":
    main()
    # A thread may wait for a file system that never answers.
    os._exit(0)
