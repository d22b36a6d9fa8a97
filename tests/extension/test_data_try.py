"""``gipfel data try``: samples per second by format and workers, beside what a run ate."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli.main import gipfel, main
from gipfel_extension.data.trial import Rate, Trial, TrialRequest, try_data
from gipfel_extension.data.trial_advice import Demand, advise, demand_of
from gipfel_extension.data.webdataset import ShardRequest, write_shards
from gipfel_extension.storage import Period, RankRow, StorageFile

_GIPFEL = Path(sys.executable).with_name("gipfel")
needs_mounts = pytest.mark.skipif(
    shutil.which("squashfuse") is None
    or shutil.which("mksquashfs") is None
    or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="squashfuse, mksquashfs and /dev/fuse are needed",
)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Write 120 samples, each a picture and its label, with odd names among them."""
    root = tmp_path / "set"
    for number in range(120):
        folder = root / f"n{number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04}.jpg").write_bytes(os.urandom(2000))
        (folder / f"{number:04}.cls").write_text("7")
    return root


@needs_mounts
def test_each_format_is_measured_cold_and_warm_and_nothing_is_left(samples: Path) -> None:
    shown = CliRunner().invoke(
        gipfel, ["data", "try", str(samples), "--workers", "1,2", "--seconds", "0.1", "--json"]
    )
    document = json.loads(shown.stdout)
    assert (document["samples"], document["bytes"], document["complete"]) == (120, 120 * 2001, True)
    found = {(each["format"], each["workers"]): each for each in document["rates"]}
    assert found.keys() == {(name, count) for name in ("files", "squashfs", "shards") for count in (1, 2)}
    for each in found.values():
        assert each["cold"] > 0
        assert each["warm"] > 0
        assert each["sample_bytes"] == 2001
    assert [path.name for path in samples.parent.iterdir()] == ["set"]
    assert (
        "squashfs" not in Path("/proc/self/mounts").read_text()
        or str(samples.parent) not in Path("/proc/self/mounts").read_text()
    )


def test_a_table_names_formats_and_the_demand_of_a_run(samples: Path, tmp_path: Path) -> None:
    run = _run(tmp_path, {"samples/s": [90.0, 100.0, 110.0]}, input_loss=50.0)
    shown = CliRunner().invoke(
        gipfel,
        [
            "data",
            "try",
            str(samples),
            "--workers",
            "1",
            "--seconds",
            "0.1",
            "--format",
            "files",
            "--run",
            str(run),
        ],
    )
    text = " ".join(shown.output.split())
    assert "small files 1 " in text
    assert "The run got 100 samples/s on 1 node, by the logged metric 'samples/s'." in text
    assert "Of its time 50 % was waiting, so it needs 200." in text
    assert "1 worker, as the data is now:" in text


def test_shards_that_are_not_those_of_their_index_are_refused(samples: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    first, *_ = write_shards(ShardRequest(samples, shards, 100_000)).shardlist
    request = TrialRequest(shards, (1,), 0.1)
    assert try_data(request).samples == 120
    whole = (shards / first.url).read_bytes()
    (shards / first.url).write_bytes(whole[:-1024])
    with pytest.raises(GipfelError, match=rf"{first.url} is damaged: it is not as the index says"):
        try_data(request)
    (shards / first.url).unlink()
    with pytest.raises(GipfelError, match=rf"{first.url} is missing"):
        try_data(request)


def test_what_cannot_be_tried_is_one_line(
    tmp_path: Path, samples: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.sqsh").write_bytes(b"hsqs" + bytes(100))
    for path, status in (("none", 2), ("empty", 1), ("cut.sqsh", 1)):
        assert main(["data", "try", str(tmp_path / path), "--seconds", "0.1", "--workers", "1"]) == status, (
            path
        )
    lines = [
        line
        for line in capfd.readouterr().err.splitlines()
        if "workers:" not in line and "listing" not in line
    ]
    assert len(lines) <= 5
    assert not any("Traceback" in line for line in lines)
    assert main(["data", "try", str(samples), "--workers", "0"]) == 2
    assert main(["data", "try", str(samples), "--workers", "two"]) == 2


def test_a_sample_that_disappears_ends_one_worker_and_is_named(samples: Path) -> None:
    removed: list[Path] = []

    def on_stage(stage: str) -> None:
        if stage.startswith("files") and not removed:
            removed.extend(samples.rglob("*.jpg"))
            for path in removed:
                path.unlink()

    trial = try_data(TrialRequest(samples, (1,), 0.1, ("files",), on_stage=on_stage))
    assert any("A worker stopped early: " in note and "No such file" in note for note in trial.notes)
    with pytest.raises(GipfelError, match="can't be listed"):
        try_data(TrialRequest(samples.parent / "set" / "none", (1,), 0.1, ("files",)))


def test_ctrl_c_prints_what_was_measured_and_leaves_nothing(samples: Path) -> None:
    process = subprocess.Popen(
        [_GIPFEL, "data", "try", samples, "--workers=1,2,3", "--seconds=0.3", "--format=files", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "files, workers: 2" in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    document = json.loads(output)
    assert process.returncode == 130
    assert document["complete"] is False
    assert [each["workers"] for each in document["rates"]] == [1]
    deadline = time.monotonic() + 5
    while _readers(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _readers(process.pid)


def _readers(parent: int) -> list[str]:
    argv = ["pgrep", "-P", str(parent), "-fa", "sample_reader"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()


def _run(folder: Path, metrics: dict[str, list[float]], input_loss: float | None = None) -> Path:
    run = folder / "run"
    (run / "telemetry").mkdir(parents=True)
    with (run / "metrics.jsonl").open("w") as file:
        for name, values in metrics.items():
            for number, value in enumerate(values):
                for rank in (0, 1):
                    line = {"time_ns": 10**18 + number, "monotonic_ns": number, "node": "n1", "rank": rank,
                            "values": {name: value}}  # fmt: skip
                    file.write(json.dumps(line) + "\n")
    if input_loss is not None:
        (run / "score.json").write_text(json.dumps({"losses": {"input": input_loss}}))
    return run


def test_a_runs_demand_is_its_logged_rate_or_its_reads(tmp_path: Path) -> None:
    logged = demand_of(_run(tmp_path, {"train/images_per_sec": [50.0], "loss": [1.0]}), 2000.0)
    assert logged is not None
    assert (logged.eaten, logged.needed, logged.nodes) == (50.0, 50.0, 1)
    bare = tmp_path / "bare"
    bare.mkdir()
    assert demand_of(bare, 2000.0) is None
    for node in ("n1", "n2"):
        rank = RankRow(0, 1e6, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
        StorageFile(bare, node).append(Period(node, 10**18, 10.0, "", (rank,), (), ()), [])
    found = demand_of(bare, 2000.0)
    assert found is not None
    assert (found.eaten, found.nodes, found.per_node) == (1000.0, 2, 500.0)
    assert found.source == "the bytes that its processes read"


def _trial(*rates: tuple[str, int, float, float], size: int = 10**9) -> Trial:
    made = tuple(
        Rate(format=name, workers=count, cold=cold, warm=warm, sample_bytes=1e4)
        for name, count, cold, warm in rates
    )
    return Trial(data="/set", tier="shared", samples=10, bytes=size, rates=made, notes=())


def _needed(rate: float) -> Demand:
    return Demand(eaten=rate, needed=rate, nodes=1, input_loss=None, source="a metric")


def test_the_cheapest_change_that_suffices_is_named() -> None:
    trial = _trial(
        ("files", 1, 100, 900), ("files", 4, 300, 3000), ("squashfs", 1, 400, 800),
        ("squashfs", 4, 1500, 3000), ("shards", 4, 5000, 6000),
    )  # fmt: skip
    for rate, words in (
        (80, "1 worker, as the data is now"),
        (250, "4 workers, as the data is now"),
        (350, "Packing (gipfel data pack DATA OUT.sqsh, no change of code) and 1 worker"),
        (1200, "and 4 workers"),
        (4000, "Shards (gipfel data pack DATA OUT --to webdataset"),
        (5300, "Only warm (cached) samples are read fast enough"),
        (9000, "No tried format gives 9,000 samples/s per node: the fastest is shards with 4 workers, 5,000"),
    ):
        found = advise(trial, _needed(rate), memory_bytes=2e9)
        assert words in found.sentence, (rate, found.sentence)
        assert (found.rate is None) == (rate == 9000)
    assert "fits into the free memory" in advise(trial, _needed(5300), memory_bytes=2e9).sentence
    assert "does not fit into free memory" in advise(trial, _needed(5300), memory_bytes=1e8).sentence
