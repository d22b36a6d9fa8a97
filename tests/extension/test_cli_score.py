"""``gipfel score``: the contract of its document, its lines and its exit statuses."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from saturation_tables import START_NS, busy, gpu, host, table

from gipfel_extension.cli import main
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter, write_parquet

KEYS = {"score", "binding", "losses", "bottleneck", "advice", "confidence", "gpus"}
LOSSES = [
    "idle",
    "input",
    "launch",
    "occupancy",
    "imbalance",
    "communication",
    "checkpoint",
    "capped",
    "start_up",
    "unexplained",
]


@pytest.fixture
def gipfel(tmp_path, monkeypatch, capsys):
    """Runs the command in this process; gives its exit status and what it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path / "runs"))

    def call(*words: str) -> tuple[int, str, str]:
        status = main(list(words))
        written = capsys.readouterr()
        return status, written.out, written.err

    return call


def starved():
    """Two GPUs that wait for input half of the time."""
    on = [1.0] * 10 + [0.0] * 10
    metrics = busy(tensor=[0.8] * 10 + [0.0] * 10, dram=0.0, active=on, engine=on)
    series = {gpu(): metrics, gpu(1): metrics, host(): {"CPU_CORES_USED": 8.0, "CPU_UTIL": 0.5}}
    return table(series, length=20)


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder with one segment that was not closed, and a record."""
    folder = tmp_path / "runs" / "alps-4711"
    telemetry = folder / "telemetry"
    telemetry.mkdir(parents=True)
    found = starved()
    origin = Provenance("nid1", "job", "host, nvml+gpm", simulated=False, interval=1.0, devices=found.devices)
    writer = SegmentWriter(telemetry, origin, start_ns=START_NS)
    writer.write([sample for device in found.devices for sample in found.samples(device)])
    (folder / "record.json").write_text(json.dumps({"edf": {"name": "ngc-25.05"}}))
    return folder


def test_the_document(gipfel, run):
    status, written, told = gipfel("score", str(run), "--json")
    document = json.loads(written)
    assert (status, told, written.count("\n")) == (0, "", 1)
    assert set(document) >= KEYS
    assert list(document["losses"]) == LOSSES
    assert set(document["binding"]) == {"compute", "memory", "interconnect"}
    assert document["score"] == pytest.approx(40.0, abs=0.01)
    assert document["score"] + sum(document["losses"].values()) == pytest.approx(100.0, abs=0.01)
    assert document["bottleneck"] == "input"
    assert 0.0 < document["confidence"] < 1.0
    assert [each["uuid"] for each in document["gpus"]] == [gpu().uuid, gpu(1).uuid]
    assert document["gpus"][0]["utilization"] == 1.0
    own = document["advice"][0]
    assert own["rule"] == "loader-workers"
    assert own["evidence"][0]["device"] == gpu().uuid
    assert own["knob"]["link"].startswith("https://")


def test_the_lines(gipfel, run):
    status, written, _ = gipfel("score", str(run))
    lines = written.splitlines()
    assert status == 0
    assert lines[0] == "GIPFEL   nid1 · 2 \u00d7 H100 80GB HBM3 · ngc-25.05"
    assert lines[1].startswith("Saturation   alps-4711   20 s, a sample every 1 s, confidence 0.")
    assert lines[2].endswith("┃ bottleneck: input")
    assert lines[3] == "60 points lost: input 50 · unexplained 10"
    assert max(len(line) for line in lines) <= 80
    assert "\x1b" not in written


def test_a_run_by_its_name(gipfel, run):
    assert gipfel("score", "alps-4711", "--json")[:2] == gipfel("score", str(run), "--json")[:2]


def test_without_a_name_it_is_the_jobs_own_run_else_the_newest_with_samples(
    gipfel, run, tmp_path, monkeypatch
):
    newer = run.with_name("alps-4712-vet")
    (newer / "telemetry").mkdir(parents=True)
    assert json.loads(gipfel("score", "--json")[1])["run"] == "alps-4711"
    assert gipfel("report", "--static")[:2] == (0, gipfel("report", "alps-4711", "--static")[1])
    own = tmp_path / "elsewhere" / "alps-7"
    shutil.copytree(run, own)
    monkeypatch.setenv("GIPFEL_RUN", str(own))
    assert json.loads(gipfel("score", "--json")[1])["run"] == "alps-7"
    monkeypatch.delenv("GIPFEL_RUN")
    shutil.rmtree(run)
    status, written, told = gipfel("score")
    assert (status, written) == (2, "")
    assert told == f"gipfel: There is no run in {tmp_path}/runs yet. Record one: gipfel record -- PROGRAM\n"


def test_weights_and_model(gipfel, tmp_path):
    write_parquet(
        table({gpu(name=""): busy(tensor=0.1, dram=0.9, NVLINK_TX_BYTES=45e9)}, length=5),
        tmp_path / "t.parquet",
    )
    plain = json.loads(gipfel("score", "t.parquet", "--json")[1])
    named = json.loads(gipfel("score", "t.parquet", "--json", "--gpu", "H100")[1])
    weighted = json.loads(gipfel("score", "t.parquet", "--json", "--weight", "memory=0.5")[1])
    assert (plain["score"], weighted["score"]) == (100.0, 50.0)
    assert (plain["gpus"][0]["ceilings"], named["gpus"][0]["ceilings"]) == (None, "H100")
    assert named["gpus"][0]["levels"]["interconnect"] == pytest.approx(0.1)
    assert gipfel("score", "t.parquet", "--weight", "disk=1")[0] == 2
    assert gipfel("score", "t.parquet", "--weight", "memory=-1")[0] == 2


def test_without_a_score_it_can_still_be_read(gipfel, tmp_path):
    write_parquet(table({gpu(): {"GPU_UTIL": 1.0}}, length=5), tmp_path / "t.parquet")
    status, written, _ = gipfel("score", "t.parquet", "--json")
    document = json.loads(written)
    assert (status, document["score"], document["bottleneck"], document["confidence"]) == (0, None, None, 0.0)
    assert any("utilization alone" in note for note in document["notes"])


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_what_cannot_be_read_is_2_and_one_line(gipfel, tmp_path, arguments):
    (tmp_path / "odd").write_bytes(b"\x00\x1b[31mno recording")
    (tmp_path / "empty").mkdir()
    for name in ("odd", "empty", "gone"):
        status, written, told = gipfel("score", name, *arguments)
        assert (status, written, told.count("\n")) == (2, "", 1)
        assert "\x1b" not in told
    assert gipfel("score")[0] == 2


def test_a_file_is_not_saved_and_that_is_said_before_it_is_read(gipfel, tmp_path):
    (tmp_path / "big.json").write_text("not even a recording")
    status, written, told = gipfel("score", str(tmp_path / "big.json"), "--save")
    assert (status, written) == (1, "")
    assert "big.json is not a run folder." in told


def test_what_a_format_lost_is_said(gipfel, tmp_path):
    content = {
        "metadata": {
            "job_id": 1,
            "step_id": 0,
            "hostname": "n",
            "proc_id": 0,
            "n_gpus": 4,
            "sampling_time": 500,
        },
        "data": {"0": {"sm_active": [0.5] * 9, "tensor_active": [0.5] * 9, "gpu_utilization": [100] * 9}},
    }
    (tmp_path / "x.json").write_text(json.dumps(content))
    assert "gssr wrote 1 of the 4 GPUs" in gipfel("score", "x.json")[1]
    assert any("1 of the 4" in note for note in json.loads(gipfel("score", "x.json", "--json")[1])["notes"])


def test_piped_it_has_no_colour_and_any_locale_will_do(run):
    command = [sys.executable, "-m", "gipfel_extension.cli", "score", str(run)]
    done = subprocess.run(
        command,
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "TERM": "xterm"},
        timeout=60,
        check=True,
    )
    assert b"\x1b" not in done.stdout
    assert done.stdout.decode().startswith("GIPFEL")


def test_it_needs_no_web_server():
    probe = (
        "import sys; sys.modules.update(dict.fromkeys(('tornado', 'pydantic', 'jupyter_server', 'zmq')));"
        "import gipfel_extension.saturation, gipfel_extension.telemetry.imports;"
        "print('pyarrow' in sys.modules, 'matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split()[1] == "False"
