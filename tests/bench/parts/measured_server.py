"""A Jupyter server with its own home and runtime directories, and its CPU time."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

TOKEN = "benchmark-token"
_START_S = 90.0


@dataclass(frozen=True)
class MeasuredServer:
    """A running server; `url` ends with a slash."""

    process: subprocess.Popen[bytes]
    url: str

    def cpu_s(self, *others: psutil.Process) -> float:
        """Return the CPU seconds of the server so far, and of other processes."""
        found = (psutil.Process(self.process.pid), *others)
        return sum(sum(each.cpu_times()[:2]) for each in found)

    def children(self, text: str) -> list[psutil.Process]:
        """Return the server's descendants whose command line contains `text`."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in below if any(text in part for part in each.cmdline())]

    def websocket(self, path: str) -> str:
        """Return the address of a websocket."""
        return self.url.replace("http", "ws", 1) + path


@contextmanager
def measured_server(
    folder: Path, extension: str, environment: Mapping[str, str], *options: str
) -> Iterator[MeasuredServer]:
    """Start a server with one extension; it ends with the block."""
    for name in ("home", "root", "runtime"):
        (folder / name).mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIPFEL_", "JUPYTER"))}
    own = {
        "HOME": str(folder / "home"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_TOKEN": TOKEN,
        "JUPYTER_PREFER_ENV_PATH": "0",
    }
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--port=0", "--allow-root", *options]
    command += [f"--ServerApp.root_dir={folder / 'root'}"]
    command += [f"--ServerApp.jpserver_extensions={{'{extension}': True}}"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env={**kept, **environment, **own}, stdout=log, stderr=log)
    try:
        yield MeasuredServer(process, _address(folder, process))
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    file = folder / "runtime" / f"jpserver-{process.pid}.json"
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            url = str(json.loads(file.read_text())["url"]).replace("localhost", "127.0.0.1")
            urllib.request.urlopen(url + "api", timeout=1).close()
        except (OSError, ValueError):
            time.sleep(0.1)
            continue
        return url
    raise SystemExit(f"The server did not start: {(folder / 'server.log').read_text()[-2000:]}")
