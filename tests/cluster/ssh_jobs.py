"""Jobs with an ssh server in their container, and the line that reaches one."""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from images import Images
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script

LIMIT_S = 60
_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "IdentitiesOnly=yes"),
    *("-o", "LogLevel=ERROR", "-F", "none"),
)
SLEEP = ("/bin/sh", "-c", "sleep 600")


@dataclass
class RunningJob:
    """A job with an ssh server in its container."""

    cluster: OneMachine
    owner: UnixUser
    job_id: str
    run: Path

    def notice(self) -> dict[str, object]:
        """Return what the run folder says of the server, once it is there."""
        assert wait_until(lambda: bool(list(self.run.glob("ssh-*.json"))), LIMIT_S), self.log()
        (path,) = self.run.glob("ssh-*.json")
        assert path.stat().st_mode & 0o777 == 0o600
        content: dict[str, object] = json.loads(path.read_text())
        return content

    def log(self) -> str:
        path = self.owner.home / f"job-{self.job_id}.log"
        return path.read_text() if path.exists() else ""

    def state(self) -> str:
        words = ["squeue", "--noheader", "--states=all", f"--jobs={self.job_id}", "--format=%T"]
        return self.cluster.call(words).strip()

    def end(self) -> None:
        self.cluster.call(["scancel", self.job_id])
        assert wait_until(lambda: self.state() not in {"RUNNING", "COMPLETING", "PENDING"}, LIMIT_S)

    def address(self) -> str:
        return self.cluster.addresses[str(self.notice()["node"])]

    def words(self, program: str, user: UnixUser, *options: str, key: str = "id") -> list[str]:
        """The words of a client, but for destination and command."""
        port = ("-P" if program in {"sftp", "scp"} else "-p", str(self.notice()["port"]))
        known = ("-o", f"UserKnownHostsFile={user.home}/known", "-o", f"HostKeyAlias={self.owner.name}")
        return [program, *_OPTIONS, *port, *known, "-i", str(user.home / key), *options]

    def ssh(
        self,
        *command: str,
        by: UnixUser | None = None,
        name: str = "",
        options: tuple[str, ...] = (),
        **more: str,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command by ssh, as the owner of the job, or as another user."""
        by = by or self.owner
        words = self.words("ssh", by, *options, **more)
        return by.run(*words, f"{name or self.owner.name}@{self.address()}", *command, limit_s=LIMIT_S)

    def servers(self) -> list[int]:
        """The processes of sshd that the owner of the job has."""
        found = []
        for pid in self.owner.processes():
            with contextlib.suppress(OSError):
                if b"sshd" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found


def key_of(user: UnixUser, name: str = "id") -> str:
    path = user.home / name
    if not path.exists():
        done = user.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
        assert done.returncode == 0, done.stderr
    return path.with_name(f"{name}.pub").read_text().strip()


Submit = Callable[..., RunningJob]


@pytest.fixture(scope="module")
def submit(
    cluster: OneMachine, runtime: Path, plain_users: tuple[UnixUser, UnixUser], images: Images, fuse: None
) -> Iterator[Submit]:
    """Submits jobs as the first user, whose containers have the hook."""
    user = plain_users[0]
    key_of(user)
    jobs: list[RunningJob] = []

    def start(
        *command: str,
        image: Path = images.debian,
        key: str = "id.pub",
        lines: tuple[str, ...] = (),
        port: int = 15263,
        node: str = "",
        engine: str = "bubblewrap",
    ) -> RunningJob:
        name = f"ssh{len(jobs)}"
        work = f"{user.home}/work"
        known = f'image = "{image}"\nworkdir = "{work}"\nmounts = ["{work}:{work}"]\n'
        hook = {"enabled": "true", "authorize_ssh_key": f"{user.home}/{key}", "port": str(port)}
        annotations = "".join(f'com.hooks.ssh.{each} = "{value}"\n' for each, value in hook.items())
        top = "".join(f"{line}\n" for line in lines)
        content = f'{known}{top}[env]\nGREETING = "grüezi"\n[annotations]\n{annotations}'
        user.write(f".edf/{name}.toml", content)
        user.write("work/.keep", "")
        user.write("job.sh", batch_script(f"{runtime}/bin/python3"))
        spec = JobSpec(
            kind="notebook",
            command=command or SLEEP,
            cluster="tests",
            edf=name,
            engine=engine,
            runtime=str(runtime),
            sources=("host",),
        )
        variables = {
            **cluster.environment,
            "PATH": "/usr/bin:/bin",
            "HOME": str(user.home),
            "USER": user.name,
            "JUPYTERHUB_API_TOKEN": "a-secret-of-the-server",
            JOB_VARIABLE: spec.model_dump_json(),
        }
        words = ["sbatch", "--parsable", f"--output={user.home}/job-%j.log", f"--chdir={user.home}"]
        words += [f"--nodelist={node}"] if node else []
        settings = [f"{each}={value}" for each, value in variables.items()]
        done = user.run("env", "-i", *settings, *words, str(user.home / "job.sh"))
        assert done.returncode == 0, done.stderr
        job_id = done.stdout.strip()
        jobs.append(RunningJob(cluster, user, job_id, user.home / f".gipfel/runs/tests-{job_id}"))
        (user.home / "known").write_text("")
        user.own(user.home / "known")
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


@pytest.fixture(scope="module")
def job(submit: Submit) -> RunningJob:
    """A job that most tests only look at."""
    running = submit()
    notice = running.notice()
    known = running.owner.home / "known"
    known.write_text(f"{running.owner.name} {str(notice['known_hosts']).split(' ', 1)[1]}\n")
    running.owner.own(known)
    return running
