"""Launches from cells: options, a notebook that papermill runs, values that resemble options or syntax."""

import json
import math
import os
import shlex
from pathlib import Path
from typing import Any

import nbformat
import pytest
from papermill import PapermillExecutionError, execute_notebook

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.logs import LogLine, read_logs, tail_cursor
from gipfel_extension.cli.launch import start
from gipfel_extension.training.launch import Launch, find_running_duplicate
from gipfel_extension.training.launches.logs import (
    ErrorLines,
    launch_logs,
    read_training_curve,
)
from gipfel_extension.training.record import LaunchState, read_state, write_state
from gipfel_widgets.launch_form import LaunchForm
from gipfel_widgets.launch_options import equivalent, json_value, launch_command, parse_arguments, parse_line
from gipfel_widgets.launch_static import launch_html, launch_text, launches, progress_texts
from gipfel_widgets.launch_widget import LaunchWidget

#: Texts with a meaning for a shell, IPython, a template or a page.
HOSTILE = "{evil} $(touch x) `y` \"; rm 'z' <b>&amp; --nodes=9 %s \\n é"
_SIZE = 50_000


def test_the_cell_has_the_terminals_options_and_gives_what_the_terminal_gives() -> None:
    ours = {each.name for each in launch_command().params}
    assert {each.name for each in start.params} <= ours
    asked = parse_line("--nodes 1:2 --gpus-per-node 4 --vet quick --restarts 3 -- train.py --lr '0.1 \"x'")
    assert asked is not None
    spec = asked.spec
    assert (spec.kind, spec.target, spec.arguments) == ("script", "train.py", ("--lr", '0.1 "x'))
    assert (spec.nodes, spec.nodes_min, spec.gpus_per_node) == (2, 1, 4)
    assert (spec.vetting, spec.restarts, asked.wait) == ("quick", 3, None)
    notebook = parse_line("--notebook a.ipynb -p lr 0.1 --no-wait")
    assert notebook is not None
    assert (notebook.spec.kind, notebook.spec.parameters, notebook.wait) == ("notebook", {"lr": 0.1}, False)


@pytest.mark.parametrize(("rate", "text"), [(1.0, "1 step/s"), (0.5, "0.5 steps/s"), (12.0, "12 steps/s")])
def test_a_pace_is_said_in_the_singular_too(rate: float, text: str) -> None:
    assert progress_texts({"training_curve": {"steps_per_s": rate}}) == [text]


def test_values_stay_what_they_are() -> None:
    asked = parse_arguments(["--param", f"text={HOSTILE}", "--pass=values,text2"], "print(text)", {
        "values": {"a": [1, None, (True, 0.5)]}, "text2": "True",
    })  # fmt: skip
    assert asked is not None
    assert asked.spec.parameters == {
        "text": HOSTILE, "values": {"a": [1, None, [True, 0.5]]}, "text2": "True",
    }  # fmt: skip
    # The form says the same words.
    form = LaunchForm({"code": "print(1)", "params": {"text": HOSTILE, "n": 2}}, {})
    again = parse_arguments(*form.command_line())
    assert again is not None
    assert again.spec.parameters == {"text": HOSTILE, "n": 2}
    script = LaunchForm({"script": "a b.py", "args": [HOSTILE], "nodes": "1:2", "profile": True}, {})
    words, code = script.command_line()
    said = parse_arguments(words, code)
    assert said is not None
    assert (said.spec.target, said.spec.arguments, said.spec.nodes_min) == ("a b.py", (HOSTILE,), 1)
    assert said.spec.profile
    assert parse_line(equivalent(words).removeprefix("%launch")) == said


class _Foreign:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("false",)


@pytest.mark.parametrize("value", [_Foreign(), math.nan, {1: 2}, {"a": [b"x"]}, [[_Foreign()]]])
def test_only_what_json_holds_is_passed(value: object) -> None:
    with pytest.raises(GipfelError, match="can't be passed"):
        json_value(value, "it")


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("--bogus", "x", "No such option"),
        ("'", "x", "quotes"),
        ("--script a.py", "print(1)", "Remove one of them"),
        ("--script a.py --module b", "", "Use only one of"),
        ("", " \n", "There is nothing to run"),
        ("--pass nothing", "x", "no variable 'nothing'"),
        ("--param 1=3", "x", "NAME=VALUE"),
        ("--nodes x", "x", "not a valid number of nodes"),
        ("--gpus-per-node 0", "x", "not in the range"),
        ("--env API_TOKEN=x", "x", "looks like a secret"),
        ("--script 'a\0b'", "", "target"),
    ],
)
def test_a_mistake_is_one_line(line: str, code: str, says: str) -> None:
    with pytest.raises(GipfelError, match=says) as caught:
        parse_line(line, code)
    assert "\n" not in str(caught.value)
    assert caught.value._render_traceback_() == [str(caught.value)]


def test_a_form_names_its_own_field_and_every_number_says_what_it_is() -> None:
    form = LaunchForm({}, {})
    for kind, field in (("script", "File"), ("module", "Name"), ("notebook", "Notebook"), ("code", "Code")):
        form.kind.value = kind
        with pytest.raises(GipfelError, match=f"The field '{field}' is empty") as caught:
            form.command_line()
        assert "--" not in str(caught.value)
    assert all(each.tooltip for each in (form.nodes, form.min_nodes, form.gpus, form.fields["restarts"]))


def test_more_fields_are_shown_on_demand_and_stay_when_the_kind_changes() -> None:
    form = LaunchForm({}, {})
    rest = form.fields["time"]
    assert not any(rest in each.children for each in form.widget.children if hasattr(each, "children"))
    form.more.value = True
    form.kind.value = "notebook"
    assert rest in form.widget.children[-1].children


def test_help_teaches_and_launches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_line("--help") is None
    assert "--pass" in capsys.readouterr().out


def test_the_end_of_a_log_begins_with_a_whole_line_and_tracebacks_are_told_apart(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(_SIZE)]
    (tmp_path / "rank-0.log").write_text("\n".join(lines) + "\n")
    (tmp_path / "rank-3.log").write_text("short\n")
    page = read_logs(launch_logs(tmp_path), tail_cursor(launch_logs(tmp_path), max_bytes=20_000))
    shown = [each.text for each in page.lines if each.rank == 0]
    assert shown
    assert shown == lines[-len(shown) :]
    assert [each.text for each in page.lines if each.rank == 3] == ["short"]

    said = ["step 1", "Traceback (most recent call last):", '  File "x"', "ValueError: no", "step 2"]
    rows = ErrorLines().mark(LogLine(rank=1, text=text) for text in said)
    assert [row[3] for row in rows] == [False, True, True, True, False]
    # A page that ends within a traceback is gone on with.
    marks = ErrorLines()
    marks.mark([LogLine(rank=1, text=said[1])])
    assert ErrorLines(marks.in_traceback).mark([LogLine(rank=1, text=said[2])])[0][3]


def test_the_course_is_that_of_the_lowest_rank_while_the_launch_ran(tmp_path: Path) -> None:
    state = LaunchState(phase="running", number=1, run=str(tmp_path), started_ns=10)
    said = [
        json.dumps({"time_ns": 5 + i * 10**9, "rank": rank, "values": {"step": i * 2, "loss": rank + i}})
        for i in range(11)
        for rank in (0, 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*said, '{"torn', "[]", '{"values":{"step":"x"}}']))
    course = read_training_curve(tmp_path, state)
    assert course.losses[0] == (2.0, 1.0)
    assert course.losses[-1] == (20.0, 10.0)
    assert course.steps_per_s == pytest.approx(2.0)


def test_what_is_shown_is_escaped_and_bounded(tmp_path: Path) -> None:
    outcome = {"check": "a", "verdict": "fail", "message": "<s>", "fix": "Fix."}
    said = {"message": "<script>", "command": "<b>", "traceback": "<u>", "folder": "<p>", "name": "<i>"}
    document = {"number": 1, "status": "failed", "preflight": [outcome], **said}
    rows = [(rank % 300, f"<em>{rank}", None, False) for rank in range(2000)]
    page = launch_html(document, rows)
    for tag in ("<i>", "<script>", "<b>", "<u>", "<s>", "<em>", "<p>"):
        assert tag not in page
    assert len(page) < 200_000
    assert "log of all 300 ranks, of which 8 have a section" in page
    assert "✗" in launch_text(document, rows)
    # What never became a launch has no number and no name.
    assert launch_text({"status": "not started"}) == "✗ launch: not started"
    view = LaunchWidget()
    assert view.static()["text/plain"]
    view.close()
    assert 0 < len(str(LaunchWidget._esm).encode()) < 50_000


def test_papermill_launches_waits_finds_again_and_fails_with_the_first_ranks_words(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs / "local-1"
    (run / "telemetry").mkdir(parents=True)
    monkeypatch.setenv("GIPFEL_RUN", str(run))
    monkeypatch.delenv("GIPFEL_ENGINE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n    raise ValueError('rank one is bad')\ntime.sleep(300)\n"
    )
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n"
        "for _ in range(600):\n    if pathlib.Path('go').exists():\n        break\n    time.sleep(0.1)\n"
    )
    code = (
        "import os, json, pathlib\n"
        "rank = os.environ['RANK']\n"
        "pathlib.Path('said-' + rank).write_text(json.dumps([text, passed]))\n"
        "print('here is rank', rank, flush=True)"
    )
    cells = [
        "%load_ext gipfel_widgets\npassed = {'a': [1, '$(x) {y}']}",
        f"%%launch --gpus-per-node 2 --name cell --pass passed --param={_quoted('text=' + HOSTILE)}\n{code}",
        "%launch --gpus-per-node 2 --dry-run --script bad.py",
        "from gipfel_widgets import launches, launch\nassert len(launches()) == 1\nlaunch(1)",
        (
            "%launch --gpus-per-node 1 --no-wait --script slow.py\n"
            "assert not _launch.state.ended\nopen('go', 'w').close()\nassert _launch.wait(60) == 0"
        ),
        "%launch --gpus-per-node 2 --script bad.py",
        "print('never')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    with pytest.raises(PapermillExecutionError) as caught:
        execute_notebook(str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb"), progress_bar=False)
    assert "rank one is bad" in str(caught.value)

    for rank in (0, 1):
        assert json.loads((tmp_path / f"said-{rank}").read_text()) == [HOSTILE, {"a": [1, "$(x) {y}"]}]
    executed = nbformat.read(tmp_path / "out.ipynb", 4).cells
    shown = {
        index: next((_text(each.get("outputs", [])) for each in executed if each.source == source), "")
        for index, source in enumerate(cells)
    }
    assert "launch 1 cell: completed" in shown[1]
    assert "here is rank 1" in shown[1]
    assert "torch.distributed.run" in shown[2]
    assert "nothing was started" in shown[2]
    assert "launch 1 cell: completed" in shown[3]
    assert "launch 2 slow: " in shown[4]
    assert "ValueError: rank one is bad" in shown[5]
    assert shown[6] == ""
    state = read_state(run / "launches" / "3")
    assert (state.outcome, state.failure and state.failure.rank) == ("failed", 1)
    assert len(launches()) == 3

    # While the very same one runs, it is found; one that asks for something else is not.
    launch = Launch(run / "launches" / "3")
    same = parse_line("--gpus-per-node 2 --script bad.py")
    assert same is not None
    assert find_running_duplicate(same.spec, os.environ, tmp_path) is None
    write_state(launch.folder, state.model_copy(update={"phase": "running", "outcome": ""}))
    found = find_running_duplicate(same.spec, os.environ, tmp_path)
    assert found is not None
    assert found.folder.name == "3"
    other = parse_line("--gpus-per-node 2 --script bad.py -- --lr 1")
    assert other is not None
    assert find_running_duplicate(other.spec, os.environ, tmp_path) is None
    assert find_running_duplicate(same.spec, os.environ, tmp_path.parent) is None


def _text(outputs: list[Any]) -> str:
    said = []
    for each in outputs:
        said.append(each.get("text", "") or "\n".join(each.get("traceback", [])))
        said.append(each.get("data", {}).get("text/plain", ""))
    return "".join(said)


def _quoted(text: str) -> str:
    return shlex.quote(text)
