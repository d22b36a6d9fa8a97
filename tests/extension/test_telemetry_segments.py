"""Segments: flushed samples can be read, however the writer ended."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gipfel_extension.telemetry.metric_table import GPU_METRICS, HOST_METRICS
from gipfel_extension.telemetry.sample import Device, Sample, SampleTable
from gipfel_extension.telemetry.store.segments import (
    Provenance,
    SegmentWriter,
    dropped_bits,
    read_parquet,
    read_samples,
    read_segment,
    round_values,
    write_parquet,
)

GPU = Device("GPU-8c1f", "gpu", "NVIDIA GH200 120GB", 0, node="nid001")
HOST = Device("host:nid001", "host", "nid001", None, node="nid001", scope="job cgroup")
ORIGIN = Provenance("nid001", "job", "host, nvml+gpm", simulated=False, interval=1.0, devices=(HOST, GPU))


def gpu_sample(second: int, **values: float | None) -> Sample:
    return Sample(second * 10**9, 5 * 10**9 + second * 1000, GPU.uuid, dict(values))


def host_sample(second: int, **values: float | None) -> Sample:
    return Sample(second * 10**9, 5 * 10**9 + second * 1000, HOST.uuid, dict(values))


def written(folder: Path, batches: list[list[Sample]], origin: Provenance = ORIGIN) -> SegmentWriter:
    folder.mkdir(exist_ok=True)
    writer = SegmentWriter(folder, origin, start_ns=1_700_000_000_000_000_000)
    for batch in batches:
        writer.write(batch)
    return writer


def test_reads_back_values_devices_and_what_is_missing(tmp_path):
    written(
        tmp_path,
        [
            [
                gpu_sample(1, SM_ACTIVE=0.5, PCIE_TX_BYTES=25 * 2.0**30, FB_USED=None),
                host_sample(1, CPU_UTIL=0.0),
            ]
        ],
    )
    table = read_samples(tmp_path)
    assert table.devices == (HOST, GPU)
    gpu = table[GPU.uuid]
    assert gpu["time_ns"].tolist() == [10**9]
    assert gpu["monotonic_ns"].tolist() == [5 * 10**9 + 1000]
    assert gpu["SM_ACTIVE"].tolist() == [0.5]
    assert gpu["PCIE_TX_BYTES"].tolist() == [25 * 2.0**30]
    assert np.isnan(gpu["FB_USED"][0])
    assert np.isnan(gpu["POWER_USAGE"][0])
    assert table[HOST.uuid]["CPU_UTIL"].tolist() == [0.0]
    assert set(gpu) == {"time_ns", "monotonic_ns", *GPU_METRICS}
    assert set(table[HOST.uuid]) == {"time_ns", "monotonic_ns", *HOST_METRICS}
    assert table.source == "host, nvml+gpm"
    assert table.interval == 1.0
    assert not table.simulated


def test_a_closed_segment_says_so_and_is_its_owners_alone(tmp_path):
    writer = written(tmp_path, [[gpu_sample(1)]])
    assert [s.state for s in read_samples(tmp_path).segments] == ["open"]
    closed = writer.close()
    assert closed.name == "nid001-1700000000000000000-0.closed.arrows"
    assert closed.stat().st_mode & 0o777 == 0o600
    assert [s.state for s in read_samples(tmp_path).segments] == ["closed"]


def test_devices_are_known_before_the_first_sample(tmp_path):
    written(tmp_path, [])
    table = read_samples(tmp_path)
    assert table.devices == (HOST, GPU)
    assert table.rows == 0
    assert table.last_ns is None


def test_torn_at_every_byte_of_the_last_batch(tmp_path):
    writer = written(tmp_path / "whole", [[gpu_sample(1, SM_ACTIVE=0.125)], [gpu_sample(2, SM_ACTIVE=0.25)]])
    before = writer.path.stat().st_size
    writer.write([gpu_sample(3, SM_ACTIVE=0.375), host_sample(3, CPU_UTIL=0.5)])
    content = writer.path.read_bytes()
    torn = tmp_path / "torn.arrows"
    for length in range(before, len(content) + 1):
        torn.write_bytes(content[:length])
        table = read_segment(torn)
        complete = length == len(content)
        assert table[GPU.uuid]["SM_ACTIVE"].tolist() == (
            [0.125, 0.25, 0.375] if complete else [0.125, 0.25]
        ), length
        expected = "open" if length in (before, len(content)) else "torn"
        assert table.segments[0].state == expected, length


def test_cut_within_the_schema_is_unreadable_but_no_error(tmp_path):
    writer = written(tmp_path / "whole", [[gpu_sample(1)]])
    content = writer.path.read_bytes()
    (tmp_path / "empty.arrows").write_bytes(b"")
    (tmp_path / "head.arrows").write_bytes(content[:200])
    table = read_samples(tmp_path)
    assert [s.state for s in table.segments] == ["unreadable", "unreadable"]
    assert table.rows == 0


def test_a_tail_of_zeros_is_torn_and_not_an_end(tmp_path):
    writer = written(tmp_path, [[gpu_sample(1, SM_ACTIVE=0.1)]])
    with writer.path.open("ab") as file:
        file.write(bytes(4096))
    (state,) = read_samples(tmp_path).segments
    assert (state.state, state.rows) == ("torn", 1)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 3000), value=st.integers(0, 255))
def test_a_flipped_byte_never_ends_the_reader(tmp_path_factory, place, value):
    folder = tmp_path_factory.mktemp("flipped")
    writer = written(folder, [[gpu_sample(1, SM_ACTIVE=0.1)], [gpu_sample(2, SM_ACTIVE=0.2)]])
    content = bytearray(writer.path.read_bytes())
    # From the first sample on: the schema before it is written once and flushed long before any crash.
    start = len(content) - 2 * (len(content) // 4)
    content[min(start + place, len(content) - 1)] = value
    writer.path.write_bytes(content)
    read_samples(folder)


def test_two_recorders_in_one_folder(tmp_path):
    simulated = Device("GPU-simulated-0", "gpu", "simulated GPU", 0, node="nid001", simulated=True)
    other = replace(
        ORIGIN, recorder="simulated", source="synthetic:training", simulated=True, devices=(simulated,)
    )
    first = written(tmp_path, [[gpu_sample(1, SM_ACTIVE=0.125)]])
    second = written(tmp_path, [[Sample(10**9, 1, simulated.uuid, {"SM_ACTIVE": 0.75})]], other)
    third = written(tmp_path, [[gpu_sample(2, SM_ACTIVE=0.25)]])
    assert len({first.path, second.path, third.path}) == 3
    assert second.path.name.startswith("simulated-nid001-")
    assert read_samples(tmp_path, simulated=True).devices == (simulated,)
    assert simulated not in read_samples(tmp_path, simulated=False).devices
    both = read_samples(tmp_path)
    assert both.simulated
    assert both[GPU.uuid]["SM_ACTIVE"].tolist() == [0.125, 0.25]
    assert both[simulated.uuid]["SM_ACTIVE"].tolist() == [0.75]


def test_since_leaves_out_older_samples_and_keeps_devices(tmp_path):
    written(tmp_path, [[gpu_sample(s, SM_ACTIVE=s / 8) for s in (1, 2, 3)]])
    table = read_samples(tmp_path, since_ns=2 * 10**9)
    assert table[GPU.uuid]["SM_ACTIVE"].tolist() == [0.25, 0.375]
    assert table.devices == (HOST, GPU)


def test_a_missing_folder_is_an_empty_table(tmp_path):
    assert read_samples(tmp_path / "nowhere").devices == ()


def test_a_node_name_never_leaves_the_folder(tmp_path):
    writer = written(tmp_path, [], replace(ORIGIN, node="../../etc/x"))
    assert writer.path.parent == tmp_path
    assert read_samples(tmp_path).segments[0].provenance.node == "../../etc/x"


def test_parquet_holds_the_same_table(tmp_path):
    written(tmp_path, [[gpu_sample(1, SM_ACTIVE=0.5), gpu_sample(2), host_sample(1, CPU_UTIL=0.25)]])
    table = read_samples(tmp_path)
    write_parquet(table, tmp_path / "trace.parquet")
    again = read_parquet(tmp_path / "trace.parquet")
    assert again.devices == table.devices
    for device in table.devices:
        for name, column in table[device.uuid].items():
            np.testing.assert_array_equal(again[device.uuid][name], column)


def test_a_union_holds_each_time_once():
    table = SampleTable.from_samples([gpu_sample(2, SM_ACTIVE=0.2), gpu_sample(1, SM_ACTIVE=0.1)], [GPU])
    again = SampleTable.from_samples([gpu_sample(2, SM_ACTIVE=0.2), gpu_sample(3, SM_ACTIVE=0.3)], [GPU])
    assert SampleTable.union((table, again))[GPU.uuid]["SM_ACTIVE"].tolist() == [0.1, 0.2, 0.3]


def test_devices_survive_json():
    assert Device.from_json({**HOST.to_json(), "of a later version": 1}) == HOST


def test_a_full_disk_is_an_error_of_write(tmp_path):
    writer = written(tmp_path, [])
    writer.abandon()
    with pytest.raises((OSError, ValueError)):
        writer.write([gpu_sample(1)])


def test_a_recording_of_before_a_metric_was_known_still_reads(tmp_path):
    later = {"CLOCKS_EVENT_REASONS", "PIPE_INT_ACTIVE", "C2C_TX_ALL_BYTES", "C2C_RX_ALL_BYTES"}
    values = {"SM_ACTIVE": 0.5, "CLOCKS_EVENT_REASONS": 4.0, "C2C_RX_ALL_BYTES": 3e11}
    written(tmp_path / "now", [[gpu_sample(1, **values), host_sample(1, CPU_UTIL=0.25)]]).close()
    new = read_samples(tmp_path / "now")
    write_parquet(new, tmp_path / "now.parquet")
    content = pyarrow.parquet.read_table(tmp_path / "now.parquet").drop_columns(sorted(later))
    pyarrow.parquet.write_table(content, tmp_path / "old.parquet")
    table = read_parquet(tmp_path / "old.parquet")
    assert table[GPU.uuid]["SM_ACTIVE"].tolist() == [0.5]
    assert all(np.isnan(table[GPU.uuid][metric]).all() for metric in later)
    # A run whose recorder was replaced by a newer one holds both.
    both = SampleTable.union((table, new.between(0)))
    assert set(both[GPU.uuid]) >= later
    assert new[GPU.uuid]["CLOCKS_EVENT_REASONS"].tolist() == [4.0]


@settings(max_examples=200, deadline=None)
@given(value=st.floats(allow_nan=False, allow_infinity=False, width=64))
def test_estimates_are_kept_to_13_bits_and_counts_exactly(value):
    metrics = ("SM_ACTIVE", "PCIE_TX_BYTES", "FB_USED", "CLOCKS_EVENT_REASONS", "SCORE_BUSY")
    dropped = dropped_bits(metrics)
    kept = round_values(np.full(5, value), dropped)
    assert kept[2:4].tolist() == [value, value]
    if abs(value) > 1e-300 and abs(value) < 1e300:
        assert abs(kept[0] - value) <= abs(value) * 2.0**-13
        assert abs(kept[4] - value) <= abs(value) * 2.0**-12
    np.testing.assert_array_equal(round_values(kept, dropped), kept)
    assert np.isnan(round_values(np.array([np.nan]), dropped[:1])[0])


def test_the_two_clocks_are_kept_a_whole_number_of_microseconds_apart(tmp_path):
    sample = gpu_sample(1, SM_ACTIVE=0.5)
    written(tmp_path, [[replace(sample, monotonic_ns=sample.time_ns - 5_000_000_123_456)]]).close()
    columns = read_samples(tmp_path)[GPU.uuid]
    assert columns["time_ns"].tolist() == [sample.time_ns]
    assert (columns["time_ns"] - columns["monotonic_ns"]).tolist() == [5_000_000_123_000]


def test_a_range_is_read_alone_and_a_clock_that_was_set_back_hides_nothing(tmp_path):
    start = 1_700_000_000
    seconds = [*range(start, start + 400), *range(start + 100, start + 300)]
    written(tmp_path, [[gpu_sample(s, SM_ACTIVE=0.5)] for s in seconds])
    whole = read_samples(tmp_path)[GPU.uuid]["time_ns"]
    for since, until in ((0, 10), (150, 160), (390, 500), (None, 1), (399, None), (2000, 3000)):
        first, last = (None if each is None else (start + each) * 10**9 for each in (since, until))
        table = read_samples(tmp_path, since_ns=first, until_ns=last)
        expected = whole[(whole >= (first or 0)) & (whole <= (last or 2**62))]
        assert table[GPU.uuid]["time_ns"].tolist() == expected.tolist()


def test_foreign_files_are_unreadable_and_never_block(tmp_path):
    good = written(tmp_path, [[gpu_sample(1, SM_ACTIVE=0.5)]])
    os.mkfifo(tmp_path / "pipe.arrows")
    (tmp_path / "folder.arrows").mkdir()
    (tmp_path / "nowhere.arrows").symlink_to("/nowhere")
    (tmp_path / "device.arrows").symlink_to("/dev/zero")
    (tmp_path / "text.closed.parquet").write_bytes(b"PAR1 hello PAR1")
    other = pa.table({"time_ns": [1], "device": ["x"]})
    pyarrow.parquet.write_table(other, tmp_path / "foreign.closed.parquet")
    with pa.ipc.new_stream(tmp_path / "other.arrows", other.schema) as stream:
        stream.write_table(other)
    schema = pa.schema(other.schema, metadata={"version": "2", "devices": "[[]]", "metrics": "[]"})
    with pa.ipc.new_stream(tmp_path / "hostile.arrows", schema) as stream:
        stream.write_table(other.replace_schema_metadata(schema.metadata))
    table = read_samples(tmp_path)
    states = {segment.name: segment.state for segment in table.segments}
    assert states.pop(good.path.name) == "open"
    assert set(states.values()) == {"unreadable"}
    assert len(states) == 4
    assert table[GPU.uuid]["SM_ACTIVE"].tolist() == [0.5]


def test_requested_metrics_are_stored(tmp_path):
    origin = replace(ORIGIN, extra=("NVLINK_L0_TX_BYTES",))
    writer = written(tmp_path, [[gpu_sample(1, NVLINK_L0_TX_BYTES=1024.0)]], origin)
    table = read_segment(writer.close())
    write_parquet(table, tmp_path / "x.parquet")
    for each in (table, read_parquet(tmp_path / "x.parquet")):
        assert each[GPU.uuid]["NVLINK_L0_TX_BYTES"].tolist() == [1024.0]
