"""1 024 simulated GPUs on 256 nodes at 1 Hz into one notebook server with a page: half a core, no drop.

Prints rows as JSON. The 256 senders are real ones of the fan-in, in one process that is not measured;
receiver and server are. A tick counts as lost when a sender dropped it, or a reader beside the server did not
get it.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import websocket

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "parts"))

from many_nodes import devices_of, node_samples  # noqa: E402
from measured_server import TOKEN, MeasuredServer, measured_server  # noqa: E402

from gipfel_cluster.runs import RunFolder  # noqa: E402
from gipfel_extension.telemetry.live import LiveReader, Tick  # noqa: E402
from gipfel_extension.telemetry.live.fan_in import FanInKeys, FanInSender  # noqa: E402
from gipfel_extension.telemetry.sample import Provenance  # noqa: E402

NODES, GPUS = 256, 4
LIMIT = 0.5
SETTLE_S, SECONDS = 20, 60
_DRAIN_S = 20.0


def main() -> int:
    """Measure; 1 where a bound does not hold."""
    with tempfile.TemporaryDirectory(prefix="g") as name, ExitStack() as ends:
        folder = Path(name)
        run = RunFolder.create(folder / "runs", "bench", "1")
        run.write_record({"nodes": [f"nid{number:04}" for number in range(NODES)]})
        sockets = folder / "s"
        sockets.mkdir(0o700)
        receiver, endpoint, keys = _receiver(sockets, ends)
        job = {"GIPFEL_RUN": str(run.path), "GIPFEL_SOCKETS": str(sockets), "GIPFEL_NODE": "nid0000"}
        server = ends.enter_context(measured_server(folder / "lab", "gipfel_extension", job))
        ended = threading.Event()
        ends.callback(ended.set)
        threading.Thread(target=_look, args=(server, ended.is_set), daemon=True).start()
        cores, sent, heard, dropped = _stream(server, receiver, sockets, endpoint, keys)
    lost = sent - heard + dropped
    rows = [
        {
            "name": "cores of server and receiver, 1 024 GPUs on 256 nodes, of half a core",
            "ours": cores,
            "peer": LIMIT,
            "unit": "cores",
            "ratio": cores / LIMIT,
            "bound": 1.0,
            "holds": cores <= LIMIT,
        },
        {
            "name": "ticks lost of those sent meanwhile, of 1",
            "ours": float(lost),
            "peer": 1.0,
            "unit": f"of {sent}",
            "ratio": float(lost),
            "bound": 0.0,
            "holds": lost == 0,
        },
    ]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _receiver(sockets: Path, ends: ExitStack) -> tuple[psutil.Process, str, FanInKeys]:
    argv = [sys.executable, "-m", "gipfel_extension.telemetry.live.fan_in", "--sockets", str(sockets)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIPFEL_")}
    process = subprocess.Popen([*argv, "--address", "127.0.0.1"], stdout=subprocess.PIPE, env=environment)
    ends.callback(process.wait, 30)
    ends.callback(process.terminate)
    if process.stdout is None:
        raise SystemExit("The receiver has no output.")
    said = json.loads(process.stdout.readline())
    keys = FanInKeys.from_environment(said["environment"])
    if keys is None:
        raise SystemExit("The receiver said no keys.")
    return psutil.Process(process.pid), f"tcp://127.0.0.1:{said['port']}", keys


def _stream(
    server: MeasuredServer, receiver: psutil.Process, sockets: Path, endpoint: str, keys: FanInKeys
) -> tuple[float, int, int, int]:
    """Cores, ticks sent and heard since the start of the measurement, and ticks dropped."""
    senders = [FanInSender(endpoint, keys) for _ in range(NODES)]
    nodes = [devices_of(f"nid{number:04}", GPUS) for number in range(NODES)]
    beats = list(node_samples(nodes[0], 60))
    first, cpu = SETTLE_S + 1, 0.0
    found: set[tuple[str, int]] = set()
    reading = threading.Event()
    reader = threading.Thread(target=_hear, args=(sockets, found, reading.is_set))
    reader.start()
    start = time.monotonic()
    for seq in range(1, SETTLE_S + SECONDS + 1):
        if seq == first:
            cpu = server.cpu_s(receiver)
        time_ns = time.time_ns()
        for number, sender in enumerate(senders):
            samples = [
                replace(sample, device=device.uuid, time_ns=time_ns)
                for sample, device in zip(beats[seq % len(beats)], nodes[number], strict=True)
            ]
            origin = Provenance(f"nid{number:04}", "job", "nvml", interval=1.0, devices=nodes[number])
            sender.send(Tick(seq, origin, tuple(samples)))
        time.sleep(max(0.0, start + seq - time.monotonic()))
    cores = (server.cpu_s(receiver) - cpu) / SECONDS
    ends = time.monotonic() + _DRAIN_S
    expected = {(f"nid{number:04}", seq) for number in range(NODES) for seq in range(first, first + SECONDS)}
    while not expected <= found and time.monotonic() < ends:
        time.sleep(0.2)
    reading.set()
    reader.join()
    for sender in senders:
        sender.close()
    return cores, len(expected), len(expected & found), sum(sender.dropped for sender in senders)


def _hear(sockets: Path, found: set[tuple[str, int]], ended: Callable[[], bool]) -> None:
    with closing(LiveReader(sockets)) as reader:
        while not ended():
            tick = reader.receive(0.2)
            if tick is not None:
                found.add((tick.origin.node, tick.seq))


def _look(server: MeasuredServer, ended: Callable[[], bool]) -> None:
    address = server.websocket("gipfel/saturation/stream")
    page = websocket.create_connection(address, timeout=120, header=[f"Authorization: token {TOKEN}"])
    with suppress(websocket.WebSocketException, OSError):
        while not ended():
            page.recv()


if __name__ == "__main__":
    sys.exit(main())
