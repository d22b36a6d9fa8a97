"""Environment of a command in a real container, as root and as a plain user, from a file and a directory."""

import hashlib
import json
import os
import pwd
from pathlib import Path

import bubblewrap_sandboxes
import pytest
from bubblewrap_sandboxes import require

from gipfel_cluster.edf import Mount
from gipfel_cluster.engines.bubblewrap import Bubblewrap

ROOT_FOLDERS = ("bin", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "run", "sys", "tmp", "usr", "var")
image, sandboxes = bubblewrap_sandboxes.image, bubblewrap_sandboxes.sandboxes
shared, user = bubblewrap_sandboxes.shared, bubblewrap_sandboxes.user
pytestmark = pytest.mark.skipif(
    Bubblewrap().unavailable_reason() is not None, reason=str(Bubblewrap().unavailable_reason())
)


def digest(image: str) -> str:
    path = Path(image)
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    state = hashlib.sha256()
    for file in files:
        state.update(f"{file} {file.lstat().st_mode} {file.lstat().st_mtime_ns}\n".encode())
        state.update(file.read_bytes() if file.is_file() else b"")
    return state.hexdigest()


def test_the_user_is_the_same_inside_and_has_a_name(sandboxes, user, image):
    status, out, err = sandboxes.shell(image, "id -u; id -g; id -un; cat /opt/marker")
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = "somebody"
    assert (status, err) == (0, "")
    assert out.splitlines() == [str(user), str(user), name, "of the image"]


def test_the_environment_is_host_then_image_then_edf_but_what_binds_stays(sandboxes, image):
    awkward = "a \"b\" 'c' $HOME `x` ü\t\\"
    status, out, _ = sandboxes.run(
        image,
        "cat",
        "/proc/self/environ",
        environment={"HOST": "h", "BOTH": "h", "EDF": "h", "GONE": "h", "BOUND": "h", "HUB_TOKEN": "h"},
        protected=("BOUND", "HUB_*"),
        env={"EDF": awkward, "GONE": "", "IMAGE": "", "HUB_TOKEN": "edf", "HUB_Y": "edf"},
    )
    assert status == 0
    variables = dict(line.split("=", 1) for line in out.split("\0") if line)
    assert variables == sandboxes.variables | {
        "HOST": "h",
        "BOTH": "image",
        "EDF": awkward,
        "BOUND": "h",
        "HUB_TOKEN": "h",
        "PWD": "/",
    }


@pytest.mark.parametrize("writable", [True, False])
def test_the_image_stays_untouched(sandboxes, user, image, writable):
    before = digest(image)
    script = (
        "touch /tmp/mine && echo tmp; touch /new && echo root; rm -r /opt && mkdir /opt && echo opt; exit 0"
    )
    status, out, _ = sandboxes.shell(image, script, writable=writable)
    # The files of an unpacked image keep their owner.
    owner = image.endswith(".sqsh") or user == os.stat(image).st_uid
    expected = {(True, True): ["tmp", "root", "opt"], (True, False): ["tmp", "root"]}.get(
        (writable, owner), ["tmp"]
    )
    assert (status, out.split()) == (0, expected)
    assert digest(image) == before


def test_mounts_are_made_on_demand(sandboxes, user, image, tmp_path):
    outside = sandboxes.scratch / "data"
    outside.mkdir()
    (outside / "file").write_text("outside\n")
    os.chown(outside, user, user)
    status, out, err = sandboxes.shell(
        image,
        "cat /deep/er/rw/file /run/ro/file /etc/one; echo new > /deep/er/rw/new; echo no > /run/ro/no",
        mounts=[
            Mount(source=str(outside), destination="/deep/er/rw"),
            Mount(source=str(outside), destination="/var/run/ro", flags=("ro",)),
            Mount(source=str(outside / "file"), destination="/etc/one"),
        ],
    )
    assert out == "outside\n" * 3
    assert status != 0
    assert "Read-only" in err
    assert (outside / "new").read_text() == "new\n"
    assert (outside / "new").stat().st_uid == user
    assert not (outside / "no").exists()


@pytest.mark.parametrize("flags", [(), ("ro",)])
def test_a_mount_may_hold_the_scratch_folder_but_does_not_show_the_container(sandboxes, image, flags):
    mount = Mount(source="/tmp", destination="/tmp", flags=flags)
    folder = f"{sandboxes.scratch}/container"
    status, out, err = sandboxes.shell(image, f"ls -d {folder} && ls -A {folder}", mounts=[mount])
    assert (status, out, err) == (0, f"{folder}\n", "")


def test_a_squashfs_mount(sandboxes, shared, image):
    source = require(shared / "data.sqsh")
    mount = Mount(source=source, destination="/data", flags=("sqsh",))
    status, out, _ = sandboxes.shell(image, "cat /data/hello; touch /data/x || exit 9", mounts=[mount])
    assert (status, out) == (9, "of the data\n")


def test_the_working_folder_and_the_home_folder_are_there(sandboxes, image):
    assert (
        sandboxes.shell(image, "pwd; ls -d $HOME", workdir="/work/here")[1] == "/work/here\n/home/somebody\n"
    )


def test_only_the_processes_of_the_container_are_seen(sandboxes, image):
    status, out, _ = sandboxes.shell(image, "cd /proc; ls -d [0-9]*")
    assert status == 0
    assert all(int(process) < 50 for process in out.split())


def test_the_root_of_the_host_is_not_seen(sandboxes, image):
    _, out, _ = sandboxes.shell(image, "ls /")
    assert set(out.split()) <= set(ROOT_FOLDERS)


def test_an_image_without_any_libc_runs_a_mounted_program(sandboxes, shared):
    (sandboxes.scratch / "empty/only").mkdir(parents=True)
    (sandboxes.scratch / "empty/only/file").write_text("all there is\n")
    mount = Mount(source=str(shared / "program"), destination="/opt/program", flags=("ro",))
    command = ["/opt/program/loader", "--library-path", "/opt/program", "/opt/program/cat", "/only/file"]
    os.chown(sandboxes.scratch / "empty", sandboxes.user, sandboxes.user)
    result = sandboxes.run(str(sandboxes.scratch / "empty"), *command, mounts=[mount])
    assert result == (0, "all there is\n", "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mounts": [Mount(source="/tmp", destination="/opt/marker/below")]}, "is a file in the image"),
        ({"mounts": [Mount(source="/etc/hosts", destination="/opt")]}, "is a directory in the image"),
    ],
)
def test_a_container_that_can_not_be_made_is_one_line(sandboxes, image, options, words):
    status, out, err = sandboxes.run(image, "true", **options)
    assert (status, out) == (125, "")
    assert words in err
    assert err.startswith("gipfel: ")
    assert err.count("\n") == 1


def test_a_command_that_is_not_there_is_no_traceback(sandboxes, image):
    status, _, err = sandboxes.run(image, "no-such-command")
    assert status == 125
    assert "no-such-command" in err
    assert "Traceback" not in err


def test_a_broken_image_is_one_line(sandboxes, shared):
    content = bytearray(Path(require(shared / "image.sqsh")).read_bytes())
    content[96:] = bytes(len(content) - 96)
    broken = shared / "broken.sqsh"
    broken.write_bytes(content)
    status, _, err = sandboxes.run(str(broken), "true")
    assert status == 125
    assert "can't be mounted" in err
    assert err.count("\n") == 1


def test_the_plan_is_gone_before_the_command_starts(sandboxes, image):
    assert "GIPFEL_CONTAINER" not in sandboxes.run(image, "env")[1]
    argv, environment = sandboxes.invocation(image, ["env"])
    assert json.loads(environment["GIPFEL_CONTAINER"])["command"] == ["env"]
    assert "GIPFEL_CONTAINER" not in " ".join(argv)
