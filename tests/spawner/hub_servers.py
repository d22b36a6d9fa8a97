"""Servers of a real hub: start one, wait for it, and read its environment."""

import json
import time
from typing import Any

from gipfel_cluster.process.tree import Process


def until(done: Any, limit: float, hub: Any) -> Any:
    end = time.monotonic() + limit
    while not (result := done()):
        assert time.monotonic() < end, hub.log()
        time.sleep(0.1)
    return result


def start(hub: Any, user: str, options: dict[str, Any] | None = None, behaviour: str = "") -> Any:
    hub.call("POST", f"/users/{user}")
    (hub.user_home(user) / "behaviour").write_text(behaviour)
    return hub.call("POST", f"/users/{user}/server", options or {})


def refusal(hub: Any, user: str, answer: Any) -> str:
    """Return why a server did not start. A busy hub answers the start before it knows."""
    if answer.status == 400:
        message: str = answer.content["message"]
        return message
    until(lambda: hub.server(user) == {}, 20, hub)
    return str(failure(hub, user)["message"]).removeprefix("Spawn failed: ")


def environment(hub: Any, user: str) -> dict[str, str]:
    path = hub.user_home(user) / "environment.json"
    until(lambda: path.exists() and path.read_text().endswith("}"), 20, hub)
    content: dict[str, str] = json.loads(path.read_text())
    return content


def keeper(hub: Any, user: str) -> Process:
    path = hub.folder / "state/jobs" / until(lambda: hub.job(user), 20, hub) / "supervisor.json"
    return Process.model_validate_json(path.read_text())


def failure(hub: Any, user: str) -> dict[str, Any]:
    """The last event of the progress page."""
    events = hub.call("GET", f"/users/{user}/server/progress").body.decode()
    lines = [line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: ")]
    content: dict[str, Any] = json.loads(lines[-1])
    return content
