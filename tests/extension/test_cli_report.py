"""``gipfel report``, ``export`` and ``score --save``: files that a run leaves behind."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from saturation_tables import START_NS, busy, gpu, host, table

from gipfel_extension.cli import main
from gipfel_extension.telemetry.imports import open_recording
from gipfel_extension.telemetry.sample import SampleTable
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter
from gipfel_extension.vetting.model import CheckResult, Scope, Verdict
from gipfel_extension.vetting.protocol import ProtocolCheck, VettingProtocol
from gipfel_extension.vetting.report import make_report

HOSTILE = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u2028\x1b[31m"


class Page(HTMLParser):
    """Elements of a page, and the text in its scripts."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.scripts: dict[str, str] = {}
        self.handlers: list[str] = []
        self._script: str | None = None
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        given = dict(attrs)
        self.handlers += [name for name in given if name.startswith("on")]
        self.links += [given[name] for name in ("src", "href") if given.get(name)]
        self._script = given.get("id", "") if tag == "script" else None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data


@pytest.fixture
def gipfel(tmp_path, monkeypatch, capsys):
    """Runs the command in this process; gives its exit status and what it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path / "runs"))

    def call(*words: str) -> tuple[int, str, str]:
        status = main(list(words))
        written = capsys.readouterr()
        return status, written.out, written.err

    return call


def starved(name: str = "NVIDIA H100 80GB HBM3", length: int = 600) -> SampleTable:
    on = [1.0] * (length // 2) + [0.0] * (length - length // 2)
    metrics = busy(tensor=[0.75 * each for each in on], dram=0.0, active=on, engine=on)
    cpu = {"CPU_CORES_USED": 8.0, "CPU_UTIL": 0.5}
    series = {gpu(0, node="nid1", name=name): metrics, host("nid1"): cpu}
    series |= {gpu(1, node="nid2", name=name): metrics, host("nid2"): cpu}
    return table(series, length=length)


def make_run(folder: Path, found: SampleTable, record: dict) -> Path:
    """A run of two nodes, each with its own segment."""
    telemetry = folder / "telemetry"
    telemetry.mkdir(parents=True)
    for node in ("nid1", "nid2"):
        devices = tuple(device for device in found.devices if device.node == node)
        origin = Provenance(node, "job", "host, nvml+gpm", simulated=False, interval=1.0, devices=devices)
        writer = SegmentWriter(telemetry, origin, start_ns=START_NS)
        writer.write([sample for device in devices for sample in found.samples(device)])
        writer.close()
    places = [
        {"rank": rank, "node": f"nid{rank + 1}", "pid": 7, "gpu_uuid": each.uuid, "name": "python"}
        for rank, each in enumerate(found.gpus)
    ]
    (telemetry / "nid1-job.ranks.json").write_text(json.dumps(places))
    (folder / "record.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def run(tmp_path) -> Path:
    record = {
        "edf": {"name": "ngc-25.05"},
        "nodes": ["nid1", "nid2", "nid3"],
        "command": ["python", "train.py", HOSTILE],
        "started": "2026-01-01T00:00:00+00:00",
        "ended": "2026-01-01T01:00:00+00:00",
        "exit_status": 0,
    }
    return make_run(tmp_path / "runs" / "alps-4711", starved(), record)


def test_the_score_of_nodes_ranks_and_gpus_is_saved_and_the_samples_shrink(gipfel, run):
    before = open_recording(run).table
    printed = json.loads(gipfel("score", "alps-4711", "--json")[1])
    status, written, told = gipfel("score", "alps-4711", "--json", "--save", "--weight", "compute=1")
    saved = json.loads((run / "score.json").read_text())
    assert (status, told) == (0, "")
    assert json.loads(written) == saved == printed
    assert (run / "score.json").stat().st_mode & 0o777 == 0o600
    assert saved["score"] == pytest.approx(37.5, abs=0.02)
    assert saved["utilization"] == 1.0
    assert (saved["interval_s"], saved["coarser_score"]["interval_s"]) == (1.0, 10.0)
    assert saved["coarser_score"]["score"] == pytest.approx(saved["score"], abs=1.0)
    assert saved["weights"] == {"compute": 1.0, "memory": 1.0, "interconnect": 1.0}
    assert [(rank["rank"], rank["gpus"]) for rank in saved["ranks"]] == [
        (number, [each.uuid]) for number, each in enumerate(before.gpus)
    ]
    assert all(rank["score"] == pytest.approx(37.5, abs=0.02) for rank in saved["ranks"])
    assert {each["node"] for each in saved["gpus"]} == {"nid1", "nid2"}
    assert saved["segments"] == {"closed": 2, "open": 0, "torn": 0, "unreadable": 0}
    assert any("no samples of nid3 of the job's 3 nodes" in note for note in saved["notes"])
    # It has ended: its samples are Parquet now, and say the same.
    assert len(list((run / "telemetry").glob("*.closed.parquet"))) == 2
    assert not list((run / "telemetry").glob("*.arrows"))
    assert json.loads(gipfel("score", "alps-4711", "--json")[1]) == saved


def test_a_run_that_goes_on_is_scored_and_left_as_it_is(gipfel, tmp_path):
    run = make_run(tmp_path / "runs" / "alps-1", starved(), {"ended": None})
    assert gipfel("score", "alps-1", "--save")[0] == 0
    assert (run / "score.json").exists()
    assert len(list((run / "telemetry").glob("*.closed.arrows"))) == 2


def test_only_a_run_folder_takes_a_score(gipfel, run, tmp_path):
    assert gipfel("export", "alps-4711", "-o", "x.parquet")[0] == 0
    status, _, told = gipfel("score", "x.parquet", "--save")
    assert (status, told.count("\n")) == (1, 1)
    assert "not a run folder" in told


def test_torn_late_and_missing_parts_are_named(gipfel, run):
    telemetry = run / "telemetry"
    (first, second) = sorted(telemetry.glob("*.closed.arrows"))
    first.write_bytes(first.read_bytes()[:-50])
    (telemetry / "nid4-1-0.arrows").write_bytes(b"nonsense")
    notes = json.loads(gipfel("score", "alps-4711", "--json")[1])["notes"]
    assert any(note.startswith("1 segment unreadable: nid4-1-0.arrows") for note in notes)
    assert any(note.startswith("1 segment torn: ") and first.name in note for note in notes)
    assert gipfel("score", "alps-4711", "--save")[0] == 0
    assert first.exists()
    assert not second.exists()


def test_what_alternates_within_ten_samples_is_told(gipfel, tmp_path):
    # Memory and compute take turns, second by second: their means hide that one of them was always full.
    pattern = {"tensor": [1.0, 0.0] * 100, "dram": [0.0, 0.9] * 100}
    make_run(tmp_path / "runs" / "alps-2", _alternating(pattern), {"ended": None})
    document = json.loads(gipfel("score", "alps-2", "--json")[1])
    assert document["score"] == pytest.approx(100.0, abs=0.1)
    assert document["coarser_score"]["score"] == pytest.approx(50.0, abs=1.0)
    assert any("With samples every 10 s the score would be 50" in note for note in document["notes"])


def test_a_page_says_what_coarse_samples_leave_open(gipfel, tmp_path):
    turns = {"tensor": [1.0, 0.0] * 100, "dram": [0.0, 0.9] * 100}
    # Half of each second, or the whole of every other one within it: at 1 s both look like this.
    halves = {"tensor": [0.5] * 200, "dram": [0.45] * 200}
    pages = []
    for name, pattern in (("alps-2", turns), ("alps-3", halves)):
        make_run(tmp_path / "runs" / name, _alternating(pattern), {"ended": None})
        assert gipfel("report", name, "-o", "r.html", "--static")[0] == 0
        pages.append(html.unescape(Path("r.html").read_text()))
    assert json.loads(gipfel("score", "alps-2", "--json")[1])["bottleneck"] is None
    assert "of 100, bottleneck unclear at 1 s samples" in pages[0]
    least, most = json.loads(gipfel("score", "alps-3", "--json")[1])["range"]
    assert most - least > 5
    assert f"<p>The score is between {least:.0f} and {most:.0f}: " in pages[1]


def _alternating(pattern: dict) -> SampleTable:
    series = {}
    for number, node in enumerate(("nid1", "nid2")):
        series[gpu(number, node=node)] = busy(**pattern)
        series[host(node)] = {"CPU_UTIL": 0.1}
    return table(series, length=200)


def test_export_holds_every_sample(gipfel, run):
    whole = open_recording(run).table
    for name in ("samples.parquet", "samples.csv"):
        status, written, told = gipfel("export", "alps-4711", "-o", name)
        assert (status, written) == (0, f"{name}: {whole.rows} samples of 4 devices\n")
        assert "nid3" in told
    again = open_recording(Path("samples.parquet")).table
    for device in whole.devices:
        for metric, column in whole[device.uuid].items():
            np.testing.assert_array_equal(again[device.uuid][metric], column, err_msg=metric)
    rows = pyarrow.csv.read_csv("samples.csv")
    assert rows.num_rows == whole.rows
    assert rows.column_names[:4] == ["device", "node", "name", "time_ns"]
    assert set(rows["node"].to_pylist()) == {"nid1", "nid2"}
    assert rows["DRAM_ACTIVE"].null_count == whole.rows // 2
    assert gipfel("export", "alps-4711", "-o", "samples.xlsx")[0] == 2
    assert gipfel("export", "gone", "-o", "x.csv")[0] == 2
    assert gipfel("export", "alps-4711", "-o", "/nowhere/x.csv")[0] == 1


@pytest.mark.parametrize("options", [[], ["--static"]])
def test_the_report_is_one_file_that_needs_nothing(gipfel, run, options):
    name = "alps-a-name-that-is-longer-than-what-a-line-of-80-columns-leaves"
    run = run.rename(run.with_name(name))
    status, written, told = gipfel("report", name, "-o", "r.html", *options)
    content = Path("r.html").read_text()
    assert (status, told) == (0, "")
    assert written.startswith("r.html: ")
    assert len(content) < 4e6
    page = Page(content)
    assert all(link.startswith(("https://", "data:image/png;base64,")) for link in page.links)
    assert "default-src 'none'" in content
    assert not page.handlers
    plain = html.unescape(re.sub(r"<script.*?</script>", "", content, flags=re.S))
    for words in (
        "38 of 100",
        "input",
        "nid3 of the job's 3 nodes",
        "python train.py",
        "ngc-25.05",
        "num_workers",
    ):
        assert words in re.sub(r"<[^>]+>", "", plain), words
    # Whole on a page that has room, though a terminal's line has not.
    assert f"Saturation {name}" in re.sub(r"\s+", " ", plain)
    (lost,) = re.findall(r"points lost: ([^<]+)<", plain)
    points = [int(each.split()[-1]) for each in lost.split(" · ")]
    assert points == sorted(points, reverse=True)
    if options:
        assert page.tags.count("img") >= 6
        assert page.scripts == {}
    else:
        figures = json.loads(page.scripts["figures"])
        assert content.count('class="plot"') == len(figures) >= 6
        assert any(figure["layout"].get("shapes") for figure in figures)
        # What the evidence of the advice names is drawn.
        drawn = [each for each in figures if any(t.get("name") == "engine active" for t in each["data"])]
        assert drawn
        assert all(each["layout"]["shapes"] for each in drawn)
        assert re.search(r"<figcaption>[^<]*(<time.*?</time>[^<]*)*engine active", plain)
        assert set(page.scripts) == {"figures", "plotly", ""}


def test_nothing_in_a_name_becomes_a_part_of_the_page(gipfel, tmp_path):
    make_run(
        tmp_path / "runs" / "alps-3",
        starved(name=HOSTILE, length=40),
        {"command": [HOSTILE], "nodes": [HOSTILE], "edf": {"name": HOSTILE}, "ended": HOSTILE},
    )
    found = CheckResult(
        check=HOSTILE, type=HOSTILE, scope=Scope.NODE, subject=HOSTILE, node=HOSTILE, verdict=Verdict.FAIL,
        reason=HOSTILE, fix=HOSTILE,
    )  # fmt: skip
    protocol = VettingProtocol(name=HOSTILE, checks=(ProtocolCheck(name=HOSTILE, type=HOSTILE),))
    vetting = make_report(protocol, [HOSTILE], [found], started_ns=1, ended_ns=2, notes=[HOSTILE])
    vetting.model_copy(update={"outcome": HOSTILE, "exclude": HOSTILE}).write(tmp_path / "runs" / "alps-3")
    assert gipfel("report", "alps-3")[0] == 0
    content = Path("report.html").read_text()
    page = Page(content)
    assert 'id="vetting"' in content
    assert "✗" in content
    assert page.tags.count("script") == 3
    assert not page.handlers
    assert "img" not in page.tags
    assert "\x1b" not in content
    json.loads(page.scripts["figures"])


def test_a_recording_without_gpus_makes_a_report_too(gipfel, tmp_path):
    make_run(tmp_path / "runs" / "alps-5", table({host("nid1"): {"CPU_UTIL": 0.5}}, length=9), {"edf": []})
    assert gipfel("report", "alps-5", "--static")[0] == 0
    assert "There is no score." in Path("report.html").read_text()
    assert gipfel("report", "gone")[0] == 2
    assert gipfel("report", "alps-5", "-o", "/nowhere/r.html")[0] == 1
