"""Effect of earlier advice, computed after the next run of the same program."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from saturation_tables import START_NS, busy, gpu, host, table

from gipfel_extension.cli import main
from gipfel_extension.server.history import TimeRange
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter
from gipfel_extension.telemetry.user_metrics import UserMetric, UserMetrics
from gipfel_extension.training.results.advice_effect import compare_results
from gipfel_extension.training.results.result import Result, rates_of

H100 = "NVIDIA H100"
RULE_OPTIONS = {
    "compile": "torch.compile",
    "cuda-graphs": "CUDA graphs",
    "loader-workers": "num_workers",
    "batch-size": "batch size",
    "quarter-precision": "FP8",
    "bucket-size": "bucket_cap_mb",
}


def result(name: str = "a-1", **more: object) -> Result:
    """A result; `losses`, `advice` as rule to gain, `options`, `rates`, `observed` and the rest by name."""
    speedups = dict(more.pop("speedup", {}))
    advice = [
        {
            "rule": rule,
            "knob": {"name": RULE_OPTIONS.get(rule, rule)},
            "gain": gain,
            "speedup": speedups.get(rule, [1.0, round(1 / (1 - gain / 100), 3)] if gain else None),
        }
        for rule, gain in dict(more.pop("advice", {})).items()
    ]
    program = {
        "name": "/home/a/train.py",
        "options": more.pop("options", {}),
        "ranks": more.pop("ranks", None),
    }
    image = more.pop("image", "")
    saved = {"score": 50.0, "losses": {}, "confidence": 0.9, "simulated": False, "gpus": [{"name": H100}]}
    given = {"run": name, "started": f"2026-01-0{name[-1]}", "program": program, "image": image}
    return Result.model_validate({**given, "saved": {**saved, "advice": advice, **more}})


def lines(before: Result, now: Result) -> list[str]:
    return list(compare_results(before, now).lines)


BEFORE = result(
    losses={"launch": 8.26}, advice={"compile": 8.26}, rates={"tokens_per_s": [100.0, 0.5]}, observed={}
)


def test_an_option_shows_that_it_was_tried_and_the_pace_what_it_gained():
    now = result(
        "a-2", losses={"launch": 3.0}, options={"compile": "true"}, rates={"tokens_per_s": [107.0, 0.5]}
    )
    effect = compare_results(BEFORE, now)
    assert (effect.checks[0].verdict, effect.speedup.value, effect.speedup.measured_by) == (
        "tried",
        1.07,
        "tokens_per_s",
    )
    assert effect.bound == (1.0, 1.09)
    assert len(effect.lines) == 1
    assert effect.lines[0] == (
        "Since run a-1: you tried torch.compile (option compile, launch from 8 to 3 points): "
        "1.07 times (1.06 to 1.08) by tokens_per_s, 1.09 was the bound."
    )


def test_the_launch_loss_alone_shows_it_and_names_both_that_could_be():
    before = result(losses={"launch": 40.0}, advice={"compile": 40.0, "cuda-graphs": 40.0}, score=40.0)
    now = result("a-2", losses={"launch": 10.0}, score=60.0)
    (line,) = lines(before, now)
    assert line == (
        "Since run a-1: you tried torch.compile or CUDA graphs (launch from 40 to 10 points): "
        "1.50 times by score, 1.67 was the bound."
    )
    # An option tells them apart.
    named = result("a-2", losses={"launch": 10.0}, score=60.0, options={"cuda_graphs": "true"})
    assert lines(before, named)[0].startswith("Since run a-1: you tried CUDA graphs (option cuda_graphs")
    assert lines(before, named)[1] == (
        "torch.compile was advised in run a-1; nothing shows that it was tried."
    )


def test_what_nothing_shows_was_not_tried():
    now = result("a-2", losses={"launch": 7.5}, rates={"tokens_per_s": [104.0, 0.5]})
    effect = compare_results(BEFORE, now)
    assert effect.speedup is None
    assert [each.verdict for each in effect.checks] == ["not tried"]
    assert list(effect.lines) == ["torch.compile was advised in run a-1; nothing shows that it was tried."]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"gpus": [{"name": H100}] * 2}, "they had 1 and 2 GPUs"),
        ({"gpus": [{"name": "NVIDIA A100"}]}, "their GPUs are different models"),
        ({"ranks": 2}, "they had different numbers of ranks"),
        ({"simulated": True}, "one is simulated"),
        ({"options": {"hidden": "8192"}}, "they differ in options that the advice does not mention: hidden"),
        (
            {"options": {"num_workers": "8"}},
            "they differ in options that the advice does not mention: num_workers",
        ),
        ({"score": None}, "the later one has no score"),
    ],
)
def test_runs_that_cannot_be_compared_are_said_to_be(more, why):
    effect = compare_results(BEFORE, result("a-2", **{"losses": {"launch": 1.0}, **more}))
    assert {each.verdict for each in effect.checks} == {"cannot tell"}
    assert list(effect.lines) == [
        "Since run a-1: cannot tell what its advice gained: the runs are not comparable because " + why + "."
    ]


def test_other_images_are_other_work_where_both_are_known():
    known = result(advice={"compile": 8.0}, image="sha256:a")
    assert compare_results(known, result("a-2", image="sha256:b")).reason.endswith("their images differ")
    assert not compare_results(known, result("a-2")).reason


def test_harmless_options_may_differ_but_then_the_duration_says_nothing():
    before = result(advice={"compile": 30.0}, losses={"launch": 30.0}, seconds=100.0, options={"steps": "10"})
    faster = {"losses": {"launch": 3.0}, "seconds": 80.0, "score": 70.0}
    same = result("a-2", options={"steps": "10", "compile": "1"}, **faster)
    assert (
        compare_results(before, same).speedup.measured_by,
        compare_results(before, same).speedup.value,
    ) == (
        "duration",
        1.25,
    )
    other = result("a-2", options={"steps": "20", "compile": "1"}, **faster)
    assert (
        compare_results(before, other).speedup.measured_by,
        compare_results(before, other).speedup.value,
    ) == (
        "score",
        1.4,
    )


def test_a_larger_batch_is_not_measured_by_its_steps():
    rates = {"steps_per_s": [10.0, 0.1]}
    before = result(advice={"batch-size": 30.0}, observed={"memory_used": 0.2}, rates=rates, seconds=90.0)
    now = result(
        "a-2", observed={"memory_used": 0.5}, rates={"steps_per_s": [6.0, 0.1]}, seconds=90.0, score=60.0
    )
    assert compare_results(before, now).speedup.measured_by == "score"
    images = {**rates, "images_per_s": [320.0, 1.0]}
    more = compare_results(
        before.model_copy(update={"saved": before.saved.model_copy(update={"rates": images})}),
        result("a-2", observed={"memory_used": 0.5}, rates={"images_per_s": [400.0, 1.0]}),
    )
    assert (more.speedup.measured_by, more.speedup.value) == ("images_per_s", 1.25)


def test_a_smaller_batch_or_fewer_workers_is_not_what_was_advised():
    before = result(
        advice={"batch-size": 30.0, "loader-workers": 20.0}, options={"batch_size": "64", "num_workers": "8"}
    )
    now = result("a-2", options={"batch_size": "32", "num_workers": "4"})
    assert {each.verdict for each in compare_results(before, now).checks} == {"not tried"}


def test_input_that_fell_is_no_sign_without_more_work_of_the_host():
    before = result(advice={"loader-workers": 50.0}, losses={"input": 50.0}, observed={"host_cores": 4.0})
    cached = result("a-2", losses={"input": 5.0}, observed={"host_cores": 4.0})
    assert compare_results(before, cached).checks[0].verdict == "not tried"
    workers = result("a-2", losses={"input": 5.0}, observed={"host_cores": 8.0}, score=90.0)
    assert compare_results(before, workers).checks[0].verdict == "tried"


def test_what_the_score_cannot_show_is_not_told_by_it():
    before = result(advice={"quarter-precision": 0.0}, speedup={"quarter-precision": [1.0, 2.0]})
    now = result("a-2", options={"fp8": "true"})
    effect = compare_results(before, now)
    assert (effect.speedup, effect.checks[0].verdict) == (None, "tried")
    assert effect.lines[0] == (
        "Since run a-1: you tried FP8 (fp8 by its options): cannot tell what it gained: the score does not "
        "show it, and the runs did not both log a rate such as tokens_per_s."
    )
    # It may be much faster, and the bound was computed.
    rate = {"rates": {"tokens_per_s": [100.0, 1.0]}}
    before = result(advice={"quarter-precision": 0.0}, speedup={"quarter-precision": [1.0, 2.0]}, **rate)
    now = result("a-2", options={"fp8": "true"}, rates={"tokens_per_s": [260.0, 1.0]})
    assert lines(before, now)[0].endswith("2.00 was the bound, so something else changed too.")


def test_a_longer_start_up_is_no_sign_and_no_gain():
    before = result(advice={"compile": 30.0}, losses={"launch": 30.0}, score=60.0)
    # Half of the time is start-up: everything else is half of what it was.
    now = result("a-2", losses={"launch": 15.0, "start_up": 50.0}, score=30.0)
    assert compare_results(before, now).checks[0].verdict == "not tried"
    now = result("a-2", losses={"launch": 15.0, "start_up": 50.0}, score=30.0, options={"compile": "1"})
    assert compare_results(before, now).speedup.value == 1.0


def test_samples_at_other_intervals_are_no_sign_and_no_gain():
    before = result(advice={"compile": 30.0}, losses={"launch": 30.0}, score=60.0, interval_s=0.1)
    now = result("a-2", losses={"launch": 0.0}, score=80.0, interval_s=1.0)
    assert compare_results(before, now).checks[0].verdict == "not tried"
    effect = compare_results(before, result("a-2", score=80.0, interval_s=1.0, options={"compile": "1"}))
    assert (effect.speedup, effect.reason) == (None, "the scores are of samples at different intervals")


def test_several_changes_share_one_ratio_and_one_bound():
    before = result(
        advice={"compile": 20.0, "loader-workers": 30.0},
        losses={"launch": 20.0, "input": 30.0},
        options={"num_workers": "2"},
    )
    now = result("a-2", losses={"launch": 1.0, "input": 0.0}, options={"num_workers": "8"}, score=90.0)
    effect = compare_results(before, now)
    assert effect.bound == pytest.approx((1.0, 2.0), abs=0.01)
    assert " and num_workers (option num_workers)" in effect.lines[0]


def test_noise_is_said():
    noisy = {"compile": 8.26}, {"tokens_per_s": [100.0, 3.0]}
    before = result(losses={"launch": 8.0}, advice=noisy[0], rates=noisy[1])
    now = result("a-2", options={"compile": "1"}, rates={"tokens_per_s": [102.0, 3.0]})
    assert lines(before, now)[0].endswith("1.09 was the bound; that is within the noise.")


def test_a_result_that_anyone_may_have_written_gives_no_odd_numbers():
    for odd in (
        {"score": math.nan},
        {"score": 1e300},
        {"seconds": -1.0},
        {"rates": {"tokens_per_s": [math.inf, 0.0]}},
        {"observed": {"memory_used": math.nan}},
    ):
        with pytest.raises(ValueError, match=r"score|seconds|rates|observed"):
            result(**odd)
    tiny = result(advice={"compile": 8.0}, rates={"tokens_per_s": [1e-300, 0.0]})
    effect = compare_results(
        tiny, result("a-2", options={"compile": "1"}, rates={"tokens_per_s": [1e300, 0.0]})
    )
    assert effect.speedup.measured_by == "score"


def metric(name: str, values: object, every_s: float = 1.0) -> UserMetric:
    known = np.asarray(values, float)
    times = (np.arange(len(known)) * every_s * 1e9).astype(np.int64)
    return UserMetric(name, "n", 0, times, times, known)


def test_pace_is_steady_and_has_an_error():
    rng = np.random.default_rng(1)
    rate = np.concatenate([np.full(10, 1.0), 100 + rng.standard_normal(30)])
    found = rates_of(UserMetrics((metric("step", np.arange(40) * 5), metric("tokens_per_s", rate))))
    assert found["steps_per_s"][0] == pytest.approx(5.0)
    mean, error = found["tokens_per_s"]
    assert mean == pytest.approx(100, abs=3 * error)
    assert 0.02 < error < 1.0
    # Too few, standing still, or going back: nothing.
    for steps in (np.arange(7), np.zeros(40), [*range(30), *range(20, 40)]):
        assert rates_of(UserMetrics((metric("step", steps),))) == {}


@pytest.fixture
def gipfel(tmp_path, monkeypatch, capsys):
    """Runs the command in this process; gives what it wrote."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path / "runs"))

    def call(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    return call


def record(runs: Path, name: str, day: int, *call: str, active: float, steps_per_s: float) -> Path:
    """A run of a script with GPU samples and logged steps, as `gipfel record` leaves it."""
    run = runs / name
    (run / "telemetry").mkdir(parents=True)
    found = table({gpu(): busy(tensor=active / 2, dram=0.0, active=active), host(): {}}, length=60)
    origin = Provenance("nid1", "job", "host, nvml+gpm", simulated=False, interval=1.0, devices=found.devices)
    writer = SegmentWriter(run / "telemetry", origin, start_ns=START_NS)
    writer.write([sample for device in found.devices for sample in found.samples(device)])
    writer.close()
    content = {
        "kind": "recording",
        "directory": "/home/a",
        "command": ["python", *call],
        "started": f"2026-01-0{day}T00:00:00+00:00",
        "ended": f"2026-01-0{day}T00:01:00+00:00",
        "exit_status": 0,
    }
    (run / "record.json").write_text(json.dumps(content))
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(60):
            time_ns = START_NS + int(step / steps_per_s * 1e9)
            line = {"time_ns": time_ns, "monotonic_ns": time_ns, "node": "nid1", "rank": None}
            file.write(json.dumps({**line, "values": {"step": step}}) + "\n")
    return run


def test_the_next_run_of_a_script_says_what_became_of_the_advice(gipfel, tmp_path):
    runs = tmp_path / "runs"
    record(runs, "alps-1", 1, "train.py", active=0.5, steps_per_s=2.0)
    first = json.loads(gipfel("score", "alps-1", "--save", "--json"))
    assert (first["schema_version"], first["advice_effect"]) == (3, None)
    given = {each["rule"]: each["speedup"] for each in first["advice"]}
    assert given["compile"] == [1.0, 2.0]
    assert first["workload"]["kind"] == "training"
    assert first["rates"]["steps_per_s"][0] == pytest.approx(2.0)
    assert first["seconds"] == 60.0
    # Another script is not compared, nor is a file that is not a result.
    record(runs, "alps-3", 2, "other/train.py", active=0.5, steps_per_s=1.0)
    assert json.loads(gipfel("score", "alps-3", "--save", "--json"))["advice_effect"] is None
    (runs / "alps-9").mkdir()
    (runs / "alps-9" / "score.json").write_text("[7]")
    record(runs, "alps-2", 3, "train.py", "--compile", active=0.8, steps_per_s=3.0)
    second = json.loads(gipfel("score", "alps-2", "--save", "--json"))
    assert (second["advice_effect"]["run"], second["advice_effect"]["speedup"]["measured_by"]) == (
        "alps-1",
        "steps_per_s",
    )
    assert second["advice_effect"]["speedup"]["value"] == pytest.approx(1.5, abs=0.01)
    assert second["advice_effect"]["checks"][0]["rules"] == ["compile"]
    text = gipfel("score", "alps-2")
    told = " ".join(text.split("↺ ")[1].split())
    assert told.startswith("Since run alps-1: you tried torch.compile (option compile, launch from 50 to 20")
    assert "1.50 times (1.50 to 1.50) by steps_per_s, 2.00 was the bound" in told
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "compile" not in {each["rule"] for each in second["advice"]}
    gipfel("report", "alps-2", "-o", str(tmp_path / "page.html"), "--static")
    assert (
        '<p class="since">Since run alps-1: you tried torch.compile' in (tmp_path / "page.html").read_text()
    )
    # The panel shows it where it shows a whole run.
    assert TimeRange(runs / "alps-2").document()["advice_effect"]["lines"][0].startswith("Since run alps-1")
    assert TimeRange(runs / "alps-2", START_NS).document()["advice_effect"] is None
    # The first of them has none before it.
    assert json.loads(gipfel("score", "alps-1", "--json"))["advice_effect"] is None
