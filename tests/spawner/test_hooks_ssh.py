"""The ssh hook: its requirements; its start does not change the command."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_hooks_apply import QuietNode

from gipfel_cluster.edf.model import Edf
from gipfel_cluster.engines.protocol import ContainerRequest
from gipfel_cluster.hooks import HookResult, apply_hooks
from gipfel_cluster.hooks.inside.serve import SshServerSpec, host_key, public_key, server_configuration
from gipfel_cluster.hooks.protocol import Node
from gipfel_cluster.runtime import Runtime

_SSHD = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/local/sbin") or ""
_KEYGEN = shutil.which("ssh-keygen") or ""
_PROGRAMS = {"sshd": "sbin/sshd", "ssh-keygen": "bin/ssh-keygen", "sftp-server": "libexec/sftp-server"}
_START = [sys.executable, "-I", "-m", "gipfel_cluster.hooks.inside.start"]
_LIMIT_S = 30

pytestmark = pytest.mark.skipif(not (_SSHD and _KEYGEN), reason="OpenSSH's server is not installed.")


def runtime(**programs: str) -> Runtime:
    return Runtime(root="/r", prefix="/p", python="/p/bin/python3", version="1", arch="x", programs=programs)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    subprocess.run(
        [_KEYGEN, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True, timeout=60
    )
    return tmp_path / "key.pub"


def hooked(
    home: Path,
    key: Path | str,
    *,
    engine: str = "bubblewrap",
    of: Runtime | None = runtime(**_PROGRAMS),
    node: Node = QuietNode(),
    **settings: str,
) -> HookResult:
    annotations = {"com.hooks.ssh.enabled": "true", "com.hooks.ssh.authorize_ssh_key": str(key)}
    annotations |= {f"com.hooks.ssh.{name}": value for name, value in settings.items()}
    request = ContainerRequest(
        edf=Edf(name="a", path=None, image="/a.sqsh", annotations=annotations),
        command=("lab", "--port=0"),
        scratch="/s",
        environment={"HOME": str(home), "GIPFEL_RUN": f"{home}/run"},
    )
    return apply_hooks(request, engine=engine, runtime=of, node=node)


@pytest.mark.parametrize("engine", ["bubblewrap", "podman", "apptainer", "pyxis"])
def test_the_server_is_started_before_the_command(tmp_path: Path, key: Path, engine: str) -> None:
    done = hooked(tmp_path, key, engine=engine, port="15300", pidfile_container="/run/sshd.pid")
    assert done.notes == ()
    assert done.request.command[:4] == ("/p/bin/python3", "-I", "-S", "-c")
    assert done.request.command[5:] == ("lab", "--port=0")
    spec = SshServerSpec.from_json(done.request.environment["GIPFEL_SSH"])
    assert spec == SshServerSpec(
        programs={name: f"/p/{path}" for name, path in _PROGRAMS.items()},
        keys=("restrict,pty,port-forwarding " + " ".join(key.read_text().split()[:2]),),
        port=15300,
        folder=str(tmp_path / ".gipfel/ssh"),
        node="node01",
        run_directory=f"{tmp_path}/run",
        pid_file="/run/sshd.pid",
    )
    assert Path(spec.folder).stat().st_mode & 0o777 == 0o700
    assert {mount.destination for mount in done.request.mounts} == {spec.folder, "/p"}


def test_the_default_port_is_that_of_the_container_engine(tmp_path: Path, key: Path) -> None:
    assert json.loads(hooked(tmp_path, key).request.environment["GIPFEL_SSH"])["port"] == 15263


class _Root(QuietNode):
    def user_id(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("the engine host starts no container", {"engine": "host"}),
        ("the server does not run as root", {"node": _Root()}),
        ("no runtime is mounted", {"of": None}),
        ("the runtime /r has no sshd and no ssh-keygen", {"of": runtime()}),
        ("'80' is not a port that a user may open", {"port": "80"}),
        ("is not a port that a user may open", {"port": "15263\nPermitRootLogin yes"}),
        ("is not a port that a user may open", {"port": "٣٣٣٣"}),
        ("/nowhere/key.pub can't be read", {"key": "/nowhere/key.pub"}),
    ],
)
def test_without_a_server_there_is_one_note_and_the_command_is_unchanged(
    tmp_path: Path, key: Path, said: str, more: dict[str, object]
) -> None:
    done = hooked(tmp_path, **{"key": key, **more})
    (note,) = done.notes
    assert note.startswith("com.hooks.ssh has no effect: ")
    assert said in note
    assert "\n" not in note
    assert done.request.command == ("lab", "--port=0")
    assert "GIPFEL_SSH" not in done.request.environment


def test_missing_parts_of_the_server_are_noted(tmp_path: Path, key: Path) -> None:
    of = runtime(**{name: path for name, path in _PROGRAMS.items() if name != "sftp-server"})
    with key.open("a") as file:
        file.write('command="true" ' + key.read_text())
    options, sftp, pidfile = hooked(tmp_path, key, of=of, pidfile_host="/tmp/pid").notes
    assert "line 2 of" in options
    assert "sftp and scp do not work" in sftp
    assert "pidfile_host has no effect" in pidfile


@pytest.fixture
def nobody_key(tmp_path: Path) -> Iterator[Path]:
    # sshd, tried as root, wants folders that only a service has.
    folder = Path("/tmp") / f"gipfel-sshd-{os.getpid()}"
    folder.mkdir(mode=0o755)
    key = folder / "key"
    key.write_bytes(host_key(tmp_path, _KEYGEN))
    key.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(key, 65534, -1)
    yield key
    shutil.rmtree(folder)


def _effective(content: str, folder: Path) -> dict[str, str]:
    path = folder / "configuration"
    path.write_text(content)
    become = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*become, _SSHD, "-T", "-f", str(path)], capture_output=True, text=True, timeout=_LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def test_sshd_understands_the_configuration_as_meant(nobody_key: Path) -> None:
    content = server_configuration(
        15263,
        user="ada",
        host_key=str(nobody_key),
        authorized_keys="/proc/7/fd/3",
        session=("/p/bin/python3", "-I", "-m", "x", "7", "/p/libexec/sftp-server"),
        programs={"sftp-server": "/p/libexec/sftp-server"},
    )
    effective = _effective(content, nobody_key.parent)
    for option, value in {
        "port": "15263",
        "authenticationmethods": "publickey",
        "passwordauthentication": "no",
        "kbdinteractiveauthentication": "no",
        "hostbasedauthentication": "no",
        "usepam": "no",
        "permitrootlogin": "no",
        "permituserenvironment": "no",
        "permituserrc": "no",
        "allowagentforwarding": "no",
        "allowtcpforwarding": "yes",
        "x11forwarding": "no",
        "permittunnel": "no",
        "gatewayports": "no",
        "allowusers": "ada",
        "authorizedkeysfile": "/proc/7/fd/3",
        "authorizedkeyscommand": "none",
        "trustedusercakeys": "none",
        "pidfile": "none",
        "forcecommand": "exec /p/bin/python3 -I -m x 7 /p/libexec/sftp-server",
        "subsystem": "sftp /p/libexec/sftp-server",
    }.items():
        assert effective[option] == value, option


@pytest.mark.parametrize("path", ["/run/x\nPermitRootLogin yes", "/a b", '/a"b', "relative", "/a$HOME"])
def test_no_path_becomes_a_line_of_the_configuration(path: str) -> None:
    with pytest.raises(ValueError, match="can't be written into a configuration"):
        server_configuration(
            1, user="a", host_key="/k", authorized_keys="/a", session=("x",), programs={}, pid_file=path
        )


@pytest.mark.parametrize("name", ["a@b", "*", "a b", "!root", "a,b", "ü", ""])
def test_a_name_that_is_a_pattern_is_not_written_as_one(name: str) -> None:
    content = server_configuration(
        1, user=name, host_key="/k", authorized_keys="/a", session=("x",), programs={}
    )
    assert "AllowUsers" not in content


def test_a_host_key_is_made_once(tmp_path: Path) -> None:
    first = host_key(tmp_path, _KEYGEN)
    assert host_key(tmp_path, _KEYGEN) == first
    assert [path.name for path in tmp_path.iterdir()] == ["host_ed25519"]
    assert (tmp_path / "host_ed25519").stat().st_mode & 0o777 == 0o600
    assert public_key(first, _KEYGEN).startswith("ssh-ed25519 AAAA")


def test_host_keys_created_in_parallel_are_the_same(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from gipfel_cluster.hooks.inside.serve import host_key;"
        "sys.stdout.buffer.write(host_key(pathlib.Path(sys.argv[1]), sys.argv[2]))"
    )
    words = [sys.executable, "-c", program, str(tmp_path), _KEYGEN]
    several = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(4)]
    keys = {each.communicate(timeout=_LIMIT_S)[0] for each in several}
    assert keys == {(tmp_path / "host_ed25519").read_bytes()}


def _order(tmp_path: Path) -> str:
    programs = {"sshd": "/nowhere/sshd", "ssh-keygen": _KEYGEN}
    return SshServerSpec(programs=programs, keys=(), port=15263, folder=str(tmp_path)).to_json()


def _started(tmp_path: Path, *words: str, **more: object) -> "subprocess.Popen[bytes]":
    variables = {"PATH": os.defpath, "ODD": "ü 'quoted' \"twice\" $HOME\nsecond line", "EMPTY": ""}
    environment = {**variables, "GIPFEL_SSH": _order(tmp_path)}
    return subprocess.Popen(
        [*_START, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more
    )


def test_start_replaces_its_process_by_the_command(tmp_path: Path) -> None:
    program = (
        "import json, os, signal, sys\n"
        "try: os.waitpid(-1, os.WNOHANG); child = True\n"
        "except ChildProcessError: child = False\n"
        "blocked = int([l for l in open('/proc/self/status') if l.startswith('SigBlk')][0].split()[1], 16)\n"
        "files = sorted(int(n) for n in os.listdir('/proc/self/fd') if n not in {'3', '4'})\n"
        "environment = open('/proc/self/environ', 'rb').read().decode()\n"
        "print(json.dumps([os.getpid(), child, blocked, files, environment, sys.stdin.read()]))"
    )
    interpreter = shutil.which("python3", path="/usr/bin") or sys.executable
    process = _started(tmp_path, interpreter, "-c", program, stdin=subprocess.PIPE)
    out, err = process.communicate("grüezi".encode(), timeout=_LIMIT_S)
    assert process.returncode == 0, err
    pid, child, blocked, files, environment, stdin = json.loads(out)
    assert (pid, child, blocked, files, stdin) == (process.pid, False, 0, [0, 1, 2], "grüezi")
    expected = [f"PATH={os.defpath}", "ODD=ü 'quoted' \"twice\" $HOME\nsecond line", "EMPTY=", ""]
    assert environment.split("\0") == expected
    assert err.decode().startswith("gipfel: this container has no ssh server: ")
    assert len(err.decode().splitlines()) == 1


def test_sigpipe_has_its_default_action_in_the_command(tmp_path: Path) -> None:
    process = _started(tmp_path, "/bin/sh", "-c", "kill -PIPE $$; echo survived")
    assert process.communicate(timeout=_LIMIT_S)[0] == b""
    assert process.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("status", [0, 1, 7, 126, 255])
def test_the_exit_status_is_the_command_s(tmp_path: Path, status: int) -> None:
    process = _started(tmp_path, "/bin/sh", "-c", f"exit {status}")
    process.communicate(timeout=_LIMIT_S)
    assert process.returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_is_the_command_s(tmp_path: Path, number: signal.Signals) -> None:
    process = _started(tmp_path, "/bin/sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    process.communicate(timeout=_LIMIT_S)
    assert process.returncode == -number


def test_output_ends_when_the_command_ends(tmp_path: Path) -> None:
    process = _started(tmp_path, "/bin/sh", "-c", "echo done")
    assert process.stdout is not None
    begin = time.monotonic()
    assert process.stdout.read() == b"done\n"
    assert time.monotonic() - begin < 10
    process.communicate(timeout=_LIMIT_S)


@pytest.mark.parametrize(("word", "status"), [("/nowhere/lab", 127), ("/etc/passwd", 126)])
def test_a_command_that_is_none_is_one_line(tmp_path: Path, word: str, status: int) -> None:
    process = _started(tmp_path, word)
    _, err = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == status
    assert f"gipfel: The command {word!r} could not be started" in err.decode()
    assert "Traceback" not in err.decode()
