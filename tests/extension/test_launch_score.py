"""The score of a launch: only of the real GPUs of its ranks."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from saturation_tables import START_NS, busy, gpu, host, table

from gipfel_extension.cli.launch import launch
from gipfel_extension.telemetry.ranks import RankLocation, ranks_file, ranks_json
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.launches.score import launch_advice_effect, launch_score
from gipfel_extension.training.record import LaunchState
from gipfel_extension.training.record.spec import LaunchPlan, LaunchSpec
from gipfel_widgets.launch_static import FollowedLaunch

_LENGTH = 20


@pytest.fixture
def telemetry(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "local-1" / "telemetry"
    folder.mkdir(parents=True)
    return folder


def _record(telemetry: Path, *, simulated: bool) -> None:
    metrics = busy(tensor=[0.8] * _LENGTH, dram=0.0, active=[1.0] * _LENGTH, engine=[1.0] * _LENGTH)
    device = replace(gpu(), simulated=simulated)
    found = table({device: metrics, host(): {"CPU_UTIL": 0.5}}, length=_LENGTH)
    origin = Provenance("nid1", "job", "a source", simulated=simulated, interval=1.0, devices=found.devices)
    writer = SegmentWriter(telemetry, origin, start_ns=START_NS)
    writer.write([sample for device in found.devices for sample in found.samples(device)])
    writer.close()


def _state(telemetry: Path, **more: object) -> LaunchState:
    end = START_NS + _LENGTH * 10**9
    times = {"started_ns": START_NS, "ended_ns": end, "updated_ns": end}
    state = {"phase": "ended", "number": 1, "run": str(telemetry.parent), **times, **more}
    return LaunchState.model_validate_json(json.dumps(state))


def _place(telemetry: Path, gpu_uuid: str | None) -> None:
    place = RankLocation(0, "nid1", 7, gpu_uuid, "python3")
    ranks_file(telemetry, "nid1", "job").write_text(ranks_json([place]))


def test_a_simulated_source_beside_a_launch_is_no_score_of_it(telemetry: Path) -> None:
    _record(telemetry, simulated=True)
    assert launch_score(_state(telemetry)) is None


def test_the_score_is_that_of_the_ranks_gpus(telemetry: Path) -> None:
    _record(telemetry, simulated=False)
    scored = launch_score(_state(telemetry))
    assert scored is not None
    assert scored["score"] > 0
    _place(telemetry, gpu().uuid)
    assert launch_score(_state(telemetry)) is not None


def test_ranks_on_cpus_beside_busy_gpus_have_none(telemetry: Path) -> None:
    _record(telemetry, simulated=False)
    _place(telemetry, None)
    assert launch_score(_state(telemetry)) is None
    # It holds GPUs of the job, though none of its processes was seen on one yet.
    assert launch_score(_state(telemetry, gpus={"nid1": [0]})) is not None


def _launched(folder: Path, telemetry: Path, number: int, active: float, *options: str) -> Path:
    """A launch of ``train.py`` that kept one GPU active for 30 s in all, with the samples of that time."""
    launch, length = folder / str(number), round(30 / active)
    launch.mkdir(parents=True)
    spec = LaunchSpec(target="train.py", arguments=options)
    place = {"folder": str(launch), "host_folder": str(launch), "directory": "/home/a"}
    plan = LaunchPlan(spec=spec, target="/home/a/train.py", **place)
    (launch / "plan.json").write_text(plan.model_dump_json())
    start_ns = START_NS + number * 1000 * 10**9
    found = table({gpu(): busy(tensor=active / 2, dram=0.0, active=active)}, length=length)
    times = found[gpu().uuid]["time_ns"]
    times += start_ns - START_NS
    origin = Provenance("nid1", f"job{number}", "nvml", simulated=False, interval=1.0, devices=found.devices)
    writer = SegmentWriter(telemetry, origin, start_ns=start_ns)
    writer.write(found.samples(gpu()))
    writer.close()
    about = {"outcome": "completed", "exit_status": 0, "started_ns": start_ns - 1}
    state = {"phase": "ended", "number": number, "run": str(telemetry.parent), "gpus": {"nid1": [0]}, **about}
    state["ended_ns"] = state["updated_ns"] = start_ns + length * 10**9
    (launch / "state.json").write_text(json.dumps(state))
    (launch / "spec.json").write_text(spec.model_dump_json())
    (launch / "command.txt").write_text("train.py\n")
    os.utime(launch / "spec.json", ns=(start_ns, start_ns))
    return launch


def test_the_next_launch_of_a_script_says_what_became_of_the_advice(
    telemetry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = telemetry.parents[1]
    environment = {"GIPFEL_RUNS": str(runs)}
    launches = telemetry.parent / "launches"
    first = _launched(launches, telemetry, 1, 0.5)
    second = _launched(launches, telemetry, 2, 0.8, "--compile")
    assert launch_advice_effect(first, environment) is None
    since = launch_advice_effect(second, environment)
    assert since is not None
    assert since.lines[0] == (
        "Since run local-1/1: you tried torch.compile (option compile, launch from 50 to 20 points): "
        "1.58 times by duration if both did the same work, 2.00 was the bound."
    )
    # The result is kept, also when the samples are gone.
    kept = json.loads((first / "score.json").read_text())
    assert {each["rule"]: each["speedup"] for each in kept["advice"]}["compile"] == [1.0, 2.0]
    for segment in telemetry.iterdir():
        segment.unlink()
    assert launch_advice_effect(second, environment) == since
    monkeypatch.setenv("GIPFEL_RUNS", str(runs))
    shown = CliRunner().invoke(launch, ["show", str(second)], standalone_mode=False)
    assert since.lines[0] in shown.stdout
    followed = FollowedLaunch(Launch(second))
    for _ in range(2):
        followed.poll()
        assert followed.document["message"].startswith(since.lines[0])
