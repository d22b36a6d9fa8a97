"""Forty concurrent servers on a real Slurm: all ready, none lost, no port twice; and more time for one.

The servers are tiny, so that forty fit on a small machine; hub, proxy, Slurm, jobs and sockets are real.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hub_process import HubProcess, proxy_folder
from one_machine import OneMachine, wait_until
from unix_users import UnixUser, unix_user

from gipfel_cluster.runtime import Runtime

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
COUNT = 40
# As many as a node has cores, and so as many as it can have jobs: the range is full where a node is.
FIRST, LAST = 8400, 8415
_CONFIG = """\
exec(compile(open({project!r}).read(), {project!r}, 'exec'), {{**globals(), '__file__': {project!r}}})
c.EDFSpawner.python = {python!r}
c.EDFSpawner.watch_interval = 1
c.JupyterHub.allow_named_servers = True
c.JupyterHub.concurrent_spawn_limit = 0
c.JupyterHub.log_level = "INFO"
"""


@dataclass
class Place:
    """A cluster of three nodes with a hub and one user."""

    cluster: OneMachine
    hub: HubProcess
    user: UnixUser
    state: Path

    def path(self, name: str) -> str:
        return f"/users/{self.user.name}/servers/{name}"

    def start(self, name: str) -> None:
        answer = self.hub.call("POST", self.path(name), json={})
        assert answer.status_code in {201, 202}, answer.text

    def servers(self) -> dict[str, Any]:
        model = self.hub.call("GET", f"/users/{self.user.name}").json()
        servers: dict[str, Any] = model.get("servers") or {}
        return servers

    def answer(self, name: str) -> str:
        url = f"{self.hub.url}/user/{self.user.name}/{name}/"
        return httpx.get(url, timeout=30, trust_env=False).text

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.state / "audit.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def place(runtime: Path) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="gipfel-m-", dir="/var/tmp"))
    folder.chmod(0o755)
    state = folder / "state"
    state.mkdir(mode=0o700)
    shutil.copy(HERE / "many_server.py", folder)
    interpreter = Runtime.load(str(runtime)).python
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nexec {interpreter} {folder}/many_server.py\n")
    python.chmod(0o755)
    config = folder / "config.py"
    project = str(HERE.parents[1] / "jupyterhub_config.py")
    config.write_text(_CONFIG.format(project=project, python=str(python)))
    try:
        with unix_user("m", folder) as user, OneMachine(folder / "slurm", nodes=3) as cluster:
            environment = {
                **cluster.environment,
                "GIPFEL_SCHEDULER": "slurm",
                "GIPFEL_HUB_IP": cluster.hub_address,
                "GIPFEL_SERVER_PORTS": f"{FIRST}-{LAST}",
                "GIPFEL_EXTEND_BY": "1:00:00",
            }
            with HubProcess(state, environment, proxy=proxy_folder(), config=config) as hub:
                hub.call("POST", f"/users/{user.name}")
                yield Place(cluster, hub, user, state)
                for name in Place(cluster, hub, user, state).servers():
                    hub.call("DELETE", f"/users/{user.name}/servers/{name}")
                wait_until(lambda: not cluster.call(["squeue", "--noheader"]).strip(), 60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def many(place: Place) -> list[str]:
    """The names of forty servers that were started at once."""
    names = [f"s{number:02}" for number in range(COUNT)]
    with ThreadPoolExecutor(COUNT) as at_once:
        list(at_once.map(place.start, names))
    return names


def test_all_are_ready_and_none_is_lost(place: Place, many: list[str]) -> None:
    began = time.monotonic()
    ready = wait_until(lambda: sum(each["ready"] for each in place.servers().values()) == COUNT, 240)
    assert ready, (place.servers(), place.hub.last_words(40))
    print(f"{COUNT} servers were ready {time.monotonic() - began:.0f} s after they were requested.")
    assert set(place.servers()) == set(many)
    jobs = {each["state"]["job_id"] for each in place.servers().values()}
    assert len(jobs) == COUNT
    running = place.cluster.call(["squeue", "--noheader", "--states=RUNNING", "--format=%A"]).split()
    assert set(running) == jobs


def test_each_answers_as_itself_and_no_port_is_taken_twice(place: Place, many: list[str]) -> None:
    assert {name: place.answer(name) for name in many} == {name: name for name in many}
    listed = place.hub.call("GET", "/gipfel/servers").json()["servers"]
    nodes = {each["server"]: each["nodes"][0] for each in listed}
    taken = [(nodes[name], server["state"]["port"]) for name, server in place.servers().items()]
    assert len(set(taken)) == COUNT
    assert all(FIRST <= port <= LAST for _, port in taken)
    # Two at least share a node, or this would show nothing.
    assert max(sum(node == each for node, _ in taken) for each, _ in taken) > 1


def test_the_audit_log_has_a_start_for_each(place: Place, many: list[str]) -> None:
    starts = [line["server"] for line in place.audit() if line["event"] == "start"]
    assert sorted(starts) == sorted(many)


def test_an_extension_reaches_slurm_as_often_as_the_site_allows(place: Place, many: list[str]) -> None:
    server = place.servers()[many[0]]
    job = server["state"]["job_id"]
    token = _token(place, job)
    before = _limit_minutes(place, job)
    for times in (1, 2):
        answer = _extend(place, token)
        assert answer.status_code == 200, answer.text
        assert _limit_minutes(place, job) == before + 60 * times
    refused = _extend(place, token)
    assert (refused.status_code, _limit_minutes(place, job)) == (409, before + 120)


def test_a_hub_that_is_no_operator_says_why_in_one_line(place: Place, many: list[str]) -> None:
    job = place.servers()[many[1]]["state"]["job_id"]
    environment = f"SLURM_CONF={place.cluster.environment['SLURM_CONF']}"
    said = place.user.run("env", environment, "scontrol", "update", f"JobId={job}", "TimeLimit+=60")
    assert said.returncode != 0
    assert "denied" in said.stderr.lower()


def test_all_stop_and_nothing_is_left(place: Place, many: list[str]) -> None:
    with ThreadPoolExecutor(COUNT) as at_once:
        list(at_once.map(lambda name: place.hub.call("DELETE", place.path(name)), many))
    assert wait_until(lambda: not place.servers(), 120), place.servers()
    assert wait_until(lambda: not place.cluster.call(["squeue", "--noheader"]).strip(), 60)
    stops = [line["server"] for line in place.audit() if line["event"] == "stop"]
    assert sorted(stops) == sorted(many)


def _extend(place: Place, token: str) -> httpx.Response:
    headers = {"Authorization": f"token {token}"}
    url = f"{place.hub.url}/hub/api/gipfel/server/extend"
    return httpx.post(url, json={"extend": True}, headers=headers, timeout=30, trust_env=False)


def _limit_minutes(place: Place, job: str) -> int:
    shown = place.cluster.call(["squeue", "--noheader", f"--jobs={job}", "--Format=TimeLimit:30"]).strip()
    days, _, clock = shown.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    hours, minutes = ([0] * (3 - len(parts)) + parts)[:2]
    return int(days or 0) * 1440 + hours * 60 + minutes


def _token(place: Place, job: str) -> str:
    """The token of a job's server, from the environment of its process."""
    for process in place.user.processes():
        variables = dict(
            part.split("=", 1)
            for part in Path(f"/proc/{process}/environ").read_text().split("\0")
            if "=" in part
        )
        if variables.get("SLURM_JOB_ID") == job and "JUPYTERHUB_API_TOKEN" in variables:
            return variables["JUPYTERHUB_API_TOKEN"]
    raise AssertionError(f"job {job} has no process")
