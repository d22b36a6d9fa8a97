"""A service on both nodes of a job: vLLM's blueprint, with a program that takes vLLM's options."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from edf_files import write_edf
from hub_process import HubProcess
from hub_user import HubUser
from images import Images
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

pytestmark = pytest.mark.cluster

#: Rank 0 waits at the master's port until all other ranks have connected, as vLLM's does, and only then
#: listens for requests. A rank that loses its connection to another one ends, as in vLLM.
_STAND_IN = """#!/usr/bin/python3
import argparse, http.server, json, os, socket, socketserver, threading
parser = argparse.ArgumentParser()
for each in ("serve", "model", "--tensor-parallel-size", "--pipeline-parallel-size"):
    parser.add_argument(each, **({"required": True} if each[0] == "-" else {}))
for each in ("--distributed-executor-backend", "--nnodes", "--node-rank", "--master-addr", "--master-port"):
    parser.add_argument(each, required=True)
parser.add_argument("--headless", action="store_true")
parser.add_argument("--uds")
parser.add_argument("--root-path")
options = parser.parse_args()
assert options.distributed_executor_backend == "mp" and options.nnodes == options.pipeline_parallel_size
me = {"rank": int(options.node_rank), "node": os.uname().nodename,
      "tokens": [name for name in os.environ if "TOKEN" in name]}

def until_closed(connected):
    connected.recv(1)
    print("lost a rank", flush=True)
    os._exit(1)

address = (options.master_addr, int(options.master_port))
if options.headless:
    import time
    assert not options.uds
    for _ in range(200):
        try:
            connected = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.2)
    connected.sendall(json.dumps(me).encode() + b"\\n")
    until_closed(connected)
ranks = [me]
with socket.create_server(("", address[1])) as server:
    while len(ranks) < int(options.nnodes):
        connected, _ = server.accept()
        ranks.append(json.loads(connected.makefile().readline()))
        threading.Thread(target=until_closed, args=(connected,)).start()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = {"/health": {}, "/v1/models": {"data": [{"id": options.model}], "ranks": ranks}, "/pause": {}}
        content = json.dumps(found.get(self.path)).encode()
        self.send_response(404 if content == b"null" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def address_string(self):
        return "client"

socketserver.ThreadingUnixStreamServer(options.uds, Handler).serve_forever()
"""


@dataclass
class Model:
    """The service, its owner and cluster."""

    owner: HubUser
    unix: UnixUser
    cluster: OneMachine

    @property
    def folder(self) -> Path:
        return self.unix.home / ".gipfel/services/vllm"

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    def models(self) -> dict[str, Any]:
        """What the service answers at its URL; nothing while it does not run."""
        answer = self.owner.request("vllm/v1/models")
        with contextlib.suppress(ValueError):
            found: dict[str, Any] = answer.json()
            return found if answer.status_code == 200 else {}
        return {}

    def workers(self) -> list[int]:
        """The processes of the program that listen for no requests."""
        done = subprocess.run(["pgrep", "-U", str(self.unix.uid), "-f", "serve tiny --headless"],
                              capture_output=True, text=True, timeout=20)  # fmt: skip
        return [int(pid) for pid in done.stdout.split()]


@pytest.fixture(scope="module")
def model(
    hub: HubProcess, plain_users: tuple[UnixUser, UnixUser], images: Images, cluster: OneMachine
) -> Iterator[Model]:
    unix = plain_users[0]
    unix.write("bin/vllm", _STAND_IN).chmod(0o755)
    write_edf(
        unix, "model", image=images.python, mounts=(f"{unix.home}:{unix.home}",),
        env={"PATH": f"{unix.home}/bin:/usr/bin:/bin"},
    )  # fmt: skip
    owner = hub.user(unix.name)
    api = f"/hub/api/users/{owner.name}/servers/vllm"
    options = {
        "service": "vllm",
        "parameters": {"model": "tiny"},
        "edf": "model",
        "nodes": 2,
        "time": "00:20:00",
    }
    small = {"gpus": 1, "cpus": 1, "memory": "200M"}
    assert owner._client.post(api, json={**options, **small}).status_code in {201, 202}
    found = Model(owner, unix, cluster)
    try:
        assert wait_until(lambda: bool(found.models()), 120), hub.last_words(60)
        yield found
    finally:
        owner._client.delete(api)


def test_one_url_leads_to_a_program_on_two_nodes_in_containers(model: Model) -> None:
    found = model.models()
    assert found["data"] == [{"id": "tiny"}]
    assert [each["rank"] for each in found["ranks"]] == [0, 1]
    assert {each["node"] for each in found["ranks"]} == set(model.cluster.node_names)
    assert [each["tokens"] for each in found["ranks"]] == [[], []]
    for path in ("pause", "", "v1%2f..%2fpause"):
        assert model.owner.request(f"vllm/{path}").status_code in {400, 404}, path


def test_a_worker_that_ends_ends_the_service_and_the_hub_starts_it_again(model: Model) -> None:
    before = model.state["job_id"]
    for pid in model.workers():
        subprocess.run(["kill", "-KILL", str(pid)], check=False)
    assert wait_until(lambda: model.state["job_id"] != before and bool(model.models()), 120)
    assert len(model.models()["ranks"]) == 2
    model.owner._client.delete(f"/hub/api/users/{model.owner.name}/servers/vllm")
    assert wait_until(lambda: model.state["phase"] == "ended" and not model.workers(), 60)
