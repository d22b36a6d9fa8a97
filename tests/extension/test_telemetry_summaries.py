"""Summaries and overviews: the same figure from samples, summaries and packed summaries."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gipfel_extension.telemetry.sample import Device, Sample, SampleTable
from gipfel_extension.telemetry.store.compaction import compact
from gipfel_extension.telemetry.store.overview import Overview, read_overview
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter, read_samples
from gipfel_extension.telemetry.store.summaries import SummaryWriter, read_summary, summary_path

GPU = Device("GPU-8c1f", "gpu", "NVIDIA GH200 120GB", 0, node="nid001")
HOST = Device("host:nid001", "host", "nid001", None, node="nid001")
ORIGIN = Provenance("nid001", "job", "nvml", simulated=False, interval=1.0, devices=(HOST, GPU))
START = 1_700_000_040


def samples(second: int) -> list[Sample]:
    level = None if second % 11 == 0 else (second % 64) / 64
    return [
        Sample(second * 10**9 + 5, second, GPU.uuid, {"SM_ACTIVE": level, "FB_USED": 7e10}),
        Sample(second * 10**9, second, HOST.uuid, {"CPU_UTIL": 0.25}),
    ]


def record(folder: Path, first: int, seconds: int, *, close: bool = True, origin=ORIGIN) -> Path:
    folder.mkdir(exist_ok=True)
    writer = SegmentWriter(folder, origin, start_ns=first * 10**9)
    for second in range(first, first + seconds, 5):
        writer.write([s for each in range(second, min(second + 5, first + seconds)) for s in samples(each)])
    if close:
        return writer.close()
    writer.abandon()
    return writer.path


@pytest.fixture(scope="module")
def copy_recording(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Copies a closed or packed recording into a folder; each is made once."""
    made = tmp_path_factory.mktemp("recordings")

    def copy(folder: Path, seconds: int, *, packed: bool = False) -> None:
        source = made / f"{seconds}-{packed}"
        if not source.exists():
            record(source, START, seconds)
            if packed:
                assert compact(source).converted == 1
        shutil.copytree(source, folder, dirs_exist_ok=True)

    return copy


def close_to(one: Overview, other: Overview) -> None:
    np.testing.assert_array_equal(one.time_ns, other.time_ns)
    assert one.bucket_ns == other.bucket_ns
    rows = [other.devices.index(device) for device in one.devices]
    for metric in ("SM_ACTIVE", "FB_USED", "CPU_UTIL"):
        np.testing.assert_array_equal(one.count[metric], other.count[metric][rows], err_msg=metric)
        np.testing.assert_allclose(one.mean[metric], other.mean[metric][rows], rtol=6e-4, err_msg=metric)


@pytest.mark.parametrize("state", ["open", "closed", "packed", "two segments", "summaries gone"])
@pytest.mark.parametrize(("seconds", "level"), [(3600, 10), (20_000, 60)])
def test_overview_of_summaries_matches_that_of_samples(tmp_path, copy_recording, state, seconds, level):
    if state == "two segments":
        # A bucket that two segments share.
        record(tmp_path, START, seconds // 2 + 3)
        record(tmp_path, START + seconds // 2 + 3, seconds - seconds // 2 - 3)
    elif state == "open":
        record(tmp_path, START, seconds, close=False)
    else:
        copy_recording(tmp_path, seconds, packed=state == "packed")
    if state == "summaries gone":
        for path in tmp_path.glob("*.summary"):
            path.unlink()
    found = read_overview(tmp_path, buckets=600)
    assert found.bucket_ns == level * 10**9
    table = read_samples(tmp_path)
    end = int(found.time_ns[-1]) + found.bucket_ns - 1
    whole = Overview.from_table(
        replace(table, interval=level), 600, start_ns=int(found.time_ns[0]), end_ns=end
    )
    if state == "open":
        # The bucket that was being filled is in the samples alone.
        assert seconds - 10 <= found.count["CPU_UTIL"].sum() <= seconds
        return
    close_to(found, whole)
    assert int(found.count["CPU_UTIL"].sum()) == seconds


def test_a_short_range_reads_samples_and_no_other_segment(tmp_path):
    record(tmp_path, START, 3600)
    late = record(tmp_path, START + 20_000, 3600)
    late.write_bytes(b"this would be unreadable")
    begin = (START + 600) * 10**9
    found = read_overview(tmp_path, start_ns=begin, end_ns=begin + 60 * 10**9, metrics=("SM_ACTIVE",))
    assert (found.bucket_ns, len(found.time_ns)) == (10**9, 61)
    assert set(found.mean) == {"SM_ACTIVE"}
    row = found.devices.index(GPU)
    expected = [np.nan if s % 11 == 0 else (s % 64) / 64 for s in range(START + 600, START + 660)]
    np.testing.assert_allclose(found.mean["SM_ACTIVE"][row][:60], expected, rtol=2e-4)
    assert np.isnan(found.mean["SM_ACTIVE"][found.devices.index(HOST)]).all()


def test_nothing_is_an_overview_without_devices(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        found = read_overview(folder)
        assert (found.devices, len(found.time_ns)) == ((), 0)
    empty = Overview.from_table(SampleTable.from_samples([], [GPU]))
    assert (empty.devices, empty.mean["SM_ACTIVE"].shape) == ((GPU,), (1, 0))


def test_a_summary_is_cut_anywhere_and_repeats_nothing(tmp_path):
    path = record(tmp_path, START, 300)
    summary = summary_path(path.with_name(path.name.removesuffix(".closed.arrows")), 10)
    whole, content = read_summary(summary), summary.read_bytes()
    assert len(whole.start_ns) == 30
    seen = set()
    for length in range(len(content), 0, -101):
        summary.write_bytes(content[:length])
        try:
            found = read_summary(summary)
        except ValueError:
            continue
        seen.add(len(found.start_ns))
        np.testing.assert_array_equal(found.mean, whole.mean[: len(found.start_ns)])
    assert seen >= set(range(1, 31))
    # Zeros of a machine that crashed are not buckets, and the last ones alone can be requested.
    summary.write_bytes(content + bytes(100_000))
    assert len(read_summary(summary).start_ns) == 30
    summary.write_bytes(content)
    np.testing.assert_array_equal(read_summary(summary, last=4).start_ns, whole.start_ns[-4:])


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 5000), value=st.integers(0, 255), packed=st.booleans())
def test_flipped_byte_damages_at_most_a_summary(tmp_path_factory, copy_recording, place, value, packed):
    folder = tmp_path_factory.mktemp("flipped")
    copy_recording(folder, 900, packed=packed)
    for path in folder.glob("*.summary"):
        content = bytearray(path.read_bytes())
        content[min(place, len(content) - 1)] = value
        path.write_bytes(content)
    read_overview(folder, buckets=60)
    assert read_samples(folder).rows == 1800


def test_incomplete_summary_is_not_used(tmp_path):
    path = record(tmp_path, START, 3600, close=False)
    stem = path.with_name(path.name.removesuffix(".arrows"))
    for level in (10, 60):
        summary = summary_path(stem, level)
        content = summary.read_bytes()
        summary.write_bytes(content[: len(content) // 2])
        os.utime(summary, (0, 0))
    found = read_overview(tmp_path)
    assert int(found.count["CPU_UTIL"].sum()) == 3600


def test_a_full_disk_is_an_error_and_leaves_no_handle(tmp_path):
    stem = tmp_path / "x-1-0"
    summary_path(stem, 60).symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"exists|space"):
        SummaryWriter(stem, ORIGIN)
    # What it had begun is gone; what was there is not its own.
    assert not summary_path(stem, 10).exists()
    summary_path(stem, 60).unlink()
    writer = SummaryWriter(stem, ORIGIN)
    writer.add(samples(START))
    writer.close()
    assert read_summary(summary_path(stem, 60)).count.max() == 1


_TIMES = st.lists(st.integers(0, 2000), min_size=1, max_size=60)
_LEVELS = st.one_of(st.none(), st.floats(0, 1))


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2000), _LEVELS), min_size=1, max_size=80),
    buckets=st.integers(1, 50),
)
def test_any_samples_are_all_counted_once(rows, buckets):
    """Counts add up; means lie between the lowest and the highest; a bucket without a value is NaN."""
    own = dict(rows)
    table = SampleTable.from_samples(
        [Sample(s * 10**9, s, GPU.uuid, {"SM_ACTIVE": level}) for s, level in own.items()],
        [GPU],
        interval=1.0,
    )
    found = Overview.from_table(table, buckets)
    known = [level for level in own.values() if level is not None]
    assert len(found.time_ns) <= buckets + 1
    assert int(found.count["SM_ACTIVE"].sum()) == len(known)
    mean = found.mean["SM_ACTIVE"][0]
    there = found.count["SM_ACTIVE"][0] > 0
    assert np.isnan(mean[~there]).all()
    if known:
        total = np.nansum(mean * found.count["SM_ACTIVE"][0])
        assert total == pytest.approx(sum(known), abs=1e-6)
