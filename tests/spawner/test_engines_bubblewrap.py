"""Containers that really run, as root and as a plain user, from a SquashFS file and from a folder."""

import hashlib
import json
import os
import pty
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import gipfel_cluster
from gipfel_cluster.edf import Edf, Mount
from gipfel_cluster.engines import ContainerRequest, engine_for
from gipfel_cluster.engines.bubblewrap import Bubblewrap

sys.path.insert(0, str(Path(__file__).parent))

from machine_programs import add_programs, libraries

PLAIN_USER = 54321
PROGRAMS = ("sh", "cat", "id", "ls", "env", "touch", "sleep", "mkdir", "rm", "stat")
# A plain user can't execute an interpreter below /root, so the sandbox runs on the machine's own.
LAUNCHER = (
    "import runpy, sys; sys.argv[:] = sys.argv[3:]; "
    "runpy.run_path({!r} + '/gipfel_cluster/engines/sandbox/start.py', run_name='__main__')"
)
ROOT_FOLDERS = ("bin", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "run", "sys", "tmp", "usr", "var")
VARIABLES = {"PATH": "/usr/bin:/bin", "HOME": "/home/somebody", "USER": "somebody"}

pytestmark = pytest.mark.skipif(Bubblewrap().missing() is not None, reason=str(Bubblewrap().missing()))


def make_root(root: Path) -> None:
    """Unpack a small image: a few programs of this machine and the libraries that they need."""
    for folder in ("usr/bin", "usr/lib64", "etc", "opt", "var"):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "lib64", "lib"):
        (root / link).symlink_to(f"usr/{link}")
    (root / "usr/lib").mkdir()
    (root / "var/run").symlink_to("/run")
    add_programs(root, PROGRAMS)
    (root / "etc/environment").write_text(
        'IMAGE="of the image"\nBOTH=image\nEDF=image\nBOUND=image\nHUB_X=image\n'
    )
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/resolv.conf").symlink_to("/run/nowhere/resolv.conf")
    (root / "opt/marker").write_text("of the image\n")


def make_squashfs(folder: Path, image: Path) -> Path:
    command = ["mksquashfs", folder, image, "-quiet", "-no-progress", "-all-root"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return image


@pytest.fixture(scope="module")
def shared():
    """A folder that every user may read, with the images, the package and a runtime."""
    folder = Path(tempfile.mkdtemp(prefix="gipfel-engine-", dir="/tmp"))
    folder.chmod(0o755)
    package = Path(gipfel_cluster.__path__[0])
    for part in ("__init__.py", "environment.py", "engines"):
        source, target = package / part, folder / "python/gipfel_cluster" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    make_root(folder / "root")
    if shutil.which("mksquashfs") and shutil.which("squashfuse"):
        make_squashfs(folder / "root", folder / "image.sqsh")
        (folder / "data").mkdir()
        (folder / "data/hello").write_text("of the data\n")
        make_squashfs(folder / "data", folder / "data.sqsh")
    (folder / "program").mkdir()
    loader = None
    for file in [os.path.realpath(shutil.which("cat")), *libraries(shutil.which("cat"))]:
        shutil.copy(os.path.realpath(file), folder / "program" / os.path.basename(file))
        loader = os.path.basename(file) if "ld-" in os.path.basename(file) else loader
    (folder / "program/loader").symlink_to(loader)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["root", "plain"])
def user(request):
    """The id that the sandbox runs as."""
    if request.param == "plain":
        if os.geteuid() != 0:
            return os.geteuid()
        if not shutil.which("setpriv"):
            pytest.skip("setpriv is not installed")
        return PLAIN_USER
    if os.geteuid() != 0:
        pytest.skip("needs root")
    return 0


@pytest.fixture(params=["image.sqsh", "root"])
def image(request, shared):
    return require(shared / request.param)


def require(image: Path) -> str:
    if not image.exists():
        pytest.skip("mksquashfs or squashfuse is not installed")
    if image.suffix and not (
        os.access("/dev/fuse", os.R_OK | os.W_OK) and os.stat("/dev/fuse").st_mode & 0o6
    ):
        pytest.skip("/dev/fuse may not be used by a plain user")
    return str(image)


class Sandboxes:
    """Starts containers as one user and ends what a failed test leaves."""

    def __init__(self, shared: Path, user: int) -> None:
        self.shared, self.user = shared, user
        self.scratch = Path(tempfile.mkdtemp(prefix="g-", dir="/tmp"))
        os.chown(self.scratch, user, user)
        self.variables = VARIABLES | {"MARK": str(self.scratch)}
        self.processes: list[subprocess.Popen[bytes]] = []

    def invocation(self, image, command, *, mounts=(), environment=None, binding=(), workdir="", **edf):
        request = ContainerRequest(
            edf=Edf(name="test", path=None, image=image, **edf),
            command=tuple(command),
            mounts=tuple(mounts),
            environment=self.variables | (environment or {}),
            binding=binding,
            workdir=workdir,
            scratch=str(self.scratch),
        )
        python = "/usr/bin/python3" if os.geteuid() == 0 else sys.executable
        launcher = (python, "-c", LAUNCHER.format(str(self.shared / "python")))
        invocation = engine_for(request.edf).render(request, python=launcher)
        become = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        return [*(become if self.user != os.geteuid() else []), *invocation.argv], invocation.environment

    def start(self, image, command, *, prefix=(), **options):
        argv, environment = self.invocation(image, command, **options)
        process = subprocess.Popen(
            [*prefix, *argv],
            env=environment,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def run(self, image, *command, stdin=b"", **options):
        process = self.start(image, command, **options)
        out, err = process.communicate(stdin, timeout=60)
        return process.returncode, out.decode(), err.decode()

    def shell(self, image, script, **options):
        return self.run(image, "sh", "-c", script, **options)

    def left(self) -> list[int]:
        """Find the processes that are of our containers or still have a mount of theirs."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                text = b"".join((entry / name).read_bytes() for name in ("mountinfo", "environ", "cmdline"))
            except OSError:
                continue
            if str(self.scratch).encode() in text:
                found.append(int(entry.name))
        return found

    def end(self):
        for process in self.processes:
            process.kill()
            process.communicate()
        gone(self.left)
        shutil.rmtree(self.scratch)


def gone(left, limit=10.0):
    end = time.monotonic() + limit
    while rest := left():
        assert time.monotonic() < end, f"still there: {rest}"
        time.sleep(0.02)


@pytest.fixture
def sandboxes(shared, user):
    sandboxes = Sandboxes(shared, user)
    yield sandboxes
    sandboxes.end()


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
        binding=("BOUND", "HUB_*"),
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


def test_stdin_comes_through(sandboxes, image):
    content = os.urandom(300_000).hex().encode()
    assert sandboxes.run(image, "cat", stdin=content)[:2] == (0, content.decode())


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 1", 1), ("exit 42", 42), ("kill -9 $$", 137)]
)
def test_the_exit_status_comes_back(sandboxes, image, script, status):
    assert sandboxes.shell(image, script) == (status, "", "")


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1", "USR2", "QUIT"])
def test_signals_reach_the_command_once(sandboxes, image, name):
    # A shell that waits in the foreground handles a signal only afterwards.
    trap = f"n=0; trap 'n=$((n+1)); echo {name}' {name}; echo ready"
    script = f"{trap}; for i in 1 2 3 4 5 6; do sleep 0.1; done; exit 3$n"
    process = sandboxes.start(image, ["sh", "-c", script])
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(getattr(signal, f"SIG{name}"))
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (31, f"{name}\n".encode())


def test_ctrl_c_at_a_terminal_reaches_the_command_once(sandboxes, image):
    script = (
        "n=0; trap 'n=$((n+1))' INT; echo ready; for i in 1 2 3 4 5 6; do sleep 0.1; done; exit $((30+n))"
    )
    argv, environment = sandboxes.invocation(image, ["sh", "-c", script])
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(argv[0], argv, environment)
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 31
    os.close(terminal)


def test_a_signal_without_a_handler_ends_the_command(sandboxes, image):
    process = sandboxes.start(image, ["sh", "-c", "echo ready; exec sleep 300"])
    process.stdout.readline()
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    gone(sandboxes.left)


@pytest.mark.parametrize("when", ["at once", "when it runs"])
def test_sigkill_leaves_no_process_and_no_mount(sandboxes, image, when):
    process = sandboxes.start(image, ["sh", "-c", "sleep 300 & sleep 300 & echo ready; wait"])
    if when == "when it runs":
        process.stdout.readline()
        assert len(sandboxes.left()) >= 6
    else:
        time.sleep(0.05)
    process.kill()
    process.wait(10)
    gone(sandboxes.left)


def test_the_end_of_the_parent_leaves_no_process_and_no_mount(sandboxes, image):
    code = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    command = ["sh", "-c", "echo ready; sleep 300"]
    process = sandboxes.start(image, command, prefix=["/usr/bin/python3", "-c", code])
    process.stdout.readline()
    process.kill()
    process.wait(10)
    gone(sandboxes.left)


def test_the_end_of_the_command_ends_what_it_left_in_the_background(sandboxes, image):
    script = "sleep 300 </dev/null >/dev/null 2>&1 & exit 4"
    assert sandboxes.shell(image, script)[0] == 4
    gone(sandboxes.left)


def test_a_variable_is_in_no_argv(sandboxes, image):
    secret = os.urandom(16).hex()
    process = sandboxes.start(
        image,
        ["sh", "-c", "echo ready; exec sleep 300"],
        environment={"TOKEN": secret},
        env={"OTHER": secret},
    )
    process.stdout.readline()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert secret.encode() not in entry.read_bytes()
        except OSError:
            continue


def test_a_hundred_thousand_bytes_of_variables(sandboxes, image):
    many = {f"V{number}": "x" * 1000 for number in range(300)}
    status, out, _ = sandboxes.shell(image, "echo $V0 $V299", environment=many)
    assert (status, len(out)) == (0, 2002)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mounts": [Mount(source="/tmp", destination="/opt/marker/below")]}, "is a file in the image"),
        ({"mounts": [Mount(source="/etc/hosts", destination="/opt")]}, "is a folder in the image"),
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
