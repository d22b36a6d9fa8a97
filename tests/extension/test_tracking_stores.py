"""W&B's offline files, MLflow's database, logs by a regular expression, and files that ranks have open."""

import math
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from event_bytes import event, frame, simple
from recorder_process import TwoClocks, until

from gipfel_extension.cli.main import main
from gipfel_extension.recorder.metric_files import OpenFiles
from gipfel_extension.telemetry.user_metrics import read_metrics
from gipfel_extension.tracking import Follower, Scalar
from gipfel_extension.tracking.find import log_kind
from gipfel_extension.tracking.mlflow import is_mlflow_database
from gipfel_extension.tracking.run_metrics import MetricsDirectory
from gipfel_extension.tracking.text_formats import LogPattern, PatternError

#: Written by wandb 0.31: 70 rows, see :func:`_expected`. It is longer than a block of 32 KiB.
WANDB = Path(__file__).parent / "data" / "wandb" / "offline-0.31-nan-and-infinity.wandb"
_METRICS = """
CREATE TABLE metrics (key VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
    run_uuid VARCHAR(32) NOT NULL, step BIGINT NOT NULL, is_nan BOOLEAN NOT NULL,
    PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));
CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250));
"""
#: Values of other types, and one that is too large.
_ODD_ROWS = """
CREATE TABLE metrics (key, value, timestamp, step, is_nan, run_uuid);
INSERT INTO metrics VALUES (1, 'x', 'y', 9e99, 2, NULL), (zeroblob(1000000), 1, 1, 1, 0, 'r'),
    ('ok', 1, 1, 1, 0, 'r');
"""


def _read(path: Path, **how: object) -> tuple[list[Scalar], Follower]:
    follower = Follower()
    follower.add(path, **how)  # type: ignore[arg-type]
    return [each for _, found in follower.poll(last=True) for each in found], follower


def _expected() -> list[tuple[str, int, float]]:
    rows = []
    for i in range(70):
        values = {"loss": 1 / (i + 1), "lr": 0.1, "train.acc": i / 70, "tokens": i * 1000.0}
        values["nan"] = math.nan if i % 100 == 0 else math.inf
        rows += [(name, i, value) for name, value in values.items()]
    return rows


def _plain(scalars: list[Scalar]) -> list[tuple[str, int | None, str]]:
    return sorted((each.name, each.step, repr(each.value)) for each in scalars)


def test_values_of_a_wandb_file_are_those_that_were_logged() -> None:
    found, follower = _read(WANDB)
    assert _plain(found) == sorted((name, step, repr(value)) for name, step, value in _expected())
    assert {each.time_ns // 10**9 for each in found if each.time_ns} <= {1795494459 + n for n in range(30)}
    assert follower.files[0].damaged == 0


def test_a_wandb_file_that_grows_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    content, path = WANDB.read_bytes(), tmp_path / "run-1.wandb"
    follower, found = Follower(), []
    path.touch()
    follower.add(path)
    for end in [*range(0, len(content), 1009), len(content)]:
        path.write_bytes(content[:end])
        found += [each for _, scalars in follower.poll() for each in scalars]
    assert _plain(found) == sorted((name, step, repr(value)) for name, step, value in _expected())
    assert follower.files[0].damaged == 0


def test_damage_of_a_wandb_file_costs_its_block_alone(tmp_path: Path) -> None:
    content = bytearray(WANDB.read_bytes())
    content[20_000] ^= 0xFF
    path = tmp_path / "run-1.wandb"
    path.write_bytes(content)
    found, follower = _read(path)
    steps = {each.step for each in found}
    assert 20 < len(steps) < 69
    assert 69 in steps, "the second block was read"
    assert follower.files[0].damaged >= 1
    path.write_bytes(b"no W&B file at all")
    assert _read(path)[0] == []


def _database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.executescript(_METRICS)
    return database


def _log(database: sqlite3.Connection, run: str, key: str, step: int, value: float) -> None:
    nan = math.isnan(value)
    row = (key, 0.0 if nan else value, 1_800_000_000_000 + step, run, step, nan)
    database.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", row)
    database.commit()


def test_rows_of_an_mlflow_database_are_read_once_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    database = _database(path)
    database.execute("INSERT INTO runs VALUES ('a', 'bold-cat-7')")
    _log(database, "a", "loss", 1, 2.5)
    _log(database, "b", "loss", 1, 1.5)
    follower = Follower()
    follower.search(tmp_path)
    (pieces,) = follower.poll()
    assert [(each.name, each.value) for each in pieces[1]] == [("bold-cat-7/loss", 2.5), ("loss", 1.5)]
    assert pieces[1][0].time_ns == 1_800_000_000_001 * 10**6
    assert list(follower.poll()) == []
    _log(database, "b", "train/acc", 2, math.nan)
    ((_, more),) = follower.poll()
    assert [(each.name, each.step, repr(each.value)) for each in more] == [("train/acc", 2, "nan")]


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE VIEW metrics AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n FROM r) SELECT n FROM r",
        "CREATE TABLE other (x)",
        "CREATE TABLE metrics (x); INSERT INTO metrics VALUES (1)",
        _ODD_ROWS,
    ],
)
def test_hostile_databases_end_soon(tmp_path: Path, schema: str) -> None:
    path = tmp_path / "mlflow.db"
    database = sqlite3.connect(path)
    database.executescript(schema)
    database.close()
    began = time.monotonic()
    is_mlflow_database(path)
    follower = Follower()
    follower.search(tmp_path)
    values = [each.name for _, found in follower.poll(last=True) for each in found]
    assert values in ([], ["ok"])
    assert time.monotonic() - began < 10
    cut = path.read_bytes()[:5000]
    path.write_bytes(cut)
    assert list(Follower().poll()) == []
    assert not is_mlflow_database(path) or _read(path)[0] == []


def test_logs_are_read_by_named_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rank-3.log"
    path.write_bytes(
        b"starting\niteration   1/ 10 | lm loss: 2.5E+00 | tok/s 1,234\r50%|xx\r"
        b"iteration   2/ 10 | lm loss: nan, | tok/s oops\n\xff\xfe iteration 3/ 10 | lm loss: 1 | tok/s 7%"
    )
    expression = r"iteration +(?P<step>\d+)/.*lm loss: (?P<lm__loss>\S+).*tok/s (?P<speed>\S+)"
    found, _ = _read(path, kind=log_kind(LogPattern(expression)))
    assert [(each.name, each.step, repr(each.value), each.rank) for each in found] == [
        ("lm/loss", 1, "2.5", 3),
        ("speed", 1, "1234.0", 3),
        ("lm/loss", 2, "nan", 3),
        ("lm/loss", 3, "1.0", 3),
        ("speed", 3, "7.0", 3),
    ]
    assert main(["metrics", str(tmp_path), "--pattern", expression]) == 0
    assert "lm/loss" in capsys.readouterr().out
    assert main(["metrics", str(tmp_path), "--pattern", "(?P<loss>"]) == 2


@pytest.mark.parametrize(
    "expression", [r"(?P<a>x)(?=y)", r"(?P<a>(x+)+)\1", "loss", "(?P<step>x)", "(?P<a>" * 999]
)
def test_expressions_that_can_not_be_used_say_so(expression: str) -> None:
    with pytest.raises(PatternError) as error:
        LogPattern(expression)
    assert error.value.fix


def test_an_expression_with_too_many_groups_is_refused_for_that() -> None:
    with pytest.raises(PatternError, match="more than 64 named groups"):
        LogPattern("".join(f"(?P<m{number}>x)" for number in range(65)))


def test_nested_repetition_takes_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("a" * 900_000 + "!\n")
    began = time.monotonic()
    assert _read(path, kind=log_kind(LogPattern(r"(?P<x>(?P<y>a+)+)+$")))[0] == []
    assert time.monotonic() - began < 10


def test_files_that_ranks_have_open_are_found_with_their_rank(tmp_path: Path) -> None:
    outputs, run = tmp_path / "somewhere" / "deep", tmp_path / "run"
    outputs.mkdir(parents=True)
    run.mkdir()
    program = (
        "import os, sys; handles = [open(p, 'ab', buffering=0) for p in sys.argv[1:]];"
        "handles[0].write(bytes.fromhex(os.environ['FRAMES'])); sys.stdout.write('.'); sys.stdout.flush();"
        "sys.stdin.read()"
    )
    # A directory that is also named, by a link, brings no value twice.
    link = tmp_path / "link"
    link.symlink_to(outputs)
    clock = TwoClocks()
    follower = MetricsDirectory(
        link, run, "n1", clock, since_ns=clock.wall_ns, open_files=OpenFiles(os.getpid(), {})
    )
    processes = []
    for rank in (0, 1):
        frames = frame(event(4, 1.7e9 + rank, simple("loss", rank / 4))).hex()
        files = [outputs / f"events.out.tfevents.{rank}", outputs / f"data-{rank}.jsonl"]
        processes.append(
            subprocess.Popen(
                [sys.executable, "-S", "-c", program, *map(str, files)],
                env={"RANK": str(rank), "FRAMES": frames},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
    try:
        for process in processes:
            assert process.stdout is not None
            assert until(lambda pipe=process.stdout: pipe.read(1))
        follower.follow(last=True)
    finally:
        for process in processes:
            process.communicate()
    found = read_metrics(run)
    assert {(each.name, each.rank, float(each.values[0])) for each in found.series} == {
        ("loss", 0, 0.0),
        ("loss", 1, 0.25),
        ("step", 0, 4.0),
        ("step", 1, 4.0),
    }


def _process(proc: Path, pid: int, file: Path, flags: str) -> Path:
    """Make what ``/proc`` says of a process that has one file open."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fdinfo").mkdir()
    (folder / "stat").write_text(f"{pid} (python) S 1 0")
    (folder / "environ").write_bytes(b"RANK=3\0")
    (folder / "fd" / "5").symlink_to(file)
    (folder / "fdinfo" / "5").write_text(f"pos:\t0\nflags:\t{flags}\n")
    return folder


def test_a_database_is_found_once_its_tables_are_made(tmp_path: Path) -> None:
    path, proc = tmp_path / "mlflow.db", tmp_path / "proc"
    path.touch()
    _process(proc, 77, path, "0100002")
    finder = OpenFiles(77, {}, proc)
    assert finder.find() == []
    database = sqlite3.connect(path)
    database.executescript(_METRICS)
    database.close()
    assert [(each.path, each.rank) for each in finder.find()] == [(path, 3)]


def test_files_that_are_only_read_or_of_another_user_are_not_followed(tmp_path: Path) -> None:
    path, proc = tmp_path / "run.wandb", tmp_path / "proc"
    path.touch()
    _process(proc, 77, path, "0100000")
    assert OpenFiles(77, {}, proc).find() == []
    folder = _process(proc, 78, path, "0100001")
    finder = OpenFiles(78, {}, proc)
    assert [each.path for each in finder.find()] == [path]
    if os.getuid() == 0:
        os.chown(folder, 12345, 12345)
        # Opening a pipe would wait for ever: nothing of another user's process is opened.
        (folder / "stat").unlink()
        os.mkfifo(folder / "stat")
        assert finder.find() == []
