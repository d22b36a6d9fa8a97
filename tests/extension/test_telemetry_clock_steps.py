"""A clock that is set while a recorder runs: no sample is lost, and an event is recorded."""

import threading
from pathlib import Path

import numpy as np
import pytest
from recorder_process import OneGpu, TwoClocks, kinds

from gipfel_extension.recorder import Recorder, Settings
from gipfel_extension.telemetry.events import read_events
from gipfel_extension.telemetry.imports import open_recording
from gipfel_extension.telemetry.live.feed import SaturationFeed
from gipfel_extension.telemetry.store.segments import read_samples


def test_clock_set_back_loses_no_samples_and_adds_an_event(tmp_path: Path) -> None:
    clock, never = TwoClocks(), threading.Event()
    source = OneGpu(clock)
    recorder = Recorder([source], Settings(tmp_path, "n1"), clock=clock)
    for tick in range(30):
        if tick == 10:
            clock.wall_ns -= 3600 * 10**9
        if tick == 20:
            clock.wall_ns += 7200 * 10**9
        if tick == 25:
            clock.wait(12.0, never)
        recorder.tick()
        clock.wait(1.0, never)
    recorder.close()
    table = read_samples(tmp_path)
    assert sorted(table["GPU-1"]["SM_ACTIVE"] * 1024) == pytest.approx(np.arange(1, 31), rel=1e-3)
    # Within a segment times go forward; each step begins another.
    assert [each.state for each in table.segments] == ["closed"] * 3
    told = [event for event in read_events(tmp_path) if event.kind == "clock_step"]
    assert sorted(event.message for event in told) == [
        "The clock was set back by 3600.0 s.",
        "The clock was set forward by 7200.0 s.",
    ]
    # Who scores the run is told, too.
    notes = open_recording(tmp_path).notes
    assert [note for note in notes if "The clock was set" in note and note.startswith("n1: ")]
    assert [note for note in notes if "stalled" in note]
    (stalled,) = [event.message for event in read_events(tmp_path) if event.kind == "recorder_stalled"]
    assert "13.0 s" in stalled


def test_live_view_continues_after_the_clock_was_set_back(tmp_path: Path) -> None:
    clock, never = TwoClocks(), threading.Event()
    recorder = Recorder([OneGpu(clock)], Settings(tmp_path, "n1", flush=0.5), clock=clock)
    feed = SaturationFeed(tmp_path, clock=clock)
    for tick in range(40):
        if tick == 20:
            clock.wall_ns -= 3600 * 10**9
        recorder.tick()
        clock.wait(1.0, never)
    # Of the views one looked on all the time, the other was opened after it.
    for each in (feed, SaturationFeed(tmp_path, clock=clock)):
        clock.wait(5.0, never)
        each.poll(0.0)
        times = each.table()["GPU-1"]["time_ns"]
        assert len(times) == 20
        assert 0 < clock.wall_ns - times[-1] < 60 * 10**9
        each.close()
    recorder.close()


def test_slewed_clock_is_not_reported_as_a_step(tmp_path: Path) -> None:
    clock = TwoClocks()
    recorder = Recorder([OneGpu(clock)], Settings(tmp_path, "n1", interval=60.0), clock=clock)
    for _ in range(20):
        recorder.tick()
        clock.wait(60.0, threading.Event())
        clock.wall_ns += 30_000_000
    recorder.close()
    assert "clock_step" not in kinds(tmp_path)
