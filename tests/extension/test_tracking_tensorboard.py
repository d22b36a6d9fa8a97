"""TensorBoard event files: values, growing, damaged and hostile files."""

import math
import os
import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from event_bytes import event, frame, masked, part, simple, varint

from gipfel_extension.tracking.growing_file import GrowingFile
from gipfel_extension.tracking.scalar import MAX_NAMES, Reader, Scalar
from gipfel_extension.tracking.tensorboard import TensorBoardReader, open_tensorboard

_FILES = Path(__file__).parent / "data/event_files"


def read_all(reader: Reader, *, last: bool = False) -> list[Scalar]:
    found: list[Scalar] = []
    while (piece := reader.read(last=last)) is not None:
        found += piece
    return found


def _float(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


@pytest.mark.parametrize("name", ["torch_simple_value", "torch_tensor"])
def test_files_of_torchs_writer_have_the_values_that_were_written(name: str) -> None:
    """Both also hold a text, a histogram and an image, which are no scalars."""
    reader = open_tensorboard(_FILES / f"{name}.tfevents.bin", 3)
    found = read_all(reader)
    assert reader.damaged == 0
    assert {each.rank for each in found} == {3}
    loss = [(each.step, each.time_ns, each.value) for each in found if each.name == "train/loss"]
    start = 1_800_000_000_250_000_000
    assert loss == [(i, start + i * 10**9, _float(2.0 / (i + 1))) for i in range(40)]
    rate = [(each.step, each.value) for each in found if each.name == "ü/learning rate"]
    assert rate == [(1000 * i, _float(1e-4 * i)) for i in range(40)]
    odd = [(each.step, repr(each.value)) for each in found if each.name == "odd"]
    assert odd == [(3, "nan"), (4, "inf"), (-7, "-1.5"), (2**40, "0.0")]
    assert [each.value for each in found if each.name == "x" * 150] == [1.0]
    double = next(each.value for each in found if each.name == "double")
    assert double == (1 / 3 if name == "torch_tensor" else _float(1 / 3))
    assert len(found) == 86


def test_the_packages_own_reader_has_the_same_values() -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    tensor_util = pytest.importorskip("tensorboard.util.tensor_util")
    for path in sorted(_FILES.iterdir()):
        plugins: dict[str, str] = {}
        theirs = []
        for each in loader.EventFileLoader(str(path)).Load():
            for value in each.summary.value if each.HasField("summary") else ():
                if value.HasField("metadata"):
                    plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
                if plugins.get(value.tag) == "scalars":
                    number = float(tensor_util.make_ndarray(value.tensor).item())
                    theirs.append((value.tag, each.step, round(each.wall_time * 1e9), repr(number)))
        ours = read_all(open_tensorboard(path))
        assert [(each.name, each.step, each.time_ns, repr(each.value)) for each in ours] == theirs


def test_tensors_of_each_number_type_and_several_values_in_one_summary(tmp_path: Path) -> None:
    half = struct.unpack("<H", struct.pack("<e", 1.5))[0]
    tensors = {
        "packed": b"\x08\x01" + part(5, struct.pack("<f", 0.25)),
        "raw": b"\x08\x02" + part(4, struct.pack("<d", 0.1)),
        "int32": b"\x08\x03" + part(7, varint(-5)),
        "int64": b"\x08\x09" + b"\x50" + varint(2**40),
        "half": b"\x08\x13" + part(13, varint(half)),
        "bfloat16": b"\x08\x0e" + part(13, varint(0x3FC0)),
    }
    no_scalars = {
        "text": b"\x08\x07" + part(8, b"hello"),
        "matrix": b"\x08\x01" + part(2, part(2, b"\x08\x01")) + part(5, struct.pack("<f", 1.0)),
        "empty": b"\x08\x01",
    }
    values = [part(1, name.encode()) + part(8, each) for name, each in {**tensors, **no_scalars}.items()]
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(frame(event(7, 1.8e9, *values, simple("last", 2.0))))
    reader = open_tensorboard(path)
    assert {each.name: each.value for each in read_all(reader)} == {
        "packed": 0.25,
        "raw": 0.1,
        "int32": -5.0,
        "int64": 2.0**40,
        "half": 1.5,
        "bfloat16": 1.5,
        "last": 2.0,
    }
    assert reader.damaged == 0


def test_a_growing_file_is_read_once_whatever_the_pieces(tmp_path: Path) -> None:
    draw = random.Random(5)
    records = [frame(event(i, 1.8e9 + i, simple("loss", i / 8))) for i in range(200)]
    # A record that is longer than any scalar, and is skipped.
    records.insert(100, frame(b"\x1a" + varint(2_000_000) + bytes(2_000_000)))
    data = b"".join(records)
    path = tmp_path / "events.out.tfevents.1"
    reader = open_tensorboard(path)
    assert reader.read() is None
    found: list[Scalar] = []
    cuts = sorted([*(draw.randrange(len(data)) for _ in range(60)), *range(40), len(data)])
    with path.open("wb") as file:
        for start, end in zip([0, *cuts], cuts, strict=False):
            file.write(data[start:end])
            file.flush()
            found += read_all(reader)
    assert [(each.step, each.value) for each in found] == [(i, i / 8) for i in range(200)]
    assert reader.damaged == 0
    # Truncated and begun again.
    path.write_bytes(frame(event(5, 1.8e9, simple("loss", 9.0))))
    assert [each.value for each in read_all(reader)] == [9.0]


def test_damage_costs_what_is_damaged(tmp_path: Path) -> None:
    records = [frame(event(i, 1.8e9, simple("loss", float(i)))) for i in range(6)]
    records[1] = records[1][:-9] + bytes([records[1][-9] ^ 1]) + records[1][-8:]
    records[2] = frame(b"\x0b\xff\xff")
    records[3] = frame(event(3, math.nan, simple("loss", 3.0)))
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(b"".join(records))
    reader = open_tensorboard(path)
    assert [(each.step, each.time_ns) for each in read_all(reader)] == [
        (0, 1_800_000_000_000_000_000),
        (3, None),
        (4, 1_800_000_000_000_000_000),
        (5, 1_800_000_000_000_000_000),
    ]
    assert reader.damaged == 2
    # After a wrong length, nothing can be found any more: reported once.
    path.write_bytes(records[0] + b"\xff" * 12 + records[4])
    broken = open_tensorboard(path)
    assert len(read_all(broken)) == 1
    assert read_all(broken) == []
    assert broken.damaged == 1


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 1 << 40])
def test_a_length_that_is_not_there_takes_no_memory_and_ends(tmp_path: Path, length: int) -> None:
    header = struct.pack("<Q", length)
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(frame(event(1, 1.8e9, simple("loss", 1.0))) + header + masked(header) + b"rest")
    reader = open_tensorboard(path)
    assert [each.value for each in read_all(reader)] == [1.0]
    assert reader.read() is None


def test_names_are_limited_in_number_and_length(tmp_path: Path) -> None:
    values = [simple(f"m{i}", 1.0) for i in range(MAX_NAMES + 50)]
    path = tmp_path / "events.out.tfevents.1"
    records = [frame(event(1, 1.8e9, *values[i : i + 100])) for i in range(0, len(values), 100)]
    path.write_bytes(frame(event(1, 1.8e9, simple("x" * 300, 1.0))) + b"".join(records))
    reader = open_tensorboard(path)
    assert len(read_all(reader)) == MAX_NAMES
    assert reader.damaged == 51


def test_random_bytes_never_raise(tmp_path: Path) -> None:
    draw = random.Random(11)
    path = tmp_path / "events.out.tfevents.1"
    for _ in range(150):
        body = bytearray(event(3, 1.8e9, simple("loss", 1.0), part(1, b"t") + part(8, b"\x08\x01")))
        for _ in range(draw.randrange(1, 6)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        path.write_bytes(frame(bytes(body[: draw.randrange(1, len(body) + 1)])))
        read_all(TensorBoardReader(GrowingFile(path)))


def test_an_event_file_of_sixteen_gigabytes_is_read_in_bounded_time_and_memory(tmp_path: Path) -> None:
    """It holds records of 16 MiB, as holes, and a scalar after each of them."""
    path = tmp_path / "events.out.tfevents.1"
    image, count = 16 << 20, 1024
    header = struct.pack("<Q", image)
    with path.open("wb") as file:
        for step in range(count):
            file.write(header + masked(header))
            file.seek(image + 4, os.SEEK_CUR)
            file.write(frame(event(step, 1.8e9 + step, simple("loss", step / 8))))
    assert path.stat().st_size > 16 << 30
    reader = open_tensorboard(path)
    tracemalloc.start()
    began = time.process_time()
    found = read_all(reader)
    took, most = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(each.step, each.value) for each in found] == [(step, step / 8) for step in range(count)]
    assert reader.damaged == 0
    assert most < 64 << 20
    assert took < 20
