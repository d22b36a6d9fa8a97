"""Slurm's accounting for a cluster on this machine: a MariaDB, and slurmdbd in front of it."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

from hub_process import free_port
from one_machine import OneMachine, wait_until

_PROGRAMS = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server"}
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_READY_LIMIT_S = 60.0
_SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={cluster}/munge/socket
DbdHost=localhost
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=slurm
StoragePass=slurm
"""


def missing() -> str | None:
    """Return what this machine lacks, in one line, or None."""
    absent = {package for name, package in _PROGRAMS.items() if shutil.which(name, path=_PATH) is None}
    return f"This machine lacks {', '.join(sorted(absent))}." if absent else None


class Accounting:
    """Accounts for a running cluster, from ``__enter__`` to ``__exit__``; its jobs know nothing of them.

    Parameters
    ----------
    cluster
        Whose keys and controller are used.
    folder
        Where database and configuration go: another one than the cluster's.
    """

    def __init__(self, cluster: OneMachine, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}

    def __enter__(self) -> "Accounting":
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End slurmdbd, then the database."""
        while self._processes:
            process = self._processes.pop()
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)

    def call(self, *words: str) -> str:
        """Run ``sacctmgr`` without its questions."""
        argv = ["sacctmgr", "--immediate", "--noheader", "--parsable2", *words]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start_controller(self) -> None:
        """Start a controller that knows the accounts and their limits, with a node, and two absent ones."""
        name, state = socket.gethostname().partition(".")[0], self._folder / "state"
        state.mkdir()
        (self._folder / "spool").mkdir()
        # For the commands of users; the database's password is in a file of 0600.
        self._folder.chmod(0o755)
        changes = {
            "SlurmctldHost": f"{name}(127.0.0.1)",
            "StateSaveLocation": str(state),
            "SlurmctldPidFile": f"{self._folder}/slurmctld.pid",
            "SlurmctldLogFile": f"{self._folder}/slurmctld.log",
            "SlurmdSpoolDir": f"{self._folder}/spool/%n",
            "SlurmdPidFile": f"{self._folder}/slurmd-%n.pid",
            "SlurmdLogFile": f"{self._folder}/slurmd-%n.log",
        }
        configuration = self._folder / "slurm.conf"
        lines = []
        for line in configuration.read_text().splitlines():
            key = line.partition("=")[0]
            # The cluster's own nodes, and the switches above them, must not get a second controller. The
            # epilog looks for processes by the ID of their job, and other clusters have the same IDs.
            if key not in {"TopologyPlugin", "Epilog"} and (key != "NodeName" or "DEFAULT" in line):
                lines.append(f"{key}={changes[key]}" if key in changes else line)
        lines += [
            f"SlurmctldPort={free_port()}",
            "AccountingStorageEnforce=limits,qos",
            "AccountingStorageTRES=gres/gpu",
            "PriorityType=priority/multifactor",
            "JobAcctGatherType=jobacct_gather/none",
            f"NodeName=absent[1-2] NodeAddr=127.0.0.1 Port={free_port()}",
            f"NodeName=worker NodeHostname={name} NodeAddr=127.0.0.1 Port={free_port()}",
        ]
        lines.sort(key=lambda line: line.startswith("PartitionName="))
        configuration.write_text("\n".join(lines) + "\n")
        gpus = f"{self._cluster.folder}/gpu/gpu[0-{self._cluster.gpus - 1}]"
        (self._folder / "gres.conf").write_text(f"NodeName=worker Name=gpu Type=gh200 File={gpus}\n")
        shutil.copy(self._cluster.folder / "cgroup.conf", self._folder)
        self._run("slurmctld", "-D")
        self._wait_for_controller()
        self._run("slurmd", "-D", "-N", "worker")

    def hours(self, job_id: str) -> float:
        """Return the GPU hours of a job that has ended, from its own record; 0 before."""
        argv = ["sacct", "-nPX", f"--jobs={job_id}", "--format=State,ElapsedRaw,ReqTRES"]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=30)
        state, seconds, requested = (*done.stdout.strip().split("|"), "", "", "")[:3]
        gpus = re.search(r"gres/gpu=(\d+)", requested)
        return int(seconds) * int(gpus[1]) / 3600 if state == "COMPLETED" and gpus else 0.0

    def set_energy(self, job_id: str, joules: int) -> None:
        """Store the energy of a job that has ended, as the daemons of nodes with counters report it."""
        # 3 is the number of the resource "energy" in every database of Slurm.
        statement = (
            f"UPDATE slurm_acct_db.gipfel_job_table SET tres_alloc = CONCAT(tres_alloc, ',3={joules}') "
            f"WHERE id_job = {int(job_id)};"
        )
        ask = ["mariadb", "--no-defaults", f"--socket={self._folder / 'db'}", "--user=root"]
        subprocess.run([*ask, f"--execute={statement}"], env=self.environment, check=True, timeout=20)

    def _wait_for_controller(self) -> None:
        ask = ["scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc"]

        def knows_accounts() -> bool:
            done = subprocess.run(ask, env=self.environment, capture_output=True, text=True, timeout=20)
            return "Account=physics" in done.stdout

        if not wait_until(knows_accounts, _READY_LIMIT_S):
            raise RuntimeError((self._folder / "slurmctld.log").read_text()[-1000:])

    def hide(self) -> None:
        """Show each user the own accounting alone, by ``PrivateData``, and restart the daemons."""
        hidden = "PrivateData=accounts,jobs,usage,users\n"
        for name in ("slurmdbd.conf", "slurm.conf"):
            with (self._folder / name).open("a") as configuration:
                configuration.write(hidden)
        # The database itself stays.
        for process in self._processes[1:]:
            process.terminate()
            process.wait(20)
        del self._processes[1:]
        self._run("slurmdbd", "-D")
        self._wait_for_accounts()
        self._run("slurmctld", "-D")
        self._wait_for_controller()

    def _start(self) -> None:
        storage, port = free_port(), free_port()
        data = self._folder / "data"
        install = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            "--user=root",
            "--skip-test-db",
        ]
        subprocess.run(install, env=self.environment, capture_output=True, check=True, timeout=120)
        database = self._folder / "db"
        self._run(
            *("mariadbd", "--no-defaults", f"--datadir={data}", "--user=root", f"--socket={database}"),
            *(f"--port={storage}", "--bind-address=127.0.0.1", f"--pid-file={self._folder}/db.pid"),
        )
        grant = "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm'; GRANT ALL ON *.* TO slurm@'127.0.0.1';"
        grant += "CREATE USER slurm@localhost IDENTIFIED BY 'slurm'; GRANT ALL ON *.* TO slurm@localhost;"
        ask = ["mariadb", "--no-defaults", f"--socket={database}", "--user=root", f"--execute={grant}"]

        def granted() -> bool:
            return subprocess.run(ask, env=self.environment, capture_output=True, timeout=20).returncode == 0

        if not wait_until(granted, _READY_LIMIT_S):
            raise RuntimeError("MariaDB did not get ready.")
        configuration = self._folder / "slurmdbd.conf"
        configuration.write_text(
            _SLURMDBD.format(cluster=self._cluster.folder, folder=self._folder, port=port, storage=storage)
        )
        configuration.chmod(0o600)
        ours = (self._cluster.folder / "slurm.conf").read_text()
        ours += "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\n"
        ours += f"AccountingStoragePort={port}\nAccountingStoragePass={self._cluster.folder}/munge/socket\n"
        (self._folder / "slurm.conf").write_text(ours)
        self._run("slurmdbd", "-D")
        self._wait_for_accounts()

    def _wait_for_accounts(self) -> None:
        def answers() -> bool:
            with contextlib.suppress(RuntimeError):
                return bool(self.call("show", "account", "format=account").strip())
            return False

        if not wait_until(answers, _READY_LIMIT_S):
            raise RuntimeError((self._folder / "slurmdbd.log").read_text()[-1000:])

    def _run(self, *argv: str) -> None:
        with (self._folder / "out").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", "--", *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environment,
                    cwd="/",
                    start_new_session=True,
                )
            )
