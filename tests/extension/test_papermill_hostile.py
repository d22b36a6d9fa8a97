"""The papermill engine with a full disk, a concurrent run, an edited output, and invalid notebooks."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from gipfel_cluster.model import GipfelError
from gipfel_extension.training.batch import NotebookOptions, plan_notebook_job
from gipfel_extension.training.papermill.engine import run_notebook
from gipfel_extension.training.papermill.output import claim_output
from gipfel_extension.training.papermill.progress import progress_file, read_progress

_LIMIT_S = 300
_KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def _write(path: Path, *sources: str, parameters: str = "", **metadata: Any) -> Path:
    cells = [new_code_cell(source) for source in sources]
    if parameters:
        cells.insert(0, new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    path.write_text(json.dumps(new_notebook(cells=cells, metadata={**_KERNEL, **metadata})))
    return path


def _argv(*words: str) -> list[str]:
    return [sys.executable, "-I", "-m", "papermill", "--no-progress-bar", "--engine", "gipfel", *words]


def _refused(folder: Path, *words: str, **variables: str) -> str:
    """The one line by which papermill's command refuses to run a notebook."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIPFEL_")}
    done = subprocess.run(
        _argv(*words), capture_output=True, text=True, timeout=_LIMIT_S, cwd=folder, env=kept | variables
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def _until(check: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _sources(path: Path) -> list[str]:
    return ["".join(out.get("text", "") for out in cell.outputs) for cell in nbformat.read(path, 4).cells]


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of 128 KiB, from which a file of ours can be taken away to make room."""
    folder = tmp_path / "small"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=128k", "gipfel-test", str(folder)]
    if os.geteuid() or subprocess.run(argv, check=False, capture_output=True).returncode:
        pytest.skip("Nothing can be mounted here.")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_known_before_anything_runs_and_ends_no_run_later(
    small_disk: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    ballast = small_disk / "ballast"
    given = _write(
        tmp_path / "in.ipynb",
        f"open({str(ran)!r}, 'w').close()",
        "print('.' * 30_000)",
        f"import os; os.unlink({str(ballast)!r}); print('room again')",
    )
    ballast.write_bytes(b"x" * (128 << 10))
    with pytest.raises(GipfelError, match="can't be written: No space left on device"):
        run_notebook(given, small_disk / "out.ipynb")
    assert not ran.exists()
    # Room for the first save, none for the second cell's output; afterwards room for both saves, since the
    # earlier one, of a part of that output, stays until the last has replaced it.
    ballast.write_bytes(b"x" * (96 << 10))
    outcome = run_notebook(given, small_disk / "out.ipynb")
    assert (outcome.state, outcome.problem) == ("completed", "")
    assert _sources(small_disk / "out.ipynb")[2] == "room again\n"
    assert sorted(path.name for path in small_disk.iterdir()) == [".out.ipynb.progress", "out.ipynb"]


def test_a_second_run_into_the_same_output_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "in.ipynb", "print('first')", "import time; time.sleep(600)")
    (tmp_path / "link.ipynb").symlink_to(tmp_path / "out.ipynb")
    words = ("in.ipynb", "out.ipynb")
    with subprocess.Popen(
        _argv(*words), cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        _until(lambda: (found := read_progress(tmp_path / "out.ipynb")) is not None and found.current == 2)
        for output in ("out.ipynb", "link.ipynb"):
            assert "Another run writes to this output" in _refused(tmp_path, "in.ipynb", output)
            with pytest.raises(GipfelError, match="Another run"):
                run_notebook(tmp_path / "in.ipynb", tmp_path / output, resume=True)
        # What a killed run holds is free at once, and what it left of a save is taken away.
        process.kill()
        process.wait(60)
    (tmp_path / ".out.ipynb.a1b2c3d4").write_text("half a save")
    (tmp_path / ".out.ipynb.checkpoint-of-mine").write_text("not ours")
    with claim_output(tmp_path / "out.ipynb"):
        assert (tmp_path / ".out.ipynb.lock").exists()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [
        ".out.ipynb.checkpoint-of-mine", ".out.ipynb.progress", "in.ipynb", "link.ipynb", "out.ipynb",
    ]  # fmt: skip
    assert "first\n" in _sources(tmp_path / "out.ipynb")


def test_an_output_that_is_edited_or_foreign_is_refused_in_one_line_and_kept(tmp_path: Path) -> None:
    given, output = _write(tmp_path / "in.ipynb", "print('a')"), tmp_path / "out.ipynb"
    assert run_notebook(given, output).state == "completed"
    good = json.loads(output.read_text())
    edits: tuple[Callable[[Any], None], ...] = (
        lambda node: node["cells"][0]["metadata"].update(papermill="x"),
        lambda node: node["cells"][0]["metadata"].update(tags=5),
        lambda node: node["metadata"]["papermill"].update(parameters="x"),
    )
    for edit in edits:
        node = json.loads(json.dumps(good))
        edit(node)
        output.write_text(json.dumps(node))
        with pytest.raises(GipfelError, match="can't be resumed"):
            run_notebook(given, output, resume=True)
        assert json.loads(output.read_text()) == node
    # Papermill's own marks of kept cells may be gone in part.
    del good["cells"][0]["metadata"]["papermill"]["start_time"]
    output.write_text(json.dumps(good))
    assert run_notebook(given, output, resume=True).state == "completed"
    # A kernel that is not there is known before the output is cleared.
    before = output.read_text()
    assert "no kernel 'nowhere'" in _refused(tmp_path, "-k", "nowhere", "in.ipynb", "out.ipynb")
    assert output.read_text() == before


def test_what_a_notebook_holds_in_the_wrong_place_ends_no_run(tmp_path: Path) -> None:
    given = _write(
        tmp_path / "in.ipynb",
        "import sys\nsys.stdout.write(bytes(range(256)).decode('latin-1') * 10)",
        "print('x' * 5_000_000)",
        "for n in range(20_000): print(n)",
        parameters="a: int = 1",
        papermill={"parameters": "not a table"},
        gipfel="not a table",
        # Half a character of two, which JSON can hold and UTF-8 can't.
        title="half \ud800",
    )
    outcome = run_notebook(given, tmp_path / "out.ipynb", {})
    assert (outcome.state, outcome.problem) == ("completed", "")
    _, raw, long, lines = _sources(tmp_path / "out.ipynb")
    assert "abcdef" in raw
    assert long == "x" * 5_000_000 + "\n"
    assert lines.splitlines()[-1] == "19999"


def test_a_cell_that_ends_the_run_itself_loses_no_finished_cell(tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        _write(
            tmp_path / "in.ipynb",
            "print('kept')",
            f"import os, time\ntime.sleep(1)\nos.kill(os.getppid(), {int(number)})\ntime.sleep(600)",
        )
        done = subprocess.run(
            _argv("in.ipynb", "out.ipynb"), cwd=tmp_path, capture_output=True, timeout=_LIMIT_S, check=False
        )
        assert done.returncode == (-number if number == signal.SIGKILL else 128 + number)
        assert "kept\n" in _sources(tmp_path / "out.ipynb")
        assert not list(tmp_path.glob(".out.ipynb.????????[!s]*"))
    assert progress_file(tmp_path / "out.ipynb").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"parameters_yaml": ("b: &x [*x]",)}, "it contains itself"),
        ({"parameters_yaml": ("b: 0x" + "f" * 9000,)}, "a number that is too long"),
        ({"grid": ("b=[0x" + "f" * 9000 + "]",)}, "a number that is too long"),
        ({"parameters_yaml": ("b: !!python/object/apply:os.system ['id']",)}, "is not valid YAML"),
        ({"parameters_file": ("/dev/zero",)}, "is a device"),
        ({"parameters_file": ("large.yaml",)}, "longer than 1 MiB"),
        ({"parameters_file": (".",)}, "Is a directory"),
        ({"grid": ("a=0..9999", "b=0..9999")}, "100000000 points"),
        ({"grid": ("a=0..99999",)}, "can't be used"),
        ({"grid": ("a=[1, [2]]",)}, "declares 'a' as int"),
        ({"parameters": (("c = 1; d", "1"),)}, "is not a valid name of a parameter"),
        ({"parameters": (("import", "1"),)}, "is not a valid name of a parameter"),
        ({"parameters": (("a", "1\nb = 2"),)}, "declares 'a' as int"),
        ({"output": Path("out-\udcff.ipynb")}, "is not UTF-8 text"),
    ],
)
def test_parameters_that_cant_be_used_are_refused_before_they_cost_anything(
    words: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "large.yaml").write_text("b: " + "x" * (2 << 20))
    _refuses(tmp_path, words, said)


def test_a_bomb_of_aliases_is_refused_by_its_size(tmp_path: Path) -> None:
    inside = "x"
    for level in range(12):
        inside = f"&l{level} [{inside}{f', *l{level - 1}' * 9 if level else ', x' * 9}]"
    _refuses(tmp_path, {"parameters_yaml": (f"b: {inside}",)}, "values, but at most 100000")


def _refuses(folder: Path, words: dict[str, Any], said: str) -> None:
    _write(folder / "in.ipynb", "print(a, b)", parameters="a: int = 1\nb = None")
    asked = {"notebook": Path("in.ipynb"), "output": Path("out.ipynb"), "scheduler": "local", **words}
    options = NotebookOptions(**asked)
    with pytest.raises(GipfelError) as refused:
        plan_notebook_job(options, environment={"HOME": str(folder)}, directory=folder)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
