"""A shared directory that each node mounts by itself with sshfs; the serving side counts the bytes."""

import contextlib
import functools
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from one_machine import OneMachine, wait_until

_SERVER = "/usr/lib/openssh/sftp-server"
_PIECE = 256 << 10


def missing() -> str | None:
    """Return what this machine lacks, in one line, or None."""
    if shutil.which("sshfs") is None or not Path(_SERVER).exists():
        return "This machine lacks sshfs or sftp-server: apt-get install sshfs openssh-sftp-server."
    return None if Path("/dev/fuse").exists() else "This machine has no /dev/fuse."


class SftpShare:
    """Serves a directory to the nodes, and counts the bytes that each of them gets.

    Parameters
    ----------
    source, at
        The directory, and where each node sees it.
    rate
        Bytes per second of all nodes together, as of a file server; None for no limit.
    link
        Bytes per second of each node's own link, in each direction; None for no limit.
    """

    def __init__(
        self,
        cluster: OneMachine,
        source: Path,
        at: Path,
        *,
        rate: float | None = None,
        link: float | None = None,
    ) -> None:
        self._cluster, self.source, self.at, self.rate, self._link = cluster, source, at, rate, link
        self.sent: Counter[str] = Counter()
        self._turn, self._due = threading.Lock(), 0.0
        self._listener = socket.create_server((cluster.hub_address, 0))
        self._servers: list[subprocess.Popen[bytes]] = []

    @contextlib.contextmanager
    def mounted(self) -> Iterator["SftpShare"]:
        """Mount it on every node, for every user, until the end of the block."""
        threading.Thread(target=self._accept, daemon=True).start()
        self.at.mkdir(mode=0o755, exist_ok=True)
        host, port = self._listener.getsockname()
        options = f"directport={port},allow_other,default_permissions,ro,cache_timeout=1"
        try:
            for name in self._cluster.node_names if self._link else ():
                # What it gets passes the bridge's port, what it sends its own end of the link.
                self._limit("add", "controller", name)
                self._limit("add", name, "eth0")
            for name in self._cluster.node_names:
                inside = ["nsenter", f"--target={self._cluster.pid(name)}", "--mount", "--net", "--"]
                argv = [*inside, "sshfs", "-f", f"{host}:{self.source}", str(self.at), "-o", options]
                self._servers.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))
                assert wait_until(functools.partial(self._is_mounted, inside), 15), name
            yield self
        finally:
            for each in self._servers:
                # sshfs unmounts when it is asked to end.
                each.terminate()
            for each in self._servers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.wait(5)
                each.kill()
                each.wait()
            for name in self._cluster.node_names if self._link else ():
                self._limit("del", "controller", name)
                self._limit("del", name, "eth0")
            self._listener.close()

    def _limit(self, action: str, member: str, device: str) -> None:
        enter = ["nsenter", f"--target={self._cluster.pid(member)}", "--net", "--"]
        bucket = ["tbf", "rate", f"{round((self._link or 0) * 8)}bit", "burst", "256kb", "latency", "100ms"]
        words = ["tc", "qdisc", action, "dev", device, "root", *(bucket if action == "add" else ())]
        subprocess.run([*enter, *words], timeout=10, check=action == "add")

    def _is_mounted(self, inside: list[str]) -> bool:
        done = subprocess.run([*inside, "mountpoint", "-q", str(self.at)], timeout=10, check=False)
        return done.returncode == 0

    def total(self) -> int:
        """Return the bytes that all nodes together got since `reset`."""
        return sum(self.sent.values())

    def reset(self) -> None:
        """Count from zero, and let the nodes forget what they have read."""
        wait_until(lambda: not Path("/proc/sys/vm/drop_caches").write_text("1"), 5)
        self.sent.clear()

    def _accept(self) -> None:
        while True:
            try:
                connected, (address, _) = self._listener.accept()
            except OSError:
                return
            node = {value: name for name, value in self._cluster.addresses.items()}.get(address, address)
            server = subprocess.Popen([_SERVER, "-R"], stdin=connected.fileno(), stdout=subprocess.PIPE)
            self._servers.append(server)
            threading.Thread(target=self._relay, args=(server, connected, node), daemon=True).start()

    def _relay(self, server: subprocess.Popen[bytes], connected: socket.socket, node: str) -> None:
        assert server.stdout
        with contextlib.suppress(OSError, ValueError):
            while piece := server.stdout.read1(_PIECE):  # type: ignore[attr-defined]
                connected.sendall(piece)
                self.sent[node] += len(piece)
                if self.rate:
                    with self._turn:
                        self._due = max(self._due, time.monotonic() - 0.05) + len(piece) / self.rate
                        due = self._due
                    time.sleep(max(0.0, due - time.monotonic()))
        connected.close()
