"""Start of a service by ``gipfel service up files --here``, beside its bare program until that answers.

Prints one row as JSON: the seconds that command, job, supervisor and front door add, of 10 s.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 10.0
_ROUNDS = 3
_GIVE_UP_S = 120.0


def main() -> int:
    """Measure; 1 where the bound does not hold."""
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        home = Path(name)
        ours = sorted(_ours(home) for _ in range(_ROUNDS))[_ROUNDS // 2]
        bare = sorted(_bare(home) for _ in range(_ROUNDS))[_ROUNDS // 2]
    ratio = (ours - bare) / LIMIT_S
    row = {"name": "service-start: seconds more than the bare program, of 10 s", "ours": ours, "peer": bare}
    print(json.dumps({**row, "unit": "s", "ratio": ratio, "bound": 1.0, "holds": ratio <= 1}))
    return 0 if ratio <= 1 else 1


def _ours(home: Path) -> float:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIPFEL_", "SLURM_"))}
    environment = {**kept, "HOME": str(home)}
    gipfel = (sys.executable, "-m", "gipfel_extension.cli", "service")
    start = time.perf_counter()
    up = (*gipfel, "up", "files", "-p", "directory", str(home), "--here")
    subprocess.run(up, env=environment, cwd=home, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    subprocess.run((*gipfel, "down", "files"), env=environment, cwd=home, check=True, capture_output=True)
    return seconds


def _bare(home: Path) -> float:
    path = home / "s"
    start = time.perf_counter()
    argv = (sys.executable, "-I", "-m", "gipfel_extension.services.programs", "files", str(path), str(home))
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _answers(path):
            if time.perf_counter() - start > _GIVE_UP_S:
                raise SystemExit("the program did not start")
            time.sleep(0.02)
        return time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()
        path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(str(path))
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
