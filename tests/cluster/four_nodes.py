"""Four nodes in separate namespaces, fault injection, and vetting runs in their jobs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from one_machine import OneMachine, wait_until

VET = (sys.executable, "-m", "gipfel_extension.cli", "vet")
_LIMIT_S = 180
_ENTER_S = 20


@dataclass
class Vetted:
    """Result of a vetting run: exit status, output and report."""

    status: int
    stdout: str
    stderr: str
    report: dict[str, Any]
    folder: Path
    seconds: float

    def of(self, node: str, check: str) -> dict[str, Any]:
        """Return the result with the worst verdict of a check on a node."""
        order = ["pass", "degraded", "inconclusive", "not_run", "fail"]
        found = [each for each in self.report["results"] if (each["node"], each["check"]) == (node, check)]
        assert found, f"no result of {check} on {node}: {self.report['results']}"
        return max(found, key=lambda each: order.index(each["verdict"]))


class FourNodes:
    """A cluster for vetting.

    Parameters
    ----------
    folder
        Directory for protocols and run folders, at the same path on all nodes.
    """

    def __init__(self, machine: OneMachine, folder: Path) -> None:
        self.machine, self.folder = machine, folder
        self.runs = folder / "runs"
        self._runs = 0

    def environment(self) -> dict[str, str]:
        """Return the environment of Slurm's clients."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        history = str(self.folder / "history")
        return {**kept, **self.machine.environment, "GIPFEL_VETTING_HISTORY": history}

    def start(
        self, protocol: str, *options: str, before: str = "", srun: Sequence[str] = ("--nodes=4",)
    ) -> "Running":
        """Start a run as a step of one task a node; each task first runs the shell commands `before`."""
        self._runs += 1
        runs = self.runs / str(self._runs)
        file = self.folder / f"protocol-{self._runs}.yaml"
        file.write_text(protocol)
        script = f'{before}\nexec "$@"\n'
        argv = ["srun", *srun, "--ntasks-per-node=1", "sh", "-c", script, "task", *VET, str(file), *options]
        return Running(argv, {**self.environment(), "GIPFEL_RUNS": str(runs)}, runs)

    def vet(self, protocol: str, *options: str, **how: Any) -> Vetted:
        """Run to the end."""
        return self.start(protocol, *options, **how).wait()

    def on(self, node: str, *argv: str) -> str:
        """Run a command in the mounts and the network of a node."""
        enter = ["nsenter", "-t", str(self.machine.pid(node)), "-m", "-n", "-u", "--"]
        environment = {**os.environ, "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"}
        done = subprocess.run(
            [*enter, *argv], capture_output=True, text=True, timeout=_ENTER_S, check=True, env=environment
        )
        return done.stdout

    @contextlib.contextmanager
    def fault(self, node: str, make: Sequence[str], undo: Sequence[str]) -> Iterator[None]:
        """Inject a fault on a node for the duration of a ``with`` block."""
        self.on(node, *make)
        try:
            yield
        finally:
            self.on(node, *undo)


class Running:
    """A running step."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], runs: Path) -> None:
        self._runs = runs
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
        )

    def wait(self, limit_s: float = _LIMIT_S) -> Vetted:
        """Wait for the end and read the report."""
        try:
            stdout, stderr = self.process.communicate(timeout=limit_s)
        finally:
            self.process.kill()
            self.process.wait()
        seconds = time.monotonic() - self._started
        (folder,) = self._runs.iterdir()
        return Vetted(self.process.returncode, stdout, stderr, self.report(), folder, seconds)

    def report(self) -> dict[str, Any]:
        """Return the report on disk; empty if there is none yet."""
        for path in self._runs.glob("*/vetting.json"):
            document: dict[str, Any] = json.loads(path.read_text())
            return document
        return {}

    def pid_of(self, node: str, text: str) -> int:
        """Wait for a process of this run on a node whose command line contains `text`; return its PID."""
        mine = {"SLURMD_NODENAME": node, "GIPFEL_RUNS": str(self._runs)}
        found: list[int] = []

        def look() -> bool:
            found[:] = [pid for pid, _ in _processes(mine, text)]
            return bool(found) or self.process.poll() is not None

        assert wait_until(look, 90), f"no {text} on {node}"
        assert found, f"the run ended before {text} was seen on {node}: {self.process.communicate()}"
        return found[0]

    def send(self, node: str, text: str, number: signal.Signals) -> None:
        """Send a signal to a process of this run, once it is there."""
        os.kill(self.pid_of(node, text), number)

    def processes(self) -> list[str]:
        """Return the command lines of all processes of this run, on all nodes."""
        return [text for _, text in _processes({"GIPFEL_RUNS": str(self._runs)}, "gipfel_extension")]


def _processes(variables: Mapping[str, str], text: str) -> list[tuple[int, str]]:
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # A forked probe has the command line of its server; only `comm` differs.
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            command += (entry / "comm").read_text(errors="replace").strip()
            if text in command and wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                found.append((int(entry.name), command))
    return sorted(found)
