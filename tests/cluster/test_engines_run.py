"""The same containers with every available engine, as a plain user: from a .sqsh and from a directory."""

import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_containers import ENGINES, LIMIT_S, ODD, READY, Containers
from unix_users import UnixUser

from gipfel_cluster.edf import Mount

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="Users are made by root only.")


@pytest.fixture(params=["bubblewrap", "podman"])
def engine(request: pytest.FixtureRequest) -> str:
    reason = ENGINES[request.param]().unavailable_reason()
    if reason:
        pytest.skip(reason)
    return request.param


@pytest.fixture(params=["image.sqsh", "root"])
def image(request: pytest.FixtureRequest, engine_place: Path) -> str:
    return str(engine_place / request.param)


@pytest.fixture
def containers(engine_place: Path, engine_user: UnixUser, engine: str, image: str) -> Iterator[Containers]:
    containers = Containers(engine_place, engine_user, engine, image)
    yield containers
    containers.end()


def test_the_user_is_the_same_inside_and_has_a_name(containers, engine_user):
    status, out, err = containers.shell("id -u; id -g; id -un; cat /opt/marker")
    assert (status, err) == (0, "")
    assert out.splitlines() == [str(engine_user.uid), str(engine_user.uid), engine_user.name, "of the image"]


def test_a_root_is_writable_and_the_image_stays_as_it_is(containers, engine_place):
    before = sorted((path, path.lstat().st_mtime_ns) for path in engine_place.rglob("*"))
    status, out, err = containers.shell("touch /new /tmp/new && rm -f /opt/marker; ls /new /tmp/new")
    assert (status, out) == (0, "/new\n/tmp/new\n"), err
    assert sorted((path, path.lstat().st_mtime_ns) for path in engine_place.rglob("*")) == before


def test_a_root_is_read_only_but_for_temporary_files(containers):
    status, out, err = containers.shell("touch /tmp/new && ls /tmp; touch /new || exit 9", writable=False)
    assert (status, out) == (9, "new\n")
    assert "Read-only" in err


def test_mounts_read_only_private_and_as_squashfs(containers, engine_place):
    status, out, err = containers.shell(
        "cat /rw/file /ro/file /private/file /sqsh/hello /etc/one; echo new >/rw/new;"
        "for each in ro private sqsh; do touch /$each/no 2>/dev/null && echo $each; done; exit 0",
        mounts=_mounts(containers, engine_place),
    )
    assert (status, out) == (0, "outside\n" * 3 + "of the data\n" + "outside\n"), err
    assert (containers.scratch / "shared/new").read_text() == "new\n"
    assert (containers.scratch / "shared/new").stat().st_uid == containers.user.uid


def _mounts(containers: Containers, engine_place: Path) -> list[Mount]:
    folder = str(containers.folder("shared"))
    return [
        Mount(source=folder, destination="/rw"),
        Mount(source=folder, destination="/ro", flags=("ro",)),
        Mount(source=folder, destination="/private", flags=("ro", "private")),
        Mount(source=str(engine_place / "data.sqsh"), destination="/sqsh", flags=("sqsh",)),
        Mount(source=f"{folder}/file", destination="/etc/one", flags=("ro",)),
    ]


def test_a_path_of_a_mount_may_have_any_character(containers):
    name = "a b,c:d=e\"f'g$h`i\\jü€"
    mount = Mount(source=str(containers.folder(name)), destination=f"/at/{name}", flags=("ro",))
    status, out, err = containers.run("cat", f"/at/{name}/file", mounts=[mount])
    assert (status, out) == (0, "outside\n"), err


def test_a_mount_of_the_scratch_folder_does_not_show_the_containers_own(containers):
    mount = Mount(source="/tmp", destination="/tmp")
    status, out, _ = containers.shell(f"ls -A {containers.scratch}/container", mounts=[mount])
    assert (status, out) == (0, "")


def test_the_environment_is_host_then_image_then_edf_but_what_binds_stays(containers):
    status, out, err = containers.run(
        "cat",
        "/proc/self/environ",
        environment={"HOST": ODD, "BOTH": "h", "EDF": "h", "GONE": "h", "BOUND": "h", "HUB_TOKEN": "h"},
        protected=("BOUND", "HUB_*"),
        env={
            "EDF": ODD,
            "GONE": "",
            "IMAGE": "",
            "BOUND": "e",
            "HUB_TOKEN": "e",
            "HUB_Y": "e",
            "XDG_RUNTIME_DIR": "/of/the/edf",
            "LD_LIBRARY_PATH": "/of/the/edf",
            "TMPDIR": "/of/the/edf",
        },
    )
    assert status == 0, err
    variables = dict(line.split("=", 1) for line in out.split("\0") if line)
    for extra in ("PWD", "HOSTNAME", "TERM", "container", "OLDPWD"):
        variables.pop(extra, None)
    assert variables == {
        "PATH": "/usr/bin:/of/the/image",
        "HOME": str(containers.user.home),
        "USER": containers.user.name,
        "MARK": str(containers.scratch),
        "HOST": ODD,
        "BOTH": "i",
        "EDF": ODD,
        "BOUND": "h",
        "HUB_TOKEN": "h",
        "XDG_RUNTIME_DIR": "/of/the/edf",
        "LD_LIBRARY_PATH": "/of/the/edf",
        "TMPDIR": "/of/the/edf",
    }


def test_arguments_are_exact_to_the_byte(containers):
    words = [ODD, "", " ", "-x", "--", "two\nlines", "ü"]
    status, out, err = containers.run("sh", "-c", 'for each; do printf "%s\\0" "$each"; done', "sh", *words)
    assert (status, out.split("\0")[:-1]) == (0, words), err


@pytest.mark.parametrize("workdir", ["", "/work/here"])
def test_the_entry_point_runs_before_the_command_where_the_edf_wants_it(containers, workdir):
    command = ["sh", "-c", 'printf "%s\n" "$ENTERED $1" "$PWD"; exit 7', "sh", ODD]
    status, out, err = containers.run(*command, entrypoint=True, workdir=workdir)
    assert (status, out) == (7, f"yes {ODD}\n{workdir or '/srv/image'}\n"), err
    status, out, _ = containers.run(*command, entrypoint=False, workdir=workdir)
    assert (status, out) == (7, f" {ODD}\n{workdir or '/'}\n")


def test_without_devices_all_of_the_hosts_are_there(containers):
    status, out, err = containers.shell("ls /dev; echo there >/dev/null")
    assert status == 0, err
    hosts = {name for name in os.listdir("/dev") if not name.startswith(("pts", "console"))}
    assert hosts <= set(out.split())


def test_with_devices_only_those_and_the_basic_ones_are_there(containers):
    status, out, err = containers.shell(
        "ls /dev; echo there >/dev/null; ls -d /dev/shm", devices=["/dev/fuse"]
    )
    assert status == 0, err
    names = set(out.split())
    assert {"null", "zero", "random", "urandom", "tty", "fuse", "/dev/shm"} <= names
    assert names <= {
        *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "fuse", "shm", "/dev/shm"),
        *("fd", "stdin", "stdout", "stderr", "core", "mqueue", "console"),
    }


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 1", 1), ("exit 42", 42), ("kill -9 $$", 137), ("kill $$", 143)],
)
def test_the_exit_status_comes_back(containers, script, status):
    assert containers.shell(script) == (status, "", "")
    containers.wait_until_gone()


@pytest.mark.parametrize("name", ["TERM", "INT", "USR1"])
def test_signals_reach_the_command_once(containers, name):
    trap = f"n=0; trap 'n=$((n+1)); echo {name}' {name}; {READY}"
    process = containers.start("sh", "-c", f"{trap}for i in 1 2 3 4 5 6 7 8; do sleep 0.1; done; exit 3$n")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(getattr(signal, f"SIG{name}"))
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (31, f"{name}\n".encode()), err


def test_a_signal_without_a_handler_ends_the_command(containers):
    process = containers.start("sh", "-c", f"{READY}exec sleep 300")
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    containers.wait_until_gone()


def test_sigkill_leaves_no_process_and_no_mount(containers):
    process = containers.start("sh", "-c", "sleep 300 & sleep 300 & echo ready; wait")
    assert process.stdout.readline() == b"ready\n"
    assert len(containers.left()) > 4
    process.kill()
    process.communicate(timeout=LIMIT_S)
    containers.wait_until_gone()


def test_what_the_command_leaves_behind_ends_with_it(containers):
    assert containers.shell("sleep 300 </dev/null >/dev/null 2>&1 & exit 4")[0] == 4
    containers.wait_until_gone()


def test_stdin_comes_through(containers):
    content = os.urandom(300_000).hex()
    assert containers.run("cat", stdin=content.encode())[:2] == (0, content)


def test_a_secret_is_in_no_argv(containers):
    secret = secrets.token_hex(16)
    process = containers.start(
        *("sh", "-c", "echo ready; exec sleep 300"), environment={"TOKEN": secret}, env={"OTHER": secret}
    )
    assert process.stdout.readline() == b"ready\n"
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert secret.encode() not in entry.read_bytes()
        except OSError:
            continue


def test_a_command_that_is_not_there_is_no_traceback(containers):
    status, out, err = containers.run("no-such-command")
    assert status in {125, 127}
    assert out == ""
    assert "no-such-command" in err
    assert "Traceback" not in err


def test_an_image_s_variables_bring_no_options(engine_place, engine_user, engine):
    """Options go to bwrap with NULs between them, and so might what an image calls a variable."""
    hostile = engine_place / "hostile"
    shutil.copytree(engine_place / "root", hostile, symlinks=True)
    text = "PATH=/usr/bin\nA=x\0--bind\0/\0/opt\0--setenv\0B\0y\nC=c\n"
    (hostile / "etc/environment").write_text(text)
    containers = Containers(engine_place, engine_user, engine, str(hostile))
    try:
        status, out, err = containers.shell("ls /opt; echo $B$C")
        assert (status, out, err) == (0, "marker\nc\n", "")
    finally:
        containers.end()
        shutil.rmtree(hostile)
