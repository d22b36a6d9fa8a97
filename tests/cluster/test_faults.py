"""Failures on a real cluster, after which hub and Slurm agree on the jobs."""

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hub_process import HubProcess, proxy_folder
from one_machine import OneMachine, wait_until
from unix_users import UnixUser, unix_user

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
_CONFIG = """\
load_subconfig({project!r})
c.EDFSpawner.python = {python!r}
c.EDFSpawner.watch_interval = 1
c.EDFSpawner.calm_interval = 2
c.EDFSpawner.poll_interval = 5
c.EDFSpawner.answer_limit = 1
c.EDFSpawner.stop_timeout = 20
c.JupyterHub.allow_named_servers = True
c.JupyterHub.init_spawners_timeout = 1
c.JupyterHub.log_level = "INFO"
"""


class Place:
    """A separate cluster with a hub and a user whose home is a disk of 4 MiB."""

    def __init__(self, folder: Path, cluster: OneMachine, hub: HubProcess, user: UnixUser) -> None:
        self.folder = folder
        self.cluster = cluster
        self.hub = hub
        self.user = user

    def behave(self, how: str) -> None:
        path = self.user.home / "behaviour"
        path.write_text(how) if how else path.unlink(missing_ok=True)

    def start(self, name: str) -> Any:
        return self.hub.call("POST", f"/users/{self.user.name}/servers/{name}", json={})

    def stop(self, name: str) -> None:
        self.hub.call("DELETE", f"/users/{self.user.name}/servers/{name}", json={"remove": True})

    def servers(self) -> dict[str, Any]:
        model = self.hub.call("GET", f"/users/{self.user.name}").json()
        servers: dict[str, Any] = model.get("servers") or {}
        return servers

    def ready(self, name: str) -> bool:
        return bool(self.servers().get(name, {}).get("ready"))

    def hubs_jobs(self) -> set[str]:
        return {each["state"].get("job_id", "") for each in self.servers().values() if each.get("state")}

    def slurms_jobs(self) -> set[str]:
        return set(self.cluster.call(["squeue", "--noheader", "--format=%A"]).split())

    def agree(self) -> bool:
        return self.hubs_jobs() == self.slurms_jobs() and all(
            each["ready"] for each in self.servers().values()
        )

    def page_of(self, name: str) -> int:
        """Return the status of a server's own page, through the proxy."""
        url = f"{self.hub.url}/user/{self.user.name}/{name}/"
        return httpx.get(url, timeout=10, trust_env=False, follow_redirects=True).status_code

    def failure(self, name: str) -> str:
        """The last event of a start that failed."""
        answer = self.hub.call("GET", f"/users/{self.user.name}/servers/{name}/progress")
        return answer.text

    def daemon(self, node: str, name: str) -> psutil.Process:
        inside = psutil.Process(self.cluster.pid(node)).children(recursive=True)
        return next(each for each in inside if each.name() == name)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="gipfel-f-", dir="/var/tmp"))
    folder.chmod(0o755)
    state = folder / "state"
    state.mkdir(mode=0o700)
    shutil.copy(HERE / "fault_server.py", folder)
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nexec /usr/bin/python3 {folder}/fault_server.py\n")
    python.chmod(0o755)
    programs = folder / "programs"
    programs.mkdir()
    # A squeue that hangs while there is a file.
    real = shutil.which("squeue")
    (programs / "squeue").write_text(f'#!/bin/sh\n[ -e {folder}/hang ] && sleep 600\nexec {real} "$@"\n')
    (programs / "squeue").chmod(0o755)
    (programs / "configurable-http-proxy").symlink_to(proxy_folder() / "configurable-http-proxy")
    config = folder / "config.py"
    project = str(HERE.parents[1] / "jupyterhub_config.py")
    config.write_text(_CONFIG.format(project=project, python=str(python)))
    with unix_user("f", folder) as user:
        mount = ["mount", "-t", "tmpfs", "-o", f"size=4m,mode=700,uid={user.uid}", "tmpfs", str(user.home)]
        subprocess.run(mount, check=True, timeout=10)
        try:
            with OneMachine(folder / "slurm", silence_s=15) as cluster:
                environment = {
                    **cluster.environment,
                    "GIPFEL_SCHEDULER": "slurm",
                    "GIPFEL_HUB_IP": cluster.hub_address,
                }
                with HubProcess(state, environment, proxy=programs, config=config) as hub:
                    hub.call("POST", f"/users/{user.name}")
                    yield Place(folder, cluster, hub, user)
        finally:
            subprocess.run(["umount", "--lazy", str(user.home)], check=False, timeout=10)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def running(place: Place) -> Iterator[str]:
    """A server that runs before the fault, and is there after it."""
    place.behave("")
    place.start("steady")
    assert wait_until(lambda: place.ready("steady"), 60), place.hub.last_words(40)
    yield "steady"
    for name in place.servers():
        place.stop(name)
    assert wait_until(lambda: not place.servers() and not place.slurms_jobs(), 40), place.hub.last_words(40)


def test_a_controller_that_stands_still_ends_no_server_and_leaves_no_job(place: Place, running: str) -> None:
    controller = place.daemon("controller", "slurmctld")
    controller.suspend()
    try:
        answer = place.start("late")
        began = time.monotonic()
        # Twenty rounds of the hub's watcher, and four of its polls.
        while time.monotonic() - began < 20:
            assert place.ready(running)
            assert place.page_of(running) == 200
            time.sleep(1)
        answer = answer.text + place.failure("late")
    finally:
        controller.resume()
    assert "Slurm did not answer within" in answer, answer
    # What was on its way when Slurm stood still may be a job by now: it is found, and ended.
    assert wait_until(place.agree, 60), (place.servers(), place.slurms_jobs(), place.hub.last_words(40))
    time.sleep(5)
    assert place.agree()
    assert place.ready(running)


def test_a_squeue_that_hangs_ends_no_server(place: Place, running: str) -> None:
    place.behave("wait")
    place.start("waiting")
    assert wait_until(lambda: len(place.hubs_jobs()) == 2, 20)
    (place.folder / "hang").touch()
    try:
        place.behave("")
        # Rounds of the watcher, each of which waits a second for an answer.
        time.sleep(6)
        assert set(place.servers()) == {running, "waiting"}
        assert len(place.slurms_jobs()) == 2
    finally:
        (place.folder / "hang").unlink()
    assert wait_until(lambda: place.ready("waiting"), 60), place.hub.last_words(40)
    assert place.agree()


def test_a_full_disk_under_the_log_is_explained(place: Place, running: str) -> None:
    place.behave("write")
    place.start("full")
    try:
        assert wait_until(lambda: "full" not in place.servers() or "failed" in place.failure("full"), 40)
        said = place.failure("full")
        assert "full" in said, said
        assert "What to do" in said or "within its quota" in said, said
        assert place.ready(running)
    finally:
        (place.user.home / "big").unlink(missing_ok=True)
        place.behave("")
    assert wait_until(place.agree, 30)


def test_a_hub_that_is_killed_while_ten_servers_start_finds_them_all(place: Place, running: str) -> None:
    place.behave("wait")
    names = [f"s{number}" for number in range(10)]
    for name in names[:8]:
        place.start(name)
    assert wait_until(lambda: len(place.hubs_jobs()) == 9, 60), place.servers()
    # Two more, killed on their way to Slurm.
    callers = [
        subprocess.Popen(
            ["curl", "-s", "-X", "POST", "-d", "{}", "-H", f"Authorization: token {place.hub.api_token}",
             f"{place.hub.url}/hub/api/users/{place.user.name}/servers/{name}"],
            stdout=subprocess.DEVNULL,
        )
        for name in names[8:]
    ]  # fmt: skip
    time.sleep(0.4)
    place.hub.kill()
    for caller in callers:
        caller.wait(10)
    place.hub.__enter__()
    place.behave("")
    assert wait_until(lambda: all(place.ready(name) for name in names[:8]), 90), place.hub.last_words(60)
    assert wait_until(place.agree, 60), (place.servers(), place.slurms_jobs(), place.hub.last_words(40))
    assert place.ready(running)


def test_a_node_that_dies_is_told_on_the_page(place: Place, running: str) -> None:
    job = next(iter(place.hubs_jobs()))
    node = place.cluster.call(["squeue", "--noheader", f"--jobs={job}", "--format=%N"]).strip()
    psutil.Process(place.cluster.pid(node)).send_signal(signal.SIGKILL)
    # Slurm gives a silent node 15 s here (SlurmdTimeout), and looks every third of that.
    assert wait_until(lambda: running not in place.servers(), 90), place.servers()
    assert wait_until(place.agree, 30)
    # The job that Slurm ended is not started a second time.
    time.sleep(3)
    assert not place.slurms_jobs()
