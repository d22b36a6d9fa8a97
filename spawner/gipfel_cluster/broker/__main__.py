"""``python -m gipfel_cluster.broker LISTENER LIFE MODULE``: serve until LIFE ends; stdin: a `JobContext`.

LISTENER and LIFE are descriptors: the socket, and a pipe whose other end the job holds. The ``serve_job`` of
MODULE, which is above this package, answers. Until the first
client comes this process waits and imports little: many jobs never ask their broker, and it would load beside
their start.
"""

import importlib
import os
import select
import signal
import sys

# A scheduler warns jobs with them; a handler, unlike ignoring, is not inherited by containers.
_UNHEARD = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def main() -> None:
    """Serve the job that stdin describes from its first client on, unless the job ends before."""
    listener, life = (int(word) for word in sys.argv[1:3])
    for number in _UNHEARD:
        signal.signal(number, lambda *_: None)
    ready, _, _ = select.select([listener, life], [], [])
    if life in ready:
        return
    # After the wait.
    importlib.import_module(sys.argv[3]).serve_job(listener, life, unheard=_UNHEARD)


if __name__ == "__main__":
    main()
    # A thread may wait for a file system that never answers.
    os._exit(0)
