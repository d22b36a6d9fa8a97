"""Measurements with real recorder processes."""

import os
import shutil
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from gipfel_cluster.model import GipfelError
from gipfel_extension.telemetry.store.segments import read_samples
from gipfel_widgets import measure


def test_real_work_is_measured_and_the_recorder_ends(runs, recorders):
    with measure("host", 0.1) as work:
        assert len(recorders()) == 1
        ends = time.monotonic() + 1.0
        while time.monotonic() < ends:
            sum(range(10_000))
    assert recorders() == []
    table = work.table()
    assert [device.kind for device in table.devices] == ["host"]
    assert not table.simulated
    busy = next(row for row in work.summary().rows if row.metric == "CPU_CORES_USED")
    assert busy.mean > 0.2
    assert work.run.path.parent == runs
    assert work.run.folder.read_record()["source"] == "host"
    # Without it, `gipfel runs rm` refuses the run for an hour.
    assert work.run.folder.read_record()["ended"]
    assert not work.run.sockets.exists()


def test_auto_without_a_run_records_the_host_at_least(recording):
    work = recording("auto")
    time.sleep(0.4)
    work.stop()
    assert "host" in {device.kind for device in work.table().devices}
    assert work.own


def test_a_table_ends_with_the_measurement(recording):
    work = recording("synthetic:training")
    time.sleep(0.5)
    work.stop()
    table = work.table()
    last = table.last_ns
    time.sleep(0.2)
    assert table.rows > 0
    assert work.table().last_ns == last
    assert work.seconds == pytest.approx(0.5, abs=0.4)


def test_the_runs_recorder_is_shared(recording, recorders, monkeypatch):
    job = recording("host")
    monkeypatch.setenv("GIPFEL_RUN", str(job.run.path))
    monkeypatch.setenv("GIPFEL_SOCKETS", str(job.run.sockets))
    with measure("auto", 5.0) as work:
        assert len(recorders()) == 1
        time.sleep(0.5)
    assert work.run.path == job.run.path
    assert not work.own
    # The shared recorder continues, and its buffered samples have been written.
    assert len(recorders()) == 1
    assert 3 <= work.table().rows <= 9


def test_a_dead_runs_recorder_is_not_shared(recording, monkeypatch):
    job = recording("host")
    job.stop()
    monkeypatch.setenv("GIPFEL_RUN", str(job.run.path))
    with measure("auto", 0.1) as work:
        assert work.run.path != job.run.path


def test_simulated_values_never_mix_with_real_ones(recording, recorders, monkeypatch):
    job = recording("host")
    monkeypatch.setenv("GIPFEL_RUN", str(job.run.path))
    monkeypatch.setenv("GIPFEL_SOCKETS", str(job.run.sockets))
    made_up = recording("synthetic:training")
    assert made_up.run.path != job.run.path
    time.sleep(0.4)
    made_up.stop()
    assert all(device.simulated for device in made_up.table().devices)
    segments = read_samples(made_up.run.telemetry).segments
    assert {segment.provenance.recorder for segment in segments} == {"simulated"}
    # A run that holds both, as the panel makes one.
    for path in made_up.run.telemetry.iterdir():
        (job.run.telemetry / path.name).write_bytes(path.read_bytes())
    job.stop()
    assert read_samples(job.run.telemetry).simulated
    assert not job.table().simulated


@pytest.mark.parametrize("form", ["str", "html", "plot text", "plotly", "repr"])
def test_simulated_is_said_in_every_form(recording, form):
    work = recording("synthetic:idle")
    time.sleep(0.3)
    work.stop()
    bundle = work.figure()._repr_mimebundle_()
    texts = {
        "str": str(work.summary()),
        "html": work.summary()._repr_html_(),
        "plot text": bundle["text/plain"],
        "plotly": str(bundle["application/vnd.plotly.v1+json"]["layout"]["title"]),
        "repr": repr(work),
    }
    assert "simulated" in texts[form].lower()


def test_an_exception_in_the_block_passes_and_ends_the_recorder(recorders):
    with pytest.raises(ZeroDivisionError), measure("host", 0.1):
        _ = 1 / 0
    assert recorders() == []


@pytest.mark.parametrize(
    ("source", "interval", "words"),
    [
        ("synthetic:nope", 1.0, "There is no simulated source 'nope'"),
        ("replay:/nowhere.parquet", 1.0, "/nowhere.parquet"),
        ("host", 0.0, "interval"),
        ("nonsense", 1.0, "There is no source 'nonsense'"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(source, interval, words, recorders):
    with pytest.raises(GipfelError, match=words) as refused:
        measure(source, interval).start()
    assert "\n" not in str(refused.value)
    assert recorders() == []


def test_results_before_the_beginning_are_refused():
    with pytest.raises(GipfelError, match="Nothing is measured yet"):
        measure().summary()


_KERNEL = """
import sys, time
from gipfel_widgets import measure
work = measure("host", 0.1).start()
print("started", flush=True)
if sys.argv[1] == "wait":
    time.sleep(60)
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_the_recorder_ends_with_a_kernel_that_forgot_it(end, recorders, wait_for):
    # What a killed kernel leaves behind is removed here; a path of pytest's is too long for sockets.
    temporary = tempfile.mkdtemp(prefix="gw-", dir="/tmp")
    kernel = subprocess.Popen(
        [sys.executable, "-c", _KERNEL, "wait" if end == "kill" else "leave"],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": temporary},
        text=True,
    )
    try:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == "started\n"
        found = recorders(kernel.pid)
        if end == "kill":
            assert len(found) == 1
            kernel.kill()
        kernel.wait(10)
        wait_for(lambda: not any(psutil.pid_exists(process.pid) for process in found))
    finally:
        kernel.kill()
        kernel.wait()
        kernel.stdout.close()
        shutil.rmtree(temporary)
