"""Helpers of the tests of launches: a plain user on the cluster, programs, an image with torch, a command."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edf_files import write_edf
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

PROGRAMS = Path(__file__).with_name("launch_programs")
LIMIT_S = 240
#: Values that reach a program as they are, and nothing else.
HOSTILE = (
    "--lr=0.1",
    "$(touch /tmp/pwned)",
    "a b",
    'it\'s "x"\n`id`',
    "-- ; rm -rf /",
    "{python}",
    "ü✓",
    "%j",
)


@dataclass(frozen=True)
class LaunchPlace:
    """A user's folder ``train`` with the programs, and ``gipfel launch`` typed there."""

    user: UnixUser
    cluster: OneMachine
    runtime: Path

    @classmethod
    def prepare(
        cls, user: UnixUser, cluster: OneMachine, runtime: Path, image: Path, accelerate: Path | None = None
    ) -> "LaunchPlace":
        """Write programs and the EDF ``torch``."""
        for path in PROGRAMS.glob("*.py"):
            user.write(f"train/{path.name}", path.read_text())
        mounts = (
            f"{user.home}/train:{user.home}/train",
            *((f"{accelerate}:/opt/more:ro",) if accelerate else ()),
        )
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **({"PYTHONPATH": "/opt/more"} if accelerate else {})}
        write_edf(user, "torch", image=image, mounts=mounts, env=env)
        return cls(user, cluster, runtime)

    @property
    def folder(self) -> Path:
        """Return where the user types."""
        return self.user.home / "train"

    @property
    def runs(self) -> Path:
        """The user's run folders."""
        return self.user.home / ".gipfel" / "runs"

    def environment(self) -> dict[str, str]:
        """Return what the user's shell has, with variables that another launcher left."""
        left = {"RANK": "7", "LOCAL_RANK": "3", "WORLD_SIZE": "99", "MASTER_ADDR": "nowhere", "PMI_RANK": "1"}
        return {
            **self.cluster.environment,
            "GIPFEL_CLUSTER": "tests",
            "GIPFEL_RUNTIME": str(self.runtime),
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.user.home),
            **left,
        }

    def gipfel(self, *words: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Type a command."""
        settings = [f"{name}={value}" for name, value in self.environment().items()]
        argv = ["env", "-i", f"--chdir={self.folder}", *settings, f"{self.runtime}/bin/gipfel", *words]
        return self.user.run(*argv, limit_s=limit_s)

    def launched(self, *words: str) -> "Started":
        """Start a launch in a separate job and do not wait for it."""
        done = self.gipfel("launch", "--edf", "torch", *words)
        assert done.returncode == 0, done.stderr
        return Started(self.runs / "launches" / done.stdout.strip().splitlines()[-1])

    def jobs(self) -> str:
        """The user's jobs in Slurm."""
        return self.cluster.call(
            ["squeue", "--noheader", f"--user={self.user.name}", "--format=%A %T"]
        ).strip()

    def nothing_left(self) -> bool:
        """Return whether neither a job nor a process of the user is left."""
        return wait_until(lambda: not self.jobs(), 60) and wait_until(lambda: not self.user.processes(), 60)

    def find(self, *words: str) -> list[int]:
        """The user's processes whose command line holds all of these words, parents first."""
        found = []
        for pid in sorted(self.user.processes()):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if all(word in line for word in words):
                    found.append(pid)
        return found

    def node_of(self, pid: int) -> str:
        """The node in whose network a process is."""
        with contextlib.suppress(OSError):
            mine = os.readlink(f"/proc/{pid}/ns/net")
            for node in self.cluster.node_names:
                if os.readlink(f"/proc/{self.cluster.pid(node)}/ns/net") == mine:
                    return node
        return ""

    def kill(self, *words: str, node: str = "") -> None:
        """SIGKILL the processes of these words, on a node or on all."""
        pids = [each for each in self.find(*words) if not node or self.node_of(each) == node]
        assert pids, words
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Started:
    """A launch by its folder, read as anybody could."""

    folder: Path

    @property
    def state(self) -> dict[str, Any]:
        """``state.json``."""
        try:
            content: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        except (OSError, ValueError):
            return {"phase": ""}
        return content

    def log(self, rank: int = 0) -> str:
        """Return what a rank said."""
        path = self.folder / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    @property
    def logs(self) -> str:
        """Return what all ranks said."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("rank-*.log")))

    def told(self) -> list[dict[str, Any]]:
        """Return what ``reduce.py`` says."""
        lines = [line for line in self.logs.splitlines() if line.startswith("TOLD ")]
        return [json.loads(line.removeprefix("TOLD ")) for line in lines]

    def final(self) -> str:
        """The digest of the final weights."""
        found = [line for line in self.logs.splitlines() if line.startswith("FINAL ")]
        return found[-1] if found else ""

    def steps(self) -> int:
        """The last step that any rank said."""
        return max((int(line[5:]) for line in self.logs.splitlines() if line.startswith("STEP ")), default=0)

    def worlds(self) -> list[str]:
        """World sizes of the starts of rank 0, in their order."""
        return [line.split()[3] for line in self.log(0).splitlines() if line.startswith("START")]

    def wait(self, phase: str = "ended", limit_s: float = LIMIT_S) -> "Started":
        """Wait for a phase."""
        assert wait_until(lambda: self.state["phase"] == phase, limit_s), self.everything()
        return self

    def until(self, step: int, limit_s: float = LIMIT_S) -> "Started":
        """Wait until a step was done."""
        reached = wait_until(lambda: self.steps() >= step or self.state["phase"] == "ended", limit_s)
        assert reached, self.everything()
        assert self.steps() >= step, self.everything()
        return self

    def everything(self) -> str:
        """All that is known, for a test that failed."""
        names = ("state.json", "supervisor.log", "job.log", "steps/*.log", "rank-*.log")
        found = [path for name in names for path in sorted(self.folder.glob(name))]
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in found)


def reference(steps: int, parent: Path) -> str:
    """The digest of the final weights of an undisturbed run of one rank on this machine."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    own = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    variables = {**os.environ, **own, "GIPFEL_CHECKPOINT": str(folder)}
    argv = [sys.executable, str(PROGRAMS / "train.py"), f"steps={steps}"]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return next(line for line in done.stdout.splitlines() if line.startswith("FINAL "))
