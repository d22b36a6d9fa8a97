"""``gipfel submit`` on this machine's own scheduler: a real job, papermill and a kernel."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from notebook_files import printed, write_notebook

_LIMIT_S = 300


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GIPFEL_", "JUPYTER", "SLURM"))
    }
    return {**kept, "HOME": str(tmp_path), "GIPFEL_SCHEDULER": "local", "GIPFEL_CLUSTER": "tests"}


def _argv(*words: str) -> list[str]:
    return [sys.executable, "-I", "-m", "gipfel_extension.cli", "submit", *words]


def test_values_reach_the_cells_and_the_run_is_recorded(tmp_path: Path, environment: dict[str, str]) -> None:
    write_notebook(tmp_path / "in.ipynb")
    value = 'it\'s "$(id)"\n`x` {python} ü✓'
    # A program of a notebook's kernel, which reads a pipe, gets the ID alone on stdout.
    environment = {**environment, "JPY_PARENT_PID": "1"}
    done = subprocess.run(
        _argv("in.ipynb", "out.ipynb", "-p", "text", value, "--wait"),
        capture_output=True, text=True, timeout=_LIMIT_S, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    assert printed(tmp_path / "out.ipynb") == [value.encode().hex(), f"{tmp_path} host False"]
    assert "has run the notebook" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    # What cells print is for their owner alone, in the log too.
    for name in ("out.ipynb", "out.ipynb.log"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    # No port of the node carries the kernel's messages.
    assert "TCP" not in (tmp_path / "out.ipynb.log").read_text()
    record = tmp_path / ".gipfel" / "runs" / f"tests-{job_id}" / "record.json"
    assert '"exit_status": 0' in record.read_text()
    assert '"kind": "notebook"' in record.read_text()


def _until_closed(terminal: int) -> str:
    """Read what a program writes to its terminal; Linux reports the end as EIO."""
    found = b""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 65536):
            found += data
    os.close(terminal)
    return found.decode()


def test_a_failing_cell_is_the_commands_failure_with_its_last_words(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    # In a cell: what is on stderr is drawn there like an error of the cell.
    environment = {**environment, "JPY_PARENT_PID": "1"}
    write_notebook(tmp_path / "in.ipynb")
    words = _argv("in.ipynb", "out.ipynb", "-p", "fail", "True", "--wait")
    terminal, other_end = pty.openpty()
    with subprocess.Popen(
        words, stdout=other_end, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as running:
        os.close(other_end)
        shown = _until_closed(terminal)
        assert running.stderr is not None
        assert running.stderr.read() == ""
    assert running.returncode == 1
    _, *progress = shown.splitlines()
    assert all(line.startswith("gipfel: ") for line in progress)
    assert "is submitted" in progress[0]
    assert "AssertionError: as told" in shown
    assert (tmp_path / "out.ipynb").exists()


def test_a_kernel_that_is_not_there_leaves_no_output(tmp_path: Path, environment: dict[str, str]) -> None:
    write_notebook(tmp_path / "in.ipynb", kernel="nowhere")
    done = subprocess.run(
        _argv("in.ipynb", "out.ipynb", "--wait"),
        capture_output=True, text=True, timeout=_LIMIT_S, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 1
    assert "There is no kernel 'nowhere' here. Give --kernel one of: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.ipynb").exists()


def test_an_interrupt_leaves_the_job_running_and_says_how_to_end_it(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    write_notebook(tmp_path / "in.ipynb")
    command = _argv("in.ipynb", "out.ipynb", "-p", "seconds", "60", "--wait")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        job_id = process.stdout.readline().strip()
        process.stderr.readline()
        assert "RUNNING" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(90) == 130
    assert f"job {job_id} keeps running" in rest
    keeper = int(rest.partition("`kill ")[2].partition("`")[0])
    os.kill(keeper, 0)
    os.kill(keeper, signal.SIGTERM)
    ending = tmp_path / ".gipfel" / "jobs" / job_id / "exit.json"
    deadline = time.monotonic() + 120
    while not ending.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "CANCELLED" in ending.read_text()
