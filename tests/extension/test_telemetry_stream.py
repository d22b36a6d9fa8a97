"""The live stream and the feed: real recorders over real sockets, killed and restarted."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from gipfel_extension.telemetry.events import Event
from gipfel_extension.telemetry.live import LiveReader, Publisher, Tick
from gipfel_extension.telemetry.live.feed import RecorderState, SaturationFeed, status_of
from gipfel_extension.telemetry.sample import Device, Provenance, Sample, SourceError
from gipfel_extension.telemetry.store.segments import read_samples

GPU = Device("GPU-1", "gpu", "GPU", 0, node="n1")
ORIGIN = Provenance("n1", "job", "nvml", interval=1.0, devices=(GPU,))


class Run:
    """A run folder with real recorders."""

    def __init__(self, telemetry: Path, sockets: Path) -> None:
        self.telemetry, self.sockets = telemetry, sockets
        self.recorders: list[subprocess.Popen[bytes]] = []

    def record(self, *sources: str, name: str = "job", interval: float = 0.1) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "gipfel_extension.recorder",
            "--telemetry",
            str(self.telemetry),
        ]
        command += [
            "--node",
            "n1",
            "--sockets",
            str(self.sockets),
            "--name",
            name,
            "--interval",
            str(interval),
        ]
        command += [part for source in sources for part in ("--source", source)]
        self.recorders.append(subprocess.Popen(command))
        return self.recorders[-1]


@pytest.fixture
def run(tmp_path) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(prefix="g") as sockets:
        run = Run(tmp_path / "telemetry", Path(sockets))
        yield run
        for recorder in run.recorders:
            recorder.kill()
            recorder.wait(10)


def until(feed: SaturationFeed, condition: Callable[[], bool], seconds: float = 20.0) -> list[Sample]:
    samples: list[Sample] = []
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, feed.state()
        samples += feed.poll(0.1)
    return samples


def tick(seq: int = 1, **changes: object) -> Tick:
    values = {"SM_ACTIVE": 0.5, "FB_USED": None}
    return replace(Tick(seq, ORIGIN, (Sample(seq, seq, "GPU-1", values),)), **changes)


def test_a_tick_survives_the_wire():
    happened = tick(events=(Event(1, "n1", "xid", "GPU-1", "XID 79."),), ended=True)
    assert Tick.decode(happened.encode()) == happened


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"seq": 1}', b"\xff\xfe", b'{"seq": {}}', b"null"])
def test_invalid_tick_raises_value_error(data):
    with pytest.raises(ValueError):  # noqa: PT011 - any is good
        Tick.decode(data)


def test_a_reader_finds_recorders_that_start_later_and_skips_garbage(run):
    with closing(LiveReader(run.sockets)) as reader:
        assert reader.receive(0.05) is None
        publisher = Publisher(run.sockets, "job")
        assert (run.sockets / "job.sock").stat().st_mode & 0o077 == 0
        context = zmq.Context()
        stranger = context.socket(zmq.PUB)
        stranger.bind(f"ipc://{run.sockets}/other.sock")
        deadline = time.monotonic() + 10
        received = None
        while received is None and time.monotonic() < deadline:
            stranger.send(b"garbage")
            publisher.send(tick())
            received = reader.receive(0.2)
        stranger.close(0)
        context.term()
        publisher.close()
    assert received == tick()


def test_unclosed_feed_does_not_keep_the_process_alive(run):
    run.record("host")
    program = (
        "import gc, sys\n"
        "from pathlib import Path\n"
        "from gipfel_extension.telemetry.live.feed import SaturationFeed\n"
        "feed = SaturationFeed(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "while not feed.poll(0.2): pass\n"
        "feed.itself = feed\n"
        "del feed\n"
        "gc.collect()\n"
        "other = SaturationFeed(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", program, str(run.telemetry), str(run.sockets)]
    subprocess.run(command, check=True, timeout=20)


def test_a_publisher_never_waits_for_a_reader(run):
    publisher = Publisher(run.sockets, "job")
    started = time.monotonic()
    for seq in range(5000):
        publisher.send(tick(seq))
    publisher.close()
    assert time.monotonic() - started < 5


def test_socket_that_cannot_be_created_raises_source_error(run):
    for folder in (run.sockets / "missing", run.sockets / ("x" * 120)):
        with pytest.raises(SourceError) as caught:
            Publisher(folder, "job")
        assert caught.value.fix


def test_from_nothing_to_live_and_no_sample_twice(run):
    feed = SaturationFeed(run.telemetry, run.sockets)
    assert feed.state().state == "absent"
    run.record("host", "synthetic:training")
    # Long enough that the segments are read beside the stream.
    samples = until(feed, lambda: feed.table().rows >= 230)
    state = feed.state()
    assert (state.state, state.gpus, state.simulated) == ("live", 4, True)
    assert state.source == "host, synthetic:training"
    assert state.interval == pytest.approx(0.1)
    assert len(samples) == len({(sample.device, sample.time_ns) for sample in samples})
    feed.close()


def test_a_feed_that_comes_late_has_what_was_recorded(run):
    run.record("synthetic:training")
    first = SaturationFeed(run.telemetry, run.sockets)
    until(first, lambda: first.table().rows >= 60)
    late = SaturationFeed(run.telemetry, run.sockets)
    until(late, lambda: late.table().rows >= first.table().rows)
    # The samples that the recorder held back when the late feed began are filled in from its file.
    start = time.monotonic()
    until(late, lambda: time.monotonic() - start > 4)
    until(first, lambda: first.state().last_ns >= late.state().last_ns)
    uuid = late.devices()[0].uuid
    until(late, lambda: late.state().last_ns >= first.state().last_ns)
    assert set(first.table()[uuid]["time_ns"]) <= set(late.table()[uuid]["time_ns"])
    first.close()
    late.close()


def test_killed_recorder_is_stale_and_live_again_after_a_restart(run):
    recorder = run.record("synthetic:training")
    feed = SaturationFeed(run.telemetry, run.sockets)
    until(feed, lambda: feed.table().rows >= 8)
    recorder.send_signal(signal.SIGKILL)
    recorder.wait(10)
    until(feed, lambda: feed.state().state == "stale")
    assert "The recorder on n1 has sent nothing" in feed.state().message
    before = feed.table().rows
    run.record("synthetic:training")
    until(feed, lambda: feed.state().state == "live" and feed.table().rows > before)
    feed.close()


def test_a_second_recorder_comes_and_goes(run):
    run.record("host")
    feed = SaturationFeed(run.telemetry, run.sockets)
    until(feed, lambda: feed.state().state == "live" and feed.table().rows >= 2)
    assert feed.state().message == "This job has no GPU; the host is recorded."
    simulated = run.record("synthetic:starved", name="simulated")
    until(feed, lambda: feed.state().gpus == 4 and feed.state().state == "live")
    assert feed.state().simulated
    assert len(feed.devices()) == 5
    simulated.terminate()
    until(feed, lambda: feed.state().gpus == 0)
    assert feed.state().state == "live"
    assert not feed.state().simulated
    assert [device.kind for device in feed.table().devices] == ["host"]
    assert feed.table().source == "host"
    feed.close()


def test_a_run_of_the_past_opens_from_its_files(run):
    recorder = run.record("synthetic:training")
    deadline = time.monotonic() + 20
    while read_samples(run.telemetry).rows < 8 and time.monotonic() < deadline:
        time.sleep(0.05)
    recorder.terminate()
    recorder.wait(10)
    long_ago = time.time() - 10 * 86400
    for path in run.telemetry.iterdir():
        os.utime(path, (long_ago, long_ago))
    feed = SaturationFeed(run.telemetry, window_s=5.0)
    assert feed.table().rows >= 8
    assert feed.state().state == "stale"
    assert feed.state().message.startswith("The recording ended at ")
    assert feed.poll(0.01) == []


def test_without_sockets_the_segments_are_followed(run):
    run.record("synthetic:training")
    feed = SaturationFeed(run.telemetry)
    samples = until(feed, lambda: feed.table().rows >= 8)
    assert feed.state().state == "live"
    before = feed.table().rows
    more = until(feed, lambda: feed.table().rows > before)
    assert more
    assert not {(s.device, s.time_ns) for s in samples} & {(s.device, s.time_ns) for s in more}


def test_status_of_recorders():
    second = 10**9
    recorder = RecorderState(ORIGIN, last_ns=100 * second, live=True)
    assert status_of([], 0, starting=False).state == "absent"
    assert status_of([], 0, starting=True).state == "starting"
    assert status_of([recorder], 102 * second, starting=True).message == "1 GPU, a sample every 1 s."
    assert status_of([recorder], 104 * second, starting=True).state == "stale"
    waiting = RecorderState(ORIGIN)
    assert status_of([waiting], 104 * second, starting=True).state == "starting"
    recorder = replace(recorder, event="nvml can't be read: it is gone")
    assert status_of([recorder], 102 * second, starting=True).message == recorder.event
    ended = status_of([replace(recorder, ended=True)], 900 * second, starting=False)
    assert (ended.state, ended.message) == ("stale", "The recording ended at 1970-01-01 00:01:40 UTC.")
