"""A time range of a long segment: the same samples, from a part of its bytes."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gipfel_extension.telemetry.sample import Device, Sample, SampleTable
from gipfel_extension.telemetry.store import stream_part
from gipfel_extension.telemetry.store.segment_stream import read_stream
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter, read_samples

START = 1_700_000_000 * 10**9
DEVICES = tuple(Device(f"GPU-{n}", "gpu", "NVIDIA GH200 120GB", n, node="n1") for n in range(4))
ORIGIN = Provenance("n1", "job", "nvml+gpm", simulated=False, interval=1.0, devices=DEVICES)
_BATCHES = 700


def write(folder: Path, seconds: Callable[[int], list[float]], *, batches: int = _BATCHES) -> Path:
    """A segment whose n-th batch holds samples of some seconds, of a clock that is never set."""
    folder.mkdir(exist_ok=True)
    noise = np.random.default_rng(1)
    writer = SegmentWriter(folder, ORIGIN, start_ns=START)
    for batch in range(batches):
        samples = []
        for second in seconds(batch):
            for device in DEVICES:
                values = {"SM_ACTIVE": float(noise.random()), "POWER_USAGE": float(noise.random())}
                samples.append(Sample(START + int(second * 1e9), int(second * 1e9), device.uuid, values))
        writer.write(samples)
    return writer.path


def evenly(batch: int) -> list[float]:
    return [2.0 * batch, 2.0 * batch + 1]


def with_a_pause(batch: int) -> list[float]:
    return [2.0 * batch + (86_400 if batch > 100 else 0)]


def of_many_sizes(batch: int) -> list[float]:
    # From one sample to twenty in a batch, which an even guess misses by far.
    return [20.0 * batch + step for step in range(1 + batch * 19 // _BATCHES)]


def cut(table: SampleTable, since_ns: int | None, until_ns: int | None) -> dict[str, dict[int, float]]:
    first, last = since_ns or 0, until_ns or 2**63 - 1
    found = {}
    for device in DEVICES:
        columns = table[device.uuid]
        pairs = zip(columns["time_ns"].tolist(), columns["SM_ACTIVE"].tolist(), strict=True)
        found[device.uuid] = {time: value for time, value in pairs if first <= time <= last}
    return found


def ranges(last_s: float) -> list[tuple[int | None, int | None]]:
    noise = np.random.default_rng(2)
    found: list[tuple[int | None, int | None]] = [
        (None, START + 30 * 10**9),
        (START - 5, START),
        (START, START),
    ]
    end = START + int(last_s * 1e9)
    found += [(end, None), (end - 60 * 10**9, None), (end + 10**9, None), (None, START - 10**10), (None, end)]
    for _ in range(25):
        begin = START + int(noise.random() * last_s * 1e9)
        found.append((begin, begin + int(noise.choice([1, 10, 60, 600])) * 10**9))
    return found


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many bytes each look took."""
    taken: list[int] = []
    read = stream_part._read

    def counted(descriptor: int, begin: int, end: int) -> bytes:
        taken.append(end - begin)
        return read(descriptor, begin, end)

    monkeypatch.setattr(stream_part, "_read", counted)
    return taken


@pytest.mark.parametrize("seconds", [evenly, with_a_pause, of_many_sizes])
def test_part_of_a_stream_has_the_same_samples_as_the_whole(
    tmp_path: Path, seconds: Callable[[int], list[float]]
) -> None:
    path = write(tmp_path / "run", seconds)
    whole = read_stream(path)
    last_ns = whole.last_ns
    assert last_ns is not None
    for since_ns, until_ns in ranges((last_ns - START) / 1e9):
        part = read_samples(path.parent, since_ns=since_ns, until_ns=until_ns)
        assert cut(part, None, None) == cut(whole, since_ns, until_ns), (since_ns, until_ns)
        assert [each.state for each in part.segments] == ["open"]
        assert part.devices == DEVICES


def test_time_range_reads_only_a_part_of_the_file(tmp_path: Path, read_bytes: list[int]) -> None:
    path = write(tmp_path / "run", evenly)
    size = path.stat().st_size
    middle = START + _BATCHES * 10**9
    table = read_stream(path, since_ns=middle, until_ns=middle + 60 * 10**9)
    # Some batches around it, and the last one, which says how the stream ends.
    assert 61 * len(DEVICES) <= table.rows < 100 * len(DEVICES)
    assert 0 < sum(read_bytes) < size / 2
    for device in DEVICES:
        assert (np.diff(table[device.uuid]["time_ns"]) > 0).all()


@pytest.mark.parametrize(
    ("tail", "state"), [(b"", "open"), (bytes(600), "torn"), (b"\xff\xff\xff\xff\x60", "torn")]
)
@pytest.mark.parametrize("lost", [0, 1, 37, 500])
def test_part_of_a_stream_has_the_same_state_as_the_whole(
    tmp_path: Path, tail: bytes, state: str, lost: int
) -> None:
    path = write(tmp_path / "run", evenly)
    os.truncate(path, path.stat().st_size - lost)
    with path.open("ab") as file:
        file.write(tail)
    whole = read_stream(path)
    middle = START + _BATCHES * 10**9
    for since_ns, until_ns in ((middle, middle + 10**10), (middle, None), (START + 1390 * 10**9, None)):
        part = read_stream(path, since_ns=since_ns, until_ns=until_ns)
        assert part.segments[0].state == whole.segments[0].state
        assert cut(part, since_ns, until_ns) == cut(whole, since_ns, until_ns)
    assert whole.segments[0].state == (state if not lost else "torn")


def test_part_of_a_closed_segment_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    writer = SegmentWriter(folder, ORIGIN, start_ns=START)
    for second in range(1500):
        time_ns = START + second * 10**9
        writer.write([Sample(time_ns, second * 10**9, device.uuid, {"SM_ACTIVE": 0.5}) for device in DEVICES])
    writer.close()
    table = read_samples(folder, since_ns=START + 700 * 10**9, until_ns=START + 709 * 10**9)
    assert (table.rows, [each.state for each in table.segments]) == (40, ["closed"])


@pytest.mark.parametrize("step_s", [-3600, -400, 3600])
def test_a_stream_whose_clock_was_set_is_read_whole(
    tmp_path: Path, step_s: int, read_bytes: list[int]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    writer = SegmentWriter(folder, ORIGIN, start_ns=START)
    for second in range(1500):
        time_ns = START + (second + (step_s if second > 900 else 0)) * 10**9
        writer.write([Sample(time_ns, second * 10**9, device.uuid, {"SM_ACTIVE": 0.5}) for device in DEVICES])
    with writer.path.open("rb") as file:
        assert stream_part.read_part(file.fileno(), START, START + 10**9) is None
    assert read_bytes
    whole = read_stream(writer.path)
    for begin in (300, 650, 890, 901, 1200):
        since_ns = START + begin * 10**9
        part = read_samples(folder, since_ns=since_ns, until_ns=since_ns + 20 * 10**9)
        assert cut(part, None, None) == cut(whole, since_ns, since_ns + 20 * 10**9)


def test_damage_in_a_part_is_reported_as_in_the_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "run", evenly)
    content = bytearray(path.read_bytes())
    place = len(content) // 2
    content[place : place + 4096] = os.urandom(4096)
    path.write_bytes(content)
    whole = read_stream(path)
    assert whole.segments[0].state == "torn"
    middle = START + _BATCHES * 10**9
    part = read_stream(path, since_ns=middle - 30 * 10**9, until_ns=middle + 30 * 10**9)
    assert part.segments[0].state == "torn"
    assert cut(part, middle - 30 * 10**9, None) == cut(whole, middle - 30 * 10**9, None)


@pytest.mark.parametrize(("kind", "value"), [(pa.string(), "x"), (pa.struct({"a": pa.int64()}), {"a": 1})])
def test_stream_with_other_columns_is_unreadable(tmp_path: Path, kind: pa.DataType, value: object) -> None:
    metadata = pa.ipc.open_stream(write(tmp_path / "run", evenly, batches=1).read_bytes()).schema.metadata
    times = pa.array([value] * 8, kind)
    values = pa.array([[float(n)] for n in range(8)])
    columns = {"time_ns": times, "monotonic_ns": times, "device": pa.array([0] * 8), "values": values}
    batch = pa.RecordBatch.from_pydict(columns).replace_schema_metadata(metadata)
    other = tmp_path / "other"
    with other.open("wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        for _ in range(2000):
            stream.write_batch(batch)
    assert read_stream(other, since_ns=START).segments[0].state == "unreadable"


def test_short_and_empty_streams_are_read_completely(tmp_path: Path) -> None:
    path = write(tmp_path / "run", evenly, batches=20)
    other = tmp_path / "other"
    other.write_bytes(os.urandom(2**20))
    for each in (path, other):
        with each.open("rb") as file:
            assert stream_part.read_part(file.fileno(), START, START + 10**9) is None
    assert read_stream(other, since_ns=START).segments[0].state == "unreadable"
