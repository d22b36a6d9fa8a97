"""A real hub with its proxy, and its REST API as a client sees it."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from hub_user import START_LIMIT_S, HubUser
from one_machine import wait_until

from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import free_ports

READY_LIMIT_S = 60.0
_REPOSITORY = Path(__file__).resolve().parents[2]
_PROXY = "configurable-http-proxy"


def proxy_folder() -> Path:
    """Return the directory of the proxy: ``$GIPFEL_PROXY``, the tree's own, or of npm in ``build/proxy``."""
    given = os.environ.get("GIPFEL_PROXY")
    built = _REPOSITORY / "build" / "proxy" / "node_modules" / ".bin"
    for folder in (Path(given) if given else None, _REPOSITORY / "spawner/proxy/node_modules/.bin", built):
        if folder and (folder / _PROXY).exists():
            return folder
    target = _REPOSITORY / "build" / "proxy"
    target.mkdir(parents=True, exist_ok=True)
    install = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(target), _PROXY]
    subprocess.run(install, check=True, timeout=300, env=_environment())
    return built


def _environment() -> dict[str, str]:
    path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    return {**os.environ, "PATH": ":".join(path)}


def free_port() -> int:
    """Return a port of loopback for a server that binds it later."""
    return free_ports("127.0.0.1")[0]


def end_proxy(state: Path) -> None:
    """End the proxy that a hub left running, for the hub's next start, in a separate session."""
    pid_file = state / "proxy.pid"
    with contextlib.suppress(OSError, ValueError):
        pid = int(pid_file.read_text())
        if _PROXY.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not Path(f"/proc/{pid}").exists(), 5)
        pid_file.unlink()


class HubProcess:
    """A hub that runs as this user with the project's own configuration, from ``__enter__`` to ``__exit__``.

    Parameters
    ----------
    state
        A folder of this user's alone, for database, secrets and log.
    environment
        Variables for ``jupyterhub_config.py``.
    proxy
        The folder of the proxy's program; it comes first on the hub's PATH.
    config
        Another configuration than the project's.
    """

    def __init__(
        self, state: Path, environment: dict[str, str], *, proxy: Path, config: Path | None = None
    ) -> None:
        self._config = config or _REPOSITORY / "jupyterhub_config.py"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = state / "hub.log"
        self.password = secrets.token_urlsafe(18)
        self.api_token = secrets.token_hex(32)
        ours = _environment()
        self._environment = {
            **ours,
            **environment,
            "PATH": f"{proxy}:{ours['PATH']}",
            "GIPFEL_STATE": str(state),
            "GIPFEL_PORT": str(self.port),
            "GIPFEL_PASSWORD": self.password,
            "GIPFEL_API_TOKEN": self.api_token,
            "GIPFEL_START_TIMEOUT": "120",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._users: dict[str, HubUser] = {}

    def __enter__(self) -> "HubProcess":
        argv = [sys.executable, "-m", "jupyterhub", "-f", str(self._config)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.log.parent,
                start_new_session=True,
            )
        if not wait_until(self._answers, READY_LIMIT_S):
            words = self.last_words()
            self.close()
            raise GipfelError(f"The hub did not get ready within {READY_LIMIT_S:g} s.", words)
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End every server, the hub and its proxy."""
        if self._process is None:
            return
        for user in self._users.values():
            user.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(5)
            self._process = None
            end_proxy(self.log.parent)

    def kill(self) -> None:
        """End the hub with SIGKILL, and its proxy; ``__enter__`` starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(5)
            self._process = None
            end_proxy(self.log.parent)

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Call the Hub's REST API as the service that may do everything with servers."""
        headers = {"Authorization": f"token {self.api_token}"}
        return httpx.request(
            method, f"{self.url}/hub/api{path}", headers=headers, timeout=30, trust_env=False, **options
        )

    def user(self, name: str) -> HubUser:
        """A user who logged in through the login page and created an API token."""
        if name not in self._users:
            self._users[name] = HubUser.login(self.url, name, self.password)
        return self._users[name]

    def wait_for_servers(self, user: str, *names: str) -> dict[str, Any]:
        """Wait until a user's named servers are ready; returns all servers of the user by name."""
        servers: dict[str, Any] = {}

        def ready() -> bool:
            servers.update(self.call("GET", f"/users/{user}").json()["servers"])
            return all(servers.get(name, {}).get("ready") for name in names)

        if not wait_until(ready, START_LIMIT_S):
            raise GipfelError(f"Not ready within {START_LIMIT_S:g} s: {servers}.", self.last_words())
        return servers

    def last_words(self, lines: int = 15) -> str:
        """Return the end of the hub's log, without requests that the proxy could not pass on."""
        said = self.log.read_text(errors="replace").splitlines()
        return "\n".join([each for each in said if "[ConfigProxy]" not in each][-lines:])

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise GipfelError("The hub ended at its start.", self.last_words())
        try:
            # Another program on this port may answer any request; this hub alone knows its service.
            answer = self.call("GET", "/user")
            return answer.status_code == 200 and answer.json()["name"] == "gipfel-api"
        except (httpx.TransportError, ValueError, LookupError, TypeError):
            return False
