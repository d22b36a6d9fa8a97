"""Ssh servers in containers: when one is started, two on a node, their end, their keys, engines."""

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import ssh_jobs
from images import MARKER_TEXT
from one_machine import wait_until
from ssh_jobs import LIMIT_S, RunningJob, Submit, key_of
from unix_users import UnixUser

from gipfel_cluster.engines.podman import Podman

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin") is None, reason="There is no OpenSSH server."),
]

submit, job = ssh_jobs.submit, ssh_jobs.job


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
    assert session.wait(LIMIT_S) == 255
    session.stdout.close()
    assert wait_until(lambda: job.state() == "FAILED", LIMIT_S)
    assert json.loads((job.run / "record.json").read_text())["exit_status"] == 5
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((job.cluster.addresses[str(notice["node"])], int(str(notice["port"]))), 5)
    left = {path.name for path in job.run.iterdir() if path.name.startswith(("ssh", "."))}
    assert left == {f"ssh-{notice['node']}.{end}" for end in ("json", "log")}
    assert "Accepted publickey" in (job.run / f"ssh-{notice['node']}.log").read_text()
    assert [path.name for path in (job.owner.home / ".gipfel/ssh").iterdir()] == ["host_ed25519"]
    (job.owner.home / "work/stop").unlink()


def test_a_hostile_file_of_keys_does_no_harm(submit: Submit, plain_users: tuple[UnixUser, UnixUser]) -> None:
    owner = plain_users[0]
    plain, narrow = key_of(owner), key_of(owner, "narrow")
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
        user.write("large.pub", content.format(key=key_of(user)))
    job = submit("/bin/sh", "-c", "echo it ran", key="large.pub" if content is not None else "none.pub")
    assert wait_until(lambda: job.state() == "COMPLETED", LIMIT_S), job.log()
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


@pytest.mark.skipif(Podman().unavailable_reason() is not None, reason="This machine can't run podman.")
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
    assert wait_until(lambda: job.state() == "COMPLETED", LIMIT_S), job.log()
    assert "it ran" in job.log()
    assert "gipfel: this container has no ssh server: the image has no shell /bin/bash." in job.log()
    assert not list(job.run.glob("ssh-*.json"))
