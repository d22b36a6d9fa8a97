"""The first process of a node, in its namespaces: names it, starts Slurm's daemon, reaps orphans.

SIGUSR1 kills the daemon and starts it again, with the state that it had saved.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

_LIMIT_S = 10


def be_node(name: str, folder: Path) -> int:
    """Wait for a line on stdin, then run the node's daemon to its end and return its exit status."""
    sys.stdin.readline()
    socket.sethostname(name)
    shm = ["mount", "-t", "tmpfs", "-o", "mode=1777,size=2g", "tmpfs", "/dev/shm"]
    subprocess.run(shm, check=True, timeout=_LIMIT_S)
    subprocess.run(["mount", "--bind", str(folder / "hosts"), "/etc/hosts"], check=True, timeout=_LIMIT_S)
    argv = ["slurmctld", "-D"] if name == "controller" else ["slurmd", "-D", "-N", name]
    first = [*argv, "-i"] if name == "controller" else argv
    daemon = subprocess.Popen(first, stdin=subprocess.DEVNULL)
    again = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.terminate())
    signal.signal(signal.SIGUSR1, lambda *_: again.append(daemon.kill()))
    while True:
        pid, status = os.wait()
        if pid != daemon.pid:
            continue
        if not again:
            return os.waitstatus_to_exitcode(status)
        again.clear()
        daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(be_node(sys.argv[1], Path(sys.argv[2])))
