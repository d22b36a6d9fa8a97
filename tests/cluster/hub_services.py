"""Services of a hub that tests start: their blueprints, and what an owner and others do with them."""

import json
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub_user import HubUser
from one_machine import OneMachine
from unix_users import UnixUser

#: A program that knows TCP only, and shows what it got.
PROGRAM = """
import os, sys
from aiohttp import web

async def page(request):
    private = {"authorization", "cookie"} & {name.lower() for name in request.headers}
    tokens = [name for name in os.environ if "TOKEN" in name]
    return web.json_response({"path": request.path, "private": sorted(private), "tokens": tokens})

async def echo(request):
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_str("heard " + message.data)
    return socket

async def events(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: first\\n\\n")
    await request.content.read()
    await __import__("asyncio").sleep(30)
    return response

app = web.Application()
app.add_routes([web.get("/ws", echo), web.get("/events", events), web.get("/{any:.*}", page)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
BLUEPRINT = """
name: board
title: Board
parameters:
  program: {{default: "{program}", help: Its program.}}
parts:
  board:
    listen: port
    command: ["${{python}}", -I, "${{parameters.program}}", "${{port}}"]
keep_up: true
resources: {{gpus: 4, cpus: 1, memory: 200M, time: "00:20:00"}}
"""
IDLER = """
name: idler
title: Idler
parameters: {directory: {help: A directory.}}
idle_s: 5
parts:
  files:
    command:
      ["${python}", -I, -m, gipfel_extension.services.programs, files, "${socket}", "${parameters.directory}"]
resources: {gpus: 0, cpus: 1, memory: 100M, time: "00:20:00"}
"""
RELAY = """
name: relay
title: Relay
parameters: {program: {help: Its program.}}
parts:
  relay:
    listen: port
    command: ["${python}", -I, "${parameters.program}", "${port}"]
    secrets: [word]
keep_up: true
handover: overlap
resources: {gpus: 0, cpus: 1, memory: 200M, time: "00:02:00"}
"""


@dataclass
class Board:
    """A running service, its owner and another user."""

    owner: HubUser
    other: HubUser
    unix: UnixUser
    stranger: UnixUser
    cluster: OneMachine

    @property
    def folder(self) -> Path:
        return self.unix.home / ".gipfel/services/board"

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    def answers(self) -> bool:
        """Return whether a request of the owner to the service's URL succeeds."""
        return self.owner.request("board/").status_code == 200

    @property
    def direct(self) -> str:
        """The front door's address on its node."""
        state = self.state
        return f"http://{self.cluster.addresses[state['nodes'][0]]}:{state['port']}{state['prefix']}"

    def gipfel(self, *words: str, limit_s: float = 90) -> str:
        """Run the command in a kernel of the owner's notebook server, and return its output."""
        code = (
            "import subprocess, sys\n"
            f"done = subprocess.run([sys.executable, '-m', 'gipfel_extension.cli', *{list(words)!r}],"
            " capture_output=True, text=True)\n"
            "print(done.stdout if done.returncode == 0 else (done.returncode, done.stdout, done.stderr))"
        )
        with self.owner.kernel() as kernel:
            return kernel.run(code, limit_s).text.strip()

    def hub_server(self, name: str = "board") -> dict[str, Any]:
        model = self.owner._client.get(f"/hub/api/users/{self.owner.name}").json()
        server: dict[str, Any] = (model.get("servers") or {}).get(name) or {}
        return server

    def on_node(self, *argv: str) -> str:
        """Run a command as the other user on the service's node, and return its output."""
        enter = ["nsenter", f"--target={self.cluster.pid(self.state['nodes'][0])}", "--net"]
        done = subprocess.run(
            [*enter, "runuser", "-u", self.stranger.name, "--", *argv],
            capture_output=True,
            timeout=30,
            text=True,
        )
        return done.stdout


@dataclass
class Relay:
    """A service whose next job takes over before the time limit, and a visitor who keeps asking for it."""

    board: Board
    folder: Path
    statuses: list[int]

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    def ask(self, ending: threading.Event) -> None:
        while not ending.wait(0.5):
            self.statuses.append(self.board.owner.request("relay/").status_code)
