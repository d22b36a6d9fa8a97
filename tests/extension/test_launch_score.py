"""The score of a launch: of real GPUs that its ranks had, and of nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from saturation_tables import START_NS, busy, gpu, host, table

from gipfel_extension.telemetry.ranks import RankPlace, ranks_file, ranks_text
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter
from gipfel_extension.training.launches.scored import launch_score
from gipfel_extension.training.launches.state import LaunchState

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
    place = RankPlace(0, "nid1", 7, gpu_uuid, "python3")
    ranks_file(telemetry, "nid1", "job").write_text(ranks_text([place]))


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
