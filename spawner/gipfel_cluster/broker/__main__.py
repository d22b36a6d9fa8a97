"""Run the broker of a job: ``python -m gipfel_cluster.broker LISTENER JOB_PIPE MODULE``.

LISTENER and JOB_PIPE are descriptors: the listening socket, and a pipe that the job keeps open while it runs.
Standard input is a `JobContext`. When the first client connects, call ``serve_job`` of MODULE, which this
package must not import. Until then this process imports little: many jobs never use their broker, and imports
would slow down their start.
"""

import importlib
import os
import select
import signal
import sys

# Schedulers send these signals to jobs before their end. The broker handles them instead of ignoring them,
# because its containers would inherit ignored signals.
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def main() -> None:
    """Wait for the first client, then serve the job until it ends; exit if the job ends before that."""
    listener, job_pipe = (int(word) for word in sys.argv[1:3])
    for number in _IGNORED_SIGNALS:
        signal.signal(number, lambda *_: None)
    ready, _, _ = select.select([listener, job_pipe], [], [])
    if job_pipe in ready:
        return
    importlib.import_module(sys.argv[3]).serve_job(listener, job_pipe, ignored_signals=_IGNORED_SIGNALS)


if __name__ == "__main__":
    main()
    # Do not wait for threads: one may be blocked by a file system that never answers.
    os._exit(0)
