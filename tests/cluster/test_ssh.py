"""Ssh into the running container on the job's node, for the owner of the key only."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
import ssh_jobs
from images import MARKER_TEXT
from ssh_jobs import LIMIT_S, RunningJob, key_of
from unix_users import UnixUser

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin") is None, reason="There is no OpenSSH server."),
]

submit, job = ssh_jobs.submit, ssh_jobs.job


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
    fed = subprocess.run([*words, "cat"], input=b"\0\xff" * 50000, capture_output=True, timeout=LIMIT_S)
    assert fed.stdout == b"\0\xff" * 50000
    shell = subprocess.run(
        [*words, "-tt"], input="tty; cd /opt; pwd; exit 3\n", capture_output=True, text=True, timeout=LIMIT_S
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
    done = job.owner.run(*job.words("sftp", job.owner, "-b", str(batch)), destination, limit_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    # The working folder, which outlives the container.
    assert (job.owner.home / "work/there.bin").read_bytes() == content
    assert (job.owner.home / "got").read_text() == MARKER_TEXT
    back = job.owner.home / "back.bin"
    copy = [*job.words("scp", job.owner), f"{destination}:there.bin", str(back)]
    assert job.owner.run(*copy, limit_s=LIMIT_S).returncode == 0
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
    assert job.owner.run("ssh-agent", *words, limit_s=LIMIT_S).stdout == "[]\n"


def test_other_keys_passwords_users_and_names_are_refused(
    job: RunningJob, plain_users: tuple[UnixUser, UnixUser]
) -> None:
    owner, other = plain_users
    key_of(owner, "another")
    key_of(other)
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
