"""Shipped services, each installed, started for real, used through its front door and stopped.

A cell is a blueprint: seconds from the start of its job until it is ready, its memory (proportional set size
of all its processes), and whether what its documentation promises is answered. The rows compare both numbers
with those that the form shows. Packages are installed into ``build/campaigns/environments``, or
are those in ``$GIPFEL_SERVICE_ENVIRONMENTS``. PostgreSQL refuses to run as root.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gipfel_cluster.process.tree import descendants
from gipfel_extension.services.blueprint import find_blueprint

ROOT = Path(__file__).resolve().parents[2]
MEASURED = (ROOT / "extension/gipfel_extension/services",)
DRAWS = 1
#: Factors by which a start may be slower (other work slows it down), and memory larger, than the form says.
SLOWER, LARGER = 4.0, 1.6
_ENVIRONMENTS = ROOT / "build/campaigns/environments"
_UNITS = {"M": 1e6, "G": 1e9}
#: Parameters, and a path with a text that its answer contains.
_SERVICES: dict[str, tuple[dict[str, str], str, str]] = {
    "tensorboard": ({"logdir": "~/runs"}, "data/environment", "data_location"),
    "mlflow": ({}, "ajax-api/2.0/mlflow/experiments/search?max_results=5", "Default"),
    "code-server": ({"directory": "~/"}, "", "code-server"),
    "chroma": ({}, "api/v2/heartbeat", "heartbeat"),
    "dask": ({}, "json/identity.json", "Scheduler"),
    "optuna-dashboard": ({"storage": "sqlite:///study.db"}, "api/studies", "first"),
}
#: Programs that make what a service shows, with the packages of its environment.
_FIRST = {
    "optuna-dashboard": "import optuna; optuna.create_study(storage='sqlite:///study.db', study_name='first')"
}


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each service."""
    return {name: partial(measure, name) for name in _SERVICES}


def measure(name: str) -> dict[str, Any]:
    """Start a service, use it and stop it."""
    parameters, path, text = _SERVICES[name]
    with tempfile.TemporaryDirectory(prefix="gipfel-campaign-") as home:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIPFEL_", "SLURM_"))}
        given = os.environ.get("GIPFEL_SERVICE_ENVIRONMENTS", str(_ENVIRONMENTS))
        environment = {**kept, "HOME": home, "GIPFEL_SERVICE_ENVIRONMENTS": given}

        def gipfel(*words: str) -> str:
            argv = (sys.executable, "-m", "gipfel_extension.cli", "service", *words)
            done = subprocess.run(
                argv, env=environment, cwd=home, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(done.stderr)
            return done.stdout.strip()

        Path(home, "runs").mkdir()
        packages = gipfel("install", name, "--into", given.partition(os.pathsep)[0])
        if name in _FIRST:
            argv = (sys.executable, "-P", "-s", "-c", _FIRST[name])
            subprocess.run(argv, env={**environment, "PYTHONPATH": packages}, cwd=home, check=True)
        typed = [word for key, value in parameters.items() for word in ("-p", key, value)]
        began = time.time()
        url = json.loads(gipfel("up", name, *typed, "--here", "--json"))["url"]
        try:
            state = json.loads(Path(home, ".gipfel/services", name, "state.json").read_text())
            request = urllib.request.Request(
                url + path, headers={"Authorization": f"Bearer {gipfel('token', name)}"}
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                answered = text in response.read().decode()
            return {
                "start_s": time.time() - max(began, state["started_ns"] / 1e9),
                "memory": _memory(state["supervisor"]["pid"]),
                "answered": answered,
            }
        finally:
            gipfel("down", name)


def _memory(supervisor: int) -> float:
    """Return the proportional set size of a service's processes in bytes, without its supervisor."""
    found = 0.0
    for pid in descendants(supervisor):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        found += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return found


def line(document: Mapping[str, Any]) -> str:
    """Return one cell in a few words."""
    return f"{document['start_s']:.1f} s, {document['memory'] / 1e6:.0f} MB, answered: {document['answered']}"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for start, memory and answer of each service."""
    rows = []
    for name, each in documents.items():
        measured = find_blueprint(name, directory=ROOT, environment={"HOME": "/nonexistent"}).measured
        said = float(measured.memory[:-1]) * _UNITS[measured.memory[-1]]
        rows.append(_row(f"{name}.start", each["start_s"], measured.start_s, "s", SLOWER))
        rows.append(_row(f"{name}.memory", each["memory"] / 1e6, said / 1e6, "MB", LARGER))
        rows.append(_row(f"{name}.not-answered", float(not each["answered"]), 1.0, "", 0.0))
    return rows


def _row(name: str, ours: float, peer: float, unit: str, bound: float) -> dict[str, Any]:
    ratio = ours / peer
    return {
        "name": name, "ours": ours, "peer": peer, "unit": unit,
        "ratio": ratio, "bound": bound, "holds": ratio <= bound,
    }  # fmt: skip
