"""The parts of the papermill engine that need no kernel."""

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell
from papermill.cli import _resolve_type

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler import JobStatus
from gipfel_extension.training.batch import NotebookTask
from gipfel_extension.training.batch.submitted import TaskView
from gipfel_extension.training.batch.wait import status_line, status_table
from gipfel_extension.training.papermill.notebook_file import find_kernel
from gipfel_extension.training.papermill.output import Document, Saver
from gipfel_extension.training.papermill.parameters import Parameter, check_names, guess, is_misspelt
from gipfel_extension.training.papermill.progress import Progress, plan_resume
from gipfel_extension.training.papermill.values import from_yaml, is_of_type, to_yaml, wants_text

_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["code", "markdown", "raw"]), _TEXT, _TEXT), max_size=5), _TEXT)
def test_a_document_is_what_nbformat_writes(cells: list[tuple[str, str, str]], more: str) -> None:
    make = {"markdown": new_markdown_cell, "raw": new_raw_cell}
    made = [
        make[kind](source)
        if kind in make
        else new_code_cell(source, outputs=[new_output("stream", text=text)])
        for kind, source, text in cells
    ]
    node = new_notebook(cells=made, metadata={"x": {"cells": []}, "y": '\n "cells": []'})
    document = Document(node)
    assert document.snapshot()() == nbformat.writes(node)
    for index, cell in enumerate(node.cells):
        if cell.cell_type == "code":
            cell.outputs.append(
                new_output("display_data", data={"text/plain": more, "application/json": {"a": 1}})
            )
            document.change(index)
    node.metadata["z"] = more
    assert document.snapshot()() == nbformat.writes(node)


@settings(max_examples=200, deadline=None)
@given(_VALUES)
@example({"\x85": ["\u2028", "\u2029x", "\ufeff", "\udcff"]})
def test_a_value_travels_as_yaml_unchanged(value: Any) -> None:
    back = from_yaml(to_yaml(value))
    assert back == value
    assert type(back) is type(value)


def test_a_saver_writes_the_newest_and_tries_again_what_fails() -> None:
    written: list[int] = []
    told: list[str] = []
    broken = threading.Event()

    def state(number: int) -> Any:
        def write() -> None:
            if broken.is_set():
                raise OSError(28, "No space left on device")
            written.append(number)

        return write

    saver = Saver(told.append)
    saver.wait(saver.put(state(1)))
    assert written == [1]
    broken.set()
    saver.wait(saver.put(state(2)))
    saver.wait(saver.put(state(3)))
    assert len(told) == 1
    assert "No space left" in told[0]
    broken.clear()
    saver.put(state(4), urgent=False)
    saver.close()
    assert written[-1] == 4
    last = Saver(told.append)
    broken.set()
    last.put(state(5))
    with pytest.raises(OSError, match="No space left"):
        last.close()


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        ("int", [1, -3], [True, 1.5, "1", None]),
        ("float", [1, 0.5], ["0.5", True]),
        ("str", ["", "1"], [1, None]),
        ("bool", [True], [1, "True"]),
        ("int | None", [None, 1], ["x"]),
        ("Optional[str]", [None, "a"], [1]),
        ("Union[int, str]", [1, "a"], [0.5]),
        ("Literal['a', 'b']", ["a"], ["c", 1]),
        ("list[int]", [[], [1]], [["a"], 1]),
        ("List[float]", [[1, 0.5]], ["x"]),
        ("dict[str, int]", [{"a": 1}], [{"a": "b"}, []]),
        ("'int'", [1], ["x"]),
        ("np.ndarray", [1, "x", None], []),
        ("not valid [", [1], []),
        ("(" * 5000, [1], []),
    ],
)
def test_annotated_parameters_are_checked_as_far_as_they_are_understood(
    annotation: str, good: list[Any], bad: list[Any]
) -> None:
    assert all(is_of_type(annotation, value) for value in good)
    assert not any(is_of_type(annotation, value) for value in bad)
    assert wants_text(annotation) is (annotation in {"str", "Optional[str]"})


@pytest.mark.parametrize(
    ("name", "known", "misspelt"),
    [
        ("cuont", "count", True),
        ("cont", "count", True),
        ("countt", "count", True),
        ("coumt", "count", True),
        ("Count", "count", True),
        ("epoch", "epochs", True),
        ("foo", "bar", False),
        ("cunot", "count", False),
        ("tnuoc", "count", False),
        # Short names, and names that differ in a number, are different names.
        ("le", "lr", False),
        ("lr", "lrs", False),
        ("layer2", "layer1", False),
        ("layer12", "layer1", False),
        ("aaaa", "aaa", True),
    ],
)
def test_a_slip_of_the_keyboard_is_told_from_another_name(name: str, known: str, misspelt: bool) -> None:
    assert is_misspelt(name, known) is misspelt
    assert is_misspelt(known, name) is misspelt


def test_a_name_like_another_that_is_given_too_is_no_slip() -> None:
    known = (Parameter(name="count"),)
    with pytest.raises(GipfelError, match="Did you mean 'count'"):
        check_names(known, ["counts"], what="The notebook")
    assert len(check_names(known, ["counts", "count"], what="The notebook")) == 1
    with pytest.raises(GipfelError, match="no parameter 'counts'"):
        check_names(known, ["counts", "count"], what="The notebook", strict=True)


def test_a_language_stands_for_its_own_kernel_as_with_papermill() -> None:
    find_kernel("python")
    with pytest.raises(GipfelError, match="no kernel 'julia'"):
        find_kernel("julia")


def test_values_are_guessed_as_papermill_does() -> None:
    for text in ("True", "False", "None", "1", "-7", "1e-3", "1_0", "inf", "x", "", "true", " 1"):
        assert guess(text) == _resolve_type(text)


def _run(
    *cells: tuple[str, str, str], parameters: dict[str, Any] | None = None, kernel: str = "python3"
) -> Any:
    """A notebook of code cells, each with its source, its tag and its status."""
    node = new_notebook(
        metadata={"papermill": {"parameters": parameters or {}}, "gipfel": {"engine": "1", "kernel": kernel}}
    )
    for source, tag, status in cells:
        about = {"tags": [tag] if tag else [], "papermill": {"status": status}}
        node.cells.append(new_code_cell(source, metadata=about))
    return node


def test_a_resumed_run_begins_at_the_first_cell_that_has_not_finished() -> None:
    cells = [
        ("s", "setup", "completed"), ("p", "parameters", "completed"), ("a", "", "completed"),
        ("b", "", "failed"), ("c", "", "pending"),
    ]  # fmt: skip
    plan = plan_resume(_run(*cells), _run(*cells), kernel="python3")
    assert (plan.kept, plan.complete, plan.notes) == ({2: 2}, False, ())
    # Papermill's marks and words between the cells change nothing.
    earlier, now = _run(*cells), _run(*cells)
    earlier.cells.insert(
        0, new_markdown_cell("An Exception", metadata={"tags": ["papermill-error-cell-tag"]})
    )
    now.cells.insert(2, new_markdown_cell("new words"))
    assert plan_resume(now, earlier, kernel="python3").kept == {3: 3}
    # A change before that point is the point.
    changed = plan_resume(_run(("s2", "setup", ""), *cells[1:]), _run(*cells), kernel="python3")
    assert (changed.kept, len(changed.notes)) == ({}, 1)
    assert "cell 1 has changed (s2)" in changed.notes[0]
    later = plan_resume(_run(*cells[:3], ("b2", "", ""), cells[4]), _run(*cells), kernel="python3")
    assert later.kept == {2: 2}
    without = [("a", "", "completed"), ("b", "", "pending")]
    assert (
        "no cell is tagged 'setup'" in plan_resume(_run(*without), _run(*without), kernel="python3").notes[0]
    )
    done = [(source, tag, "completed") for source, tag, _ in cells]
    assert plan_resume(_run(*done), _run(*done), kernel="python3").complete


def test_what_cant_be_resumed_runs_anew_or_not_at_all() -> None:
    cells = [("a", "", "completed")]
    other = plan_resume(_run(*cells), _run(*cells), kernel="other")
    assert (other.kept, other.complete) == ({}, False)
    assert "it ran with the kernel 'python3'" in other.notes[0]
    stock = _run(*cells)
    del stock.metadata["gipfel"]
    said = plan_resume(_run(*cells), stock, kernel="python3").notes
    assert "not written by Gipfel's engine" in said[0]
    with pytest.raises(GipfelError, match="lr was 1 and is its default"):
        plan_resume(_run(*cells), _run(*cells, parameters={"lr": 1}), kernel="python3")
    same = _run(*cells, parameters={"x": float("nan")})
    assert plan_resume(same, _run(*cells, parameters={"x": float("nan")}), kernel="python3").complete


def test_the_table_is_eighty_columns_and_failed_runs_come_first() -> None:
    now = datetime.now(UTC)
    views = []
    for number in range(40):
        task = NotebookTask(
            job_id=f"7_{number}", values={"lr": "0.001", "name": "x" * 100}, output=Path("o"), log=Path("l")
        )
        state = "FAILED" if number == 39 else "RUNNING" if number < 3 else "PENDING"
        answer = "ended" if number == 39 else "running"
        progress = Progress(cells=9, done=4, started=(now - timedelta(hours=1, seconds=5)).isoformat())
        views.append(
            TaskView(
                task=task,
                status=JobStatus(answer=answer, state=state, nodes=("a" * 40, "b")),
                progress=progress if state != "PENDING" else None,
                exit_status=1 if number == 39 else None,
            )
        )
    lines = status_table("7", views, now_s=now.timestamp())
    assert max(map(len, lines)) <= 80
    assert lines[0].endswith("1 FAILED, 36 PENDING, 3 RUNNING")
    assert any(line.startswith("39") for line in lines)
    assert "1:00:05" in lines[2]
    assert lines[-1] == "and 24 more"
    assert status_line(views[39]) == "job 7_39 ended: FAILED, exit status 1, 4 of 9 cells"
    assert json.loads(views[0].model_dump_json())["progress"]["done"] == 4
