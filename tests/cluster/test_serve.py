"""``make slurm``: a hub on a Slurm on this machine, and nothing left after its end."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from hub_process import free_port
from hub_user import HubUser
from one_machine import wait_until
from unix_users import UnixUser

_SERVE = Path(__file__).with_name("serve.py")
_START_LIMIT_S = 120.0
_END_LIMIT_S = 60.0


@dataclass
class Served:
    """A running ``serve.py``, its output and what drives it."""

    process: subprocess.Popen[bytes]
    output: Path
    port: int
    password: str
    api_token: str

    @property
    def url(self) -> str:
        """The hub's address."""
        return f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        """Return what it has printed so far."""
        return self.output.read_text(errors="replace")

    def answers(self) -> bool:
        """Return whether the login page is there."""
        assert self.process.poll() is None, self.text()
        try:
            return httpx.get(f"{self.url}/hub/login", trust_env=False, timeout=5).status_code == 200
        except httpx.TransportError:
            return False


def _processes_that_name(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if text.encode() in line:
            found.append(line.replace(b"\0", b" ").decode())
    return found


@pytest.fixture
def served(tmp_path: Path, runtime: Path, fuse: None) -> Iterator[Served]:
    """A started hub whose login page answers."""
    password, token, port = secrets.token_urlsafe(18), secrets.token_hex(32), free_port()
    environment = {
        **os.environ,
        "GIPFEL_PORT": str(port),
        "GIPFEL_PASSWORD": password,
        "GIPFEL_API_TOKEN": token,
        "GIPFEL_RUNTIME": str(runtime),
    }
    output = tmp_path / "output"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(_SERVE)], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    served = Served(process, output, port, password, token)
    try:
        assert wait_until(served.answers, _START_LIMIT_S), served.text()
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(_END_LIMIT_S)


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_a_plain_user_and_leaves_nothing(
    served: Served, plain_users: tuple[UnixUser, UnixUser], number: signal.Signals
) -> None:
    shown = served.text()
    assert served.url in shown
    found = re.search(r"SLURM_CONF=((\S+)/slurm/slurm\.conf); sinfo", shown)
    assert found, shown
    folder = found[2]
    name = plain_users[0].name
    user = HubUser.login(served.url, name, served.password)
    started = httpx.post(
        f"{served.url}/hub/api/users/{name}/server",
        json={},
        headers={"Authorization": f"token {served.api_token}"},
        trust_env=False,
        timeout=60,
    )
    assert started.status_code in {201, 202}, started.text
    user.progress()
    assert wait_until(lambda: bool((user.server() or {}).get("ready")), 60), served.text()
    assert user.request("lab").status_code == 200
    assert plain_users[0].processes()

    before = time.monotonic()
    served.process.send_signal(number)
    assert served.process.wait(_END_LIMIT_S) == 128 + number, served.text()
    assert time.monotonic() - before < _END_LIMIT_S
    assert wait_until(lambda: not plain_users[0].processes(), 5), plain_users[0].processes()
    assert wait_until(lambda: not _processes_that_name(folder), 5), _processes_that_name(folder)
    assert not _processes_that_name(f"--port {served.port} ".replace(" ", "\0"))
    assert folder not in Path("/proc/mounts").read_text()
    assert not Path(folder).exists()
    assert "Traceback" not in served.text()


def test_without_root_it_refuses_in_one_line(runtime: Path) -> None:
    if os.geteuid() != 0:
        argv: list[str] = [sys.executable, str(_SERVE)]
    else:
        # This environment's own interpreter may be where only root can go.
        argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
        argv += [str(runtime / "bin" / "python3"), str(_SERVE)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "root" in done.stderr
