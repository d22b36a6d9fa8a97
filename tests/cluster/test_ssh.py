"""A port into the running container: ssh reaches a job on its node, for the owner of the key alone."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from images import MARKER_TEXT, Images
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_cluster.engines.podman import Podman
from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin") is None, reason="There is no OpenSSH server."),
]

_LIMIT_S = 60
_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "IdentitiesOnly=yes"),
    *("-o", "LogLevel=ERROR", "-F", "none"),
)
_SLEEP = ("/bin/sh", "-c", "sleep 600")


@dataclass
class RunningJob:
    """A job with an ssh server in its container."""

    cluster: OneMachine
    owner: UnixUser
    job_id: str
    run: Path

    def notice(self) -> dict[str, object]:
        """What the run folder says of the server, once it is there."""
        assert wait_until(lambda: bool(list(self.run.glob("ssh-*.json"))), _LIMIT_S), self.log()
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
        assert wait_until(lambda: self.state() not in {"RUNNING", "COMPLETING", "PENDING"}, _LIMIT_S)

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
        """Run a command by ssh, as the owner of the job unless somebody else is to try."""
        by = by or self.owner
        words = self.words("ssh", by, *options, **more)
        return by.run(*words, f"{name or self.owner.name}@{self.address()}", *command, limit_s=_LIMIT_S)

    def servers(self) -> list[int]:
        """The processes of sshd that the owner of the job has."""
        found = []
        for pid in self.owner.processes():
            with contextlib.suppress(OSError):
                if b"sshd" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found


def _key(user: UnixUser, name: str = "id") -> str:
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
    _key(user)
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
            command=command or _SLEEP,
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


def test_ssh_runs_a_command_that_sees_the_image_and_the_edf(job: RunningJob) -> None:
    done = job.ssh("cat /opt/marker.txt; echo $GREETING; pwd; id -un; hostname; id -u; exit 7")
    notice = job.notice()
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == [
        MARKER_TEXT.strip(), "grüezi", f"{job.owner.home}/work", job.owner.name, notice["node"],
        str(job.owner.uid),
    ]  # fmt: skip


def test_the_line_to_copy_is_in_the_log_and_in_the_run_folder(job: RunningJob) -> None:
    notice = job.notice()
    assert notice["command"] == f"ssh -p {notice['port']} {job.owner.name}@{notice['node']}"
    assert f"gipfel: reach this container by: {notice['command']}\n" in job.log()
    assert json.loads((job.run / "record.json").read_text())["notes"] == []


def test_a_session_has_the_container_s_variables_but_not_the_server_s(job: RunningJob) -> None:
    variables = dict(line.split("=", 1) for line in job.ssh("env").stdout.splitlines())
    assert variables["GIPFEL_RUN"] == str(job.run)
    assert variables["GREETING"] == "grüezi"
    assert variables["HOME"] == str(job.owner.home)
    assert variables["SHELL"] == "/bin/bash"
    assert variables["SLURM_JOB_ID"] == job.job_id
    assert variables["SSH_CONNECTION"]
    assert not [name for name in variables if name.startswith("JUPYTERHUB") or name == "GIPFEL_SSH"]


def test_standard_input_a_terminal_and_the_host_s_own_programs(job: RunningJob) -> None:
    destination = f"{job.owner.name}@{job.address()}"
    words = ["runuser", "-u", job.owner.name, "--", *job.words("ssh", job.owner), destination]
    fed = subprocess.run([*words, "cat"], input=b"\0\xff" * 50000, capture_output=True, timeout=_LIMIT_S)
    assert fed.stdout == b"\0\xff" * 50000
    shell = subprocess.run(
        [*words, "-tt"], input="tty; cd /opt; pwd; exit 3\n", capture_output=True, text=True, timeout=_LIMIT_S
    )
    assert shell.returncode == 3, shell.stderr
    assert "/dev/pts/" in shell.stdout
    assert "/opt" in shell.stdout


def test_files_go_in_and_out(job: RunningJob) -> None:
    content = bytes(range(256)) * 4000
    here = job.owner.home / "here.bin"
    here.write_bytes(content)
    job.owner.own(here)
    batch = job.owner.write(
        "transfer", f"put {here} there.bin\nget /opt/marker.txt {job.owner.home}/got\nls\n"
    )
    destination = f"{job.owner.name}@{job.address()}"
    done = job.owner.run(*job.words("sftp", job.owner, "-b", str(batch)), destination, limit_s=_LIMIT_S)
    assert done.returncode == 0, done.stderr
    # The working folder, which outlives the container.
    assert (job.owner.home / "work/there.bin").read_bytes() == content
    assert (job.owner.home / "got").read_text() == MARKER_TEXT
    back = job.owner.home / "back.bin"
    copy = [*job.words("scp", job.owner), f"{destination}:there.bin", str(back)]
    assert job.owner.run(*copy, limit_s=_LIMIT_S).returncode == 0
    assert back.read_bytes() == content


def test_ports_of_the_node_are_reached_through_it(job: RunningJob) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    through = f"127.0.0.1:{port}:127.0.0.1:{job.notice()['port']}"
    destination = f"{job.owner.name}@{job.address()}"
    words = ["runuser", "-u", job.owner.name, "--", *job.words("ssh", job.owner, "-N", "-L", through)]
    client = subprocess.Popen([*words, destination])
    try:
        banner = b""
        deadline = time.monotonic() + 20
        while not banner and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as there:
                banner = there.recv(100)
            time.sleep(0.1)
        assert banner.startswith(b"SSH-2.0-OpenSSH")
    finally:
        client.terminate()
        client.wait(10)


def test_no_agent_is_forwarded(job: RunningJob) -> None:
    words = [*job.words("ssh", job.owner, "-A"), f"{job.owner.name}@{job.address()}", "echo [$SSH_AUTH_SOCK]"]
    assert job.owner.run("ssh-agent", *words, limit_s=_LIMIT_S).stdout == "[]\n"


def test_other_keys_passwords_users_and_names_are_refused(
    job: RunningJob, plain_users: tuple[UnixUser, UnixUser]
) -> None:
    owner, other = plain_users
    _key(owner, "another")
    _key(other)
    (other.home / "known").write_text("")
    other.own(other.home / "known")
    loose = ("-o", "StrictHostKeyChecking=no")
    refused = "Permission denied (publickey)."
    assert job.ssh("true", options=loose).returncode == 0
    tries = [
        job.ssh("true", options=loose, key="another"),
        job.ssh("true", options=(*loose, "-o", "PubkeyAuthentication=no", "-o", "BatchMode=no")),
        job.ssh("true", options=loose, by=other),
        job.ssh("true", options=loose, by=other, name=other.name),
        job.ssh("true", options=loose, name="root"),
        job.ssh("true", options=loose, name=other.name),
    ]
    for done in tries:
        assert done.returncode == 255
        assert refused in done.stderr
    methods = job.ssh(
        "true", options=(*loose, "-v", "-o", "LogLevel=DEBUG1", "-o", "PreferredAuthentications=none")
    )
    assert "Authentications that can continue: publickey\n" in methods.stderr.replace("\r", "")


def test_nobody_else_reads_what_the_server_runs_with(
    job: RunningJob, plain_users: tuple[UnixUser, UnixUser]
) -> None:
    other = plain_users[1]
    servers = job.servers()
    assert servers
    for pid in servers:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"secret" not in line
        assert other.run("cat", f"/proc/{pid}/environ").returncode != 0
        assert other.run("ls", f"/proc/{pid}/fd").returncode != 0


def test_two_containers_on_a_node_have_two_ports_and_one_host_key(job: RunningJob, submit: Submit) -> None:
    first = job.notice()
    second = submit("/bin/sh", "-c", "echo second >/tmp/mark; sleep 600", node=str(first["node"]))
    notice = second.notice()
    assert notice["node"] == first["node"]
    assert int(str(notice["port"])) > int(str(first["port"]))
    known = job.owner.home / "known"
    known.write_text(f"{job.owner.name} {str(first['known_hosts']).split(' ', 1)[1]}\n")
    job.owner.own(known)
    assert second.ssh("cat /tmp/mark").stdout == "second\n"
    assert job.ssh("cat /tmp/mark").returncode == 1
    second.end()


def test_the_server_ends_with_the_command_and_leaves_nothing(submit: Submit) -> None:
    job = submit("/bin/sh", "-c", "until [ -e stop ]; do sleep 0.1; done; exit 5", port=15400)
    notice = job.notice()
    words = ["runuser", "-u", job.owner.name, "--"]
    words += [
        *job.words("ssh", job.owner, "-o", "StrictHostKeyChecking=no"),
        f"{job.owner.name}@{job.address()}",
    ]
    session = subprocess.Popen([*words, "echo in; sleep 700"], stdout=subprocess.PIPE, text=True)
    assert session.stdout is not None
    assert session.stdout.readline() == "in\n"
    job.owner.write("work/stop", "")
    assert session.wait(_LIMIT_S) == 255
    session.stdout.close()
    assert wait_until(lambda: job.state() == "FAILED", _LIMIT_S)
    assert json.loads((job.run / "record.json").read_text())["exit_status"] == 5
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((job.cluster.addresses[str(notice["node"])], int(str(notice["port"]))), 5)
    left = {path.name for path in job.run.iterdir()}
    assert left - {"score.json"} == {
        "record.json",
        "telemetry",
        *(f"ssh-{notice['node']}.{end}" for end in ("json", "log")),
    }
    assert "Accepted publickey" in (job.run / f"ssh-{notice['node']}.log").read_text()
    assert [path.name for path in (job.owner.home / ".gipfel/ssh").iterdir()] == ["host_ed25519"]
    (job.owner.home / "work/stop").unlink()


def test_a_hostile_file_of_keys_does_no_harm(submit: Submit, plain_users: tuple[UnixUser, UnixUser]) -> None:
    owner = plain_users[0]
    plain, narrow = _key(owner), _key(owner, "narrow")
    lines = [
        f'command="touch {owner.home}/owned" {narrow}',
        f'{plain} a comment\rcommand="touch {owner.home}/owned" {narrow}',
        f'environment="LD_PRELOAD={owner.home}/x.so" {narrow}',
        "\x00\xff" * 100,
    ]
    owner.write("hostile.pub", "\n".join(lines) + "\n")
    job = submit(key="hostile.pub", port=15500)
    job.notice()
    loose = ("-o", "StrictHostKeyChecking=no")
    assert job.ssh("echo in", options=loose).stdout == "in\n"
    assert job.ssh("true", options=loose, key="narrow").returncode == 255
    assert not (owner.home / "owned").exists()
    (note,) = json.loads((job.run / "record.json").read_text())["notes"]
    assert "lines 1, 3, 4 of" in note
    job.end()


@pytest.mark.parametrize(
    ("content", "said"),
    [("{key}\n" * 12000, "more than 64 KiB"), ("", "holds no public key"), (None, "can't be read")],
)
def test_without_a_key_there_is_no_server_and_the_command_runs(
    submit: Submit, plain_users: tuple[UnixUser, UnixUser], content: str | None, said: str
) -> None:
    user = plain_users[0]
    if content is not None:
        user.write("large.pub", content.format(key=_key(user)))
    job = submit("/bin/sh", "-c", "echo it ran", key="large.pub" if content is not None else "none.pub")
    assert wait_until(lambda: job.state() == "COMPLETED", _LIMIT_S), job.log()
    assert "it ran" in job.log()
    record = json.loads((job.run / "record.json").read_text())
    (note,) = record["notes"]
    assert note.startswith("com.hooks.ssh has no effect: ")
    assert said in note
    assert not list(job.run.glob("ssh-*"))


def test_a_root_that_is_read_only_is_no_hindrance(submit: Submit) -> None:
    job = submit(lines=("writable = false",), port=15600)
    job.notice()
    loose = ("-o", "StrictHostKeyChecking=no")
    done = job.ssh("touch /opt/x; cat /opt/marker.txt", options=loose)
    assert done.stdout == MARKER_TEXT
    assert "Read-only file system" in done.stderr
    job.end()


@pytest.mark.skipif(Podman().missing() is not None, reason="This machine can't run podman.")
def test_podman_s_containers_are_reached_too(submit: Submit, plain_users: tuple[UnixUser, UnixUser]) -> None:
    # crun refuses a machine with both kinds of control groups.
    plain_users[0].write(".config/containers/containers.conf", '[engine]\nruntime = "runc"\n')
    before = set(plain_users[0].processes())
    job = submit(engine="podman", port=15700)
    loose = ("-o", "StrictHostKeyChecking=no")
    done = job.ssh("cat /opt/marker.txt; echo $GREETING; id -un; pwd; exit 7", options=loose)
    assert done.returncode == 7, done.stderr
    words = [MARKER_TEXT.strip(), "grüezi", job.owner.name, f"{job.owner.home}/work"]
    assert done.stdout.splitlines() == words
    shell = job.ssh("tty", options=(*loose, "-tt"))
    assert shell.stdout.startswith("/dev/pts/"), shell.stderr
    assert json.loads((job.run / "record.json").read_text())["engine"] == "podman"
    job.end()
    assert wait_until(lambda: not set(job.servers()) - before, 40)


def test_an_image_without_a_shell_lets_nobody_in_and_says_so(
    submit: Submit, world_folder: Path, plain_users: tuple[UnixUser, UnixUser]
) -> None:
    (world_folder / "empty/etc").mkdir(parents=True)
    (world_folder / "empty/etc/hostname").write_text("none\n")
    job = submit(
        "{python}", "-c", "import time; time.sleep(3); print('it ran')", image=world_folder / "empty"
    )
    assert wait_until(lambda: job.state() == "COMPLETED", _LIMIT_S), job.log()
    assert "it ran" in job.log()
    assert "gipfel: nobody can reach this container by ssh: the image has no shell /bin/bash." in job.log()
    assert not list(job.run.glob("ssh-*.json"))
