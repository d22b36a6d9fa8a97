"""A real runtime: in a root without anything, as a plain user, beside hostile variables."""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import pytest
from kept_runtime import runtime_for_tests

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import Runtime, build_runtime, check_runtime
from gipfel_cluster.runtime.build import describe

USER = ("setpriv", "--reuid=64321", "--regid=64321", "--clear-groups") if os.geteuid() == 0 else ()
KERNEL = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(startup_timeout=60)
try:
    client.execute_interactive("import sys; print(1 + 1, sys.executable, sys.flags.isolated)", timeout=60)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""
MAPPED = """
import importlib, sys
for name in ("ssl", "sqlite3", "zmq", "pyarrow.parquet", "matplotlib.pyplot", "psutil", "jupyterlab.labapp"):
    importlib.import_module(name)
print(sorted({line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if ".so" in line}))
"""
SSH_SERVER = """
import os, socket, subprocess, sys, time
sshd, keygen, sftp, port = sys.argv[1:]
os.mkdir("/etc")
with open("/etc/passwd", "w") as users:
    users.write(f"somebody:x:{os.getuid()}:{os.getgid()}::/tmp:/bin/sh")
subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", "/tmp/key"], check=True)
with open("/tmp/configuration", "w") as file:
    file.write(f"HostKey /tmp/key\\nUsePAM no\\nPidFile none\\nSubsystem sftp {sftp}\\n")
server = subprocess.Popen([sshd, "-D", "-e", "-f", "/tmp/configuration", "-o", f"Port {port}"])
until = time.monotonic() + 30
while True:
    try:
        greeting = socket.create_connection(("127.0.0.1", int(port))).recv(64)
        break
    except OSError:
        assert server.poll() is None and time.monotonic() < until
        time.sleep(0.1)
mapped = {line.split(None, 5)[5].strip() for line in open(f"/proc/{server.pid}/maps") if ".so" in line}
print(greeting.decode().strip(), sorted(each for each in mapped if not each.startswith(sys.prefix)))
server.terminate()
"""

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    # Not pytest's folder: that one is closed to the plain user who starts the runtime.
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="gipfel-runtime-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    """Return the runtime that the tests share, instead of copying and compiling another."""
    return Runtime.load(runtime_for_tests())


@pytest.fixture(scope="module")
def trap(base: Path, runtime: Runtime) -> Path:
    """A folder of files that are named as the runtime's libraries and break programs that load them."""
    folder = base / "trap"
    folder.mkdir()
    for library in Path(runtime.root, "lib").glob("*.so*"):
        (folder / library.name).write_text("no library")
    (folder / "site.py").write_text("raise SystemExit('the image was asked')")
    return folder


@pytest.fixture
def empty_root(base: Path, runtime: Runtime, trap: Path) -> Callable[..., tuple[str, ...]]:
    """Renders a command in a root that holds the runtime and nothing else."""

    def render(*command: str, **environment: str) -> tuple[str, ...]:
        settings = [item for name, value in environment.items() for item in ("--setenv", name, value)]
        return (
            *USER, "bwrap", "--unshare-user", "--unshare-pid", "--die-with-parent", "--tmpfs", "/",
            "--ro-bind", runtime.root, runtime.prefix, "--ro-bind", str(trap), "/trap",
            "--proc", "/proc", "--dev", "/dev", "--dir", "/tmp", "--chdir", "/tmp",
            "--clearenv", "--setenv", "HOME", "/tmp", *settings, *command,
        )  # fmt: skip

    return render


HOSTILE = {
    "LD_LIBRARY_PATH": "/trap",
    "LD_PRELOAD": "/nonexistent.so",
    "PYTHONHOME": "/trap",
    "PYTHONPATH": "/trap",
    "LC_ALL": "xx_YY.UTF-8",
    "SSL_CERT_FILE": "/nonexistent.pem",
}


def output(command: tuple[str, ...]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_byte_code_does_not_make_a_runtime_another_one(tmp_path: Path) -> None:
    metadata = tmp_path / "gipfel-1.dist-info"
    (tmp_path / "pack/__pycache__").mkdir(parents=True)
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: gipfel\nVersion: 1\n")
    (metadata / "RECORD").write_text("pack/a.py,,\npack/__pycache__/a.cpython-311.pyc,,\n")
    keys = []
    for source, compiled in (("1", "one"), ("1", "another"), ("2", "another")):
        (tmp_path / "pack/a.py").write_text(source)
        (tmp_path / "pack/__pycache__/a.cpython-311.pyc").write_text(compiled)
        keys.append(describe((Distribution.at(metadata),), "/opt/runtime").key)
    assert keys[0] == keys[1] != keys[2]


def test_jupyterlab_starts_where_there_is_no_libc_and_no_shell(
    runtime: Runtime, empty_root: Callable[..., tuple[str, ...]]
) -> None:
    assert output(empty_root(runtime.python, "-I", "-m", "jupyterlab", "--version")).startswith("4.")


@pytest.mark.parametrize("environment", [{}, HOSTILE], ids=["clean", "hostile"])
def test_only_the_runtimes_own_libraries_are_loaded(
    runtime: Runtime, empty_root: Callable[..., tuple[str, ...]], environment: dict[str, str]
) -> None:
    mapped = output(empty_root(runtime.python, "-I", "-c", MAPPED, **environment))
    assert "libc.so.6" in mapped
    assert [
        path for path in mapped.strip("[]\n").split(", ") if not path.startswith(f"'{runtime.prefix}/")
    ] == []


def test_a_kernel_evaluates_beside_hostile_variables(
    runtime: Runtime, empty_root: Callable[..., tuple[str, ...]]
) -> None:
    assert (
        output(empty_root(runtime.python, "-I", "-c", KERNEL, **HOSTILE)).strip() == f"2 {runtime.python} 1"
    )


def test_certificates_are_found_where_the_image_has_none(
    runtime: Runtime, empty_root: Callable[..., tuple[str, ...]]
) -> None:
    program = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    assert int(output(empty_root(runtime.python, "-I", "-c", program, **HOSTILE))) > 50


def test_a_server_answers_from_the_empty_root(
    runtime: Runtime, empty_root: Callable[..., tuple[str, ...]], tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = empty_root(
        runtime.python, "-I", "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", JUPYTER_TOKEN="secret", **HOSTILE,
    )  # fmt: skip
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            status = ask(port, "/api/status", server)
            specifications = ask(port, "/api/kernelspecs", server)
            kernel = ask(port, "/api/kernels", server, data=b"{}")
        finally:
            server.terminate()
    assert status["kernels"] == 0, (tmp_path / "log").read_text()
    assert specifications["kernelspecs"]["python3"]["spec"]["display_name"].endswith("(Gipfel)")
    assert kernel["name"] == "python3"


@pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="openssh-server is not installed")
def test_its_ssh_server_answers_where_the_image_has_none(
    runtime: Runtime, empty_root: Callable[..., tuple[str, ...]]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert runtime.program("sshd") == f"{runtime.prefix}/sbin/sshd"
    assert runtime.program("telnetd") is None
    programs = [runtime.program(name) or "" for name in ("sshd", "ssh-keygen", "sftp-server")]
    command = empty_root(runtime.python, "-I", "-c", SSH_SERVER, *programs, str(port), **HOSTILE)
    assert re.fullmatch(r"SSH-2\.0-OpenSSH_\S+.* \[\]", output(command).strip())


def ask(port: int, path: str, server: subprocess.Popen[bytes], data: bytes | None = None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=data, headers={"Authorization": "token secret"}
    )
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                content: dict[str, Any] = json.loads(answer.read())
                return content
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < until, "the server did not answer within 60 s"
            time.sleep(0.1)


def test_it_works_on_the_host_for_another_user(runtime: Runtime, trap: Path, base: Path) -> None:
    home = base / "home"
    home.mkdir()
    home.chmod(0o777)
    command = (
        *USER,
        "env",
        "-i",
        f"HOME={home}",
        f"LD_LIBRARY_PATH={trap}",
        runtime.python,
        "-I",
        "-c",
        MAPPED,
    )
    mapped = output(command)
    assert f"'{runtime.prefix}/lib/libc.so.6'" in mapped
    jupyter = (
        *USER,
        "env",
        "-i",
        f"HOME={home}",
        f"{runtime.prefix}/bin/jupyter-kernelspec",
        "list",
        "--json",
    )
    found = json.loads(output(jupyter))
    assert found["kernelspecs"]["python3"]["spec"]["argv"][0] == runtime.python


def test_all_users_may_read_and_only_the_owner_may_write(runtime: Runtime) -> None:
    for path in Path(runtime.root).rglob("*"):
        if not path.is_symlink():
            mode = path.stat().st_mode & 0o777
            assert mode in ((0o755,) if path.is_dir() else (0o644, 0o755)), path


def test_compiled_modules_are_never_compared_with_their_sources(runtime: Runtime) -> None:
    compiled = Path(runtime.root).rglob("jupyterlab/__pycache__/labapp.*.pyc")
    assert [path.read_bytes()[:8] for path in compiled] == [MAGIC_NUMBER + b"\x01\x00\x00\x00"]


def test_check_names_what_is_broken(runtime: Runtime, base: Path) -> None:
    check_runtime(runtime)
    broken = base / "broken"
    shutil.copytree(runtime.root, broken, symlinks=True, copy_function=os.link)
    next(broken.rglob("site-packages/zmq/__init__.py")).unlink()
    with pytest.raises(GipfelError, match=r"does not work: .*zmq") as caught:
        check_runtime(runtime.model_copy(update={"root": str(broken)}))
    assert "\n" not in str(caught.value)


def test_a_second_build_keeps_what_is_there(runtime: Runtime) -> None:
    folder = Path(runtime.root)
    for _ in range(4):  # a source that someone edits meanwhile is another runtime
        told: list[str] = []
        before = folder.stat().st_ino
        build_runtime(folder, progress=told.append)
        if not told:
            break
    assert told == []
    assert folder.stat().st_ino == before


def test_an_interrupted_build_leaves_nothing(base: Path) -> None:
    folder = base / "interrupted" / "runtime"

    def interrupt(line: str) -> None:
        if line.startswith("pointing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_runtime(folder, prefix="/opt/gipfel", progress=interrupt)
    assert [path.name for path in folder.parent.iterdir()] == [".runtime.lock"]


@pytest.mark.parametrize("prefix", ["relative", "/a:b", "/a b", "/a/../b", "/a\nb", "/", "/$ORIGIN"])
def test_a_prefix_that_a_loader_or_script_would_misread_is_refused(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(GipfelError, match="can't be a runtime's prefix"):
        build_runtime(tmp_path / "runtime", prefix=prefix, progress=quiet)
