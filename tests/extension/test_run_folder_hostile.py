"""Files of a run folder that are pipes, endless, damaged or of another version don't affect the others."""

import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.run_folders import (
    find_folder,
    summary_of,
)
from gipfel_extension.telemetry.files import open_log, open_regular, read_json, read_regular, read_tail
from gipfel_extension.telemetry.user_metrics import MetricsReader
from gipfel_extension.training.flight_recorder import read_dump, report_of
from gipfel_extension.training.record import LaunchState, write_state
from gipfel_extension.vetting.report_display import ReportFile

_OF_A_LAUNCH = (
    "state.json", "spec.json", "plan.json", "command.txt", "preflight.json", "times.jsonl", "rank-0.log",
    "metrics.jsonl", "ranks/0.json", "errors/0-0-0.json", "vetting.json", "flight_recorder/rank_0",
)  # fmt: skip
_OF_A_RUN = (
    "record.json", "vetting.json", "vetting.log", "metrics.jsonl", "live-n.json", "excluded_nodes.txt",
    "telemetry/n-1-0.arrows", "telemetry/n-2-0.closed.arrows", "telemetry/n-3-0.closed.parquet",
    "telemetry/n-1-0.10s.summary", "telemetry/n.events.jsonl", "telemetry/n.ranks.json",
)  # fmt: skip
_SPARSE_BYTES = 20 << 30
#: Looks at everything that pages and commands show of a run; says how much time and memory it took. Each run
#: has a process of its own, which has the imports already.
_LOOK = """
import asyncio, json, os, resource, sys, time
from pathlib import Path
from gipfel_cluster.scheduler.excluded_nodes import excluded_nodes
from gipfel_cluster.runs import live_sockets
from gipfel_cluster.model import GipfelError
from gipfel_extension.saturation import score_table
from gipfel_extension.server.history import TimeRange
from gipfel_extension.server.launches import list_launches, log_page
from gipfel_extension.server.runs import list_runs
from gipfel_extension.server.vetting import ServerVetting
from gipfel_extension.server.views import View
from gipfel_extension.telemetry.store.compaction import compact
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.launch_summary import flight_recorder_lines
from gipfel_extension.training.papermill.engine import run_metadata
import pyarrow.json, pyarrow.parquet
for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        break
    print(json.dumps([path, os.waitpid(child, 0)[1]]), flush=True)
else:
    sys.exit()
run = Path(path)
environment = {"GIPFEL_RUNS": str(run.parent), "GIPFEL_RUN": str(run)}
before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
launches = list_launches(environment)
for each in (run / "launches").iterdir():
    launch = Launch(each)
    log_page(launch, None, None)
    flight_recorder_lines(launch.folder)
    for look in (launch.settle, lambda: launch.resumed_spec, lambda: launch.ranks):
        try:
            look()
        except GipfelError as error:
            assert "\\n" not in str(error)
runs = list_runs(environment, "")
stretch = TimeRange(run)
answer = stretch.answer(View())
document = stretch.document()
vetting = asyncio.run(ServerVetting(environment).view(run, known="", rows=40))
run_metadata(run)
compact(run / "telemetry")
live_sockets(run, "n")
try:
    excluded_nodes(str(run))
except GipfelError:
    pass
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"run": path, "launches": launches, "vetting": vetting, "runs": runs,
                  "cpu_s": time.process_time() - begun, "mib": (after - before) >> 10}), flush=True)
"""
_KINDS = ("pipe", "sparse", "device", "deep", "keys", "bytes")


def _make(path: Path, kind: str) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(_SPARSE_BYTES)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "deep":
        path.write_bytes(b"[" * 200_000 + b"\n")
    elif kind == "keys":
        path.write_text('{"later": 1, "exclusions": [{"later": 2}], "check": Infinity}\n')
    else:
        path.write_bytes(b"\xff\xfe\x00{" * 1000 + b"\n")


def _run_folder(root: Path, kind: str) -> Path:
    run = root / "runs" / "c-1"
    sound, bad = (run / "launches" / number for number in ("1", "2"))
    sound.mkdir(parents=True)
    (run / "telemetry").mkdir()
    write_state(sound, LaunchState(phase="ended", outcome="completed", number=1, exit_status=0))
    for name in _OF_A_LAUNCH:
        _make(bad / name, kind)
    # One whose state can be read, and nothing else.
    other = run / "launches" / "3"
    for name in _OF_A_LAUNCH[1:]:
        _make(other / name, kind)
    write_state(other, LaunchState(phase="ended", outcome="failed", number=3, run=str(run), started_ns=1))
    for name in _OF_A_RUN:
        _make(run / name, kind)
    return run


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return exit status and document of a look at a run folder of each kind, and what was said."""
    runs = {kind: _run_folder(tmp_path_factory.mktemp(kind), kind) for kind in _KINDS}
    done = subprocess.run(
        [sys.executable, "-c", _LOOK, *map(str, runs.values())],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    statuses = dict(line for line in lines if isinstance(line, list))
    documents = {line["run"]: line for line in lines if isinstance(line, dict)}
    found = {kind: (statuses.get(str(run)), documents.get(str(run))) for kind, run in runs.items()}
    return {**found, "said": done.stderr[-2000:]}


@pytest.mark.parametrize("kind", _KINDS)
def test_what_is_in_a_runs_files_keeps_nobody_from_the_others(looks: dict[str, Any], kind: str) -> None:
    status, found = looks[kind]
    assert status == 0, looks["said"]
    shown = {each["number"]: each for each in found["launches"]}
    assert [shown[number]["status"] for number in (1, 2, 3)] == ["completed", "unreadable", "failed"]
    assert "can't be read" in shown[2]["message"]
    assert found["vetting"]["state"] == "error"
    assert "vetting" in found["vetting"]["problem"]
    assert found["cpu_s"] < 10
    assert found["mib"] < 300


def test_only_regular_files_are_opened_and_none_beyond_its_bound(tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_bytes(b"0123456789")
    link.symlink_to(file)
    for path in (pipe, link, tmp_path, Path("/dev/zero")):
        for opened in (open_regular, open_log):
            with pytest.raises(OSError, match=r"not a regular file|symbolic link|a directory|No such device"):
                opened(path)
    assert read_regular(link, 10, follow=True) == b"0123456789"
    with pytest.raises(OSError, match="it is larger than 9 bytes"):
        read_regular(file, 9)
    assert read_tail(file, 3) == b"789"
    file.write_bytes(b"[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(file, 1 << 20)
    log = tmp_path / "log"
    for text, cut in ((b"a", False), (b"b", False), (b"c", True)):
        handle = open_log(log, truncate=cut)
        assert os.get_blocking(handle)
        os.write(handle, text)
        os.close(handle)
    assert (log.read_bytes(), log.stat().st_mode & 0o777) == (b"c", 0o600)


def _metric(step: int, **more: Any) -> bytes:
    line = {"time_ns": step, "monotonic_ns": step, "node": "n", "rank": 0, "values": {"loss": step}, **more}
    return json.dumps(line).encode() + b"\n"


def test_metrics_are_read_on_over_holes_and_from_the_beginning_of_another_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(_metric(1))
    reader = MetricsReader(path)
    assert reader.poll()
    first = reader.metrics()
    assert not reader.poll()
    # What is not new costs nothing.
    assert reader.metrics() is first
    with path.open("r+b") as file:
        file.truncate(4 << 30)
        file.seek(0, 2)
        file.write(b"\n" + _metric(2) + b"x" * (3 << 20) + b"\n" + _metric(3, rank=float("inf")) + _metric(4))
    begun = time.process_time()
    assert reader.poll()
    found = reader.metrics().series[0]
    assert found.values.tolist() == [1, 2, 4]
    # Zeros beside the hole, a line without an end in sight, and a rank that is none.
    assert reader.metrics().damaged_lines == 3
    assert time.process_time() - begun < 2
    path.unlink()
    path.write_bytes(_metric(9))
    assert reader.poll()
    assert reader.metrics().series[0].values.tolist() == [9]


def test_metrics_that_are_nested_deeply_are_damaged_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    deep = b'{"time_ns":1,"monotonic_ns":1,"node":"n","rank":0,"values":' + b'{"a":' * 20_000
    path.write_bytes(_metric(1) * 3000 + deep + b"1" + b"}" * 20_001 + b"\n" + _metric(2))
    program = (
        "import sys; from pathlib import Path\n"
        "from gipfel_extension.telemetry.user_metrics import read_metrics\n"
        "print(len(read_metrics(Path(sys.argv[1])).series[0].values))"
    )
    # In a separate process: what it did before ended it.
    argv = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "3001\n"), done.stderr[-500:]


def test_a_report_that_is_damaged_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vetting.json").write_text('{"schema_version": 7}')
    file = ReportFile(tmp_path)
    for _ in range(2):
        with pytest.raises(Exception, match="not a vetting report"):
            file.refresh()
        monkeypatch.setattr("gipfel_extension.vetting.report_display.read_report", None)


_CALL = {"process_group": ("0", "default_pg"), "collective_seq_id": 1}


def _shared(depth: int) -> Any:
    value: Any = ["a"]
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "content",
    [
        # A place in the memo that would take 4 GB.
        b"\x80\x04K\x01r\xff\xff\xff\x0f.",
        # A billion values in a few bytes, and one that holds itself.
        pickle.dumps({"entries": [{**_CALL, "input_sizes": _shared(30)}]}),
        b"\x80\x04]\x94h\x00a.",
        b"\x80\x04" + b"]" * 1_000_000 + b".",
        b"\x80\x04" + b"]" * 300_000 + b"a" * 299_999 + b".",
        pickle.dumps({"entries": [{**_CALL, "profiling_name": ["x" * 1_000_000] * 1000}]}),
        pickle.dumps({"entries": [{"input_sizes": [{(1, 2): 3}]}]}),
        pickle.dumps({"entries": [{"collective_seq_id": 1 << 5000}]}),
        b'{"entries": ' + b"[" * 100_000,
        b'{"entries": [' + b"[]," * 3_000_000 + b"1]}",
    ],
)
def test_a_dump_costs_little_whatever_it_says(content: bytes) -> None:
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ValueError, match=r"^it(s values)? "):
        read_dump(content, 0)
    assert time.process_time() - begun < 5
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10 < 300


def test_numbers_of_a_dump_that_are_none_are_missing_and_values_that_are_shared_are_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "rank_0").write_text(
        '{"entries": [{"collective_seq_id": Infinity, "time_created_ns": 1e300, "profiling_name": "x"}]}'
    )
    frames = [{"filename": "train.py", "line": 3}]
    entry = {"process_group": ("0", "x"), "frames": frames, "collective_seq_id": 1}
    (tmp_path / "rank_1").write_bytes(pickle.dumps({"entries": [entry, entry, {**entry, "frames": frames}]}))
    os.mkfifo(tmp_path / "rank_2")
    report = report_of(tmp_path)
    assert report.ranks == (0, 1)
    assert not report.unreadable
    dump = read_dump((tmp_path / "rank_1").read_bytes(), 1)
    (log,) = dump.logs.values()
    assert (dump.entries, [each.frame for each in log.calls.values()]) == (3, [])


def test_a_run_folder_without_access_hides_no_other() -> None:
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for each in ("alps-1", "alps-2"):
            (root / each / "telemetry").mkdir(parents=True, mode=0o755)
        (root / "alps-2").chmod(0)
        if is_root:
            os.seteuid(65534)
        try:
            assert find_folder("alps-1", root) == root / "alps-1"
            # By the name that its user gave it: every folder is examined.
            for missing in ("alps-2", "named"):
                with pytest.raises(GipfelError, match="There is no run"):
                    find_folder(missing, root)
        finally:
            if is_root:
                os.seteuid(0)
            (root / "alps-2").chmod(0o700)


def test_facts_of_damaged_files_are_unknown() -> None:
    odd: Any = {
        "started": 3,
        "ended": "2026-01-01T00:00:00",
        "git": {"commit": "; rm -rf", "changed_files": "x"},
    }
    score: Any = {"score": True, "losses": {"input": "much", "idle": 10**400}, "energy": [1]}
    assert summary_of(odd, score) == summary_of({}, {})
    naive = {"started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:00:00"}
    assert summary_of(naive, {}).duration_s is None
