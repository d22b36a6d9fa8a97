"""Changes of a run's pace: dated, with what changed with them; and differences of runs."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
from diagnosis_steps import START_NS, roles, table, work
from event_bytes import event, frame, simple
from recorder_process import TwoClocks
from saturation_tables import gpu, host
from saturation_tables import table as samples_table

from gipfel_extension.diagnosis import diagnose
from gipfel_extension.diagnosis.pace import RunPace, compare_paces, find_changes, pace_of
from gipfel_extension.diagnosis.phases import find_phases
from gipfel_extension.diagnosis.series_changes import find_explanation, find_series_changes
from gipfel_extension.diagnosis.steps import StepTable, metrics_of_run
from gipfel_extension.tracking.run_metrics import MetricsDirectory


def noise(steps: int, cv: float = 0.02, seed: int = 5) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, cv, steps))


def test_a_change_is_dated_and_measured():
    seconds = noise(200)
    seconds[120:] *= 1.1
    (found,) = find_changes(seconds).changes
    assert abs(found.column - 120) <= 3
    assert found.share == pytest.approx(0.10, abs=0.02)
    assert found.confidence > 0.95


def test_changes_up_and_down_are_two():
    seconds = noise(300)
    seconds[100:160] *= 1.2
    found = find_changes(seconds).changes
    assert [np.sign(each.share) for each in found] == [1, -1]
    assert [each.column for each in found] == pytest.approx([100, 160], abs=3)


@pytest.mark.parametrize("spoil", ["checkpoints", "warm-up", "missing", "one pause", "lasting noise"])
def test_what_is_no_change(spoil):
    seconds = noise(300)
    if spoil == "checkpoints":
        seconds[25::25] *= 5
    elif spoil == "warm-up":
        seconds[:8] *= 4
    elif spoil == "missing":
        seconds[100:140] = np.nan
    elif spoil == "one pause":
        seconds[150:160] *= 3
    else:
        lasting = np.repeat(np.random.default_rng(1).normal(0, 0.05, 75), 4)
        seconds = np.exp(lasting)
    assert find_changes(seconds).changes == ()


def test_what_could_not_be_resolved_is_said():
    assert find_changes(noise(200)).resolution == pytest.approx(0.05)
    assert find_changes(noise(200, 0.10)).resolution > 0.10
    assert find_changes(noise(30)).resolution is None


def _samples(**more):
    """Samples of two GPUs and their host, each second, over the time of the steps."""
    busy = {"SM_CLOCK": 1900.0, "GPU_TEMP": 50.0, "SM_ACTIVE": 0.9}
    return samples_table({gpu(0): {**busy, **more}, gpu(1): busy, host(): {"CPU_UTIL": 0.2}}, length=200)


def test_the_explanation_is_a_series_that_can_explain_the_change():
    rng = np.random.default_rng(2)
    clock = np.where(np.arange(200) < 100, 1900.0, 1500.0) + rng.normal(0, 5, 200)
    active = np.where(np.arange(200) < 100, 0.9, 0.7)
    samples = _samples(SM_CLOCK=clock, SM_ACTIVE=active)
    at = samples[gpu(0).uuid]["time_ns"][[100, 50, 150]].tolist()
    found = find_explanation(samples, *at, slower=True)
    assert (found.metric, [device.index for device in found.devices]) == ("SM_CLOCK", [0])
    assert "1899 MHz to 1500 MHz on GPU 0 of nid1" in found.sentence()
    # A clock that falls does not make steps faster, and activity explains nothing.
    assert find_explanation(samples, *at, slower=False) is None
    assert find_explanation(_samples(SM_ACTIVE=active), *at, slower=True) is None


def test_a_change_names_its_explanation_and_none_where_none_is_significant():
    seconds = work(8, 200, 0.02)
    seconds[:, 100:] *= 1.2
    steps = table(seconds)
    offset = START_NS - int(_samples()[gpu(0).uuid]["time_ns"][0])
    steps = type(steps)(steps.ranks, steps.steps, steps.time_ns - offset, steps.step_s, steps.work_s)
    clock = np.where(np.arange(200) < 105, 1900.0, 1500.0)
    for samples, text in ((_samples(SM_CLOCK=clock), "SM_CLOCK"), (_samples(), "No hardware series")):
        found = diagnose(steps, roles(8), samples=lambda samples=samples: samples)
        (change,) = (each for each in found.verdicts if each.kind == "change")
        assert text in change.evidence


def test_a_dip_lists_all_series_that_moved_with_it_and_no_others():
    rng = np.random.default_rng(3)
    dip = (np.arange(200) >= 100) & (np.arange(200) < 130)
    clock = np.where(dip, 1500.0, 1900.0) + rng.normal(0, 5, 200)
    active = np.where(dip, 0.7, 0.9) + rng.normal(0, 0.01, 200)
    drifting = 50 + np.arange(200) / 10
    samples = _samples(SM_CLOCK=clock, SM_ACTIVE=active, GPU_TEMP=drifting)
    at = samples[gpu(0).uuid]["time_ns"][[100, 50, 129]].tolist()
    assert {each.metric for each in find_series_changes(samples, *at)} == {"SM_CLOCK", "SM_ACTIVE"}
    # Steps of a dip are compared up to its end, although more steps follow.
    seconds = work(8, 200, 0.02)
    seconds[:, dip] *= 1.3
    steps = table(seconds)
    offset = START_NS - int(samples[gpu(0).uuid]["time_ns"][0])
    times_ns = steps.time_ns[0] - offset + np.arange(200) * 10**9
    steps = type(steps)(steps.ranks, steps.steps, times_ns, steps.step_s, steps.work_s)
    found = [
        each for each in diagnose(steps, roles(8), samples=lambda: samples).verdicts if each.kind == "change"
    ]
    assert len(found) == 2
    assert "SM_CLOCK changed with it" in found[0].evidence
    assert "Also moved: SM_ACTIVE from 90% to 70% on GPU 0" in found[0].evidence


def test_a_dip_of_a_rate_in_tensorboard_lists_the_series_that_moved_with_it(tmp_path):
    rng = np.random.default_rng(3)
    dip = (np.arange(200) >= 100) & (np.arange(200) < 140)
    clock = np.where(dip, 1500.0, 1900.0) + rng.normal(0, 5, 200)
    samples = _samples(SM_CLOCK=clock, GPU_TEMP=50 + rng.normal(0, 0.1, 200))
    rates = 1000 * np.where(dip, 0.8, 1.0) * np.exp(rng.normal(0, 0.02, 200))
    times = samples[gpu(0).uuid]["time_ns"] / 1e9
    run, logs = tmp_path / "run", tmp_path / "rank0"
    for folder in (run, logs):
        folder.mkdir()
    content = b"".join(
        frame(event(step, at, simple("perf/tokens_per_s", float(rate)), simple("loss", 5 - step / 50)))
        for step, (at, rate) in enumerate(zip(times, rates, strict=True))
    )
    (logs / "events.out.tfevents.1").write_bytes(content)
    copied = MetricsDirectory(logs.parent, run, "n1", TwoClocks(), since_ns=0)
    copied.follow()
    copied.follow(last=True)
    metrics, _ = metrics_of_run(run)
    # A run with and without steps of its own, in which the same dip is not reported twice.
    found = diagnose(None, samples=lambda: samples, metrics=metrics).verdicts
    changes = [each for each in found if each.kind == "change"]
    assert len(changes) == 2
    assert changes[0].evidence.startswith("perf/tokens_per_s falls by 2")
    assert changes[0].since == pytest.approx(times[100] * 1e9, abs=4e9)
    assert "SM_CLOCK changed with it" in changes[0].evidence
    assert "GPU_TEMP" not in changes[0].evidence
    steps = table(work(8, 200, 0.02) * np.where(dip, 1.25, 1.0))
    shifted = (times * 1e9).astype(np.int64)
    steps = StepTable(steps.ranks, steps.steps, shifted, steps.step_s, steps.work_s)
    both = diagnose(steps, roles(8), samples=lambda: samples, metrics=metrics).verdicts
    assert ["Steps take" in each.evidence for each in both if each.kind == "change"] == [True, True]


def _run_with_phases(step_s: float = 0.5, count: int = 200):
    """Steps of which every 40th is followed by a checkpoint of 4 s, and one by a pause of 20 s."""
    seconds = step_s * (1 + np.random.default_rng(4).normal(0, 0.02, count))
    extra = np.zeros(count)
    extra[40::40] = 4.0
    extra[70] = 20.0
    ends = START_NS + ((30 + np.cumsum(seconds + extra)) * 1e9).astype(np.int64)
    # The loop's own time leaves out what happens between two steps.
    both = np.tile(seconds, (4, 1))
    return StepTable(np.arange(4), np.arange(count), ends, both, both)


def test_interruptions_are_counted_with_their_cost_and_period():
    found = find_phases(_run_with_phases(), None, START_NS)
    kinds = {each.kind: each for each in found.phases}
    assert found.step_s == pytest.approx(0.5, rel=0.01)
    assert kinds["set_up"].seconds == pytest.approx(30, abs=0.5)
    # Four of five are regular; without samples a checkpoint is not told from an evaluation.
    assert sum(each.seconds for each in found.phases) == pytest.approx(30 + 4 * 4 + 20, abs=1)
    assert find_phases(table(work(4, 8))) is None
    assert find_phases(table(work(4, 100, 0.02))).phases == ()
    document = diagnose(_run_with_phases(), roles(4), begin_ns=START_NS).to_json()
    assert document["pace"]["steps"] == 200
    json.dumps(document)


def test_what_is_written_or_computed_tells_a_checkpoint_from_an_evaluation_and_a_pause():
    steps = _run_with_phases()
    count = int((steps.time_ns[-1] - START_NS) / 1e9) + 2
    write, active = np.full(count, 1e5), np.full(count, 0.5)
    for end in steps.time_ns[40::40]:
        second = int((end - START_NS) / 1e9)
        write[second - 4 : second + 1], active[second - 4 : second + 1] = 5e8, 0.0
    pause = int((steps.time_ns[70] - START_NS) / 1e9)
    for working, kind in ((0.0, "pause"), (0.4, "evaluation")):
        active[pause - 20 : pause + 1] = working
        columns = {gpu(0): {"SM_ACTIVE": active}, host(): {"IO_WRITE_BYTES": write}}
        samples = samples_table(columns, length=count)
        shift = START_NS - int(samples[gpu(0).uuid]["time_ns"][0])
        moved = replace(steps, time_ns=steps.time_ns - shift)
        found = {each.kind: each for each in find_phases(moved, samples).phases}
        assert set(found) == {"checkpoint", kind}
        assert found["checkpoint"].every == 40
        assert found["checkpoint"].seconds == pytest.approx(16, abs=1)
        assert found[kind].sentence(150.0).startswith(f"1 {kind}: 20 s in all (13.")
        assert "4 checkpoints, every 40 steps, 4 s each: 16 s in all" in found["checkpoint"].sentence(150.0)


def test_longer_steps_without_more_work_are_communication():
    seconds = work(8, 120, 0.02)
    whole = seconds.max(axis=0) + np.where(np.arange(120) < 60, 0.1, 0.4)
    found = diagnose(table(seconds, step_s=whole), roles(8)).verdicts
    assert [each.kind for each in found] == ["change", "link"]
    seconds[:, 60:] *= 1.3
    found = diagnose(table(seconds, step_s=seconds.max(axis=0) + 0.1), roles(8)).verdicts
    assert [each.kind for each in found] == ["change"]


def _pace(seconds: float, error: float = 0.002) -> RunPace:
    return RunPace("run", seconds, error, 200)


def test_runs_are_compared_with_their_confidence():
    slower = compare_paces(_pace(1.10), [_pace(1.0)])
    assert (slower.verdict, slower.confidence > 0.95) == ("slower", True)
    assert slower.least < 0.10 < slower.most
    assert "assuming" in slower.sentence
    same = compare_paces(_pace(1.01), [_pace(1.0)])
    assert (same.verdict, same.confidence) == ("same", 0.0)
    assert same.resolution == pytest.approx(0.05)
    assert compare_paces(_pace(0.9), [_pace(1.0)]).verdict == "faster"
    assert compare_paces(_pace(1.0), []).verdict == "cannot tell"


def test_runs_that_differ_among_themselves_hide_what_they_would_else_show():
    apart = [_pace(seconds) for seconds in (0.9, 1.0, 1.1, 0.95, 1.06, 1.0)]
    assert compare_paces(_pace(1.08), apart).verdict == "same"
    assert compare_paces(_pace(1.08), [_pace(1.0)] * 6).verdict == "slower"
    assert pace_of(table(work(4, 15)), "short") is None
    assert pace_of(table(work(4, 100)), "long").steps > 60


def test_a_sample_of_the_campaign_finds_changes_and_invents_none():
    campaign = importlib.import_module("changes")
    cells = campaign.cells(seed=20, draws=8)
    names = ("within.+0.noise-5.400", "within.+10.noise-2.400", "runs.+10.apart-1.earlier-5")
    documents = {name: cells[name]() for name in names}
    assert documents["within.+0.noise-5.400"]["false"] == 0
    assert documents["within.+10.noise-2.400"]["found"] == 8
    assert documents["runs.+10.apart-1.earlier-5"]["found"] >= 7
    assert cells["moved.0.of-4"]()["false"] == 0
    assert cells["phases.0.sampled"]()["found"] == 8
    rows = campaign.summary(documents)
    assert len({row["name"] for row in rows}) == len(rows)
