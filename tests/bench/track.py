"""Time to track one hour of 64 GPUs in MLflow, with the package's own server, of 60 seconds.

MLflow is installed into ``build/peers`` and runs in a network namespace without routes, its
telemetry off. Without a package index the row is left out. 64 ranks log 60 steps each beside the samples.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "parts"))

from many_nodes import START_NS, copy_node, record_node  # noqa: E402
from peer_environment import peer_python  # noqa: E402

from gipfel_extension.telemetry.store.compaction import compact  # noqa: E402

LIMIT_S, LEFT_OUT = 60.0, 77
NODES, GPUS, SECONDS, STEPS = 16, 4, 3600, 60
VERSION = "3.17.2"
_INSTALL_S, _START_S = 840, 120
_PORT = 5000


def main() -> int:
    """Measure; 1 where the bound does not hold."""
    python = peer_python(f"mlflow-{VERSION}", [f"mlflow=={VERSION}"], _INSTALL_S)
    if python is None:
        return LEFT_OUT
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        _make_run(home / "runs" / "alps-1")
        seconds = _measure(python.with_name("mlflow"), home)
    row = {
        "name": "track: 1 h x 64 GPUs and the metrics of 64 ranks to MLflow, of 60 s",
        "ours": seconds,
        "peer": LIMIT_S,
        "unit": "s",
        "ratio": seconds / LIMIT_S,
        "bound": 1.0,
        "holds": seconds <= LIMIT_S,
    }
    print(json.dumps(row))
    return 0 if row["holds"] else 1


def _make_run(run: Path) -> None:
    telemetry = run / "telemetry"
    telemetry.mkdir(parents=True)
    record_node(telemetry, SECONDS, gpus=GPUS)
    copy_node(telemetry, NODES)
    compact(telemetry)
    record = {"kind": "recording", "ended": "2026-01-01T01:00:00+00:00", "exit_status": 0, "nodes": []}
    (run / "record.json").write_text(json.dumps(record))
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(STEPS):
            when = START_NS + step * 60 * 10**9
            for rank in range(NODES * GPUS):
                values = {"step": step, "loss": 1.0 / (step + 1), "tokens_per_s": 1000.0 + rank}
                line = {"time_ns": when, "monotonic_ns": when, "node": "n", "rank": rank, "values": values}
                file.write(json.dumps(line) + "\n")


def _measure(server: Path, home: Path) -> float:
    """Start the server and the command in one network namespace; return the command's seconds."""
    environment = {
        **os.environ,
        "HOME": str(home),
        "GIPFEL_RUNS": str(home / "runs"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    inside = [sys.executable, __file__, "--inside", str(server), str(home)]
    offline = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    done = subprocess.run([*offline, *inside], env=environment, stdout=subprocess.PIPE, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def _inside(server: Path, home: Path) -> int:
    """Run both, and print the seconds."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    argv = [str(server), "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(_PORT)]
    argv += ["--backend-store-uri", f"sqlite:///{home}/mlflow.db"]
    argv += ["--artifacts-destination", f"{home}/artifacts"]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        command = [sys.executable, "-m", "gipfel_extension.cli", "track", "alps-1"]
        command += ["--to", f"http://127.0.0.1:{_PORT}", "--json"]
        _wait_until_ready(home / "server.log")
        begun = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        print(json.loads(done.stdout)["points"], "values", file=sys.stderr)
        print(time.monotonic() - begun)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return 0


def _wait_until_ready(log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while b"Application startup complete" not in log.read_bytes():
        if time.monotonic() > deadline:
            raise SystemExit(f"The server was not ready within {_START_S} s.")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(_inside(Path(sys.argv[2]), Path(sys.argv[3])) if sys.argv[1:2] == ["--inside"] else main())
