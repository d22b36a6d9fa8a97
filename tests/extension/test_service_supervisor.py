"""Services from their specification on: the supervisor of their parts, the one after it, and the panel."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from home_services import FAILING, fetch, services_of

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.directory import new_directory, write_state
from gipfel_cluster.workloads.kinds import Workloads
from gipfel_extension.services.blueprint import read_blueprint
from gipfel_extension.services.directory import ServiceSpec, ServiceState, read_service_state
from gipfel_extension.services.start import service_url, start_service
from gipfel_extension.training.record import LaunchState

_LOADER = """\
name: loader
title: Loader
parts:
  a:
    command: ["${python}", -c, "", "${socket}", "${parameters.model}"]
parameters: {model: {}}
"""


@pytest.mark.parametrize("named", ["model/w.bin", "model"])
def test_a_service_with_a_hostile_model_is_refused(tmp_path: Path, named: str) -> None:
    (tmp_path / "loader.yaml").write_text(_LOADER)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/w.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    spec = ServiceSpec(
        name="loader",
        blueprint=read_blueprint(tmp_path / "loader.yaml"),
        parameters={"model": named},
        directory=str(tmp_path),
        scheduler="local",
    )
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "GIPFEL_SCAN_POLICY": "refuse"}
    with pytest.raises(GipfelError, match=r"(?s)refuses a file.*malicious.*w\.bin"):
        start_service(spec, environment)
    assert not services_of(tmp_path)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ('[not-a-program, "${socket}"]', "not-a-program: No such file or directory"),
        ('["${python}", -c, "import time; time.sleep(600)", "${socket}"]', "was not ready after 2 s"),
        ('["${python}", -c, "import os; os.kill(os.getpid(), 9)", "${socket}"]', "was ended by SIGKILL"),
    ],
)
def test_a_supervisor_whose_part_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, program: str, problem: str
) -> None:
    (tmp_path / "bad.yaml").write_text(FAILING.format(program, 2 if "sleep" in program else 60))
    spec = ServiceSpec(name="bad", blueprint=read_blueprint(tmp_path / "bad.yaml"))
    folder = tmp_path / ".gipfel/services/bad"
    (folder / "secrets").mkdir(parents=True)
    (folder / "spec.json").write_text(spec.model_dump_json())
    write_state(folder, ServiceState(phase="queued", name="bad"))
    argv = (sys.executable, "-m", "gipfel_extension.services.supervisor", str(folder))
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    (found,) = services_of(tmp_path)
    assert problem in found.reason
    assert problem in ended.stderr
    assert not (folder / "secrets").exists()


_RELAY = """\
name: relay
title: Relay
keep_up: true
handover: overlap
parts:
  a:
    command:
      ["${python}", -I, -m, gipfel_extension.services.programs, files, "${socket}", "${parameters.directory}"]
    secrets: [word]
parameters: {directory: {}}
"""


def test_the_next_supervisor_takes_over_state_logs_and_secrets_when_the_first_has_ended(
    tmp_path: Path,
) -> None:
    (tmp_path / "relay.yaml").write_text(_RELAY)
    parameters = {"directory": str(tmp_path)}
    spec = ServiceSpec(name="relay", blueprint=read_blueprint(tmp_path / "relay.yaml"), parameters=parameters)
    folder = tmp_path / ".gipfel/services/relay"
    (folder / "secrets").mkdir(parents=True)
    (folder / "secrets/word").write_text("w")
    (folder / "token").write_text("x" * 40)
    (folder / "spec.json").write_text(spec.model_dump_json())
    write_state(folder, ServiceState(phase="queued", name="relay"))
    argv = (sys.executable, "-m", "gipfel_extension.services.supervisor", str(folder))

    def started(ready: Callable[[], bool]) -> subprocess.Popen[bytes]:
        found = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not ready():
            assert found.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found

    def state_is(pid: int, phase: str) -> bool:
        state = read_service_state(folder)
        return state.phase == phase and state.supervisor is not None and state.supervisor.pid == pid

    first = started(lambda: read_service_state(folder).phase == "running")
    # One that gives up before it has taken over changes nothing.
    given_up = started((folder / "successor").exists)
    given_up.terminate()
    assert given_up.wait(30) == 0
    assert state_is(first.pid, "running")
    assert not (folder / "successor").exists()
    second = started((folder / "successor").exists)
    assert state_is(first.pid, "running")
    assert fetch(service_url(folder), "x" * 40)[0] == 200
    first.terminate()
    assert first.wait(30) == 0
    deadline = time.monotonic() + 30
    while not state_is(second.pid, "running"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert fetch(service_url(folder), "x" * 40)[0] == 200
    assert (folder / "secrets/word").exists()
    assert [each.name for each in folder.glob("*.log")] == ["a.log"]
    (folder / "stop").touch()
    assert second.wait(30) == 0
    assert state_is(second.pid, "ended")
    assert not (folder / "secrets").exists()


def test_secrets_that_a_killed_supervisor_has_left_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / ".gipfel/services/lost"
    (folder / "secrets").mkdir(parents=True)
    write_state(folder, ServiceState(phase="running", name="lost"))
    assert services_of(tmp_path)[0].state == "running"
    assert (folder / "secrets").exists()
    write_state(folder, ServiceState(phase="ended", outcome="lost", name="lost"))
    assert services_of(tmp_path)[0].state == "lost"
    assert not (folder / "secrets").exists()


def test_the_panel_lists_a_service_and_not_the_kinds_with_routes_of_their_own(
    start_server: Any, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    server = start_server(GIPFEL_RUNS=str(runs), GIPFEL_SCHEDULER="local")
    environment = {"GIPFEL_RUNS": str(runs), "HOME": str(server.home)}
    launch = new_directory(runs / "launches")
    (launch / "spec.json").write_text('{"script": "train.py"}')
    write_state(launch, LaunchState(number=1, phase="ended", outcome="completed", name="train", created_ns=1))
    folder = server.home / ".gipfel/services/bad"
    folder.mkdir(parents=True)
    (tmp_path / "bad.yaml").write_text(
        FAILING.format('["${python}", -c, "raise SystemExit(4)", "${socket}"]', 60)
    )
    spec = ServiceSpec(
        name="bad",
        blueprint=read_blueprint(tmp_path / "bad.yaml"),
        directory=str(tmp_path),
        scheduler="local",
    )
    (folder / "spec.json").write_text(spec.model_dump_json())
    (folder / "a.log").write_text("hello\n")
    write_state(folder, ServiceState(phase="running", name="bad", title="Bad", created_ns=2))

    assert {each.kind for each in Workloads(environment, {}).list(ended=True)} == {"launch", "service"}
    assert server.call("gipfel/workloads") == (200, {"workloads": []})
    _, answer = server.call("gipfel/services")
    shown = [(each["id"], each["state"], each["url"], each["in_hub"]) for each in answer["services"]]
    assert shown == [("bad", "running", "", False)]
    offers = {each["name"]: each for each in server.call("gipfel/services/offers")[1]["offers"]}
    assert offers["tensorboard"]["license"] == "Apache-2.0"
    assert offers["tensorboard"]["cost"] == "no GPU and 1 CPU hour per hour"
    for body, problem in (
        ({"blueprint": "files"}, "needs a value for the parameter 'directory'"),
        ({"blueprint": "nothing"}, "There is no blueprint 'nothing'"),
        ({"blueprint": "../x"}, "not valid: blueprint"),
        ({"blueprint": "files", "parameters": {"directory": "/tmp", "x": "1"}}, "has no parameter 'x'"),
        ({"blueprint": "files", "name": "A B", "parameters": {"directory": "/tmp"}}, "not valid: name"),
    ):
        status, answer = server.call("gipfel/services", "POST", body)
        assert (status, problem in answer["message"]) == (400, True), answer
    status, answer = server.call("gipfel/services/share", "POST", {"service": "bad", "name": "ben"})
    assert (status, "Only services of a hub" in answer["message"]) == (400, True)
    name = {"kind": "service", "id": "bad"}
    log = server.call("gipfel/workloads/log?kind=service&id=bad")
    assert log == (200, {"lines": [{"rank": 0, "text": "hello"}]})
    assert server.call("gipfel/workloads/stop", "POST", name) == (200, name)
    assert (folder / "stop").exists()
    status, answer = server.call("gipfel/workloads/rerun", "POST", name)
    assert (status, "is running already" in answer["message"]) == (400, True)
    write_state(folder, ServiceState(phase="ended", outcome="stopped", name="bad", created_ns=2))
    assert server.call("gipfel/workloads/rerun", "POST", name) == (200, name)
    assert (folder / "token").stat().st_mode & 0o777 == 0o600

    def reason() -> str:
        found = server.call("gipfel/services")[1]["services"][0]
        return str(found["reason"]) if found["ended"] else ""

    assert server.wait(reason, 120).startswith("The part a ended with status 4")
