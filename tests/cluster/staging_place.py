"""Job of a user on two nodes, in which tests stage the data of a shared directory."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from one_machine import OneMachine, wait_until
from sftp_share import SftpShare
from unix_users import UnixUser

LIMIT_S = 60

#: Runs what the test writes, as a user would type it in a job.
_SHELL = """#!/bin/sh
while :; do
  for file in in.*; do
    [ -e "$file" ] || continue
    name=${file#in.}
    mv "$file" "run.$name"
    sh "run.$name" > "out.$name" 2> "err.$name"
    echo $? > "rc.$name.new"
    mv "rc.$name.new" "rc.$name"
  done
  sleep 0.1
done
"""


@dataclass
class Place:
    """A job of a user on two nodes, and a shared directory with ``data.bin``."""

    user: UnixUser
    cluster: OneMachine
    share: SftpShare
    runtime: Path
    job: str = ""
    count: int = 0

    @property
    def data(self) -> Path:
        return self.share.at / "data.bin"

    def begin(self) -> None:
        """Start the job."""
        settings = {
            **self.cluster.environment,
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.user.home),
            "GIPFEL_CLUSTER": "tests",
            "GIPFEL_RUNTIME": str(self.runtime),
            "GIPFEL_STORAGE_FAST": str(self.user.home.parent / "disk"),
        }
        script = self.user.write("shell.sh", _SHELL, 0o700)
        words = [
            "env",
            "-i",
            f"--chdir={self.user.home}",
            *(f"{name}={value}" for name, value in settings.items()),
        ]
        done = self.user.run(*words, "sbatch", "--parsable", "--nodes=2", "--output=job.txt", str(script))
        self.job = done.stdout.strip()
        assert self.job.isdecimal(), done.stderr

    def start(self, command: str) -> int:
        """Let the job run a command; return its number."""
        self.count += 1
        # Named when it is complete, so that the job does not read half of it.
        part = self.user.write(f"part.{self.count}", command)
        part.rename(self.user.home / f"in.{self.count}")
        return self.count

    def end(self, number: int, limit_s: float = LIMIT_S) -> tuple[int, str, str]:
        """Return status, output and messages of a command."""
        home = self.user.home
        assert wait_until((home / f"rc.{number}").exists, limit_s), (home / "job.txt").read_text()
        out, err = ((home / f"{name}.{number}").read_text() for name in ("out", "err"))
        return int((home / f"rc.{number}").read_text()), out, err

    def stage(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """Stage the data; return status, document and messages."""
        line = f"{self.runtime}/bin/gipfel data stage {self.data} --json {' '.join(words)}"
        status, out, err = self.end(self.start(line))
        return status, json.loads(out) if out else {}, err

    def stop(self, number: str) -> None:
        """Stop a staging, as `gipfel stop` does."""
        self.user.write(f".gipfel/runs/transfers/{number}/stop", "")

    def on(self, node: str, *argv: str) -> str:
        """Run a command in the mounts of a node, as root."""
        inside = ["nsenter", f"--target={self.cluster.pid(node)}", "--mount", "--"]
        return subprocess.run(
            [*inside, *argv], capture_output=True, text=True, timeout=10, check=False
        ).stdout

    def left(self) -> list[str]:
        """Return what is in memory and on the disk of each node."""
        disk = self.user.home.parent / "disk"
        return [self.on(node, "ls", "/dev/shm", str(disk)) for node in self.cluster.node_names]

    def nothing_left(self) -> bool:
        return not any("gipfel-staged" in each for each in self.left())

    @contextlib.contextmanager
    def limited_memory(self, node: str, limit: int) -> Iterator[None]:
        """Limit the memory of what Slurm starts on a node from now on, as with its cgroups."""
        group = Path(f"/sys/fs/cgroup/memory/gipfel-{os.getpid()}")
        try:
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(limit))
        except OSError as error:
            pytest.skip(f"This machine has no control groups of version 1 to limit memory: {error}.")
        daemons = [str(each) for each in _processes_in(self.cluster.pid(node)) if _is_slurmd(each)]
        before = Path(f"/proc/{daemons[-1]}/cgroup").read_text()
        home = next(line.split(":", 2)[2] for line in before.splitlines() if ":memory:" in line)
        try:
            for each in daemons:
                (group / "cgroup.procs").write_text(each)
            yield
        finally:
            back = Path("/sys/fs/cgroup/memory") / home.strip("/") / "cgroup.procs"
            wait_until(self.nothing_left, 15)
            for each in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    back.write_text(each)
            group.rmdir()

    def signal_agent(self, node: str, number: int) -> None:
        """Send a signal to the staging's processes on a node."""
        ours = os.readlink(f"/proc/{self.cluster.pid(node)}/ns/net")
        for pid in self.user.processes():
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"data.stage.agent" in line and os.readlink(f"/proc/{pid}/ns/net") == ours:
                os.kill(pid, number)


def _processes_in(pid: int) -> Iterator[int]:
    """Yield the processes in the network namespace of another one."""
    ours = os.readlink(f"/proc/{pid}/ns/net")
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if each.name.isdecimal() and os.readlink(each / "ns/net") == ours:
                yield int(each.name)


def _is_slurmd(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"slurmd\0")
    return False
