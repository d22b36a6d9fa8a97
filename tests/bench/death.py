"""Seconds from a job's death until the hub reports it, for running servers, beside stock batchspawner.

Prints one row as JSON. Each side is a real hub with its spawner's own intervals; stand-ins for Slurm's
commands run one tiny server for each job. The bound is the watcher's interval and two seconds.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parts.full_hub import load_hubs

from gipfel_spawner import EDFSpawner

SERVERS = 3
BOUND = EDFSpawner.calm_interval.default_value + 2

_SERVER = """\
import http.server, json, os, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", "6.1.1")
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
urllib.request.urlopen(urllib.request.Request(
    os.environ["JUPYTERHUB_API_URL"] + os.environ["REPORT_TO"],
    data=json.dumps({"port": server.server_port}).encode(),
    headers={"Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"]},
), timeout=30).close()
server.serve_forever()
"""
# A job's number is its server's process.
_SBATCH = "cat > /dev/null\nsetsid {python} {folder}/server.py > /dev/null 2>&1 < /dev/null &\necho $!\n"
_SQUEUE = """\
# A zombie has ended.
alive() {{ grep -Eqs '^State:[[:space:]]+[^ZX[:space:]]' /proc/$1/status; }}
case "$*" in
*Format*)
  jobs=${{3#--jobs=}}
  for job in $(echo "$jobs" | tr , ' '); do
    if alive "$job"; then echo "$job|RUNNING|localhost|N/A|0|None|normal|1|N/A|"
    else echo "$job|FAILED|localhost|N/A|9|RaisedSignal:9|normal|1|N/A|"; fi
  done;;
*) alive "$3" && echo "RUNNING 127.0.0.1";;
esac
exit 0
"""


def main() -> int:
    """Measure; 1 where the bound does not hold."""
    ours = _deaths(("c.EDFSpawner.scheduler = 'slurm'", "c.EDFSpawner.watch_interval = 2",
                    f"c.EDFSpawner.calm_interval = {BOUND - 2}", "c.EDFSpawner.poll_interval = 30"),
                   "/gipfel/server", "EDFSpawner")  # fmt: skip
    peer = _deaths(("import gipfel_spawner",
                    # Which takes this route away, wherever it is installed.
                    "from batchspawner.api import BatchSpawnerAPIHandler",
                    "from jupyterhub.apihandlers import default_handlers",
                    "default_handlers.append((r'/api/batchspawner', BatchSpawnerAPIHandler))",
                    "c.JupyterHub.spawner_class = 'batchspawner.SlurmSpawner'",
                    "c.BatchSpawnerBase.exec_prefix = ''", "c.SlurmSpawner.cmd = ['true']",
                    "c.SlurmSpawner.batch_submit_cmd = 'FOLDER/bin/sbatch --parsable'",
                    "c.SlurmSpawner.batch_query_cmd = 'FOLDER/bin/squeue -h -j {job_id} -o \"%T %B\"'",
                    "c.SlurmSpawner.batch_cancel_cmd = 'FOLDER/bin/scancel {job_id}'"),
                   "/batchspawner", "SlurmSpawner")  # fmt: skip
    row = {
        # The slowest of each: the bound is for every death.
        "name": f"death-to-answer (of {BOUND:g} s)",
        "ours": max(ours),
        "peer": max(peer),
        "unit": "s",
        "ratio": max(ours) / BOUND,
        "bound": 1.0,
        "holds": max(ours) <= BOUND,
    }
    print(json.dumps(row))
    print(
        f"ours {[round(each, 1) for each in ours]}, peer {[round(each, 1) for each in peer]}", file=sys.stderr
    )
    return 0 if row["holds"] else 1


def _deaths(config: tuple[str, ...], report_to: str, spawner: str) -> list[float]:
    """Seconds that the hub took to notice each death."""
    hubs = load_hubs()
    with tempfile.TemporaryDirectory(prefix="gipfel-d-") as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        (folder / "server.py").write_text(_SERVER)
        for program, body in {
            "sbatch": _SBATCH.format(python=sys.executable, folder=folder),
            "squeue": _SQUEUE.format(),
            "scancel": 'kill "$1" 2> /dev/null\nexit 0\n',
            "scontrol": "echo NodeName=localhost NodeAddr=127.0.0.1\n",
            "sinfo": "echo 'normal|normal*|up|1-00:00:00|1|idle|(null)'\n",
        }.items():
            path = folder / "bin" / program
            path.write_text(f"#!/bin/sh\n{body}")
            path.chmod(0o755)
        more = (*config, f"c.{spawner}.environment = {{'REPORT_TO': '{report_to}'}}")
        # The peer finds its commands by a login shell's PATH.
        more = tuple(line.replace("FOLDER", name) for line in more)
        more += (f"c.{spawner}.env_keep = ['PATH', 'LANG']",)
        hub = hubs.RunningHub(folder, hubs.find_proxy(), more, {"PATH_FIRST": str(folder / "bin")})
        hub.start()
        try:
            return _measure(hub, os.environ.get("USER") or "root")
        finally:
            hub.end()


def _measure(hub: Any, user: str) -> list[float]:
    hub.call("POST", f"/users/{user}")
    names = [f"s{number}" for number in range(SERVERS)]
    for name in names:
        hub.call("POST", f"/users/{user}/servers/{name}", {})

    def servers() -> dict[str, Any]:
        found: dict[str, Any] = hub.call("GET", f"/users/{user}").content["servers"]
        return found

    _until(lambda: sum(bool(each["ready"]) for each in servers().values()) == SERVERS, 60, hub)
    seconds = []
    for name in names:
        # At any moment between two looks.
        time.sleep(3.7)
        os.kill(int(servers()[name]["state"]["job_id"]), signal.SIGKILL)
        died = time.monotonic()
        _until(lambda name=name: name not in servers(), 120, hub)  # type: ignore[misc]
        seconds.append(time.monotonic() - died)
        print(f"{seconds[-1]:.1f} s", file=sys.stderr)
    return seconds


def _until(done: Callable[[], bool], limit_s: float, hub: Any) -> None:
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"Not within {limit_s:g} s: {hub.log()}")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
