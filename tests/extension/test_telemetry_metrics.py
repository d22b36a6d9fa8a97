"""The reader of the user's own metrics: partial lines, and several processes that write one file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gipfel_extension.telemetry import user_metrics
from gipfel_extension.telemetry.user_metrics import MetricsReader, read_metrics

START = 1_700_000_000 * 10**9


def line(step: int, rank: int | None = 0, node: str = "n1", **values: object) -> str:
    content = {"time_ns": START + step * 10**9, "monotonic_ns": step * 10**9, "node": node, "rank": rank}
    return json.dumps({**content, "values": {"step": step, **values}}, separators=(",", ":")) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_ranks_are_separate_and_missing_values_are_nan(file, tmp_path):
    file.write_text(line(0, loss=1.5) + line(0, rank=1, loss=2.5) + line(1, loss=None) + line(2, val=3))
    found = read_metrics(tmp_path)
    assert found.names == ("step", "loss", "val")
    assert [(each.name, each.rank, len(each.values)) for each in found.series if each.name == "loss"] == [
        ("loss", 0, 2), ("loss", 1, 1)
    ]  # fmt: skip
    loss = found.find("loss")
    # Noted as missing at step 1; not noted at all at step 2.
    assert np.isnan(loss.values).tolist() == [False, True]
    assert loss.time_ns.tolist() == [START, START + 10**9]
    assert loss.monotonic_ns.tolist() == [0, 10**9]
    assert found.find("loss", rank=1).values.tolist() == [2.5]
    assert found.find("nope") is None
    assert found.between(START + 2 * 10**9, START + 9 * 10**9).names == ("step", "val")


@pytest.mark.parametrize(
    "odd",
    [
        '{"time_ns":17000', "null", "[]", '{"time_ns":1}', "\x00\x00\x00", "[" * 100_000, '"x"', "1" * 5000,
        '{"time_ns":1e99,"monotonic_ns":1,"node":"n","rank":0,"values":{}}',
        '{"time_ns":1,"monotonic_ns":1,"node":"n","rank":"x","values":{}}',
        '{"time_ns":1,"monotonic_ns":1,"node":"n","rank":0,"values":[1]}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("length", [3, 3000])
def test_invalid_lines_are_counted_and_skipped(file, tmp_path, odd, length):
    lines = [line(step) for step in range(length)]
    file.write_text("".join([*lines[:2], odd + "\n", *lines[2:]]))
    found = read_metrics(tmp_path)
    assert found.find("step").values.tolist() == list(range(length))
    assert found.damaged_lines == 1


@pytest.mark.parametrize("length", [1, 4000])
def test_unfinished_last_line_is_read_when_complete(file, length):
    text = "".join(line(step) for step in range(length + 1))
    file.write_text(text[:-7])
    reader = MetricsReader(file)
    assert reader.poll()
    assert len(reader.metrics().find("step").values) == length
    with file.open("a") as more:
        more.write(text[-7:])
    assert reader.poll()
    assert reader.metrics().find("step").values.tolist() == list(range(length + 1))
    assert not reader.poll()
    assert reader.metrics().damaged_lines == 0


def test_text_values_are_skipped_and_wide_integers_rounded(file, tmp_path):
    file.write_text(line(0, phase="warm-up", tokens=2**62, flag=True, big=10**400))
    found = read_metrics(tmp_path)
    assert found.names == ("step", "tokens", "flag", "big")
    assert (found.find("tokens").values[0], found.find("flag").values[0]) == (2.0**62, 1.0)
    assert np.isnan(found.find("big").values[0])


def of_launch(text: str, launch: object) -> str:
    return json.dumps(json.loads(text) | {"launch": launch}, separators=(",", ":")) + "\n"


@pytest.mark.parametrize("length", [3, 3000])
def test_launches_of_a_run_are_separate_and_the_newest_is_the_default(file, tmp_path, length):
    # Two at a time, and a cell of the notebook beside them.
    rows = []
    for step in range(length):
        rows += [of_launch(line(step, loss=1.0), "run/1"), of_launch(line(step + 1, loss=2.0), "run/2")]
        rows += [of_launch(line(step, rank=1, loss=9.0), "run/2")]
    rows.insert(0, line(0, rank=None, loss=3.0))
    file.write_text("".join(rows))
    found = read_metrics(tmp_path)
    assert found.damaged_lines == 0
    assert found.launches("loss") == ("", "run/1", "run/2")
    assert sorted((m.launch, m.rank or 0, set(m.values)) for m in found.series if m.name == "loss") == [
        ("", 0, {3.0}), ("run/1", 0, {1.0}), ("run/2", 0, {2.0}), ("run/2", 1, {9.0})
    ]  # fmt: skip
    newest = found.find("loss")
    assert (newest.launch, newest.rank, set(newest.values.tolist())) == ("run/2", 0, {2.0})
    assert len(found.find("loss", launch="run/1").values) == length
    assert found.find("loss", rank=1).launch == "run/2"
    assert set(found.find("loss", launch="").values.tolist()) == {3.0}


def test_launch_that_is_not_text_is_ignored(file, tmp_path):
    file.write_text(of_launch(line(0, loss=1.0), 7) + of_launch(line(1, loss=2.0), None))
    found = read_metrics(tmp_path)
    assert (found.launches(), found.find("loss").values.tolist(), found.damaged_lines) == (
        ("",),
        [1.0, 2.0],
        0,
    )


def test_calls_that_were_lost_are_known(file, tmp_path):
    later = json.loads(line(1)) | {"lost": 12}
    file.write_text(line(0) + json.dumps(later) + "\n")
    assert read_metrics(tmp_path).lost_calls == 12


@pytest.mark.parametrize("rank", [None, 0])
def test_many_lines_at_once_read_as_one_by_one(file, tmp_path, monkeypatch, rank):
    ranks = [rank] if rank is None else range(7)
    texts = [
        line(step, rank=each, node=f"n{(each or 0) % 3}", loss=1 / (step + 1), phase="2026-01-01",
             done=step > 100, **({"val": step} if step % 10 == 0 else {}))
        for step in range(2000) for each in ranks
    ]  # fmt: skip
    texts = [of_launch(each, f"run/{n % 5}") if n % 3 else each for n, each in enumerate(texts)]
    file.write_text("".join(texts))
    calls = []
    together = user_metrics._read_many
    monkeypatch.setattr(user_metrics, "_read_many", lambda whole: calls.append(together(whole)) or calls[-1])
    quick = read_metrics(tmp_path)
    assert calls[0]
    monkeypatch.setattr(user_metrics, "_MANY_BYTES", 1 << 40)
    slow = read_metrics(tmp_path)
    assert len(calls) == 1
    key = [(each.name, each.node, each.rank, each.launch) for each in slow.series]
    other = {(each.name, each.node, each.rank, each.launch): each for each in quick.series}
    assert set(key) == set(other)
    for each in slow.series:
        same = other[(each.name, each.node, each.rank, each.launch)]
        for name in ("time_ns", "monotonic_ns", "values"):
            assert getattr(each, name).tolist() == getattr(same, name).tolist()
            assert getattr(each, name).dtype == getattr(same, name).dtype


def test_several_processes_write_one_file_while_it_is_read(file, tmp_path):
    code = (
        "import sys\nfrom gipfel_widgets import log\nfor step in range(3000): log(step=step, text='x' * 150)"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "GIPFEL_RUN": str(tmp_path), "RANK": str(rank)},
        )
        for rank in range(4)
    ]
    reader = MetricsReader(file)
    while any(each.poll() is None for each in writers):
        reader.poll()
    reader.poll()
    found = reader.metrics()
    assert (found.damaged_lines, [each.rank for each in found.series if each.name == "step"].sort()) == (
        0,
        None,
    )
    assert all(found.find("step", rank).values.tolist() == list(range(3000)) for rank in range(4))


_IN_TEN_SECONDS = """
import resource, sys
from pathlib import Path
from gipfel_extension.telemetry.user_metrics import read_metrics
used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 10, int(used) + 20))
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
found = read_metrics(Path(sys.argv[1]))
print(len(found.series), found.damaged_lines)
"""


def test_a_name_of_its_own_in_each_line_takes_time_and_memory_by_the_line(file, tmp_path):
    # As columns of all lines they would be 60 000 times 60 000 values.
    file.write_text("".join(line(step, **{f"loss/{step}": 1.0}) for step in range(60_000)))
    argv = [sys.executable, "-c", _IN_TEN_SECONDS, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    # Of all names the first 20 000 are kept, the step among them.
    assert (done.returncode, done.stdout) == (0, "20000 40001\n"), done.stderr[-500:]


def test_a_run_without_a_file_has_none(tmp_path):
    assert read_metrics(tmp_path).series == ()
