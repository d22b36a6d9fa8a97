"""Runs as runs of MLflow and as RO-Crates."""

import json
import os
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from mlflow_stand_in import MlflowStandIn

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import RunFolder
from gipfel_cluster.workloads.run_folders import find_run
from gipfel_extension.cli.main import main
from gipfel_extension.exporters.mlflow_client import MlflowClient
from gipfel_extension.exporters.mlflow_tracking import (
    Tracker,
    hardware_series,
    metric_name,
    pending_runs,
    read_tracked,
    user_series,
)
from gipfel_extension.exporters.rocrate import write_crate
from gipfel_extension.exporters.run_document import describe
from gipfel_extension.telemetry.metric_table import GPU_METRICS
from gipfel_extension.telemetry.sample import Device, Provenance, Sample, SourceError
from gipfel_extension.telemetry.store.segments import SegmentWriter
from gipfel_extension.training.launch import launch
from gipfel_extension.training.record.spec import LaunchSpec

URI = "http://mlflow.test"
START_NS = 1_790_000_000 * 10**9
ENDED = "2026-09-21T14:15:00+00:00"


def _log(run: Path, second: int, values: dict[str, float | None], **writer: object) -> None:
    when = START_NS + second * 10**9
    line = {"time_ns": when, "monotonic_ns": second, "node": "nid1", "rank": None, "values": values} | writer
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "GIPFEL_RUNS": str(tmp_path / "runs")}


@pytest.fixture
def run(environment) -> Path:
    """A run of two ranks with one launch, an hour of a GPU, and a secret on its command line."""
    folder = RunFolder.create(Path(environment["GIPFEL_RUNS"]), "alps", "7")
    folder.write_record(
        {
            "kind": "recording",
            "job_id": "7",
            "started": "2026-09-21T13:13:20+00:00",
            "ended": ENDED,
            "exit_status": 0,
            "nodes": ["nid1"],
            "directory": "/home/ada",
            "command": ["python", "train.py", "--lr", "1e-4", "--api-key", "S3CRET"],
            "git": {"commit": "a" * 40, "changed_files": 0},
            "image": {"path": "/images/torch.sqsh", "digest": "sha256:" + "b" * 64},
        }
    )
    gpu = Device("GPU-1", "gpu", "NVIDIA H100 80GB HBM3", 0, node="nid1")
    origin = Provenance("nid1", "job", "nvml", simulated=False, interval=10.0, devices=(gpu,))
    writer = SegmentWriter(folder.telemetry, origin, start_ns=START_NS)
    for second in range(0, 3600, 10):
        values: dict[str, float | None] = dict.fromkeys(GPU_METRICS, 0.5)
        writer.write([Sample(START_NS + second * 10**9, second, gpu.uuid, values)])
    writer.close()
    for second in range(4):
        _log(folder.path, second, {"step": 10 * second, "loss": 1.0 / (second + 1)}, rank=0)
        _log(folder.path, second, {"step": 10 * second, "loss": None}, rank=1)
    _log(folder.path, 5, {"step": 3, "reward;mean": 2.0}, rank=0, launch="alps-7/1")
    launch = folder.path / "launches" / "1"
    launch.mkdir(parents=True)
    state = {"phase": "ended", "outcome": "failed", "name": "train", "reason": "rank 0: out of memory"}
    state |= {
        "created_ns": START_NS,
        "started_ns": START_NS,
        "ended_ns": START_NS + 10**10,
        "nodes": ["nid1"],
    }
    (launch / "state.json").write_text(json.dumps(state))
    (launch / "rank-0.log").write_text("CUDA out of memory\n")
    (launch / "command.txt").write_text("python train.py --api-key S3CRET\n")
    score = {"score": 62.0, "losses": {"input": 21.0, "idle": 17.0}}
    (folder.path / "score.json").write_text(json.dumps(score))
    return folder.path


def _track(server: MlflowStandIn, environment: dict[str, str], *, token: str = "", **options):
    client = MlflowClient(URI, token, sleep=lambda _: None, transport=server.transport())
    return Tracker(client, "llama", **options).track(find_run("alps-7", environment))


def _values(server: MlflowStandIn, run_id: str, name: str) -> list[tuple[int, str]]:
    return sorted((step, value) for key, _, step, value in server.runs[run_id]["metrics"] if key == name)


def test_a_run_whose_samples_are_gone_is_tracked_without_its_report(run, environment):
    def fail(_: Path) -> bytes:
        raise SourceError("It contains no recording.", "Record again.")

    server = MlflowStandIn()
    tracked = _track(server, environment, make_report=fail)
    assert (tracked.complete, len(tracked.skipped)) == (True, 1)
    assert tracked.skipped[0].startswith("gipfel/report.html: It contains no recording.")
    assert server.runs["run0"]["status"] == "FINISHED"


def test_a_run_and_its_launch_become_a_run_and_a_child(run, environment):
    server = MlflowStandIn()
    tracked = _track(server, environment)
    parent, child = server.runs["run0"], server.runs["run1"]
    assert (tracked.run_id, tracked.complete, tracked.skipped) == ("run0", True, ())
    assert (parent["status"], child["status"]) == ("FINISHED", "FAILED")
    assert child["tags"]["mlflow.parentRunId"] == "run0"
    assert parent["params"] == {"lr": "1e-4", "api_key": "HIDDEN"}
    assert parent["tags"]["mlflow.source.git.commit"] == "a" * 40
    assert parent["tags"]["mlflow.docker.image.id"] == "sha256:" + "b" * 64
    losses = ["1.0", "0.5", "0.3333333333333333", "0.25"]
    assert _values(server, "run0", "loss") == list(zip((0, 10, 20, 30), losses, strict=True))
    assert _values(server, "run0", "rank_1/loss") == [(0, "NaN"), (10, "NaN"), (20, "NaN"), (30, "NaN")]
    assert _values(server, "run1", "reward_mean") == [(3, "2.0")]
    assert _values(server, "run0", "gipfel/loss/input") == [(0, "21.0")]
    assert {value for _, value in _values(server, "run0", "system/nid1/gpu_0_utilization_percentage")} == {
        "50.0"
    }
    assert server.artifacts["1/run1/artifacts/gipfel/logs/rank-0.log"] == b"CUDA out of memory\n"
    assert b"S3CRET" not in b"".join(server.artifacts.values())


def test_tracking_again_changes_nothing_and_sends_nothing(run, environment):
    server = MlflowStandIn()
    _track(server, environment)
    before = {name: set(each["metrics"]) for name, each in server.runs.items()}
    again = _track(server, environment)
    assert again.points == len(describe(find_run("alps-7", environment)).results)
    assert {name: each["metrics"] for name, each in server.runs.items()} == before


@pytest.mark.parametrize("requests", [1, 3, 5, 7])
def test_an_interrupted_call_is_completed_by_the_next_one(run, environment, requests):
    whole, server = MlflowStandIn(), MlflowStandIn(fail_after=requests)
    _track(whole, environment)
    (run / "tracking.json").unlink()
    with pytest.raises(GipfelError, match="can't be reached"):
        _track(server, environment)
    server.fail_after = None
    _track(server, environment)
    assert [each["metrics"] for each in server.runs.values()] == [
        each["metrics"] for each in whole.runs.values()
    ]
    assert server.artifacts == whole.artifacts


def test_a_busy_server_is_asked_again(run, environment):
    server = MlflowStandIn(fail_next=4)
    assert _track(server, environment).complete


def test_a_running_run_is_completed_later(run, environment):
    record = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps(record | {"ended": None}))
    _log(run, 3000, {"step": 80, "loss": 0.2}, rank=0)
    server = MlflowStandIn()
    assert not _track(server, environment).complete
    assert server.runs["run0"]["status"] == "RUNNING"
    assert not server.artifacts
    assert list(pending_runs(URI, environment)) == []
    (run / "record.json").write_text(json.dumps(record))
    _log(run, 3001, {"step": 90, "loss": 0.1}, rank=0)
    assert [each.name for each in pending_runs(URI, environment)] == ["alps-7"]
    assert _track(server, environment).complete
    assert _values(server, "run0", "loss")[-1] == (90, "0.1")
    # The hardware of the whole hour, also of what was before the first call.
    steps = [step for step, _ in _values(server, "run0", "system/nid1/gpu_0_sm_active")]
    assert steps == list(range(360))
    assert list(pending_runs(URI, environment)) == []


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("file:///srv/mlruns", "is not the address"),
        ("http://", "is not the address"),
        ("http://[", "is not the address"),
        ("http://mlflow.test:99999", "is not the address"),
        ("http://mlflow.test\nX: y", "is not the address"),
        (f"http://{'a' * 64}.test", "is not the address"),
        ("http://ada:pw@mlflow.test", "must not contain a user"),
    ],
)
def test_an_address_that_is_not_a_servers_is_refused(uri, problem):
    with pytest.raises(GipfelError, match=problem):
        MlflowClient(uri)


@pytest.mark.parametrize("token", ["se cret", "secret\nX: y", "s\xe9cret", "secret\ufffd"])
def test_a_token_that_no_header_can_carry_is_refused_without_showing_it(token):
    with pytest.raises(GipfelError, match="another character that tokens don't have") as refused:
        MlflowClient("http://mlflow.test", token)
    assert "cret" not in str(refused.value)


def test_refusals_say_what_to_do(run, environment):
    with pytest.raises(GipfelError, match="refuses access") as refused:
        _track(MlflowStandIn(token="right"), environment, token="wrong")
    assert "MLFLOW_TRACKING_TOKEN" in refused.value.fix
    assert _track(MlflowStandIn(token="right"), environment, token="right").complete
    (run / "tracking.json").unlink()
    with pytest.raises(GipfelError, match="does not accept files"):
        _track(MlflowStandIn(serves_artifacts=False), environment)
    assert _track(MlflowStandIn(serves_artifacts=False), environment, files=False).complete


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("experiments/create", {"id": 5}),
        ("runs/search", {"runs": [5]}),
        ("runs/search", {"runs": {"run": 1}}),
        ("runs/create", {"run": {"info": {"run_uuid": "1"}}}),
        ("runs/create", {"run": [1]}),
        ("runs/create", {"run": {"info": {"run_id": "1", "experiment_id": "1"}, "data": {"tags": [{}]}}}),
    ],
)
def test_a_server_of_another_version_is_one_line(run, environment, path, answer):
    server = MlflowStandIn()

    def answered(request: httpx.Request) -> httpx.Response:
        is_other = request.url.path.endswith(path)
        return httpx.Response(200, json=answer) if is_other else server.answer(request)

    client = MlflowClient(URI, sleep=lambda _: None, transport=httpx.MockTransport(answered))
    with pytest.raises(GipfelError, match=r"does not answer as MLflow 3\.17 does") as refused:
        Tracker(client, "llama").track(find_run("alps-7", environment))
    assert "\n" not in refused.value.problem


def test_a_slow_server_is_one_line(run, environment):
    pauses = []

    def slow(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("timed out", request=request)

    client = MlflowClient(URI, sleep=pauses.append, transport=httpx.MockTransport(slow))
    with pytest.raises(GipfelError, match="can't be reached: timed out") as refused:
        Tracker(client, "llama").track(find_run("alps-7", environment))
    assert "Nothing is lost" in refused.value.fix
    assert len(pauses) == 4


def test_an_answer_that_never_ends_is_one_line(run, environment):
    seconds = iter(range(0, 1000, 10))

    def drip(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=(b" " for _ in range(10**6)))

    client = MlflowClient(URI, clock=lambda: next(seconds), transport=httpx.MockTransport(drip))
    with pytest.raises(GipfelError, match="the answer is not complete after 60 s"):
        Tracker(client, "llama").track(find_run("alps-7", environment))


def test_hardware_metrics_are_bounded(run):
    series = hardware_series(run, max_points=600)
    assert 6 * 30 <= sum(len(each.values) for each in series) <= 1.1 * 600
    assert all((each.step[1:] > each.step[:-1]).all() for each in series)


def test_names_are_what_mlflow_accepts():
    assert metric_name("a;b") == "a_b"
    assert metric_name("../../etc//passwd") == "etc/passwd"
    assert metric_name("loss/é\n") == "loss/__"
    assert metric_name("") == "_"
    assert len(metric_name("x" * 999)) == 250


def test_names_that_become_equal_stay_apart(environment, run):
    _log(run, 20, {"step": 1, "a;b": 1.0, "a,b": 2.0}, launch="alps-7/2")
    assert [each.name for each in user_series(run, "alps-7/2")] == ["a_b", "a_b_2"]


def test_a_damaged_state_file_is_ignored(run, environment):
    (run / "tracking.json").write_text('{"uri": 5')
    assert read_tracked(run) is None
    (run / "tracking.json").unlink()
    os.mkfifo(run / "tracking.json")
    assert read_tracked(run) is None


def test_a_crate_describes_the_run_and_its_launch(run, environment, tmp_path):
    document = describe(find_run("alps-7", environment))
    output = tmp_path / "crate.zip"
    assert write_crate(document, output, user="ada") == []
    with zipfile.ZipFile(output) as archive:
        names = set(archive.namelist())
        metadata = json.loads(archive.read("ro-crate-metadata.json"))
        assert b"S3CRET" not in b"".join(archive.read(name) for name in names)
    graph = {each["@id"]: each for each in metadata["@graph"]}
    assert {"record.json", "score.json", "launches/1/logs/rank-0.log"} <= names
    assert {each["@id"] for each in graph["./"]["hasPart"]} == names - {"ro-crate-metadata.json"}
    action, launch = graph["#alps-7"], graph["#alps-7/1"]
    assert action["actionStatus"].endswith("CompletedActionStatus")
    assert (launch["actionStatus"].rpartition("/")[2], launch["error"]) == (
        "FailedActionStatus",
        "rank 0: out of memory",
    )
    # Every reference has an entity.
    for entity in metadata["@graph"]:
        for value in entity.values():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict) and "w3id.org/ro/crate" not in each["@id"]:
                    assert each["@id"] in graph


@pytest.fixture
def served() -> Iterator[tuple[MlflowStandIn, str]]:
    """The stand-in with a token on a port, and its address."""
    server = MlflowStandIn(token="t" * 20)
    with server.listening() as address:
        yield server, address


_TRAINING = """
import json, os, sys, urllib.request
print("TOLD " + json.dumps({k: v for k, v in os.environ.items() if k.startswith("MLFLOW_")}), flush=True)
if os.environ["RANK"] == "0":
    # What the end of mlflow.start_run() does.
    body = json.dumps({"run_id": os.environ["MLFLOW_RUN_ID"], "status": "FINISHED"}).encode()
    headers = {"Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"]}
    url = os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/runs/update"
    urllib.request.urlopen(urllib.request.Request(url, body, headers))
    sys.exit(3)
"""


def test_rank_0_logs_to_the_launchs_run_whose_final_status_is_the_supervisors(served, tmp_path):
    server, uri = served
    (tmp_path / "train.py").write_text(_TRAINING)
    (tmp_path / "token").write_text(server.token)
    (tmp_path / "token").chmod(0o600)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIPFEL_RUNS": str(tmp_path / "runs"),
        "GIPFEL_SCHEDULER": "local", "GIPFEL_TRACK_TO": uri, "GIPFEL_TRACK_TOKEN_FILE": "~/token",
    }  # fmt: skip
    spec = LaunchSpec(target="train.py", launcher="srun", gpus_per_node=2)
    started = launch(spec, environment, directory=tmp_path)
    assert started.wait(90) == 3, started.state
    told = {line.rank: json.loads(line.text[5:]) for line in started.logs().lines if "TOLD" in line.text}
    assert told[0].pop("MLFLOW_TRACKING_TOKEN") == server.token
    (run_id,) = server.runs
    assert told[0] == {"MLFLOW_TRACKING_URI": uri, "MLFLOW_EXPERIMENT_ID": "1", "MLFLOW_RUN_ID": run_id}
    assert told.get(1, {}) == {}
    # The job sends the rest at its end, after the launch has ended.
    deadline = time.monotonic() + 40
    while server.runs[run_id]["status"] != "FAILED":
        assert time.monotonic() < deadline, server.runs[run_id]
        time.sleep(0.1)
    assert server.token not in "".join(
        each.read_text(errors="replace") for each in started.folder.rglob("*.json")
    )


def test_the_commands_write_and_refuse(run, environment, tmp_path, monkeypatch, capsys):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(["export", "alps-7", "-o", str(tmp_path / "run.zip"), "--to", "rocrate"]) == 0
    assert main(["export", "alps-7", "-o", str(tmp_path / "run.tar"), "--to", "rocrate"]) == 2
    # A folder elsewhere is not taken for the run of its name.
    crate = ["-o", str(tmp_path / "other.zip"), "--to", "rocrate"]
    assert main(["export", str(tmp_path / "elsewhere/alps-7"), *crate]) == 1
    assert "is not a run folder" in capsys.readouterr().err
    moved = tmp_path / "elsewhere/alps-8"
    shutil.copytree(run, moved)
    assert main(["export", str(moved), *crate]) == 0
    assert "alps-8" in capsys.readouterr().out
    assert main(["track", "alps-7"]) == 2
    assert main(["track", "--to", URI]) == 2
    for experiment in ("", "two\nlines", "x" * 501):
        assert main(["track", "alps-7", "--to", URI, "--experiment", experiment]) == 2
    assert "more than 500 characters" in capsys.readouterr().err
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)
    assert main(["track", "alps-7", "--to", URI, "--token-file", str(token)]) == 1
    assert "chmod 600" in capsys.readouterr().err
