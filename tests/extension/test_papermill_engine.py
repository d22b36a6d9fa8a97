"""Gipfel's engine beside papermill's, and its additions: saving, orderly end, resuming."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from saturation_tables import START_NS, busy, gpu, host, table

from gipfel_cluster.model import GipfelError
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter
from gipfel_extension.training.papermill.engine import run_notebook
from gipfel_extension.training.papermill.progress import progress_file, read_progress

_LIMIT_S = 300
_KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
_RICH = """\
from IPython.display import HTML, JSON, Markdown, clear_output, display, update_display
shown = display(Markdown("*first*"), display_id="later")
print("gone"); clear_output(); print("kept\\r over")
display(HTML("<b>bold</b>"), JSON({"a": [1, 2]}))
display({"image/png": "iVBORw0KGgo=", "text/plain": "a picture"}, raw=True)
{"name": name, "count": count}"""
_WAITS = """\
print("working", flush=True)
while not (here / "go").exists():
    time.sleep(0.1)
print("went on")"""
_STOCK: dict[str, list[Any]] = {
    "everything that goes well": [
        new_markdown_cell("# A title\n\nwith **words**"),
        ("count: int = 1  # how often\nname: str = 'nobody'\nratio: float = 0.5", "parameters"),
        new_raw_cell("raw *text*"),
        _RICH,
        "for n in range(3000):\n    print('line', n, '.' * 40)",
        "import sys\nprint('to stderr', file=sys.stderr)\nprint(repr(name), count, ratio)",
        "update_display(Markdown('*second*'), display_id='later')",
        "",
        ("1 / 0", "raises-exception"),
        ("print('skipped')", "skip-execution"),
        "await __import__('asyncio').sleep(0)\ncount * 2",
    ],
    "a cell that fails": [
        "print('before')",
        "def inner():\n    raise KeyError('Zürich ✓')\ninner()",
        "print('never')",
    ],
    "a question to nobody": ["answer = input('who? ')", "print(answer)"],
    "a cell that leaves": ["print('a')", "import sys; sys.exit(0)", "print('never')"],
}


def _write(path: Path, cells: list[Any]) -> Path:
    made = []
    for number, each in enumerate(cells):
        source, *tags = each if isinstance(each, tuple) else (each,)
        cell = new_code_cell(source) if isinstance(source, str) else source
        made.append({**cell, "id": f"cell-{number}", "metadata": {"tags": tags} if tags else {}})
    node = nbformat.from_dict({**new_notebook(metadata=_KERNEL), "cells": made})
    path.write_text(nbformat.writes(node))
    return path


def _papermill(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIPFEL_")}
    argv = [sys.executable, "-I", "-m", "papermill", "--no-progress-bar", *words]
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        cwd=folder,
        env={**kept, **variables},
        check=False,
    )


def _read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def _texts(path: Path) -> list[str]:
    """Return what each code cell has printed."""
    cells = [cell for cell in _read(path).cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


def _normal(path: Path) -> Any:
    """A notebook without times, places and what only our engine adds."""
    node = json.loads(path.read_text())
    node["metadata"].pop("gipfel", None)
    for name in ("start_time", "end_time", "duration", "output_path"):
        node["metadata"]["papermill"].pop(name, None)
    for cell in node["cells"]:
        if {"injected-parameters", "papermill-error-cell-tag"} & set(cell["metadata"].get("tags", ())):
            cell.pop("id", None)
        about = cell["metadata"].get("papermill", {})
        assert about.get("duration") is None or about.pop("duration") >= 0
        for name in ("start_time", "end_time"):
            about[name] = about.get(name) is not None
        cell["metadata"].pop("execution", None)
        cell["outputs"] = _joined(cell.get("outputs", []))
    # A traceback names the kernel's process, and colours.
    return json.loads(re.sub(r"ipykernel_\d+/\d+", "ipykernel", json.dumps(node)))


def _joined(outputs: list[Any]) -> list[Any]:
    """Outputs whose streams are whole: a kernel sends long ones in pieces, cut by the clock."""
    found: list[Any] = []
    for output in outputs:
        if found and output["output_type"] == "stream" and found[-1].get("name") == output["name"]:
            found[-1] = {**found[-1], "text": [*found[-1]["text"], *output["text"]]}
        else:
            found.append(output)
    for output in found:
        if output["output_type"] == "stream":
            output["text"] = "".join(output["text"])
    return found


@pytest.mark.parametrize("what", _STOCK)
def test_a_notebook_is_executed_as_papermills_own_engine_does(what: str, tmp_path: Path) -> None:
    _write(tmp_path / "in.ipynb", _STOCK[what])
    given = ["-p", "count", "3", "-p", "name", "Ada"] if "goes well" in what else []
    done = {}
    for engine in ("nbclient", "gipfel"):
        words = ("--engine", engine, *given, "in.ipynb", f"{engine}.ipynb")
        done[engine] = _papermill(*words, folder=tmp_path)
    assert done["gipfel"].returncode == done["nbclient"].returncode, done["gipfel"].stderr
    assert _normal(tmp_path / "gipfel.ipynb") == _normal(tmp_path / "nbclient.ipynb")
    nbformat.validate(_read(tmp_path / "gipfel.ipynb"))
    progress = read_progress(tmp_path / "gipfel.ipynb")
    assert progress is not None
    assert progress.state == ("completed" if done["gipfel"].returncode == 0 else "failed")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".gipfel.ipynb.progress", "gipfel.ipynb", "in.ipynb", "nbclient.ipynb",
    ]  # fmt: skip


def test_a_dead_kernel_keeps_its_output_and_names_the_cell(tmp_path: Path) -> None:
    cells = [
        "print('before')",
        "import os, time\nprint('so far', flush=True)\ntime.sleep(1)\nos.kill(os.getpid(), 9)",
        "print('never')",
    ]
    _write(tmp_path / "in.ipynb", cells)
    done = _papermill("--engine", "gipfel", "in.ipynb", "out.ipynb", folder=tmp_path)
    # Papermill's own status for a dead kernel.
    assert done.returncode == 138
    node = _read(tmp_path / "out.ipynb")
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    assert code[1].outputs[0].text == "so far\n"
    assert code[1].outputs[-1].ename == "DeadKernelError"
    assert "SIGKILL" in code[1].outputs[-1].evalue
    # Stock papermill calls all three completed.
    assert [cell.metadata.papermill.status for cell in code] == ["completed", "failed", "pending"]
    assert "exception was encountered" in node.cells[0].source.lower()
    assert node.metadata.gipfel.state == "died"
    progress = read_progress(tmp_path / "out.ipynb")
    assert progress is not None
    assert (progress.state, progress.done, progress.current, progress.line) == (
        "died",
        1,
        2,
        "import os, time",
    )


def test_a_cell_that_takes_too_long_is_named(tmp_path: Path) -> None:
    _write(
        tmp_path / "in.ipynb",
        ["print('a')", "import time\nprint('b', flush=True)\ntime.sleep(300)", "print('c')"],
    )
    outcome = run_notebook(tmp_path / "in.ipynb", tmp_path / "out.ipynb", cell_timeout_s=3)
    assert (outcome.state, outcome.current, outcome.exit_status) == ("failed", 2, 1)
    assert "took too long" in outcome.problem
    assert "b\n" in _texts(tmp_path / "out.ipynb")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_everything_and_a_resumed_run_goes_on_there(
    number: signal.Signals, tmp_path: Path
) -> None:
    cells = [
        ("import pathlib, time\nhere = pathlib.Path('.')", "setup"),
        ("where = 'nowhere'", "parameters"),
        "open('runs', 'a').write('x')\nprint('once')",
        _WAITS,
        "print(where)",
    ]
    _write(tmp_path / "in.ipynb", cells)
    words = ("--engine", "gipfel", "-p", "where", "here", "in.ipynb", "out.ipynb")
    argv = [sys.executable, "-I", "-m", "papermill", "--no-progress-bar", *words]
    with subprocess.Popen(
        argv,
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # Whoever runs the tests in the background has it ignored, which the engine would respect.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        _until(lambda: (found := read_progress(tmp_path / "out.ipynb")) is not None and found.current == 5)
        process.send_signal(number)
        assert process.wait(_LIMIT_S) == 128 + number
    assert _texts(tmp_path / "out.ipynb")[3:] == ["once\n", "working\n", ""]
    broken = _read(tmp_path / "out.ipynb")
    assert (broken.metadata.gipfel.state, broken.metadata.papermill.exception) == ("interrupted", True)

    other = _papermill(*words[:4], "there", *words[5:], folder=tmp_path, GIPFEL_RESUME="1")
    assert other.returncode == 1
    assert "where was here and is there" in other.stderr
    assert "Traceback" not in other.stderr
    assert _texts(tmp_path / "out.ipynb")[3] == "once\n"

    (tmp_path / "go").touch()
    done = _papermill(*words, folder=tmp_path, GIPFEL_RESUME="1")
    assert done.returncode == 0, done.stderr
    assert "1 finished cells are kept" in done.stderr
    assert _texts(tmp_path / "out.ipynb")[3:] == ["once\n", "working\nwent on\n", "here\n"]
    assert (tmp_path / "runs").read_text() == "x"
    # All of it is there: nothing is run, and no kernel started.
    again = _papermill(*words, folder=tmp_path, GIPFEL_RESUME="1")
    assert again.returncode == 0
    assert "Executing notebook with kernel" not in again.stderr
    assert _texts(tmp_path / "out.ipynb")[3:] == ["once\n", "working\nwent on\n", "here\n"]


def test_what_a_cell_has_printed_is_saved_while_it_runs_and_after_a_kill(tmp_path: Path) -> None:
    cells = [
        "print('done')",
        "import time\nfor n in range(600):\n    print('tick', n, flush=True)\n    time.sleep(0.1)",
    ]
    _write(tmp_path / "in.ipynb", cells)
    words = ("--engine", "gipfel", "--autosave-cell-every", "1", "in.ipynb", "out.ipynb")
    argv = [sys.executable, "-I", "-m", "papermill", "--no-progress-bar", *words]
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        _until(lambda: (tmp_path / "out.ipynb").exists() and "tick 5" in _texts(tmp_path / "out.ipynb")[-1])
        process.kill()
        process.wait(_LIMIT_S)
    assert _texts(tmp_path / "out.ipynb")[0] == "done\n"
    assert "tick 5" in _texts(tmp_path / "out.ipynb")[1]
    status = [cell.metadata.papermill.status for cell in _read(tmp_path / "out.ipynb").cells]
    assert status == ["completed", "running"]


def test_a_mistake_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    _write(tmp_path / "in.ipynb", [("count: int = 1", "parameters"), "print(count)"])
    output = tmp_path / "out.ipynb"
    output.write_text("what was there before")
    words = ("--engine", "gipfel", "in.ipynb", "out.ipynb")
    for given, said in (
        (("-p", "cuont", "2"), "Did you mean 'count'?"),
        (("-p", "count", "many"), "declares 'count' as int"),
        (("-r", "count", "2"), "declares 'count' as int"),
    ):
        done = _papermill(*words, *given, folder=tmp_path)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    damaged = _papermill(*words, folder=tmp_path, GIPFEL_RESUME="1")
    assert "can't be resumed" in damaged.stderr
    assert output.read_text() == "what was there before"
    assert not progress_file(output).exists()
    for call, said in (
        (lambda: run_notebook(tmp_path / "nowhere.ipynb", output), "does not exist"),
        (lambda: run_notebook(tmp_path / "in.ipynb", output, kernel="nowhere"), "no kernel 'nowhere'"),
    ):
        with pytest.raises(GipfelError, match=said):
            call()
    assert output.read_text() == "what was there before"


def test_the_run_is_in_the_notebooks_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "alps-7"
    run.mkdir()
    (run / "record.json").write_text(json.dumps({"cluster": "alps", "job_id": "7", "edf": {"name": "torch"}}))
    (run / "vetting.json").write_text(json.dumps({"protocol": "quick", "good_nodes": ["nid1"]}))
    (run / "score.json").write_text(json.dumps({"score": 62, "gpus": ["x" * 300_000]}))
    monkeypatch.setenv("GIPFEL_RUN", str(run))
    _write(tmp_path / "in.ipynb", ["print('a')"])
    outcome = run_notebook(tmp_path / "in.ipynb", tmp_path / "out.ipynb")
    assert (outcome.state, outcome.exit_status, outcome.done) == ("completed", 0, 1)
    about = _read(tmp_path / "out.ipynb").metadata.gipfel
    assert (about.run, about.state) == ("alps-7", "completed")
    assert about.record == {"cluster": "alps", "job_id": "7", "edf": "torch"}
    assert about.vetting.good_nodes == ["nid1"]
    # Too long for a notebook: its numbers only.
    assert about.saturation == {"score": 62, "shortened": True}


def test_a_run_without_a_score_is_scored_from_its_telemetry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "alps-8"
    (run / "telemetry").mkdir(parents=True)
    # Two GPUs that wait for their input half of the time.
    on = [1.0] * 10 + [0.0] * 10
    metrics = busy(tensor=[0.8] * 10 + [0.0] * 10, dram=0.0, active=on, engine=on)
    series = {gpu(): metrics, gpu(1): metrics, host(): {"CPU_CORES_USED": 8.0, "CPU_UTIL": 0.5}}
    found = table(series, length=20)
    origin = Provenance("nid1", "job", "nvml", simulated=False, interval=1.0, devices=found.devices)
    writer = SegmentWriter(run / "telemetry", origin, start_ns=START_NS)
    # As while the job runs: it has not been closed.
    writer.write([sample for device in found.devices for sample in found.samples(device)])
    monkeypatch.setenv("GIPFEL_RUN", str(run))
    _write(tmp_path / "in.ipynb", ["print('a')"])
    assert run_notebook(tmp_path / "in.ipynb", tmp_path / "out.ipynb").state == "completed"
    saturation = _read(tmp_path / "out.ipynb").metadata.gipfel.saturation
    assert (saturation.bottleneck, len(saturation.gpus)) == ("input", 2)
    assert 20 < saturation.score < 60
    assert "vetting" not in _read(tmp_path / "out.ipynb").metadata.gipfel
    assert not (run / "score.json").exists()


def _until(check: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)
