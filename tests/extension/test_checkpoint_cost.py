"""What checkpoints cost a run: dips that are found, none where there is none, and what is shown of them."""

import gzip
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from saturation_tables import gpu, host
from saturation_tables import table as samples_table
from test_checkpoints_list import write_checkpoint

from gipfel_extension.cli import main
from gipfel_extension.diagnosis.checkpoint_cost import Write, checkpoint_cost
from gipfel_extension.diagnosis.steps import StepTable
from gipfel_extension.job.checkpoints import checkpoint_figure, read_checkpoints
from gipfel_extension.saturation.advice.checkpoint import daly
from gipfel_extension.saturation.settings import Settings
from gipfel_extension.server.job_tabs import DarkQuery, checkpoints_document
from gipfel_extension.telemetry.figures.image import static_image
from gipfel_extension.telemetry.sample import SampleTable
from gipfel_extension.vetting.history.store import History, HistoryEntry, VettingRecord
from gipfel_extension.vetting.model import Scope, Verdict

START = 1_800_000_000 * 10**9
STEP_S = 0.5


def course(slower: float, *, stall_s: float = 0.0, seed: int = 0) -> tuple[StepTable, list[Write], float]:
    """Return 1000 steps of half a second with noise, 10 writes of 8 steps each, and what these cost."""
    draw = np.random.default_rng(seed)
    seconds = STEP_S * (1 + 0.01 * draw.standard_normal(1000))
    usual = seconds.copy()
    begins = range(50, 1000, 95)
    for begin in begins:
        seconds[begin : begin + 8] *= 1 + slower
        seconds[begin] += stall_s
    ends = START + np.cumsum(seconds * 1e9).astype(np.int64)
    steps = np.arange(1, 1001)
    rows = np.zeros(1000, np.int64), steps, ends, seconds, np.full(1000, np.nan)
    writes = [
        Write(
            begin,
            int(ends[begin + 7]),
            stall_s,
            float(seconds[begin : begin + 8].sum()),
            4 * 10**9,
            (3.0, 3.0),
        )
        for begin in begins
    ]
    return StepTable.of_rows(rows), writes, float((seconds - usual).sum())


def test_the_cost_of_writes_in_the_background_is_found_within_five_percent() -> None:
    steps, writes, truth = course(0.1, stall_s=0.2)
    found = checkpoint_cost(steps, writes)
    assert found
    assert len(found.dips) == 10
    assert found.cost_s == pytest.approx(truth, rel=0.05)
    assert found.blocking_count == 0
    assert found.stall_s == pytest.approx(2.0)
    # Standing still until the files were there would have taken 3.2 s each.
    assert found.saved_s == pytest.approx(10 * 3.2 - truth, rel=0.05)
    assert found.chance < 0.05
    low, high = found.lower[1:]
    assert low < found.lower[0] < high
    assert "would lower the peak from 1,333 to 667 MB/s" in " ".join(found.sentences())


def test_no_dip_is_called_chance() -> None:
    significant = 0
    for seed in range(20):
        steps, writes, _ = course(0.0, seed=seed)
        found = checkpoint_cost(steps, writes)
        assert found
        assert abs(found.lower[0]) < 0.01
        significant += found.chance < 0.05
    assert significant <= 3


def test_a_dip_of_two_percent_is_found() -> None:
    steps, writes, _ = course(0.02)
    found = checkpoint_cost(steps, writes)
    assert found
    assert found.lower[0] == pytest.approx(0.0196, abs=0.004)
    assert found.chance < 0.05


def sampled(
    steps: StepTable, writes: list[Write], *, written: float, busy: float
) -> tuple[StepTable, SampleTable]:
    """Return the steps at the time of samples, and samples that show what happened in stalls of 2 s."""
    count = int((steps.time_ns[-1] - START) / 1e9) + 2
    write, active = np.full(count, 1e5), np.full(count, 0.9)
    for each in writes:
        # The stall is in the step in which the write began.
        second = int((each.begin_ns - START) / 1e9)
        write[second : second + 4], active[second : second + 4] = written, busy
    samples = samples_table({gpu(0): {"SM_ACTIVE": active}, host(): {"IO_WRITE_BYTES": write}}, length=count)
    shift = START - int(samples[gpu(0).uuid]["time_ns"][0])
    return replace(steps, time_ns=steps.time_ns - shift), samples


def test_interruptions_in_which_files_were_written_would_be_saved() -> None:
    steps, writes, truth = course(0.0, stall_s=2.0)
    steps, samples = sampled(steps, writes, written=5e8, busy=0.0)
    found = checkpoint_cost(steps, [], lambda: samples)
    assert found
    assert (found.blocking_count, found.regular_count, found.dips) == (10, 0, ())
    assert found.blocking_s == pytest.approx(truth, rel=0.05)
    assert "Asynchronous writing would save up to 20 s" in " ".join(found.sentences())


def test_regular_evaluations_are_no_checkpoints() -> None:
    steps, writes, _ = course(0.0, stall_s=2.0)
    steps, samples = sampled(steps, writes, written=1e5, busy=0.9)
    found = checkpoint_cost(steps, [], lambda: samples)
    assert found
    assert (found.blocking_count, found.regular_count, found.cost_s) == (0, 0, 0.0)
    assert found.sentences() == []


def test_without_samples_regular_interruptions_may_be_checkpoints_or_evaluations() -> None:
    steps, _, truth = course(0.0, stall_s=2.0)
    found = checkpoint_cost(steps, [])
    assert found
    assert (found.blocking_count, found.regular_count, found.cost_s) == (0, 10, 0.0)
    assert found.regular_s == pytest.approx(truth, rel=0.05)
    (sentence,) = found.sentences()
    assert sentence.startswith("10 checkpoints or evaluations without a record took 20 s (3.9% of the run);")


def test_the_report_of_a_run_uses_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, writes, _ = course(0.0, stall_s=2.0)
    steps, samples = sampled(steps, writes, written=5e8, busy=0.0)
    run = run_with(tmp_path, writes, steps)
    (tmp_path / "kept/.history.json").unlink()
    monkeypatch.setattr("gipfel_extension.job.checkpoints.samples_of_run", {run: samples}.get)
    report = read_checkpoints([tmp_path / "kept"], run)
    assert report.cost
    assert report.cost.blocking_count == 10


@pytest.mark.parametrize("has_samples", [True, False])
def test_blocking_checkpoints_are_marked_where_training_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_samples: bool
) -> None:
    steps, writes, _ = course(0.0, stall_s=2.0)
    steps, samples = sampled(steps, writes, written=5e8, busy=0.0)
    run = run_with(tmp_path, writes, steps)
    # The first write was recorded; the other nine blocked, without a record.
    moved_ns = int(steps.time_ns[writes[0].step + 7])
    (tmp_path / "kept/.history.json").write_text(
        json.dumps(
            {"writes": [{"step": writes[0].step, "time_ns": moved_ns, "stall_s": 2.0,
                         "write_s": writes[0].write_s, "bytes": 1, "rank_seconds": [3.0]}]}
        )
    )  # fmt: skip
    if has_samples:
        monkeypatch.setattr("gipfel_extension.job.checkpoints.samples_of_run", {run: samples}.get)
    figure = checkpoint_figure(read_checkpoints([tmp_path / "kept"], run))
    assert figure
    marked = [each for each in figure["layout"]["shapes"] if each["name"] == "evidence"]
    assert len(marked) == 10
    assert all(each["x1"] - each["x0"] == pytest.approx(2000, abs=100) for each in marked[1:])
    ends = [int(steps.time_ns[each.step]) // 10**6 for each in writes]
    assert [each["x1"] for each in marked[1:]] == pytest.approx(ends[1:], abs=2)
    noun = "checkpoints" if has_samples else "checkpoints or evaluations"
    assert f"Steps per second, 10 {noun} marked" in json.dumps(figure)


def mixed(draw: np.random.Generator) -> tuple[StepTable, list[Write], float]:
    """Return a run with a blocking checkpoint at a distance, recorded writes between them, and other pauses.

    The last value is what the blocking and the recorded ones cost.
    """
    count, every = int(draw.integers(800, 3000)), int(draw.integers(60, 200))
    noise = draw.standard_normal(count)
    for place in range(1, count):
        noise[place] += 0.4 * noise[place - 1]
    seconds = draw.uniform(0.04, 2.0) * (1 + draw.uniform(0.002, 0.03) * noise)
    usual, step_s = seconds.copy(), float(np.median(seconds))
    begins = np.arange(int(draw.integers(20, every)), count - every, every)
    seconds[begins] += step_s * draw.uniform(2, 12, len(begins))
    writes, slower = [], draw.uniform(0.02, 0.3)
    for begin in begins[draw.random(len(begins)) < 0.7]:
        first = int(begin + draw.integers(10, every - 25))
        seconds[first] += step_s * draw.uniform(0.2, 4)
        seconds[first : first + 12] *= 1 + slower
        writes.append((first, first + 11))
    truth = float((seconds - usual).sum())
    # Steps that are long for other reasons, which are no checkpoints.
    for place in draw.integers(0, count, int(draw.integers(0, 6))):
        if not any(first <= place <= last for first, last in writes) and place not in begins:
            seconds[place] += step_s * draw.uniform(0.6, 5)
    ends = START + np.cumsum(seconds * 1e9).astype(np.int64)
    rows = np.zeros(count, np.int64), np.arange(1, count + 1), ends, seconds, np.full(count, np.nan)
    recorded = [
        Write(first + 1, int(ends[last]), 0.0, float(seconds[first : last + 1].sum()), 10**9, (1.0,))
        for first, last in writes
    ]
    return StepTable.of_rows(rows), recorded, truth


def test_blocking_checkpoints_are_found_among_recorded_writes_and_other_pauses() -> None:
    near = 0
    for seed in range(5000, 5030):
        steps, writes, truth = mixed(np.random.default_rng(seed))
        found = checkpoint_cost(steps, writes)
        assert found
        near += abs((found.cost_s + found.regular_s) / truth - 1) < 0.05
    assert near >= 28


def test_pauses_at_random_steps_are_no_checkpoints_and_are_named() -> None:
    taken = 0
    for seed in range(6000, 6060):
        draw = np.random.default_rng(seed)
        seconds = 0.5 * (1 + 0.01 * draw.standard_normal(1500))
        seconds[draw.choice(1500, int(draw.integers(3, 25)), replace=False)] += draw.uniform(1, 4)
        ends = START + np.cumsum(seconds * 1e9).astype(np.int64)
        rows = np.zeros(1500, np.int64), np.arange(1500), ends, seconds, np.full(1500, np.nan)
        found = checkpoint_cost(StepTable.of_rows(rows), [])
        assert found
        assert found.unclear_count or found.regular_count
        assert ("at irregular steps" in " ".join(found.sentences())) == (found.unclear_count > 0)
        taken += found.regular_count > 0
    assert taken <= 2


def run_with(tmp_path: Path, writes: list[Write], steps: StepTable) -> Path:
    """Write a run whose launch has a directory of checkpoints."""
    kept = tmp_path / "kept"
    write_checkpoint(kept, writes[-1].step)
    entries = [
        {"step": each.step, "time_ns": each.end_ns, "stall_s": each.stall_s, "write_s": each.write_s,
         "bytes": each.bytes, "rank_seconds": list(each.rank_seconds)}
        for each in writes
    ]  # fmt: skip
    (kept / ".history.json").write_text(json.dumps({"writes": [*entries, {"step": -1}]}))
    run = tmp_path / "runs/alps-17"
    (run / "launches/1").mkdir(parents=True)
    (run / "record.json").write_text("{}")
    (run / "launches/1/plan.json").write_text(json.dumps({"checkpoint": str(kept)}))
    lines = (
        json.dumps(
            {
                "time_ns": int(time_ns),
                "monotonic_ns": int(time_ns),
                "node": "n1",
                "rank": 0,
                "values": {"step": int(step), "step_s": float(took)},
            }
        )
        for time_ns, step, took in zip(steps.time_ns, steps.steps, steps.step_s[0], strict=True)
    )
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return run


def test_command_page_and_figure_show_what_checkpoints_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, writes, truth = course(0.1, stall_s=0.2)
    run = run_with(tmp_path, writes, steps)
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("GIPFEL_STORAGE_QUOTA", "echo 17 of 100 TiB")
    assert main(["checkpoints", "alps-17"]) == 0
    out = capsys.readouterr().out
    assert "10 checkpoints cost" in out
    assert "17 of 100 TiB" in out
    assert main(["checkpoints", "alps-17", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cost"]["cost_s"] == pytest.approx(truth, rel=0.05)
    assert len(document["writes"]) == 10
    page = checkpoints_document(run, DarkQuery())
    assert [each["step"] for each in page["dips"]] == [each.step for each in writes]
    assert [each["name"] for each in page["checkpoints"]] == [f"step-{writes[-1].step}"]
    assert page["quota"] == "17 of 100 TiB"
    figure = checkpoint_figure(read_checkpoints([tmp_path / "kept"], run), dark=True)
    assert figure
    assert sum(each["name"] == "evidence" for each in figure["layout"]["shapes"]) == 10
    assert static_image(figure).startswith(b"\x89PNG")


def test_the_interval_is_dalys_by_the_vettings_and_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, writes, _ = course(0.1, stall_s=0.2)
    run = run_with(tmp_path, writes, steps)
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("GIPFEL_VETTING_HISTORY", str(tmp_path / "vetting"))
    (run / "record.json").write_text(json.dumps({"nodes": ["n1", "n2"], "cluster": "alps"}))
    gpu_s = 3600.0 * Settings().gpu_hours_per_failure
    plain = read_checkpoints([tmp_path / "kept"], run).interval
    assert plain
    assert plain.failure_s == pytest.approx(gpu_s / 2)
    assert plain.cost_s == pytest.approx(0.64, rel=0.1)
    assert plain.best_s == pytest.approx(daly(plain.cost_s, gpu_s / 2), rel=1e-6)
    assert plain.used_s == pytest.approx(95 * STEP_S, rel=0.05)
    history = History(tmp_path / "vetting", "alps")
    day_ns = 86_400 * 10**9
    now = time.time_ns() - 20 * day_ns
    for day, failed in ((0, ""), (5, "n2"), (6, ""), (10, "n1")):
        at = now + day * day_ns
        vetted = tuple(each for each in ("n1", "n2") if each != failed)
        entries = [
            HistoryEntry(node=failed, check="c", type="gemm", scope=Scope.NODE, verdict=Verdict.FAIL)
        ] * bool(failed)
        history.store(
            VettingRecord(cluster="alps", protocol="quick", started_ns=at, ended_ns=at, complete=True,
                          vetted=vetted, entries=tuple(entries))
        )  # fmt: skip
    # n1 was seen for 10 days and failed once, n2 for 5 and for 4, and failed once.
    known = read_checkpoints([tmp_path / "kept"], run).interval
    assert known
    assert known.failure_s == pytest.approx((19 * 86_400 + gpu_s / 2) / 2.5 / 2, rel=0.01)
    assert main(["checkpoints", "alps-17"]) == 0
    assert "your vettings: 2 failures in 19 node days" in capsys.readouterr().out
    assert "(Daly): one costs" in " ".join(checkpoints_document(run, DarkQuery())["lines"])
    kept = json.loads((tmp_path / "kept/.history.json").read_text())
    for broken in ({"starts": "x"}, {"starts": 4, "ends": 1, "seconds": 1e300}, {}):
        (tmp_path / "kept/.history.json").write_text(json.dumps(kept | broken))
        same = read_checkpoints([tmp_path / "kept"], run).interval
        assert same
        assert same.failure_s == known.failure_s
    (tmp_path / "kept/.history.json").write_text(json.dumps(kept | {"starts": 4, "ends": 1, "seconds": 7200}))
    own = read_checkpoints([tmp_path / "kept"], run).interval
    assert own
    assert own.failure_s == pytest.approx((7200 + known.failure_s / 2) / 2.5)
    assert "2 failures in 2 h 0 min of this training" in own.sentence()


def test_one_that_will_not_fit_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path, 1)
    with (tmp_path / "step-1/__0_0.distcp").open("r+b") as file:
        file.truncate(1 << 43)
    (tmp_path / "step-1/manifest.json").unlink()
    assert main(["checkpoints", str(tmp_path)]) == 0
    assert "Another checkpoint won't fit: " in capsys.readouterr().err


def test_a_recorded_runs_checkpoints_cost_what_the_ranks_timers_say(tmp_path: Path) -> None:
    """Two gloo ranks, four checkpoints of each kind, on a machine that did other work as well.

    ``train`` of ``tests/bench/checkpoint_dips.py`` has recorded them, with 60 MB a rank, 80 steps of 40 ms
    from one checkpoint to the next, and its kinds `RECORDED`. README's gallery shows the figure.
    """
    recorded, kinds = (
        Path(__file__).parent / "data/checkpoint_dips",
        ("blocking", "asynchronous", "staggered"),
    )
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_bytes(gzip.decompress((recorded / "metrics.jsonl.gz").read_bytes()))
    for kind in kinds:
        (tmp_path / kind).mkdir()
        shutil.copy(recorded / f"{kind}.json", tmp_path / kind / ".history.json")
    timers = [json.loads((recorded / f"timers-{rank}.json").read_text()) for rank in range(2)]
    report = read_checkpoints([tmp_path / kind for kind in kinds], run)
    assert report.cost
    assert len(report.cost.dips) == 12
    own = sum(cost for timer in timers for kind in kinds for cost, _ in timer[kind]) / 2
    assert report.cost.cost_s == pytest.approx(own, rel=0.05)
    figure = checkpoint_figure(report)
    assert figure
    assert sum(each["name"] == "evidence" for each in figure["layout"]["shapes"]) == 12
    rate, usual = figure["data"]
    blocking = {write.step for write in report.writes[:4]}
    for dip in report.cost.dips:
        inside = [
            rate["y"][place]
            for place, time_ms in enumerate(rate["x"])
            if dip.begin_ns <= time_ms * 1_000_000 <= dip.end_ns + 2 * 10**8
        ]
        # A blocking checkpoint takes as long as several steps.
        assert min(inside) < (0.4 if dip.step in blocking else 1) * usual["y"][0]
