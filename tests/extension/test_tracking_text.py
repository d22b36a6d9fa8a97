"""Metric files of text: CSV, JSON lines, trainer_state.json and MLflow's file store."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from gipfel_extension.tracking.growing_file import PIECE_BYTES, GrowingFile
from gipfel_extension.tracking.mlflow import MlflowReader
from gipfel_extension.tracking.scalar import Reader, Scalar
from gipfel_extension.tracking.text_formats import CsvReader, JsonLinesReader
from gipfel_extension.tracking.trainer_state import TrainerStateReader

_START_NS = 1_800_000_000_000_000_000


def read_all(reader: Reader, *, last: bool = False) -> list[Scalar]:
    found: list[Scalar] = []
    while (piece := reader.read(last=last)) is not None:
        found += piece
    return found


def _values(found: list[Scalar]) -> list[tuple[str, int | None, float]]:
    return [(each.name, each.step, each.value) for each in found]


def test_lightnings_csv_and_its_rewrites(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    reader = CsvReader(GrowingFile(path))
    assert reader.read() is None
    path.write_text("epoch,step,train_loss\n0,49,0.5\n0,99,0.25\n")
    assert _values(read_all(reader)) == [
        ("epoch", 49, 0.0),
        ("train_loss", 49, 0.5),
        ("epoch", 99, 0.0),
        ("train_loss", 99, 0.25),
    ]
    with path.open("a") as file:
        file.write("1,149,nan\n1,19")
        file.flush()
        name, step, value = _values(read_all(reader))[-1]
        assert (name, step, repr(value)) == ("train_loss", 149, "nan")
    # A new metric: CSVLogger writes the whole file again, with a longer header and all earlier rows.
    path.write_text("epoch,step,train_loss,val_loss\n0,49,0.5,\n0,99,0.25,\n1,149,nan,\n1,199,,0.75\n")
    assert _values(read_all(reader)) == [("epoch", 199, 1.0), ("val_loss", 199, 0.75)]
    assert reader.damaged == 0
    # Another training in the same file.
    path.write_text("epoch,step,train_loss\n0,49,0.125\n")
    assert ("train_loss", 49, 0.125) in _values(read_all(reader, last=True))


def test_csv_columns_of_times_and_ranks_and_rows_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(
        b'\xef\xbb\xbfstep,time_ns,rank,loss,"a, b"\r\n'
        b"1,1800000000000000001,3,0.5,2\r\n"
        b"x,1,-1,inf,text\r\n"
        b"1,2,3,4,5,6\r\n"
        b"1e400,,,-1e999,\r\n"
    )
    reader = CsvReader(GrowingFile(path), 7)
    assert read_all(reader) == [
        Scalar("loss", 1, _START_NS + 1, 0.5, 3),
        Scalar("a, b", 1, _START_NS + 1, 2.0, 3),
        Scalar("loss", None, None, math.inf, 7),
        Scalar("loss", None, None, -math.inf, 7),
    ]
    assert reader.damaged == 1


def test_json_lines_of_several_programs(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines: list[Any] = [
        {"step": 1, "loss": 0.5, "note": "x", "ok": True},
        {"_step": 2, "_timestamp": 1.8e9, "train": {"loss": 0.25, "deep": {"a": {"b": {"too": 1}}}}},
        {"time_ns": _START_NS + 1, "rank": 4, "values": {"loss": 0.125, "step": 3}},
        [1],
        {"step": 10**400, "big": 10**400, "loss": float("nan")},
    ]
    text = "\n".join(json.dumps(each) for each in lines) + "\nnonsense\n" + '{"step": 9, "loss": 1'
    path.write_text(text)
    reader = JsonLinesReader(GrowingFile(path), 7)
    found = read_all(reader)
    assert found[:3] == [
        Scalar("loss", 1, None, 0.5, 7),
        Scalar("train/loss", 2, _START_NS, 0.25, 7),
        Scalar("loss", 3, _START_NS + 1, 0.125, 4),
    ]
    assert (found[-1].step, repr(found[-1].value)) == (None, "nan")
    assert reader.damaged == 2
    with path.open("a") as file:
        file.write(".5}\n")
    assert _values(read_all(reader)) == [("loss", 9, 1.5)]


def test_lines_and_holes_of_any_length_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.write(b'{"step": 1, "loss": 1}\n')
        file.write(b"x" * (2 * PIECE_BYTES) + b'\n{"step": 2, "loss": 2}\n')
        # A terabyte that costs nothing to write.
        file.seek(1 << 40)
        file.write(b'\n{"step": 3, "loss": 3}\n')
        file.truncate(1 << 41)
    reader = JsonLinesReader(GrowingFile(path))
    assert [each.value for each in read_all(reader, last=True)] == [1.0, 2.0, 3.0]
    assert reader.damaged >= 1


def _save(directory: Path, count: int, time_s: int, extra: str = "") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    history: list[dict[str, Any]] = [
        {"epoch": i / 4, "loss": 1 / (i + 1), "step": 10 * i} for i in range(count)
    ]
    path = directory / "trainer_state.json"
    path.write_text(
        json.dumps({"best": None, "log_history": history, "is_hyper": {"a": [1]}}, indent=2) + extra
    )
    os.utime(path, (time_s, time_s))


def test_the_newest_trainer_state_is_read_and_nothing_twice(tmp_path: Path) -> None:
    output = tmp_path / "out"
    _save(output / "checkpoint-20", 3, 100)
    reader = TrainerStateReader(output / "checkpoint-20/trainer_state.json", 1)
    found = read_all(reader)
    assert _values(found) == [
        (name, 10 * i, value) for i in range(3) for name, value in (("epoch", i / 4), ("loss", 1 / (i + 1)))
    ]
    assert {(each.rank, each.time_ns) for each in found} == {(1, None)}
    _save(output / "checkpoint-40", 5, 200)
    assert [each.step for each in read_all(reader)] == [30, 30, 40, 40]
    # After the training, the output directory itself has the last state.
    _save(output, 6, 300)
    assert [each.step for each in read_all(reader)] == [50, 50]
    assert read_all(reader) == []
    assert reader.damaged == 0


def test_a_trainer_state_that_is_being_written_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    _save(tmp_path, 6, 100)
    path = tmp_path / "trainer_state.json"
    text = path.read_text()
    path.write_text(text[: text.index('"step": 40')])
    os.utime(path, (100, 100))
    reader = TrainerStateReader(path)
    assert {each.step for each in read_all(reader)} == {0, 10, 20, 30}
    assert reader.damaged == 1
    path.write_text(text)
    os.utime(path, (101, 101))
    assert {each.step for each in read_all(reader)} == {40, 50}
    assert reader.damaged == 1


@pytest.mark.parametrize(
    "text",
    ["", "[" * 100_000, '{"log_history": [' + '{"a":' * 100_000, '{"log_history": [' + "{},[" * 9, "\0" * 99],
)
def test_hostile_trainer_states_have_no_values(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    reader = TrainerStateReader(path)
    assert read_all(reader) == []
    assert reader.damaged == 1


def test_mlflows_file_store(tmp_path: Path) -> None:
    run = tmp_path / "mlruns/0/abc"
    path = run / "metrics/train/loss"
    path.parent.mkdir(parents=True)
    (run / "meta.yaml").write_text("run_id: abc\n")
    path.write_text(
        "1800000000001 0.5 1\n1800000000002 nan 2\n1800000000003 0.25\n"
        "1800000000004 0.125 4 data 0123\nnonsense\n1 2 3 4 5 6\n"
        "99999999999999999999999 1 1\n1800000000005 0.0"
    )
    reader = MlflowReader(path)
    found = read_all(reader)
    assert [(each.name, each.step, each.time_ns) for each in found] == [
        ("train/loss", 1, _START_NS + 10**6),
        ("train/loss", 2, _START_NS + 2 * 10**6),
        ("train/loss", 0, _START_NS + 3 * 10**6),
        ("train/loss", 4, _START_NS + 4 * 10**6),
        ("train/loss", 1, None),
    ]
    assert math.isnan(found[1].value)
    assert reader.damaged == 2
    assert [each.value for each in read_all(reader, last=True)] == [0.0]
