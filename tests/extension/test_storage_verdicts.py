"""A job's storage judged: the record, verdicts, advice, `gipfel io` and the figure."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from gipfel_extension.cli.main import gipfel, main
from gipfel_extension.diagnosis.file_system import StorageSeries, judge_storage
from gipfel_extension.job.run_diagnosis import diagnose_run
from gipfel_extension.job.run_storage import series_of, storage_figure, storage_report
from gipfel_extension.recorder.storage_monitor import PressureCounter
from gipfel_extension.storage import (
    FilesRow,
    MountRow,
    Period,
    PressureRow,
    ProbeRow,
    RankRow,
    StorageFile,
    read_storage,
)
from gipfel_extension.telemetry.sources.host import Cgroup

_S = 10**9


def _period(number: int, **values: object) -> Period:
    """Return a period of 20 s on one node."""
    opened, latency = float(values.get("opened", 0.0)), values.get("latency", 1.0)  # type: ignore[arg-type]
    rank = RankRow(0, 1e6, 0.0, 1e5, 0.0, 10.0, 0.0, 0.1)
    mount = MountRow(
        "/scratch", "lustre", "shared", opened, None, None, None, None, None, "Only root reads it."
    )
    row = ProbeRow("/scratch", latency, None, None, 0.5, None, "")  # type: ignore[arg-type]
    return Period("n1", (1_800_000_000 + 20 * number) * _S, 20.0, "", (rank,), (mount,), (row,))


_FILES = FilesRow(
    "/scratch/set/*", "data", "shared", "/scratch", "lustre", "small files", (0,), 5000, 10**8, 30_000,
    "/scratch/set/n1/a.jpg", False, None,
)  # fmt: skip
_IMAGE = replace(_FILES, directory="/scratch", kind="shard", pattern="random", files=1, bytes=20 * 10**9,
                 largest=20 * 10**9, largest_path="/scratch/big.sqsh", stripes=1)  # fmt: skip


def _write(run: Path, periods: list[Period]) -> None:
    file = StorageFile(run, "n1")
    for each in periods:
        file.append(each, [_FILES, _IMAGE])


def test_the_record_is_read_again_and_damage_is_counted(tmp_path: Path) -> None:
    _write(tmp_path, [_period(number) for number in range(3)])
    path = tmp_path / "storage/n1.jsonl"
    assert path.stat().st_mode & 0o077 == 0
    assert path.read_text().count('"files"') == 1 + 2, "the table is written once; the rows have such a field"
    with path.open("a") as stream:
        stream.write('{"node": 1}\n[[[\n')
        stream.write(json.dumps({**json.loads(path.read_text().splitlines()[1]), "seconds": -1}) + "\n")
        stream.write('{"node":"n1","time_ns":1,"seconds":NaN,"why":"","ranks":[],"mounts":[],"probes":[]}\n')
    record = read_storage(tmp_path)
    assert record is not None
    assert record.periods == tuple(_period(number) for number in range(3))
    assert [each.directory for each in record.files] == ["/scratch", "/scratch/set/*"]
    assert record.notes == ("4 damaged lines were skipped.",)
    path.unlink()
    os.mkfifo(path)
    blocked = read_storage(tmp_path)
    assert blocked is not None
    assert "n1.jsonl can't be read" in blocked.notes[0]
    assert read_storage(tmp_path / "none") is None


def test_a_slow_file_system_is_told_from_a_job_that_asks_much(tmp_path: Path) -> None:
    everybody, bursts, always = (tmp_path / name for name in ("everybody", "bursts", "always"))
    for folder in (everybody, bursts, always):
        folder.mkdir()
    _write(everybody, [_period(n, latency=80.0 if 20 <= n < 40 else 1.0, opened=5.0) for n in range(60)])
    _write(
        bursts,
        [
            _period(
                n,
                **({"latency": 90.0, "opened": 12_000.0} if n % 12 < 4 else {"latency": 1.0, "opened": 3.0}),
            )
            for n in range(72)
        ],
    )
    _write(always, [_period(n, latency=70.0, opened=12_000.0) for n in range(60)])
    found = {}
    for folder in (everybody, bursts, always):
        (folder / "telemetry").mkdir()
        report = storage_report(folder)
        assert report is not None
        found[folder.name] = {each.kind: each.evidence for each in report.verdicts}
    assert list(found["everybody"]) == ["file_system"]
    assert (
        "/scratch was slow at 20 of 60 probes while the job asked little" in found["everybody"]["file_system"]
    )
    assert list(found["bursts"]) == ["own_io"]
    assert "Your job opens 12 000 files per second (data files) at /scratch" in found["bursts"]["own_io"]
    assert "answers in 90 ms while the job does, in 1 ms otherwise" in found["bursts"]["own_io"]
    assert list(found["always"]) == ["unknown"]
    assert "opens 12 000 files per second nearly all the time" in found["always"]["unknown"]
    assert "own_io" in [each.kind for each in diagnose_run(bursts).verdicts]


def test_waiting_for_storage_and_opens_of_clients_are_evidence(tmp_path: Path) -> None:
    def period(number: int, *, busy: bool, node_only: bool = False) -> Period:
        each = _period(number, latency=90.0 if busy else 1.0)
        # No directory is watched, but Lustre's client counts.
        mount = replace(each.mounts[0], opened=None, opens=12_000.0 if busy else 3.0, why="")
        share = 0.41 if busy else 0.02
        pressure = PressureRow(None if node_only else share, share, "No group." if node_only else "")
        return replace(each, mounts=(mount,), pressure=pressure)

    for name in ("job", "node"):
        (tmp_path / name / "telemetry").mkdir(parents=True)
        _write(tmp_path / name, [period(n, busy=n % 12 < 4, node_only=name == "node") for n in range(72)])
        report = storage_report(tmp_path / name)
        assert report is not None
        (verdict,) = report.verdicts
        assert verdict.kind == "own_io"
        assert (
            "The nodes of your job open 12 000 files per second (data files) at /scratch." in verdict.evidence
        )
        waiting = f"In 41 % of that time some of the {name}'s processes waited for storage, in 2 % otherwise"
        assert waiting in verdict.evidence
        assert ("No group." in report.notes) == (name == "node")
    line = json.loads((tmp_path / "job/storage/n1.jsonl").read_text().splitlines()[0])
    # A record of an earlier version.
    (tmp_path / "old/storage").mkdir(parents=True)
    del line["pressure"]
    (tmp_path / "old/storage/n1.jsonl").write_text(json.dumps(line) + "\n")
    record = read_storage(tmp_path / "old")
    assert record is not None
    assert (record.periods[0].pressure, record.notes) == (None, ())


def test_pressure_is_the_growth_of_totals_and_says_what_is_missing(tmp_path: Path) -> None:
    group, proc = tmp_path / "cgroup/job_7", tmp_path / "proc"
    (proc / "pressure").mkdir(parents=True)
    group.mkdir(parents=True)
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    (proc / "pressure/io").write_text(text.format(1_000_000))
    (group / "io.pressure").write_text(text.format(0))
    counter = PressureCounter(Cgroup(group, tmp_path / "cgroup"), proc)
    assert counter.read(100.0) == PressureRow(None, None, "")
    (proc / "pressure/io").write_text(text.format(5_000_000))
    (group / "io.pressure").write_text(text.format(2_500_000))
    assert counter.read(110.0) == PressureRow(0.25, 0.4, "")
    (group / "io.pressure").unlink()
    (proc / "pressure/io").write_text("")
    missing = counter.read(120.0)
    assert (missing.of_job, missing.of_node) == (None, None)
    assert "io.pressure can't be read: No such file or directory." in missing.why
    assert "io has no total." in missing.why
    alone = PressureCounter(None, Path("/proc"))
    alone.read(0.0)
    found = alone.read(10.0)
    assert "no control group of version 2" in found.why
    if Path("/proc/pressure/io").exists():
        assert found.of_node is not None


def test_the_advice_names_the_better_tier_and_the_command(tmp_path: Path) -> None:
    (tmp_path / "telemetry").mkdir()
    _write(tmp_path, [_period(number) for number in range(3)])
    report = storage_report(tmp_path)
    assert report is not None
    (moved,) = [each for each in report.advice if "is read at random" in each]
    assert moved == (
        "/scratch/big.sqsh is read at random on /scratch (lustre, shared). Node-local disks and memory "
        "answer sooner: gipfel data stage /scratch/big.sqsh"
    )


def test_many_opens_are_told_where_the_file_system_keeps_up_only_if_it_is_shared() -> None:
    times = np.arange(60, dtype=np.int64) * 20 * _S
    series = StorageSeries("/scratch", times, np.full(60, 1.0), np.full(60, 8000.0), np.full(60, 1e6))
    (verdict,) = judge_storage(series).verdicts()
    assert verdict.kind == "own_io"
    assert "It keeps up: 1 ms" in verdict.evidence
    assert not judge_storage(replace(series, shared=False)).verdicts()
    few = StorageSeries("/scratch", times[:5], np.full(5, 90.0), np.full(5, 0.0), np.full(5, 0.0))
    (unknown,) = judge_storage(few).verdicts()
    assert "was probed only 5 times" in unknown.evidence
    unknown_load = replace(
        series, latency_ms=np.full(60, 90.0), opens=np.full(60, np.nan), moved=np.full(60, 0.0)
    )
    assert [each.kind for each in judge_storage(unknown_load).verdicts()] != ["file_system"]


def test_a_job_that_fills_a_slow_link_is_not_taken_for_others(tmp_path: Path) -> None:
    # FUSE counts nothing: the job's reads are known from its processes alone, here 8 MB/s.
    def period(number: int, *, busy: bool) -> Period:
        each = _period(number, latency=120.0 if busy else 1.0, opened=0.0)
        (mount,), (rank,) = each.mounts, each.ranks
        rank = replace(rank, read=8e6 if busy else 1e3, storage_read=0.0, storage_written=0.0)
        return replace(each, mounts=(replace(mount, kind="fuse.sshfs", read_bytes=None),), ranks=(rank,))

    (always,) = series_of([period(n, busy=True) for n in range(60)])
    (unknown,) = judge_storage(always).verdicts()
    assert unknown.kind == "unknown"
    assert "the job moves up to 8" in unknown.evidence
    (bursts,) = series_of([period(n, busy=n % 12 < 4) for n in range(72)])
    (own,) = judge_storage(bursts).verdicts()
    assert own.kind == "own_io"
    (others,) = series_of([replace(period(n, busy=n % 12 < 4), ranks=()) for n in range(72)])
    assert [each.kind for each in judge_storage(others).verdicts()] == ["file_system"]


def test_the_load_of_all_nodes_counts_beside_a_probe() -> None:
    first = [_period(n, opened=300.0) for n in range(10)]
    second = [replace(each, node="n2", probes=(), time_ns=each.time_ns + 5 * _S) for each in first]
    (series,) = series_of([*first, *second])
    assert series.opens.tolist() == [600.0] * 10


def test_gipfel_io_shows_verdicts_files_and_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "telemetry").mkdir()
    _write(tmp_path, [_period(n, latency=80.0 if n > 20 else 1.0) for n in range(60)])
    shown = CliRunner().invoke(gipfel, ["io", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    for text in (
        "/scratch was slow at 39 of 60 probes",
        "gipfel data pack /scratch/set /scratch/set.sqsh",
        "lfs migrate --stripe-count 32 --stripe-size 4M /scratch/big.sqsh",
        "shared (lustre)",
        "small files",
        "Only root reads it.",
    ):
        assert text in " ".join(shown.output.split()), text
    document = json.loads(CliRunner().invoke(gipfel, ["io", str(tmp_path), "--json"]).stdout)
    assert document["verdicts"][0]["kind"] == "file_system"
    assert document["ranks"] == [
        {"rank": 0, "read": 1e6, "written": 0.0, "storage_read": 1e5, "storage_written": 0.0, "reads": 10.0,
         "writes": 0.0, "blocked": 0.1}
    ]  # fmt: skip
    assert main(["io", str(tmp_path / "none")]) == 2
    (tmp_path / "empty/telemetry").mkdir(parents=True)
    assert main(["io", str(tmp_path / "empty")]) == 1


def test_the_figure_has_a_plot_for_answers_opens_and_bytes(tmp_path: Path) -> None:
    _write(tmp_path, [_period(n) for n in range(5)])
    record = read_storage(tmp_path)
    assert record is not None
    figure = storage_figure(record, (1_799_999_000 * _S, 1_800_001_000 * _S))
    assert {trace["name"] for trace in figure["data"]} >= {"/scratch", "opened", "read", "written"}
    assert not storage_figure(record, (0, 1))["data"]
