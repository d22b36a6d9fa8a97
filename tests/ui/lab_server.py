"""A JupyterLab without a hub, with simulated GPUs in place of this machine's."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType

_TOKEN = "a-token-of-the-tests"
_START_S = 120.0
_END_S = 30.0
#: Else the lab asks whether it may get news, above the panel's buttons, and for a name at the first save.
_SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"renameUntitledFileOnSave": False},
}


class LabServer:
    """A lab on a free port, in folders of its own.

    Parameters
    ----------
    sources
        What its recorder reads, such as ``synthetic:training:64``.
    """

    def __init__(self, *sources: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gipfel-lab-", dir="/var/tmp"))
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/lab?token={_TOKEN}"
        self._api = f"http://127.0.0.1:{port}/api"
        self._sources = sources
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """The home folder, the lab's root, and the place of its ``runs``."""
        return self._folder

    def cpu_seconds(self) -> float:
        """Return the CPU time that the server's process has taken."""
        assert self._process
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> "LabServer":
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("GIPFEL_", "JUPYTER"))}
        own = {
            "HOME": str(self._folder),
            "GIPFEL_RUNS": str(self._folder / "runs"),
            "JUPYTER_TOKEN": _TOKEN,
            "JUPYTER_PREFER_ENV_PATH": "0",
        }
        command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"]
        command += [f"--port={self._port}", "--port-retries=0", f"--ServerApp.root_dir={self._folder}"]
        for plugin, setting in _SETTINGS.items():
            path = self._folder / ".jupyter/lab/user-settings/@jupyterlab" / f"{plugin}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(setting))
        # What is advised is to be seen at once.
        command += ["--GipfelExtension.advice_hold=0"]
        command += [f"--GipfelExtension.sources={source}" for source in self._sources]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, env={**kept, **own}, stdout=log, stderr=log)
        end = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                words = (self._folder / "log").read_text()
                self.close()
                raise AssertionError(words)
            time.sleep(0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it and forget its folders."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self._api, timeout=2).close()
        except OSError:
            return False
        return True
