"""Rules: their files with lines and fixes, hits live and afterwards, by rank and role, and as events."""

import json
import os
import sys
import threading
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml
from recorded_runs import START_NS, hot_run
from recorder_process import OneGpu, TwoClocks, until

from gipfel_extension.cli.main import main
from gipfel_extension.diagnosis.rule_run import Place, Reading, RuleWatch, hits_of
from gipfel_extension.diagnosis.rules import ConditionError, Rule, parse_condition
from gipfel_extension.recorder.loop import Recorder
from gipfel_extension.recorder.rule_monitor import load_rules
from gipfel_extension.recorder.sample_files import Settings
from gipfel_extension.rules import FILE, enabled_rules, known_rules
from gipfel_extension.telemetry.events import append_event, read_events
from gipfel_extension.telemetry.ranks import RankLocation
from gipfel_extension.telemetry.sample import Device, Sample, SampleTable

GOOD = """\
rules:
  - name: hot
    metric: GPU_TEMP
    condition: mean above 85 °C
    window: 20s
    sentence: It is hot.
    link: https://example.org/hot
"""


def _rule(condition: str, metric: str = "GPU_TEMP", window_s: float = 20.0, where: str = "") -> Rule:
    return Rule("r", metric, parse_condition(condition, metric), window_s, "It holds.", where=where)


def _table(values: dict[str, np.ndarray], metric: str = "GPU_TEMP", **more: np.ndarray) -> SampleTable:
    devices = [Device(uuid, "gpu", "GPU", index, "n1") for index, uuid in enumerate(values)]
    rows = [
        Sample(
            START_NS + second * 10**9,
            second,
            uuid,
            {metric: own[second], **{k: v[second] for k, v in more.items()}},
        )
        for uuid, own in values.items()
        for second in range(len(own))
    ]
    return SampleTable.from_samples(rows, devices, interval=1.0)


def _live(rule: Rule, table: SampleTable) -> list[tuple[str, int, float]]:
    watch = RuleWatch(rule, lambda key: Place(rule.metric, str(key), "n1", ()))
    samples = sorted((s for device in table.devices for s in table.samples(device)), key=lambda s: s.time_ns)
    hits = []
    for sample in samples:
        of = sample.values.get(rule.condition.of)
        hits += watch.add([Reading(sample.device, sample.time_ns, sample.values.get(rule.metric), of)])
    return [(hit.device, hit.found_ns, round(hit.value, 9)) for hit in hits]


@pytest.mark.parametrize(
    ("condition", "metric", "bound"),
    [
        ("mean above 85 °C", "GPU_TEMP", 85.0),
        ("lowest above 98 % of FB_TOTAL", "FB_USED", 0.98),
        ("highest below 2GB/s", "NVLINK_TX_BYTES", 2e9),
        ("mean above 50%", "SM_ACTIVE", 0.5),
        ("bits 0x60 above 10 %", "CLOCKS_EVENT_REASONS", 0.1),
        ("rate above 1.5e3", "tokens", 1500.0),
        ("missing above 0 %", "loss", 0.0),
    ],
)
def test_conditions_are_parsed_with_units(condition, metric, bound):
    assert parse_condition(condition, metric).bound == pytest.approx(bound)


@pytest.mark.parametrize(
    ("condition", "metric"),
    [
        ("__import__('os')", "GPU_TEMP"),
        ("mean above 85 %", "GPU_TEMP"),
        ("mean over 85", "GPU_TEMP"),
        ("median above 85", "GPU_TEMP"),
        ("mean above 1e99", "x" * 3 + " above"),
        ("bits above 5 %", "CLOCKS_EVENT_REASONS"),
        ("bits 0x1 above 5 %", "GPU_TEMP"),
        ("mean above 5 of NOTHING", "FB_USED"),
        ("rate above 5 of FB_TOTAL", "FB_USED"),
        ("mean above " + "9" * 5000, "GPU_TEMP"),
        ("", "GPU_TEMP"),
    ],
)
def test_what_is_not_a_condition_is_refused_with_a_fix(condition, metric):
    if metric.startswith("xxx"):
        assert np.isfinite(parse_condition(condition, metric).bound)
        return
    with pytest.raises(ConditionError) as error:
        parse_condition(condition, metric)
    assert error.value.fix


def test_hits_are_the_same_live_and_afterwards():
    random = np.random.default_rng(5)
    courses = {
        f"GPU-{number}": 70 + random.normal(0, 6, 400) + 25 * (random.random(400).cumsum() % 40 > 28)
        for number in range(8)
    }
    courses["GPU-3"][100:180] = np.nan
    total = np.full(400, 100.0)
    for rule in (
        _rule("mean above 80"),
        _rule("lowest below 55", window_s=47.0),
        _rule("highest above 95 % of FB_TOTAL", metric="FB_USED", window_s=30.0),
        _rule("increase above 150", window_s=25.0),
        _rule("missing above 30 %"),
    ):
        table = _table(courses, rule.metric, FB_TOTAL=total)
        afterwards = [(hit.device, hit.found_ns, round(hit.value, 9)) for hit in hits_of([rule], table)]
        assert afterwards, rule.condition
        assert sorted(_live(rule, table)) == sorted(afterwards), rule.condition


def test_a_hit_has_its_time_and_begins_again_only_after_a_quiet_window():
    course = np.full(300, 60.0)
    course[100:150], course[160:200], course[260:290] = 95, 95, 95
    found = hits_of([_rule("lowest above 90")], _table({"GPU-a": course}))
    seconds = [((h.since_ns - START_NS) // 10**9, (h.until_ns - START_NS) // 10**9) for h in found]
    assert seconds == [(100, 150), (160, 200), (260, 290)]
    assert "lowest 95 °C, above 90 °C, over 20 s; rule r)" in found[0].message()
    found = hits_of([_rule("highest above 90")], _table({"GPU-a": course}))
    seconds = [((h.since_ns - START_NS) // 10**9, (h.until_ns - START_NS) // 10**9) for h in found]
    assert seconds == [(81, 219), (241, 299)]


def test_gaps_and_counters_that_restart_are_no_hits():
    course = np.full(200, 95.0)
    course[5:190] = np.nan
    assert not hits_of([_rule("mean above 90")], _table({"GPU-a": course}))
    counter = np.concatenate((np.full(60, 1e12), np.zeros(60)))
    assert not hits_of(
        [_rule("increase above 0", "TOTAL_ENERGY")], _table({"GPU-a": counter}, "TOTAL_ENERGY")
    )
    counter[30:60] += 7
    (hit,) = hits_of([_rule("increase above 0", "TOTAL_ENERGY")], _table({"GPU-a": counter}, "TOTAL_ENERGY"))
    assert hit.value == 7


def test_a_rule_on_a_nic_is_about_each_nic_and_the_ranks_of_its_node():
    nics = [Device(f"cxi{index}@n1", "nic", f"cxi{index}", index, "n1") for index in range(2)]
    rows = [
        Sample(START_NS + second * 10**9, second, nic.uuid, {"NIC_ERRORS": 2.0 * nic.index})
        for nic in nics
        for second in range(60)
    ]
    table = SampleTable.from_samples(rows, nics, interval=1.0)
    rule = _rule("mean above 1", "NIC_ERRORS")
    (hit,) = hits_of([rule], table, ranks_of=lambda place: (3,) if place == "n1" else ())
    assert (hit.device, hit.ranks) == ("cxi1@n1", (3,))


def test_files_are_checked_with_line_and_fix(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    for old, new, line, words in (
        ("GPU_TEMP", "GPU_TEMPP", 3, "Did you mean 'GPU_TEMP'"),
        ("mean above 85 °C", "mean above 85 %", 4, "°C"),
        ("window: 20s", "window: 9s", 5, "from 10s to 6h"),
        ("sentence:", "sentense:", 6, "Did you mean 'sentence'"),
        ("link: https://example.org/hot", "link: javascript:alert(1)", 7, "link"),
        ("link: https://example.org/hot", "where: pp==", 7, "where"),
    ):
        file.write_text(GOOD.replace(old, new))
        assert main(["rules", "check", str(file), "--json"]) == 1
        (checked,) = json.loads(capsys.readouterr().out)
        problems = {each["line"]: f"{each['problem']} {each['fix']}" for each in checked["problems"]}
        assert words in problems.get(line, ""), problems
    file.write_text(GOOD)
    assert main(["rules", "check", str(file)]) == 0
    jsonschema.validate(yaml.safe_load(GOOD), FILE.json_schema("Rules of Gipfel"))


def test_a_rule_of_the_user_replaces_one_of_gipfel(tmp_path, capsys, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.yaml").write_text(GOOD.replace("name: hot", "name: gpu-hot\n    enabled: false"))
    (site / "broken.yaml").write_text("rules: [{name: x}]")
    environment = {"HOME": str(tmp_path), "GIPFEL_RULES": str(site)}
    known, problems = known_rules(environment)
    assert known["gpu-hot"].origin == "site"
    assert "gpu-hot" not in [rule.name for rule in enabled_rules(known)]
    assert known["swapping"].origin == "gipfel"
    assert {Path(each.file).name for each in problems} == {"broken.yaml"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["rules", "list"]) == 1
    assert "gpu-hot  (site, disabled)" in capsys.readouterr().out


def test_a_run_is_judged_by_role_and_hits_are_saved_once(tmp_path, capsys):
    recorded_hot_run = hot_run(tmp_path)
    rules = tmp_path / "mine.yaml"
    rules.write_text(GOOD.replace("20s", "10s") + "    where: dp=1\n")
    arguments = ["rules", "run", str(recorded_hot_run), "--file", str(rules)]
    assert main([*arguments, "--save", "--json"]) == 0
    out, err = capsys.readouterr()
    (hit,) = json.loads(out)["hits"]
    assert (hit["ranks"], hit["device"]) == ([1], "GPU-b")
    assert "1 of 1 hits were added" in err
    assert main([*arguments, "--save"]) == 0
    events = [each for each in read_events(recorded_hot_run / "telemetry") if each.kind == "rule"]
    assert [each.device for each in events] == ["GPU-b"]
    assert "https://example.org/hot" in events[0].message
    # A hit that a recorder saw is not added again.
    append_event(recorded_hot_run / "telemetry", events[0], "recorder")
    assert main([*arguments, "--save"]) == 0
    assert "0 of 1 hits were added" in capsys.readouterr().err


def test_a_recorder_applies_rules_live_to_samples_and_logged_metrics(tmp_path, monkeypatch):
    home = tmp_path / ".gipfel" / "rules"
    home.mkdir(parents=True)
    (home / "mine.yaml").write_text(
        GOOD.replace("GPU_TEMP", "SM_ACTIVE").replace("85 °C", "1 %").replace("20s", "10s")
        + "    where: rank=7\n"
        + "  - {name: nan, metric: '*los', condition: missing above 0 %, window: 10s, sentence: It is NaN.}\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    rules = load_rules(os.environ)
    assert {"hot", "nan", "swapping"} <= {each.name for each in rules}
    clock, telemetry = TwoClocks(), tmp_path / "run" / "telemetry"
    telemetry.mkdir(parents=True)
    settings = Settings(telemetry, "n1", "job", 1.0, 1.0)
    recorder = Recorder([OneGpu(clock)], settings, clock=clock, environment={}, rules=lambda: rules)
    recorder._ranks._known = {7: (RankLocation(7, "n1", 1, "GPU-1", "python"),)}
    logged = {"monotonic_ns": 1, "node": "n1", "rank": 3, "values": {"los": None}}
    for second in range(60):
        recorder.tick()
        clock.wait(1.0, threading.Event())
        if second == 5:
            assert until(lambda: recorder._rules._watches or recorder._rules._loaded)
        if second == 20:
            with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
                file.write("{}\n" + json.dumps({"time_ns": clock.time_ns(), **logged}) + "\n{")
    recorder.close()
    events = [each for each in read_events(telemetry) if each.kind == "rule"]
    assert [each.device for each in events] == ["GPU-1", ""]
    assert "over 10 s, rank 7; rule hot). See https://example.org/hot" in events[0].message
    assert "missing 100.0%, above 0.0%, over 10 s, rank 3; rule nan)" in events[1].message


def test_a_reader_of_rules_that_ends_without_a_message_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    program.write_text("#!/bin/sh\nkill -TERM $$\n")
    program.chmod(0o700)
    assert load_rules(os.environ) == [], "its job ends"
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(OSError, match="ended with the status 3 and no message"):
        load_rules(os.environ)
