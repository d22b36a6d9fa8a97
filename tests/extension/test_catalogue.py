"""The catalogue of everything that a run records, its page, and loading by name."""

import json
from pathlib import Path

import pytest
from recorded_runs import START_NS, hot_run

from gipfel_extension.cli.main import main
from gipfel_extension.recorder.journal import Journal
from gipfel_extension.recorder.sample_files import SampleWriter, Settings
from gipfel_extension.telemetry.events import Event, append_event
from gipfel_extension.telemetry.metric_table import SCORE_PARTS, TABLE
from gipfel_extension.telemetry.sample import Device, Provenance, Sample, SourceError
from gipfel_extension.telemetry.sources import SystemClock
from gipfel_extension.telemetry.store import catalogue
from gipfel_widgets import load

PAGE = Path(catalogue.__file__).parents[1] / "CATALOGUE.md"


def test_the_page_is_current():
    assert PAGE.read_text() == catalogue.markdown(), "gipfel catalogue --markdown > CATALOGUE.md"


def test_every_metric_has_unit_source_rate_and_meaning(capsys):
    assert main(["catalogue", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    recorded = [each for each in entries if each["kind"] in ("gpu", "host", "nic")]
    assert {each["name"] for each in recorded} == {*TABLE, *SCORE_PARTS}
    assert all(each[key] for each in recorded for key in ("unit", "source", "rate", "meaning", "file"))
    assert len({each["meaning"] for each in recorded if each["name"] in TABLE}) == len(TABLE)
    assert main(["catalogue", "no such thing"]) == 1


def test_anything_is_loaded_by_name(tmp_path):
    run = hot_run(tmp_path)
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(3):
            line = {"time_ns": START_NS + step, "monotonic_ns": step, "node": "n1", "rank": 1}
            file.write(json.dumps({**line, "values": {"train/loss": None if step == 2 else 1.5}}) + "\n")
    append_event(run / "telemetry", Event(START_NS, "n1", "xid", "GPU-a", "XID 79"), "recorder")

    table = load(run, "GPU_TEMP", "train/*")
    assert table.column_names == ["time", "metric", "node", "device", "rank", "value"]
    assert table.num_rows == 2 * 60 + 3
    assert table.schema.metadata == {b"unit:GPU_TEMP": "°C".encode()}
    rows = load(run, "GPU_TEMP", ranks=1).to_pylist()
    assert {(row["device"], row["rank"], row["value"]) for row in rows} == {("GPU-b", 1, 90.0)}
    assert load(run, "train/loss")["value"].to_pylist() == [1.5, 1.5, None]
    assert load(run, "GPU_TEMP", gpus="GPU-a").num_rows == 60
    assert load(run, "events")["message"].to_pylist() == ["XID 79"]
    for name, words in (("SM_ACTIV", "Did you mean"), ("NVDEC0_ACTIVE", "not recorded")):
        with pytest.raises(SourceError, match=words):
            load(run, name)
    with pytest.raises(SourceError, match="catalogue"):
        load(run)
    with pytest.raises(SourceError, match="not a run folder"):
        load(run / "telemetry", "SM_ACTIVE")


def test_counters_of_a_nic_are_loaded_by_name(tmp_path):
    nic = Device("cxi0@n1", "nic", "cxi0", 0, "n1")
    telemetry = tmp_path / "site-2" / "telemetry"
    telemetry.mkdir(parents=True)
    settings = Settings(telemetry, "n1", "job", 1.0, 5.0)
    origin = Provenance("n1", "job", "test", False, 1.0, (nic,))
    writer = SampleWriter(settings, origin, Journal(telemetry, "n1", "job", SystemClock()), SystemClock())
    writer.add([Sample(START_NS + s * 10**9, s, nic.uuid, {"NIC_RX_BYTES": 2.0**32}) for s in range(10)])
    writer.flush()
    writer.finish()
    rows = load(tmp_path / "site-2", "NIC_RX_BYTES").to_pylist()
    assert {(row["device"], row["rank"], row["value"]) for row in rows} == {("cxi0@n1", None, 2.0**32)}
    assert len(rows) == 10
