"""A real Slurm on this machine: nodes in separate namespaces, each with simulated GPUs.

``up`` starts one in the background, ``down`` ends it, ``run`` keeps one for a command or until Ctrl-C. Every
daemon dies with the process that started it, and every node is a PID namespace of its own, so that ending a
node ends whatever ran there, and its mounts, links and addresses go with it.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from private_network import PrivateNetwork, free_network
from slurm_configuration import write_configuration

from gipfel_cluster.model import GipfelError

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "mungekey": "munge",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
READY_LIMIT_S = 40.0
END_LIMIT_S = 12.0
_SOON_S = 10
_NODE_PROCESS = Path(__file__).with_name("node_process.py")
#: As Debian's unprivileged PATH leaves it out, and Slurm's daemons are there.
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def missing(*, user_id: int | None = None, path: str | None = None) -> str | None:
    """Return what this machine lacks for its own cluster, in one line, or None.

    Parameters
    ----------
    user_id, path
        Who asks and where programs are looked for; by default this process's.
    """
    if (os.geteuid() if user_id is None else user_id) != 0:
        return "A Slurm cluster on this machine needs root: run it with sudo, or use the local scheduler."
    search = _search_path() if path is None else path
    absent = {package for name, package in PROGRAMS.items() if shutil.which(name, path=search) is None}
    if absent:
        return f"This machine lacks {', '.join(sorted(absent))}: apt-get install slurm-wlm munge iproute2."
    return None


def _search_path() -> str:
    return os.environ.get("PATH", os.defpath) + ":" + _SBIN


def _seconds_until(local_time: str) -> float:
    return time.mktime(time.strptime(local_time, "%Y-%m-%dT%H:%M:%S")) - time.time()


def wait_until(done: Callable[[], bool], limit_s: float) -> bool:
    """Return whether something comes true within `limit_s` seconds."""
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class OneMachine:
    """A Slurm cluster on this machine, from ``__enter__`` to ``__exit__``.

    Start and end it in one thread: the kernel ends its daemons when the thread that started them is gone.

    Parameters
    ----------
    folder
        Where configuration, state and logs go: a short path that every user may pass through. Logs stay, the
        rest is removed at the end.
    nodes, gpus
        How many nodes, and how many GPUs each of them claims.
    silence_s
        Seconds after which Slurm takes a silent node for dead (SlurmdTimeout).

    Raises
    ------
    GipfelError
        On ``__enter__``: no root, no Slurm, no free network, or daemons that do not get ready.
    """

    def __init__(self, folder: Path, *, nodes: int = 2, gpus: int = 4, silence_s: int = 30) -> None:
        self.folder = folder
        self.gpus = gpus
        self._silence_s = silence_s
        self.node_names = tuple(f"node{number:02}" for number in range(1, nodes + 1))
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.addresses: dict[str, str] = {}
        self.hub_address = ""
        self._network: PrivateNetwork | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "OneMachine":
        reason = missing()
        if reason:
            raise GipfelError(reason)
        try:
            self._prepare()
            self._start_network()
            self._start_daemons()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End jobs, daemons, nodes and network; a second call does nothing."""
        if "munged" in self._processes:
            self._end_jobs()
        for name in (*self.node_names, "controller", "munged"):
            process = self._processes.pop(name, None)
            if process is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                # unshare keeps its child's signals from itself.
                os.kill(_first_child(process.pid) or process.pid, signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
            if process.stdin:
                process.stdin.close()
        if self._network:
            self._network.close()
            self._network = None
        self._tidy()

    def _tidy(self) -> None:
        """Remove all but configuration and logs: keys, sockets, state."""
        for name in ("munge", "state", "spool", "gpu"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for path in self.folder.glob("*.pid"):
            path.unlink()

    def start_soon(self, job_id: str) -> None:
        """Let a job start in ten seconds instead of the two minutes for which Slurm holds it after a requeue.

        Not at once: its node may still be ending the earlier start, and then refuses the next one.
        """
        # It may have started or ended meanwhile, and is then nothing that can start earlier.
        with contextlib.suppress(GipfelError):
            shown = self.call(["scontrol", "show", "job", job_id])
            eligible = re.search(r"JobState=PENDING .*EligibleTime=([-0-9]+T[:0-9]+)", shown, re.DOTALL)
            if eligible and _seconds_until(eligible[1]) > _SOON_S + 2:
                self.call(["scontrol", "update", f"JobId={job_id}", f"StartTime=now+{_SOON_S}"])

    def call(self, argv: Sequence[str], *, user: str = "", limit_s: float = 15) -> str:
        """Run a Slurm command and return what it printed.

        Raises
        ------
        GipfelError
            It failed, or took longer than ``limit_s`` seconds.
        """
        prefix = ["runuser", "-u", user, "--"] if user else []
        environment = {**os.environ, **self.environment, "PATH": _search_path()}
        try:
            done = subprocess.run(
                [*prefix, *argv],
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=True,
                cwd="/",
            )
        except subprocess.TimeoutExpired as error:
            raise GipfelError(f"{argv[0]} did not answer within {limit_s:g} s.") from error
        except subprocess.CalledProcessError as error:
            raise GipfelError(f"{argv[0]}: {error.stderr}") from error
        return done.stdout

    def restart_controller(self) -> None:
        """Kill the controller and start it again with the state that it had saved; waits until it answers."""
        os.kill(_first_child(self._processes["controller"].pid) or 0, signal.SIGUSR1)
        wait_until(lambda: not self._answers(), 10)
        if not wait_until(self._answers, READY_LIMIT_S):
            raise GipfelError("slurmctld did not come back.", self._last_words("slurmctld"))

    def _answers(self) -> bool:
        try:
            return "UP" in self.call(["scontrol", "ping"], limit_s=5)
        except GipfelError:
            return False

    def pid(self, node: str) -> int:
        """The process that holds the network, host name and mounts of a node."""
        return self._processes[node].pid

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        for parent in (self.folder, *self.folder.resolve().parents):
            if not parent.stat().st_mode & stat.S_IXOTH:
                raise GipfelError(
                    f"Other users can't pass through {parent}.", "Choose a folder below /var/tmp."
                )
        if len(str(self.folder)) > 80:
            raise GipfelError(f"{self.folder} is too long for a socket.", "Choose a folder below /var/tmp.")
        self._tidy()
        for name in ("log", "munge", "state", "spool", "gpu", *(f"spool/{node}" for node in self.node_names)):
            (self.folder / name).mkdir(mode=0o755, exist_ok=True)

    def _start_network(self) -> None:
        hosts = free_network().hosts()
        self.hub_address, controller = str(next(hosts)), str(next(hosts))
        self.addresses = {node: str(next(hosts)) for node in self.node_names}
        names = {"localhost": "127.0.0.1", socket.gethostname(): self.hub_address, "controller": controller}
        lines = [f"{address} {name}\n" for name, address in (names | self.addresses).items()]
        (self.folder / "hosts").write_text("".join(lines))
        self._network = PrivateNetwork(self._start_apart("controller"), controller, self.hub_address)
        for node, address in self.addresses.items():
            self._network.join(self._start_apart(node), node, address)
        version = self.call(["slurmd", "-V"])
        write_configuration(
            self.folder, controller=controller, addresses=self.addresses, gpus=self.gpus, version=version,
            silence_s=self._silence_s,
        )  # fmt: skip

    def _start_apart(self, name: str) -> int:
        """Start the first process of a node and wait until it has its own network namespace."""
        apart = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child=KILL"]
        inside = [sys.executable, str(_NODE_PROCESS), name, str(self.folder)]
        process = self._start(name, [*apart, "--mount-proc", *inside])
        ours = os.readlink("/proc/self/ns/net")
        if not wait_until(lambda: _namespace(process.pid) not in {None, ours}, 5):
            raise GipfelError(f"{name} got no network of its own within 5 s.", self._last_words(name))
        return process.pid

    def _start_daemons(self) -> None:
        key = self.folder / "munge" / "key"
        self.call(["mungekey", "--create", f"--keyfile={key}"])
        paths = {name: self.folder / "munge" / name for name in ("socket", "pid", "seed")}
        self._start(
            "munged",
            [
                "munged",
                "--foreground",
                f"--key-file={key}",
                f"--socket={paths['socket']}",
                f"--pid-file={paths['pid']}",
                f"--seed-file={paths['seed']}",
                f"--log-file={self.folder}/log/munged.log",
            ],
        )
        if not wait_until(paths["socket"].exists, 10):
            raise GipfelError("munged did not get ready within 10 s.", self._last_words("munged"))
        for node in ("controller", *self.node_names):
            stdin = self._processes[node].stdin
            assert stdin is not None
            stdin.write(b"go\n")
            stdin.flush()
        if not wait_until(self._ready, READY_LIMIT_S):
            names = ("munged", "slurmctld", *(f"slurmd-{node}" for node in self.node_names))
            words = " | ".join(filter(None, map(self._last_words, names)))
            raise GipfelError(f"Slurm did not get ready within {READY_LIMIT_S:g} s.", words)

    def _ready(self) -> bool:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise GipfelError(f"{name} ended with {process.returncode}.", self._last_words(name))
        try:
            states = self.call(["sinfo", "--noheader", "--Node", "--partition=normal", "--format=%T"]).split()
        except GipfelError:
            return False
        return len(states) == len(self.node_names) and set(states) == {"idle"}

    def _end_jobs(self) -> None:
        """Cancel what is left, so that jobs tidy up behind themselves."""
        with contextlib.suppress(GipfelError):
            jobs = self.call(["squeue", "--noheader", "--format=%A"], limit_s=5).split()
            if jobs:
                self.call(["scancel", *jobs], limit_s=5)
                list_jobs = ["squeue", "--noheader", "--format=%A"]
                wait_until(lambda: not self.call(list_jobs, limit_s=5).split(), END_LIMIT_S)

    def _start(self, name: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = {**self.environment, "PATH": _search_path(), "LANG": "C.UTF-8"}
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        self._processes[name] = process
        return process

    def _last_words(self, name: str) -> str:
        for suffix in ("log", "out"):
            with contextlib.suppress(OSError):
                lines = (self.folder / "log" / f"{name}.{suffix}").read_text(errors="replace").splitlines()
                if lines:
                    return f"{name}: {lines[-1]}"
        return ""


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _first_child(pid: int) -> int | None:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


if __name__ == "__main__":
    from cluster_command import main

    sys.exit(main())
