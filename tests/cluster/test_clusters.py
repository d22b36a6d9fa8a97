"""One hub, several real clusters: one asked by its commands, one through a broker, and this machine."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from broker_process import BrokerProcess, said
from hub_process import HubProcess, proxy_folder
from one_machine import OneMachine, wait_until
from unix_users import UnixUser, unix_user

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
# What a hub needs of its machine; no Slurm is among it.
_PROGRAMS = ("env", "mkdir", "tail", "runuser", "sh", "node")
_CONFIG = """\
import os
os.environ["PATH"] = {programs!r}
os.environ.pop("SLURM_CONF", None)
load_subconfig({project!r})
c.JupyterHub.hub_ip = "0.0.0.0"
c.JupyterHub.hub_connect_ip = "127.0.0.1"
port = c.JupyterHub.hub_port
first = {{
    "scheduler": "slurm",
    "environment": {{"PATH": {path!r}, "SLURM_CONF": {first_conf!r}}},
    "hub_connect_url": f"http://{first_hub}:{{port}}",
}}
c.EDFSpawner.clusters = {{
    "alps": first,
    "alps-debug": {{**first, "partitions": ["debug"]}},
    "bristen": {{
        "scheduler": "broker",
        "broker_socket": {socket!r},
        "hub_connect_url": f"http://{second_hub}:{{port}}",
    }},
    "here": {{"scheduler": "local"}},
}}
c.Authenticator.admin_users = {{"boss"}}
c.SharedPasswordAuthenticator.admin_password = os.environ["GIPFEL_API_TOKEN"]
c.EDFSpawner.watch_interval = 1
c.EDFSpawner.calm_interval = 2
c.JupyterHub.log_level = "INFO"
"""


class Place:
    """Two clusters, a broker before the second one, a hub and its user."""

    def __init__(
        self,
        clusters: tuple[OneMachine, OneMachine],
        broker: BrokerProcess,
        hub: HubProcess,
        users: tuple[UnixUser, UnixUser],
    ) -> None:
        self.first, self.second = clusters
        self.broker = broker
        self.hub = hub
        self.user, self.other = users

    def start(self, name: str, **options: Any) -> httpx.Response:
        return self.hub.call("POST", f"/users/{self.user.name}/servers/{name}", json=options)

    def stop(self, name: str) -> None:
        self.hub.call("DELETE", f"/users/{self.user.name}/servers/{name}", json={"remove": True})
        assert wait_until(lambda: name not in self.servers(), 60)

    def servers(self) -> dict[str, Any]:
        model = self.hub.call("GET", f"/users/{self.user.name}").json()
        servers: dict[str, Any] = model.get("servers") or {}
        return servers

    def ready(self, name: str) -> bool:
        return bool(self.servers().get(name, {}).get("ready"))

    def answers(self, name: str) -> bool:
        """Return whether the real server answers through the proxy."""
        headers = {"Authorization": f"token {self.hub.api_token}"}
        url = f"{self.hub.url}/user/{self.user.name}/{name}/api/status"
        return httpx.get(url, headers=headers, timeout=30, trust_env=False).status_code == 200

    def job(self, name: str) -> str:
        return str(self.servers()[name]["state"]["job_id"])

    def queue(self, cluster: OneMachine) -> set[tuple[str, str, str]]:
        """Job, partition and user of all that runs or waits."""
        lines = cluster.call(["squeue", "--noheader", "--format=%A %P %u"]).splitlines()
        return {(fields[0], fields[1], fields[2]) for line in lines if (fields := line.split())}

    def job_request(self, **changes: Any) -> dict[str, Any]:
        job = {"name": "t", "script": "#!/bin/sh\nid > who\n", "directory": str(self.user.home)}
        return {"kind": "submit", "job": job | {"user": self.user.name, "mark": "gipfel-test"} | changes}


@pytest.fixture(scope="module")
def place(runtime: Path) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="gipfel-c-", dir="/var/tmp"))
    folder.chmod(0o755)
    state, programs = folder / "state", folder / "programs"
    state.mkdir(mode=0o700)
    programs.mkdir()
    for name in _PROGRAMS:
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    (programs / "configurable-http-proxy").symlink_to(proxy_folder() / "configurable-http-proxy")
    with ExitStack() as kept:
        kept.callback(shutil.rmtree, folder, ignore_errors=True)
        users = kept.enter_context(unix_user("c", folder)), kept.enter_context(unix_user("d", folder))
        first = kept.enter_context(OneMachine(folder / "first", nodes=1))
        second = kept.enter_context(OneMachine(folder / "second", nodes=1))
        python = str(runtime / "bin" / "python")
        broker = kept.enter_context(BrokerProcess(folder / "broker" / "hub", second, python))
        config = folder / "config.py"
        config.write_text(
            _CONFIG.format(
                programs=str(programs),
                project=str(HERE.parents[1] / "jupyterhub_config.py"),
                path=os.environ["PATH"],
                first_conf=first.environment["SLURM_CONF"],
                first_hub=first.hub_address,
                second_hub=second.hub_address,
                socket=str(broker.path),
            )
        )
        environment = {"GIPFEL_SCHEDULER": "local", "GIPFEL_RUNTIME": str(runtime)}
        hub = kept.enter_context(HubProcess(state, environment, proxy=programs, config=config))
        hub.call("POST", f"/users/{users[0].name}")
        yield Place((first, second), broker, hub, users)


def test_a_server_on_each_cluster_outlives_the_hub_and_is_found_again(place: Place) -> None:
    assert place.start("a", cluster="alps-debug").status_code in {201, 202}
    assert place.start("b", cluster="bristen").status_code in {201, 202}
    assert place.start("c", cluster="here").status_code in {201, 202}
    assert wait_until(lambda: all(map(place.ready, "abc")), 90), place.hub.last_words(40)
    jobs = {name: place.job(name) for name in "abc"}
    # Both clusters count from one: only the cluster's name tells these two jobs apart.
    assert jobs["a"] == jobs["b"]
    assert place.queue(place.first) == {(jobs["a"], "debug", place.user.name)}
    assert place.queue(place.second) == {(jobs["b"], "normal", place.user.name)}
    runs = {path.name for path in (place.user.home / ".gipfel" / "runs").iterdir()}
    assert runs == {f"alps-debug-{jobs['a']}", f"bristen-{jobs['b']}", f"here-{jobs['c']}"}
    shown = place.hub.call("GET", "/gipfel/servers").json()["servers"]
    assert {each["server"]: each["cluster"] for each in shown} == {
        "a": "alps-debug",
        "b": "bristen",
        "c": "here",
    }
    with page(place, "boss", "/hub/gipfel/servers") as (told, _):
        assert all(f"of {each['cluster']}" in told for each in shown)
    place.hub.kill()
    place.hub.__enter__()
    assert wait_until(lambda: all(map(place.ready, "abc")), 60), place.hub.last_words(40)
    assert all(map(place.answers, "abc"))
    assert {name: place.job(name) for name in "abc"} == jobs
    for name in "abc":
        place.stop(name)
    assert wait_until(lambda: not place.queue(place.first) and not place.queue(place.second), 30)
    lines = (place.hub.log.parent / "audit.jsonl").read_text().splitlines()
    stops = [json.loads(line) for line in lines if '"event": "stop"' in line]
    assert {each["server"]: each["cluster"] for each in stops} == {
        "a": "alps-debug",
        "b": "bristen",
        "c": "here",
    }


@contextmanager
def page(place: Place, user: str, path: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """A page of the hub as a person sees it who logs in there, and how its script asks of it."""
    with httpx.Client(base_url=place.hub.url, timeout=60, follow_redirects=True, trust_env=False) as browser:

        def xsrf() -> str:
            found = [each for each in browser.cookies.jar if each.name == "_xsrf" and each.value]
            return max(found, key=lambda each: len(each.path)).value or ""

        def ask(**options: Any) -> Any:
            asked = f"/hub/api/gipfel/users/{user}/expected-start"
            answer = browser.post(asked, json=options, headers={"X-XSRFToken": xsrf()})
            return answer.raise_for_status().json()

        browser.get("/hub/login").raise_for_status()
        password = place.hub.api_token if user == "boss" else place.hub.password
        form = {"username": user, "password": password, "_xsrf": xsrf()}
        yield browser.post(f"/hub/login?next={path}", data=form).raise_for_status().text, ask


def test_the_form_offers_each_cluster_what_it_has(place: Place) -> None:
    with page(place, place.user.name, "/hub/spawn") as (shown, ask):
        for name in ("alps", "alps-debug", "bristen", "here"):
            assert f'<option value="{name}"' in shown
        groups = {
            part.split('"', 1)[0]: part.split("</optgroup>")[0]
            for part in shown.split('<optgroup label="')[1:]
        }
        assert "debug: " in groups["alps-debug"]
        assert "normal: " not in groups["alps-debug"]
        assert "normal: 4 of 4 gh200 idle" in groups["bristen"]
        assert ask(cluster="bristen", gpus=4, time="10") == {"start": "", "text": "now"}
        assert "There is no partition normal" in ask(cluster="alps-debug", partition="normal")["problem"]
        assert ask(cluster="eiger") == {
            "problem": "There is no cluster eiger. Pick one of alps, alps-debug, bristen, here.",
            "field": "cluster",
        }


def test_an_unknown_cluster_starts_nothing(place: Place) -> None:
    answer = place.start("x", cluster="eiger")
    assert answer.status_code == 400, answer.text
    assert "There is no cluster eiger" in answer.text
    assert place.start("x", cluster="a\nb").status_code == 400
    assert not place.queue(place.first)


def test_a_broker_that_is_gone_ends_no_server(place: Place) -> None:
    assert place.start("b", cluster="bristen").status_code in {201, 202}
    assert wait_until(lambda: place.ready("b"), 60), place.hub.last_words(40)
    place.broker.end(signal.SIGKILL)
    failed = place.start("later", cluster="bristen")
    assert wait_until(lambda: "later" not in place.servers() or not place.servers()["later"]["pending"], 30)
    assert "does not answer" in failed.text + place.hub.last_words(30)
    assert place.ready("b")
    # After SIGKILL, no process listens on the socket.
    place.broker.__enter__()
    assert place.answers("b")
    place.stop("b")
    assert wait_until(lambda: not place.queue(place.second), 30)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user": "root"}, "does not act as root"),
        ({"user": ""}, "never acts as root"),
        ({"user": "daemon"}, "does not act as daemon"),
        ({"user": "nobody"}, "does not act as nobody"),
        ({"user": "nobody-of-that-name"}, "no unix user"),
        ({"user": "a;id"}, "can't use the request's"),
        ({"user": "--help"}, "can't use the request's"),
        ({"site_arguments": ["--uid=0"]}, "accepts no arguments"),
        ({"name": "a\n#SBATCH --uid=0"}, "can't use the request's"),
        ({"script": "id"}, "can't use the request's"),
        ({"environment": {"SBATCH_UID": "0"}}, "can't use the request's"),
        ({"argv": ["sbatch", "--wrap=id"]}, "can't use the request's"),
    ],
)
def test_a_hub_that_was_taken_over_gets_no_more_than_its_users(
    place: Place, changes: dict[str, Any], words: str
) -> None:
    answer = place.broker.ask(place.job_request(**changes))
    assert words in answer["problem"], answer
    assert not place.queue(place.second)


@pytest.mark.parametrize(
    "content",
    [
        b'{"kind": "run", "edf": "x", "command": ["id"]}\n',
        b'{"kind": "facts"}\n',
        b'{"kind": "shell", "command": "id"}\n',
        b'{"kind": "cancel", "job_id": "--all", "user": ""}\n',
        b'{"kind": "cancel", "job_id": "1", "user": "root"}\n',
        b'{"kind": "find", "mark": "$(id)"}\n',
        b'{"kind": "extend", "job_id": "1 TimeLimit=9", "minutes": 1}\n',
        b'{"kind": "choices", "user": "a,b"}\n',
        b'{"kind": "address", "node": "--help"}\n',
        b"\xff\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_what_is_no_request_of_a_hub_is_refused(place: Place, content: bytes) -> None:
    assert set(said(place.broker.path, content)) == {"problem", "fix"}


def test_a_jobs_environment_touches_nothing_that_runs_as_root(place: Place) -> None:
    evil = place.user.home / "evil"
    for name in ("runuser", "sbatch", "python3"):
        place.user.write(f"evil/{name}", f"#!/bin/sh\nid -u >> {place.user.home}/proof\n", 0o755)
    place.user.write("evil/sitecustomize.py", f"open({str(evil / 'proof')!r}, 'w')")
    environment = {
        "PATH": str(evil),
        "PYTHONPATH": str(evil),
        "LD_PRELOAD": str(evil / "no.so"),
        "SLURM_CONF": str(evil / "slurm.conf"),
        "SECRET": 'it\'s "quoted"\n$(id)',
    }
    script = '#!/bin/sh\n/usr/bin/env > "$HOME/seen"\n/usr/bin/id -u > "$HOME/who"\n'
    home = str(place.user.home)
    answer = place.broker.ask(place.job_request(environment=environment | {"HOME": home}, script=script))
    assert answer.get("job_id", "").isdecimal(), answer
    assert wait_until((place.user.home / "who").exists, 30)
    assert wait_until(lambda: not place.queue(place.second), 30)
    assert (place.user.home / "who").read_text().strip() == str(place.user.uid)
    seen = (place.user.home / "seen").read_text()
    assert 'SECRET=it\'s "quoted"\n$(id)' in seen
    assert f"PATH={os.environ['PATH']}" in seen
    assert not (place.user.home / "proof").exists()
    assert not (evil / "proof").exists()


def test_a_job_ends_by_its_own_user_only(place: Place) -> None:
    request = place.job_request(script="#!/bin/sh\nsleep 600\n", mark="gipfel-its-own")
    job = place.broker.ask(request)["job_id"]
    try:
        refused = place.broker.ask({"kind": "cancel", "job_id": job, "user": place.other.name})
        assert "refused" in refused["problem"], refused
        find = {"kind": "find", "mark": "gipfel-its-own", "user": place.user.name}
        assert place.broker.ask(find) == {"value": job}
        assert place.broker.ask(find | {"user": place.other.name}) == {"value": None}
        status = place.broker.ask({"kind": "query", "job_ids": [job]})["value"][job]
        assert status["answer"] == "running"
    finally:
        assert place.broker.ask({"kind": "cancel", "job_id": job, "user": place.user.name}) == {"value": None}
    assert wait_until(lambda: not place.queue(place.second), 30)


def test_another_user_gets_no_word_and_the_hubs_user_may_be_a_plain_one(place: Place, runtime: Path) -> None:
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        's.sendall(b\'{"kind": "partitions"}\\n\'); print(len(s.recv(1000)))'
    )

    def asked(path: Path) -> subprocess.CompletedProcess[str]:
        return place.user.run("/usr/bin/python3", "-c", code, str(path))

    path = place.broker.path
    assert path.stat().st_mode & 0o777 == 0o600
    assert "PermissionError" in asked(path).stderr
    path.chmod(0o666)
    try:
        opened = asked(path)
    finally:
        path.chmod(0o600)
    assert opened.stdout.strip() == "0" or "Error" in opened.stderr
    plain = BrokerProcess(
        path.with_name("plain"), place.second, str(runtime / "bin/python"), "--hub-user", place.user.name
    )
    try:
        plain.start()
        assert wait_until(plain.path.exists, 20)
        assert wait_until(lambda: "Refused" not in asked(plain.path).stderr, 10)
        assert int(asked(plain.path).stdout) > 20
        # Root itself is not that hub's user: it gets no word.
        with suppress(ConnectionError):
            assert plain.ask({"kind": "partitions"}) == {}
    finally:
        plain.end()
    assert not plain.path.exists()
