"""Flipped, cut and repeated bytes of every format: no exception, little memory, and reading ends."""

import json
import os
import random
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from event_bytes import event, frame, simple
from test_tracking_stores import WANDB

from gipfel_extension.tracking import Follower
from gipfel_extension.tracking.scalar import Scalar, SeriesTable, Shape, sparkline
from gipfel_extension.tracking.wandb_rows import HistoryRows

_MANY = 1 << 16


def _events(draw: random.Random) -> bytes:
    return b"".join(
        frame(event(i, 1.8e9 + i, simple(f"m{i % 3}", draw.random()))) for i in range(draw.randrange(30))
    )


def _csv(draw: random.Random) -> bytes:
    return b"epoch,step,loss\n" + b"".join(b"0,%d,%f\n" % (i, draw.random()) for i in range(20))


def _json_lines(draw: random.Random) -> bytes:
    return b"".join(
        json.dumps({"step": i, "loss": draw.random(), "t": {"a": 1}}).encode() + b"\n" for i in range(20)
    )


def _state(draw: random.Random) -> bytes:
    history = [{"step": i, "loss": draw.random()} for i in range(20)]
    return json.dumps({"log_history": history}, indent=2).encode()


def _mlflow(draw: random.Random) -> bytes:
    return b"".join(b"1800000000%03d %f %d\n" % (i, draw.random(), i) for i in range(20))


def _wandb(draw: random.Random) -> bytes:
    return WANDB.read_bytes()[: draw.randrange(2_000, 35_037)]


def _database(draw: random.Random) -> bytes:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE metrics (key, value, timestamp, step, is_nan, run_uuid)")
    database.execute("CREATE TABLE runs (run_uuid, name)")
    rows = [("loss", draw.random(), 1_800_000_000_000, i, 0, "r") for i in range(60)]
    database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    database.commit()
    return database.serialize()


_FORMATS: dict[str, Callable[[random.Random], bytes]] = {
    "events.out.tfevents.1": _events,
    "metrics.csv": _csv,
    "log.jsonl": _json_lines,
    "trainer_state.json": _state,
    "metrics/loss": _mlflow,
    "run-1.wandb": _wandb,
    "mlflow.db": _database,
}


def _read(directory: Path) -> int:
    follower, table = Follower(), SeriesTable()
    follower.search(directory)
    for file, scalars in follower.poll(last=True):
        assert all(type(each) is Scalar and type(each.value) is float for each in scalars)
        table.add(str(file.source), scalars)
    json.dumps([each.to_json() for each in table.series()], allow_nan=False)
    for each in table.series():
        assert len(sparkline(each.shape.means())) <= 32
    return sum(file.scalars for file in follower.files)


def _damaged(data: bytes, draw: random.Random) -> bytes:
    body = bytearray(data)
    for _ in range(draw.randrange(1, 8)):
        if body:
            body[draw.randrange(len(body))] = draw.randrange(256)
    start = draw.randrange(len(body) + 1)
    return bytes(body[:start] + body[start:] * draw.randrange(3))


@pytest.mark.parametrize("name", _FORMATS)
def test_flipped_and_cut_files_never_raise(tmp_path: Path, name: str) -> None:
    draw = random.Random(23)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    (tmp_path / "meta.yaml").touch()
    path.write_bytes(_FORMATS[name](random.Random(1)))
    assert _read(tmp_path) >= 20 or name.startswith("events")
    for _ in range(40):
        path.write_bytes(_damaged(_FORMATS[name](draw), draw))
        _read(tmp_path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("events.out.tfevents.1", frame(b"") * (_MANY // 4)),
        ("events.out.tfevents.1", frame(event(1, 1.8e9, *([b"\x0a\x01x"] * 40_000)))),
        ("log.jsonl", b'{"step":1}\n' + b"[" * _MANY + b"\n" + b'{"a":1,' * 40_000),
        ("log.jsonl", b'{"step":1}\n' + b"{}\n" * _MANY),
        ("log.jsonl", b'{"step":1}\n{"a":[' + b"[]," * 40_000 + b"0]}\n"),
        ("metrics.csv", b"step" + b"," * _MANY + b"\n" + b"," * _MANY + b"\n"),
        ("metrics.csv", b'step,a\n1,"' + b"\n" * _MANY),
        ("trainer_state.json", b'{"log_history": [' + b"{}," * _MANY),
        ("trainer_state.json", b'{"log_history": [' + b'{"a":[' + b"[]," * 40_000),
        ("trainer_state.json", b'{"log_history": [' + b" " * (16 * _MANY)),
        ("trainer_state.json", b'"log_history"' + b" " * (16 * _MANY)),
    ],
)
def test_hostile_megabytes_take_tens_of_megabytes(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    tracemalloc.start()
    try:
        _read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


_TEXTS = (
    rb"""1 -2.5e-7 NaN "NaN" Infinity -Infinity null {} "x" 1_0 1. 1e999 - -nan 123456789012345678""".split()
)
_ODD_TEXTS = (b"", b"1 ", b"9" * 41, b"\xff", b'"' + b"a" * 300 + b'"')
_KEYS = (*b"a train/loss _step _timestamp _runtime".split(), b"", b"x" * 8, b"x" * 16, b"k" * 100, b"k" * 210)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    low = bytes([value & 0x7F | (0x80 if value > 0x7F else 0)])
    return low + _varint(value >> 7) if value > 0x7F else low


def _row(draw: random.Random) -> bytes:
    """Return a record of the history, with its type before it; one in five is damaged."""
    items = b""
    for _ in range(draw.randrange(12)):
        key = draw.choice(_KEYS)
        parts = [
            b"\x0a" + _sized(key),
            b"\x12" + _sized(key),
            (b"\x12" + _sized(key[:9])) * draw.randrange(11),
        ]
        text = (
            draw.choice((*_TEXTS, *_ODD_TEXTS))
            if draw.random() < 0.5
            else repr(draw.random() * 10.0 ** draw.randint(-9, 9)).encode()
        )
        if key in (b"_step", b"_timestamp"):
            text = b"%d" % draw.randrange(10 ** draw.randint(1, 20))
        items += b"\x0a" + _sized(draw.choice(parts) + b"\x82\x01" + _sized(text))
    if draw.random() < 0.3:
        items += b"\x12" + _sized(b"\x08" + _varint(draw.randrange(10 ** draw.randint(1, 20))))
    kind = b"\x1a" if draw.random() < 0.1 else b"\x12"
    row = b"\x01\x08" + _varint(draw.randrange(10 ** draw.randint(1, 18))) + kind + _sized(items)
    if draw.random() < 0.8:
        return row
    body = bytearray(row)
    for _ in range(draw.randrange(4)):
        body[draw.randrange(len(body))] = draw.randrange(256)
    return bytes(body[: draw.randrange(1, 2 * len(body))])


def test_many_rows_of_wandb_have_the_values_that_they_have_one_by_one() -> None:
    found = 0
    for seed in range(60):
        draw = random.Random(seed)
        rows = [_row(draw) for _ in range(draw.randrange(8, 60))]
        together, alone = HistoryRows(3), HistoryRows(3)
        batch = together.read(rows)
        singly = [each for row in rows for each in alone.read([row])]
        assert list(map(repr, batch)) == list(map(repr, singly))
        assert together.damaged == alone.damaged
        assert len(batch) == len(singly)
        found += len(batch)
    assert found > 2_000


def test_links_pipes_and_directories_of_such_names_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_text('{"step": 1, "loss": 1}\n')
    inside = tmp_path / "logs"
    inside.mkdir()
    (inside / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    (inside / "loop").symlink_to(inside)
    os.mkfifo(inside / "pipe.jsonl")
    (inside / "events.out.tfevents.2").mkdir()
    assert _read(inside) == 0
    assert _read(tmp_path) == 1
    # A file that becomes a link, or a pipe, later.
    follower = Follower()
    follower.search(tmp_path)
    (tmp_path / "real.jsonl").unlink()
    os.mkfifo(tmp_path / "real.jsonl")
    assert list(follower.poll()) == []
    assert follower.files[0].problem == "it can't be read: it is not a regular file"


def test_a_shape_has_bounded_memory_and_the_means_of_all_values() -> None:
    shape = Shape()
    for value in range(1000):
        shape.add(float(value))
    means = shape.means()
    assert 16 <= len(means) <= 32
    assert means == sorted(means)
    assert means[0] == 15.5
    assert sparkline(means)[0] + sparkline(means)[-1] == "▁█"
    assert sparkline([1.0, float("nan"), 1.0]) == "▁·▁"
    assert sparkline([-1.7e308, 0.1e308, 1.7e308]) == "▁▅█"
