"""CPU of a notebook server that shows 16 GPUs to ten pages at 1 Hz, beside jupyterlab-nvdashboard.

Prints rows as JSON: the server alone, and with its recorder, which reads far more metrics, once for all
pages; the peer's server reads its own for each page. Both read a stand-in for the driver's library, whose
calls take no time. The peer's pages show all five of its GPU charts, ours the default view.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import websocket

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "parts")]

from measured_server import TOKEN, MeasuredServer, measured_server  # noqa: E402
from nvml_stand_in import NAME, build, environment  # noqa: E402

PEER = "jupyterlab-nvdashboard==0.15.0"
BOUND = 1 / 3
PAGES, GPUS, SECONDS = 10, 16, 30.0
_SETTLE_S = 10.0
_CHARTS = ("gpu_utilization", "gpu_usage", "gpu_resource", "pci_stats", "nvlink_throughput")
_HEADER = [f"Authorization: token {TOKEN}"]


def main() -> int:
    """Measure; 1 where the bound does not hold, 77 where the peer can't be had."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        site = folder / "peer"
        # Its own folder: nothing of it is in the project's environment, whose Jupyter both use.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), PEER]
        if subprocess.run(pip, check=False).returncode:
            return 77
        (folder / "library").mkdir()
        stand_in = environment(build(folder / "library"), gpus=GPUS)
        peer = {**stand_in, "PYTHONPATH": str(site)}
        with measured_server(folder / "theirs", "jupyterlab_nvdashboard", peer) as server:
            theirs, _ = _cores(
                server,
                [f"nvdashboard/{chart}" for chart in _CHARTS],
                '{"updateFrequency": 1000, "isPaused": false}',
            )
        options = ("--GipfelExtension.interval=1.0",)
        with measured_server(folder / "ours", "gipfel_extension", stand_in, *options) as server:
            ours, recorder = _cores(server, ["gipfel/saturation/stream"], "")
    rows = [
        _row(f"server's CPU, 10 pages x 16 GPUs at 1 Hz ({NAME})", ours, theirs, BOUND),
        _row(f"the same with its recorder ({NAME})", ours + recorder, theirs, 1.0),
    ]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _cores(server: MeasuredServer, paths: list[str], first: str) -> tuple[float, float]:
    """Cores that the server takes while pages look, and those of its recorder."""
    ended = threading.Event()
    heard: list[int] = []
    readers = [
        threading.Thread(target=_look, args=(server.websocket(path), first, ended.is_set, heard))
        for path in paths
        for _ in range(PAGES)
    ]
    for reader in readers:
        reader.start()
    try:
        time.sleep(_SETTLE_S)
        recorders = server.children("gipfel_extension.recorder")
        before = server.cpu_s(), sum(sum(each.cpu_times()[:2]) for each in recorders)
        heard.clear()
        time.sleep(SECONDS)
        if len(heard) < 0.8 * SECONDS * len(readers):
            raise SystemExit(f"Pages were sent {len(heard)} messages in {SECONDS:g} s.")
        after = server.cpu_s(), sum(sum(each.cpu_times()[:2]) for each in recorders)
    finally:
        ended.set()
        for reader in readers:
            reader.join(30)
    return (after[0] - before[0]) / SECONDS, (after[1] - before[1]) / SECONDS


def _look(address: str, first: str, ended: Callable[[], bool], heard: list[int]) -> None:
    page = websocket.create_connection(address, timeout=20, header=_HEADER)
    if first:
        page.send(first)
    while not ended():
        heard.append(len(page.recv()))
    page.close()


def _row(name: str, ours: float, peer: float, bound: float) -> dict[str, object]:
    ratio = ours / peer
    return {
        "name": name,
        "ours": ours,
        "peer": peer,
        "unit": "cores",
        "ratio": ratio,
        "bound": bound,
        "holds": ratio <= bound,
    }


if __name__ == "__main__":
    sys.exit(main())
