"""``gipfel metrics``: table and document, several sources, runs, and one line for what can't be read."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from event_bytes import event, frame, simple

from gipfel_extension.cli.main import gipfel


def _events(*losses: float, first: int = 0) -> bytes:
    return b"".join(frame(event(first + i, 1.8e9 + i, simple("loss", loss))) for i, loss in enumerate(losses))


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """Two ranks' event files, a restart of rank 0, and a CSV of another training."""
    for rank in (0, 1):
        (tmp_path / f"logs/rank{rank}").mkdir(parents=True)
        path = tmp_path / f"logs/rank{rank}/events.out.tfevents.1"
        path.write_bytes(_events(4.0, 3.0, 2.0, float("nan")))
    (tmp_path / "logs/rank0/events.out.tfevents.2").write_bytes(_events(1.0, 0.5, first=2) + b"\xff" * 12)
    (tmp_path / "metrics.csv").write_text("step,loss\n0,8\n1,7\n")
    return tmp_path


def test_the_table_has_a_row_for_each_series(training: Path) -> None:
    found = CliRunner().invoke(gipfel, ["metrics", str(training)], standalone_mode=False)
    assert found.return_value == 0
    rows = [line.split() for line in found.stdout.splitlines()]
    assert rows == [
        ["source", "metric", "rank", "values", "steps", "last", "lowest", "highest", "curve"],
        ["logs/rank0", "loss", "0", "6", "0", "to", "3", "0.5", "0.5", "4", "█▆▄·▂▁"],
        ["logs/rank1", "loss", "1", "4", "0", "to", "3", "nan", "2", "4", "█▅▁·"],
        ["metrics.csv", "loss", "-", "2", "0", "to", "1", "7", "7", "8", "█▁"],
    ]
    assert found.stderr.splitlines() == [
        f"gipfel: 1 damaged entry of {training}/logs/rank0/events.out.tfevents.2 is left out.",
        "gipfel: The steps of loss go back once, as after a restart from a checkpoint.",
    ]


def test_the_document_is_one_and_has_no_nan(training: Path) -> None:
    found = CliRunner().invoke(gipfel, ["metrics", str(training), "--json"], standalone_mode=False)
    assert found.return_value == 0
    document = json.loads(found.stdout, parse_constant=pytest.fail)
    assert [(each["source"], each["rank"], each["last"]) for each in document["series"]] == [
        ("logs/rank0", 0, 0.5),
        ("logs/rank1", 1, None),
        ("metrics.csv", None, 7.0),
    ]
    first = document["series"][0]
    assert (first["restarts"], first["repeated_steps"], first["count"]) == (1, 0, 6)
    assert first["time_ns"] == 1_800_000_001 * 10**9
    assert [each["kind"] for each in document["files"]] == ["TensorBoard"] * 3 + ["CSV"]


def test_a_link_to_a_file_and_a_run_by_name_are_read(training: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = training / "link.csv"
    link.symlink_to("metrics.csv")
    found = CliRunner().invoke(gipfel, ["metrics", str(link)])
    assert "█▁" in found.stdout
    run = training / "runs/local-1"
    (run / "telemetry").mkdir(parents=True)
    (run / "telemetry/n-job.events.jsonl").write_text('{"time_ns": 1800000000000000000, "value": 1}\n')
    line = {"time_ns": 1_800_000_000 * 10**9, "monotonic_ns": 1, "node": "n", "rank": 2, "values": {"tps": 5}}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    monkeypatch.setenv("GIPFEL_RUNS", str(training / "runs"))
    found = CliRunner().invoke(gipfel, ["metrics", "local-1", "--json"])
    assert [(each["name"], each["rank"], each["last"]) for each in json.loads(found.stdout)["series"]] == [
        ("tps", 2, 5.0)
    ]


@pytest.mark.parametrize("name", ["missing", "empty", "\0"])
def test_what_has_no_metrics_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    found = CliRunner().invoke(gipfel, ["metrics", str(tmp_path / name)], standalone_mode=False)
    assert found.return_value == 2
    assert found.stdout == ""
    assert found.stderr.startswith("gipfel: ")
    assert len(found.stderr.splitlines()) == 1
