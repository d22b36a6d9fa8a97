"""Who slows a file system, on a real one: an sshfs mount whose server answers a limited number of requests.

A job opens small files in bursts until the server is busy (``real.job``), or a second mount of the same
server does while the job opens a few (``real.everybody``). The job's storage is recorded as in any run, by
`StorageMonitor` with its own intervals, which makes a run of a quarter of an hour.
"""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SERVER = "/usr/lib/openssh/sftp-server"
_FILES, _BYTES = 400, 500
_RUN_S, _BURST_S = 840.0, 70.0
#: Bytes of answers per second, of about 60 bytes each, and files that are opened at the same time.
_RATE, _THREADS = 250e3, 96


def is_possible() -> bool:
    """Return whether this machine has what a run needs."""
    return bool(shutil.which("sshfs")) and Path(_SERVER).exists() and Path("/dev/fuse").exists()


class LimitedServer:
    """Serves files to sshfs on loopback; answers of all connections share a rate."""

    def __init__(self, rate: float) -> None:
        self._rate, self._turn, self._due = rate, threading.Lock(), 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._servers: list[subprocess.Popen[bytes]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def mounted(self, source: Path, at: Path) -> Iterator[Path]:
        """Mount a directory until the end of the block."""
        at.mkdir()
        port = self._listener.getsockname()[1]
        options = f"directport={port},cache=no"
        argv = ["sshfs", "-f", f"127.0.0.1:{source}", str(at), "-o", options]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20
            while not os.path.ismount(at) and time.monotonic() < deadline:
                time.sleep(0.1)
            yield at
        finally:
            process.terminate()
            process.wait(20)

    def close(self) -> None:
        """End what serves."""
        self._listener.close()
        for each in self._servers:
            each.kill()
            each.wait()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                server = subprocess.Popen([_SERVER], stdin=connected.fileno(), stdout=subprocess.PIPE)
                self._servers.append(server)
                threading.Thread(target=self._relay, args=(server, connected), daemon=True).start()

    def _relay(self, server: "subprocess.Popen[bytes]", connected: socket.socket) -> None:
        assert server.stdout
        with contextlib.suppress(OSError):
            while piece := os.read(server.stdout.fileno(), 4096):
                with self._turn:
                    self._due = max(self._due, time.monotonic() - 0.01) + len(piece) / self._rate
                    due = self._due
                time.sleep(max(0.0, due - time.monotonic()))
                connected.sendall(piece)


def work(directory: str, threads: str, burst_s: str, files_per_s: str) -> None:
    """Open files of a directory: a few per second, and in every second period as many as are answered."""
    names = [os.fspath(each) for each in Path(directory).iterdir()]
    began, kept = time.monotonic(), os.open(names[0], os.O_RDONLY)

    def open_files(*, leads: bool) -> None:
        draw = random.Random()
        while True:
            now = (time.monotonic() - began) / float(burst_s)
            if int(now) % 2 == 0:
                if leads:
                    os.close(os.open(draw.choice(names), os.O_RDONLY))
                time.sleep(1 / float(files_per_s))
                continue
            with contextlib.suppress(OSError):
                os.close(os.open(draw.choice(names), os.O_RDONLY))

    for number in range(int(threads)):
        threading.Thread(target=open_files, kwargs={"leads": number == 0}, daemon=True).start()
    sys.stdin.read()
    os.close(kept)


def measure(name: str) -> dict[str, Any]:
    """Record a run; return the answer and the sentences."""
    from gipfel_extension.job.run_storage import storage_report  # noqa: PLC0415
    from gipfel_extension.recorder.storage_monitor import StorageMonitor  # noqa: PLC0415
    from gipfel_extension.telemetry.sources import SystemClock  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="gipfel-campaign-") as place:
        folder = Path(place)
        source, run = folder / "served", folder / "run"
        source.mkdir()
        (run / "telemetry").mkdir(parents=True, mode=0o700)
        for number in range(_FILES):
            (source / f"{number}.bin").write_bytes(os.urandom(_BYTES))
        server = LimitedServer(_RATE)
        try:
            with (
                server.mounted(source, folder / "job") as own,
                server.mounted(source, folder / "other") as other,
            ):
                busy, quiet = (other, own) if name == "real.everybody" else (own, own)
                processes = [_start(busy, _THREADS), *([_start(quiet, 1)] if busy != quiet else [])]
                monitor = StorageMonitor(
                    run, "n1", root_pid=processes[-1].pid, environment=dict(os.environ), clock=SystemClock()
                )
                time.sleep(_RUN_S)
                monitor.close()
                for each in processes:
                    each.communicate()
        finally:
            server.close()
        report = storage_report(run)
    if report is None:
        return {"slow": {"nothing recorded": 1}, "many_opens": 0, "sentences": []}
    told = [each for each in report.judgements if each.mount.endswith("/job")]
    return {
        "draws": 1, "slow": {each.slow or "none": 1 for each in told},
        "many_opens": sum(each.many_opens for each in told),
        "sentences": [verdict.evidence for each in told for verdict in each.verdicts()],
    }  # fmt: skip


def _start(directory: Path, threads: int) -> "subprocess.Popen[bytes]":
    words = [str(directory), str(threads), str(_BURST_S if threads > 1 else 1e9), "4"]
    return subprocess.Popen([sys.executable, __file__, *words], stdin=subprocess.PIPE)


if __name__ == "__main__":
    work(*sys.argv[1:])
