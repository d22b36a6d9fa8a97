"""Faults of real jobs from outside: half of a process's cores, a slow port, and the readers behind it."""

import contextlib
import os
import random
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from one_machine import OneMachine, wait_until

#: Bytes of a batch, more than the kernel sends in one piece, and the rate at which it takes 0.27 s.
_BATCH_BYTES, _SLOW_READER = 400_000, "12mbit"


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def half_cpu(pid: int, needed: float) -> Iterator[None]:
    """Hold a process to half of the cores that it needs."""
    group = Path(tempfile.mkdtemp(prefix="gipfel-jobs-", dir="/sys/fs/cgroup/cpu"))
    try:
        period = 100_000
        (group / "cpu.cfs_period_us").write_text(str(period))
        (group / "cpu.cfs_quota_us").write_text(str(max(1000, int(period * needed / 2))))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.procs").write_text(str(pid))
        wait_until(lambda: not (group / "cgroup.procs").read_text(), 5)
        group.rmdir()


@contextlib.contextmanager
def slow_port(machine: OneMachine, port: int) -> Iterator[None]:
    """Limit what this machine sends from a port to the nodes."""
    network = ".".join(machine.hub_address.split(".")[:3])
    shown = subprocess.run(
        ["ip", "-4", "-o", "address"], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    link = next(line.split()[1] for line in shown.splitlines() if f" {network}." in line)
    slow = f"dev {link} parent 1: protocol ip u32 match ip sport {port} 0xffff flowid 1:3"
    for words in (
        f"qdisc add dev {link} root handle 1: htb",
        f"class add dev {link} parent 1: classid 1:3 htb rate {_SLOW_READER} burst 4kb cburst 4kb",
        f"filter add {slow}",
    ):
        subprocess.run(["/usr/sbin/tc", *words.split()], check=True, timeout=10)
    try:
        yield
    finally:
        subprocess.run(["/usr/sbin/tc", "qdisc", "del", "dev", link, "root"], check=False, timeout=10)


@contextlib.contextmanager
def readers(address: str, count: int) -> Iterator[str]:
    """Serve batches to each rank from a port of its own; gives the address with the first port."""
    batch = b"x" * _BATCH_BYTES
    while True:
        sockets = [socket.socket() for _ in range(count)]
        first = random.randrange(20_000, 30_000)
        try:
            for number, each in enumerate(sockets):
                each.bind((address, first + number))
                each.listen()
            break
        except OSError:
            for each in sockets:
                each.close()

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                while connection.recv(1):
                    connection.sendall(batch)

    threads = [threading.Thread(target=serve, args=(each,), daemon=True) for each in sockets]
    for thread in threads:
        thread.start()
    try:
        yield f"{address}:{first}"
    finally:
        for each in sockets:
            # A close alone leaves a thread in accept().
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
