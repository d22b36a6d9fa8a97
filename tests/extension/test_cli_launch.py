"""Output of ``gipfel launch``: help, list, one launch and its logs, in directories written by the tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gipfel_cluster.model import pluralize
from gipfel_cluster.workloads.logs import last_lines, read_logs
from gipfel_extension.cli.launch import launch
from gipfel_extension.cli.launch_view import row
from gipfel_extension.cli.terminal import printable
from gipfel_extension.training.launches.logs import launch_logs
from gipfel_extension.training.record import LaunchState, write_state


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path))
    monkeypatch.delenv("GIPFEL_RUN", raising=False)
    found = tmp_path / "launches" / "3"
    (found / "ranks").mkdir(parents=True)
    (found / "command.txt").write_text("srun python3 train.py\n")
    about = {"outcome": "completed", "nodes": ("n1",), "ranks": 1, "run": str(tmp_path / "alps-7")}
    write_state(found, LaunchState(phase="ended", number=3, name="baseline", title="train.py", **about))
    note = {"rank": 0, "node": "n1", "pid": 7, "started_ns": 5, "ended_ns": 9, "status": 0}
    (found / "ranks" / "0.json").write_text(json.dumps(note))
    return found


def _says(*words: str) -> str:
    done = CliRunner().invoke(launch, words, prog_name="gipfel launch", standalone_mode=False)
    assert done.exception is None, done.exception
    return done.stdout


def test_help_names_the_command_as_it_is_typed() -> None:
    for words in (["--help"], [], ["start", "--help"], ["--nodes", "2", "--help"]):
        assert _says(*words).startswith("Usage: gipfel launch [OPTIONS] -- SCRIPT ARGS...\n")
    assert _says("logs", "--help").startswith("Usage: gipfel launch logs [OPTIONS]")


def test_a_launch_loads_nothing_heavy_on_its_way_to_the_ranks() -> None:
    code = """
import sys
import gipfel_extension.cli.main, gipfel_extension.cli.launch, gipfel_extension.cli.launch_view
import gipfel_extension.training.launch, gipfel_extension.training.launches.supervisor
import gipfel_cluster.scheduler.supervisor, gipfel_cluster.job.runner, gipfel_cluster.steps.supervisor
heavy = "numpy pandas pyarrow plotly torch IPython zmq tornado papermill nbformat nbclient sqlalchemy"
heavy += " jupyter_core jupyter_client jupyter_server jupyterlab jupyterhub ipywidgets prometheus_client"
print(sorted(set(heavy.split()) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_launch_is_listed_by_its_name_and_leads_to_its_score(folder: Path) -> None:
    assert _says("list") == "   3  completed  1 node, 1 rank  baseline: train.py\n"
    shown = _says("show", "3")
    assert f"`gipfel score {folder.parents[1]}/alps-7` shows its score" in shown
    told = json.loads(_says("show", "3", "--json"))
    # Each word means one thing: `where` is the launch's, as in the list.
    assert told["in_job"] is json.loads(_says("list", "--json"))[0]["in_job"] is True
    assert told["processes"]["0"]["started_ns"] == 5


def test_a_row_of_the_list_has_a_name_and_why_it_was_restarted_or_failed() -> None:
    state = LaunchState(
        phase="running", number=1, nodes=("a", "b"), ranks=8, name="train", title="train.py 1"
    )
    assert (
        row(Path("/r/launches/1"), state, all_runs=False) == "   1  running    2 nodes, 8 ranks  train.py 1"
    )
    about = {
        "nodes": ("a",), "ranks": 2, "title": "train.ipynb", "name": "train", "restarts": 2,
        "restarted": ("restart 1: rank 1 on a: OSError", "restart 2: rank 0 on a: \x1b[2Jno\nspace"),
        "reason": "rank 0 on a: The notebook can't be run: There is no kernel 'x' here. " + "Give one. " * 9,
    }  # fmt: skip
    listed = row(
        Path("/r/launches/2"),
        LaunchState(phase="ended", number=2, outcome="failed", **about),
        all_runs=False,
    )
    assert listed == (
        "   2  failed     1 node, 2 ranks  train.ipynb; restart 2: rank 0 on a: no space; "
        "rank 0 on a: The notebook can't be run: There is no kernel 'x' here. " + "Give one. " * 5 + "…"
    )
    assert [pluralize(each, "rank") for each in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    nouns = ("entry", "day", "process", "launch")
    assert [pluralize(2, each) for each in nouns] == ["2 entries", "2 days", "2 processes", "2 launches"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb\x1b[3;4Hc", "abc"),
        ("a\x1b]0;title\x07b\x1b]52;c;cm0=\x1b\\c", "abc"),
        ("a\x1bPq#0\x1b\\b\x1bcc\x1b(Bd", "abcd"),
        ("a\x9b2Jb\x07\x00\x08c\td", "a2Jbc\td"),
        ("a\x1b]never ends", "a"),
        ("ends\x1b", "ends"),
        ("\udcff ü ✓", "? ü ✓"),
    ],
)
def test_what_ranks_print_does_not_drive_the_terminal(text: str, shown: str) -> None:
    assert printable(text, colours=True) == printable(text, colours=False) == shown


def test_colours_reach_a_terminal_alone() -> None:
    text = "\x1b[1;31mred\x1b[0m\x1b[K"
    assert printable(text, colours=True) == "\x1b[1;31mred\x1b[0m"
    assert printable(text, colours=False) == "red"


def test_a_progress_bar_is_one_line_in_its_last_state(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_bytes(b"\r  0%|  \r 50%|# \r100%|##\nnext\r\n\nlast\n")
    assert [each.text for each in read_logs(launch_logs(tmp_path)).lines] == ["100%|##", "next", "", "last"]


def test_the_last_lines_are_read_from_the_end(tmp_path: Path) -> None:
    line = b"step %08d " + b"x" * 50 + b"\n"
    size = len(line % 0)
    with (tmp_path / "rank-0.log").open("wb") as file:
        for number in range(20_000):
            file.write(line % number)
    # An older rank that has said little, and long ago.
    (tmp_path / "rank-1.log").write_bytes(b"".join(b"old %d\n" % each for each in range(100)))
    times = [[1, {"1": 700 + 90}], [2, {"0": size * 10_000}], [3, {"0": size * 20_000}]]
    (tmp_path / "times.jsonl").write_text("\n".join(json.dumps(each) for each in times) + "\n")
    whole = list(read_logs(launch_logs(tmp_path), max_bytes=1 << 30).lines)
    for count in (0, 1, 3, 500, 15_000, 20_050, 30_000):
        lines, cursor = last_lines(launch_logs(tmp_path), count)
        assert lines == (whole[-count:] if count else [])
        assert not read_logs(launch_logs(tmp_path), cursor).lines
    assert [each.text for each in last_lines(launch_logs(tmp_path), 2, ranks=(1,))[0]] == ["old 98", "old 99"]


def test_the_end_of_a_long_log_costs_no_reading_of_all_of_it(folder: Path) -> None:
    log = folder / "rank-0.log"
    with log.open("wb") as file:
        # Its beginning is a hole: reading it all would take many minutes.
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n" * 100)
    assert _says("logs", "3", "-n", "2") == "r0 | \nr0 | the end\n"
