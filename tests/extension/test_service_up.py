"""A service from the command line to its end, on this machine: real job, front door and HTTP servers."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from home_services import FAILING, fetch, services_of

from gipfel_cluster.process.tree import Process, descendants
from gipfel_extension.services.blueprint import find_blueprint
from gipfel_extension.services.directory import read_service_state

_BLUEPRINT = """\
name: pair
title: A pair
parts:
  web:
    command: ["${python}", PROGRAM, "${socket}", "${parts.store.socket}", "${storage}"]
    variables: {PREFIX: "${prefix}", FROM_USER: "$$(touch /tmp/gipfel-pwned) ; $$HOME"}
    secrets: [api-key]
    ready: {path: /ready, timeout_s: 60}
    needs: [store]
  store:
    command: ["${python}", -m, gipfel_extension.services.programs, files, "${socket}", "DIRECTORY"]
front: web
"""
_PROGRAM = """
import http.server, json, os, socketserver, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(3)
        secret = open(os.environ["API_KEY_FILE"]).read()
        content = json.dumps({"path": self.path, "environment": dict(os.environ), "secret": secret,
                              "arguments": sys.argv, "headers": dict(self.headers)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def address_string(self):
        return "client"

print("the web part listens", flush=True)
with socketserver.ThreadingUnixStreamServer(sys.argv[1], Handler) as server:
    server.serve_forever()
"""
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gipfel(tmp_path: Path) -> Iterator[Command]:
    """The command as its user runs it, in a home directory of its own; its services end with the test."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("GIPFEL_", "SLURM_"))},
        "HOME": str(tmp_path),
        "JUPYTERHUB_API_TOKEN": "of-the-hub",
        "MY_TOKEN": "of-the-user",
    }

    def run(*words: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
        argv = (sys.executable, "-m", "gipfel_extension.cli", *words)
        ended = subprocess.run(
            argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
        )
        assert ended.returncode == status, ended.stderr
        return ended

    yield run
    for each in services_of(tmp_path):
        if not each.ended:
            run("stop", f"service:{each.id}")


def _listening(port: int) -> list[str]:
    """Addresses on which this machine listens at a port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]


def _processes_of(folder: Path) -> list[Process]:
    """The supervisor of a service and all processes below it."""
    supervisor = read_service_state(folder).supervisor
    assert supervisor is not None
    below = (Process.of(pid) for pid in descendants(supervisor.pid))
    return [supervisor, *(each for each in below if each is not None)]


_AS_ANOTHER_USER = """
import http.client, os, socket, sys
port, *pids, path = sys.argv[1:]
for pid in pids:
    for name in ("environ", "fd", "mem", "root", "cwd"):
        try:
            os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
        except PermissionError:
            continue
        sys.exit(f"{name} of {pid} is readable")
try:
    socket.socket(socket.AF_UNIX).connect(path)
except PermissionError:
    pass
else:
    sys.exit("the socket is open")
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
connection.request("GET", "/score.txt")
print(connection.getresponse().status)
"""


def _check_that_another_user_gets_nothing(url: str, folder: Path) -> None:
    """As another user of the node: the socket, processes and files of the service, and its port."""
    if os.geteuid() != 0 or not Path("/usr/bin/setpriv").exists():
        return
    processes = [str(each.pid) for each in _processes_of(folder)]
    part = next(pid for pid in processes if b"services.programs" in Path(f"/proc/{pid}/cmdline").read_bytes())
    argv = Path(f"/proc/{part}/cmdline").read_bytes().decode().split("\0")
    path = argv[argv.index("gipfel_extension.services.programs") + 2]
    assert Path(path).is_socket()
    port = url.rstrip("/").rpartition(":")[2]
    user = ("/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
    python = Path("/usr/bin/python3")
    ended = subprocess.run(
        (*user, str(python), "-c", _AS_ANOTHER_USER, port, *processes, path),
        capture_output=True, text=True, check=False, timeout=120, cwd="/",
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "401\n"), ended.stderr


def test_a_shipped_service_is_started_used_listed_followed_and_stopped(
    gipfel: Command, tmp_path: Path
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results/score.txt").write_text("87\n")
    (tmp_path / "results/link").symlink_to("/etc/hostname")
    (tmp_path / "results/page").mkdir()
    (tmp_path / "results/page/index.html").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "results/pipe")
    up = gipfel("service", "up", "files", "-p", "directory", "~/results", "--here", "--name", "res")
    url = up.stdout.strip()
    assert url.startswith("http://127.0.0.1:")
    assert "ssh -L" in up.stderr
    folder = tmp_path / ".gipfel/services/res"
    token = gipfel("service", "token", "res").stdout.strip()
    assert len(token) >= 43
    assert token not in up.stdout + up.stderr
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700

    assert fetch(f"{url}score.txt", token) == (200, b"87\n")
    for refused in ("link", "page/", "pipe", "missing"):
        assert fetch(f"{url}{refused}", token)[0] == 404, refused
    assert b"score.txt" in fetch(url, token)[1]
    assert fetch(f"{url}score.txt")[0] == 401
    assert fetch(f"{url}score.txt", "wrong")[0] == 401
    assert fetch(f"{url}../../etc/hostname", token)[0] == 400
    port = int(url.rstrip("/").rpartition(":")[2])
    assert _listening(port) == ["0100007F"]
    _check_that_another_user_gets_nothing(url, folder)

    (row,) = json.loads(gipfel("service", "list", "--json").stdout)
    assert (row["kind"], row["id"], row["state"], row["title"]) == (
        "service",
        "res",
        "running",
        "Files of a directory",
    )
    assert "GET /score.txt" in gipfel("service", "logs", "res").stdout
    assert "is running already" in gipfel(
        "service", "up", "files", "-p", "directory", "/", "--here", "--name", "res", status=1
    ).stderr  # fmt: skip
    started = _processes_of(folder)
    assert len(started) >= 2
    assert "is stopped" in gipfel("service", "down", "res").stderr
    assert not [each for each in started if each.alive]
    with pytest.raises(OSError, match=r"[Rr]efused"):
        socket.create_connection(("127.0.0.1", port), 5)
    assert "is stopped" in gipfel("service", "url", "res", status=1).stderr
    (found,) = services_of(tmp_path)
    assert (found.state, found.exit_status) == ("stopped", 143)


def test_a_directory_is_applied_again_only_after_a_change(gipfel: Command, tmp_path: Path) -> None:
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    shipped = find_blueprint("files", directory=tmp_path, environment={"HOME": str(tmp_path)})
    (wanted / "blueprint.yaml").write_text(shipped.model_dump_json(exclude_defaults=True))
    for value, problem in (("[a]", "line 1: 'directory' has no single value"), ("", "no single value")):
        (wanted / "params.yaml").write_text(f"directory: {value}\n")
        assert problem in gipfel("service", "apply", str(wanted), "--here", status=1).stderr
    (wanted / "params.yaml").write_text("directry: /\n")
    assert "has no parameter" in gipfel("service", "apply", str(wanted), "--here", status=1).stderr
    circle = wanted.with_name("circle")
    circle.symlink_to(circle)
    refused = gipfel("service", "apply", str(circle), "--here", status=1).stderr
    assert "can't be read: Too many levels of symbolic links" in refused
    assert not services_of(tmp_path)
    (wanted / "params.yaml").write_text(f"directory: {wanted}\n")
    url = gipfel("service", "apply", str(wanted), "--here").stdout.strip()
    token = gipfel("service", "token", "files").stdout.strip()
    assert fetch(f"{url}params.yaml", token)[0] == 200
    again = gipfel("service", "apply", str(wanted), "--here")
    assert (again.stdout, "is running as" in again.stderr) == ("", True)
    assert fetch(url, token)[0] == 200
    (wanted / "params.yaml").write_text(f"directory: {tmp_path}\n")
    changed = gipfel("service", "apply", str(wanted), "--here")
    token = gipfel("service", "token", "files").stdout.strip()
    assert fetch(f"{changed.stdout.strip()}wanted/params.yaml", token)[0] == 200
    assert len(services_of(tmp_path)) == 1


def test_parts_find_each_other_and_get_secrets_but_no_tokens(gipfel: Command, tmp_path: Path) -> None:
    program = tmp_path / "web.py"
    program.write_text(_PROGRAM)
    text = _BLUEPRINT.replace("PROGRAM", str(program)).replace("DIRECTORY", str(tmp_path))
    (tmp_path / "pair.yaml").write_text(text)
    secrets = tmp_path / ".gipfel/secrets"
    secrets.mkdir(mode=0o700, parents=True)
    (secrets / "api-key").write_text("hush")
    (secrets / "api-key").chmod(0o600)
    document = json.loads(gipfel("service", "up", "./pair.yaml", "--here", "--json").stdout)
    token = (tmp_path / ".gipfel/services/pair/token").read_text().strip()
    status, content = fetch(f"{document['url']}a", token)
    assert status == 200
    answer = json.loads(content)
    environment: dict[str, Any] = answer["environment"]
    assert (answer["path"], answer["secret"]) == ("/a", "hush")
    assert environment["FROM_USER"] == "$(touch /tmp/gipfel-pwned) ; $HOME"
    assert not Path("/tmp/gipfel-pwned").exists()
    values = json.dumps(answer)
    assert not [each for each in ("of-the-hub", "of-the-user", token) if each in values]
    assert not [name for name in environment if name.startswith("JUPYTERHUB_")]
    for path in answer["arguments"][1:3]:
        assert Path(path).stat().st_mode & 0o077 == 0
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    assert Path(answer["arguments"][3]).is_dir()

    # A part that ends takes the whole service with it, and nothing stays behind.
    assert fetch(f"{document['url']}die", token)[0] == 502
    deadline = time.monotonic() + 60
    while not (found := services_of(tmp_path)[0]).ended:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert found.state == "failed"
    assert found.reason.startswith("The part web ended with status 3")
    assert not Path(answer["arguments"][1]).exists()
    assert not (tmp_path / ".gipfel/services/pair/secrets").exists()


def test_a_service_that_ends_at_its_start_says_why(gipfel: Command, tmp_path: Path) -> None:
    program = '["${python}", -c, "print(\'no luck\'); raise SystemExit(4)", "${socket}"]'
    (tmp_path / "bad.yaml").write_text(FAILING.format(program, 60))
    ended = gipfel("service", "up", "./bad.yaml", "--here", status=1)
    assert "has failed: The part a ended with status 4: no luck." in ended.stderr
    assert "Traceback" not in ended.stderr


_MOVER = """\
name: mover
title: Mover
parameters: {first: {help: The port of its first seconds.}}
parts:
  a:
    listen: port
    command: ["${python}", -I, PROGRAM, "${port}", "${parameters.first}"]
    ready: {timeout_s: 6}
"""
_MOVING = """
import http.server, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def address_string(self):
        return "client"
for port in (int(sys.argv[2]), int(sys.argv[1]) + 1):
    with http.server.HTTPServer(("127.0.0.1", port), Handler) as server:
        server.handle_request() if port == int(sys.argv[1]) else server.serve_forever()
"""


def test_a_program_that_listens_elsewhere_or_changes_its_port_is_one_line(
    gipfel: Command, tmp_path: Path
) -> None:
    (tmp_path / "mover.py").write_text(_MOVING)
    (tmp_path / "mover.yaml").write_text(_MOVER.replace("PROGRAM", str(tmp_path / "mover.py")))
    up = ("service", "up", "./mover.yaml", "--here", "-p", "first")
    elsewhere = gipfel(*up, "9099", status=1)
    assert "The part a was not ready after 6 s" in elsewhere.stderr
    (found,) = services_of(tmp_path)
    assert (found.state, _left(tmp_path)) == ("failed", [])
    url = gipfel(*up, "8080").stdout.strip()
    token = gipfel("service", "token", "mover").stdout.strip()
    status, content = fetch(url, token)
    assert (status, content.count(b"\n")) == (502, 1)
    gipfel("service", "down", "mover")
    assert _left(tmp_path) == []


def _left(home: Path) -> list[str]:
    """Command lines of processes whose program is in a directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [words] if f"{home}/mover.py" in words else []
    return found
