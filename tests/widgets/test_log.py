"""``gipfel_widgets.log`` as training loops call it: any values, any environment."""

import ast
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gipfel_widgets import log

MODULE = sys.modules["gipfel_widgets.log"]
HEAVY = {
    "numpy",
    "pyarrow",
    "gipfel_cluster",
    "gipfel_extension",
    "pydantic",
    "traitlets",
    "anywidget",
    "IPython",
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder that this process belongs to; no warning has been printed yet."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("GIPFEL_RUN", str(folder))
    for name in ("RANK", "SLURM_PROCID", "GIPFEL_NODE", "SLURMD_NODENAME", "GIPFEL_LAUNCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(MODULE, "_warned", set())
    return folder


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("GIPFEL_", "SLURM_", "RANK"))}
    return subprocess.run(
        [sys.executable, "-c", code], env={**own, **environment}, capture_output=True, text=True, timeout=60
    )


def test_a_line_has_both_clocks_and_the_values(run):
    before = time.time_ns(), time.monotonic_ns()
    log(step=3, tokens_per_s=1234.5, loss=0.25, warm=True, phase="train")
    after = time.time_ns(), time.monotonic_ns()
    (line,) = lines(run)
    assert before[0] <= line["time_ns"] <= after[0]
    assert before[1] <= line["monotonic_ns"] <= after[1]
    assert line["rank"] is None
    assert line["node"]
    assert line["values"] == {"step": 3, "tokens_per_s": 1234.5, "loss": 0.25, "warm": True, "phase": "train"}
    assert (run / "metrics.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_rank_is_in_the_line(run, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "4")
    monkeypatch.setenv("SLURMD_NODENAME", "nid7")
    log(step=0)
    monkeypatch.setenv("RANK", "9")
    log(step=0)
    assert [(line["rank"], line["node"]) for line in lines(run)] == [(4, "nid7"), (9, "nid7")]


def test_the_launch_of_a_rank_is_in_the_line(run, monkeypatch):
    monkeypatch.setenv("GIPFEL_LAUNCH", "/home/ada/.gipfel/runs/alps-7/launches/3")
    monkeypatch.setenv("RANK", "1")
    log(step=1)
    monkeypatch.setenv("GIPFEL_LAUNCH", "3")
    monkeypatch.setenv("RANK", "2")
    log(step=1)
    assert [line.get("launch") for line in lines(run)] == ["alps-7/3", None]


def test_nan_and_infinity_are_null(run, capsys):
    for _ in range(3):
        log(loss=math.nan, scale=math.inf, low=-math.inf, step=1)
    assert lines(run)[0]["values"] == {"loss": None, "scale": None, "low": None, "step": 1}
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 3
    assert any("log(loss=nan)" in line for line in warnings)


def test_numbers_are_converted_to_float(run):
    log({"train/loss": np.float32(0.5)}, step=np.int64(7), rate=np.float64(2.5), whole=np.array(3), big=2**70)
    values = lines(run)[0]["values"]
    assert values == {"train/loss": 0.5, "step": 7, "rate": 2.5, "whole": 3, "big": 2.0**70}


def test_tensors(run):
    torch = pytest.importorskip("torch")
    log(loss=torch.tensor(0.5, requires_grad=True), half=torch.tensor([1.5], dtype=torch.bfloat16))
    assert lines(run)[0]["values"] == {"loss": 0.5, "half": 1.5}


def test_no_value_ends_a_training_loop(run, capsys):
    class Odd:
        def __float__(self) -> float:
            raise RuntimeError("CUDA error: an illegal memory access")

    odd = [Odd(), [1, 2], np.arange(3), object(), b"x", 10**6000, "a" * 10**6, "\ud800", None, 1j, {"a": 1}]
    for value in odd:
        log(value=value)
    log(3, "words", None)
    log(**{f"v{number}": number for number in range(1000)})
    log({1: 2})
    log()
    found = [line["values"] for line in lines(run)]
    assert found[6] == {"value": "a" * 200}
    assert found[7] == {"value": "\ud800"}
    assert all(each == {"value": None} for each in (*found[:6], *found[8:11]))
    assert len(found[12]) == 64
    assert found[13] == {"1": 2}
    warnings = capsys.readouterr().err
    assert "Traceback" not in warnings
    assert len(warnings.splitlines()) <= 6


def test_outside_a_run_one_line_and_no_file(tmp_path):
    code = f"import os; os.chdir({str(tmp_path)!r})\nfrom gipfel_widgets import log\nlog(a=1); log(a=2)"
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    assert "gipfel record" in done.stderr
    assert list(tmp_path.iterdir()) == []
    # Only rank 0 prints the warning.
    assert python(code, RANK="3").stderr == ""


# Not even root can create a file below /sys/kernel.
@pytest.mark.parametrize("folder", ["gone", "/sys/kernel"])
def test_a_missing_or_read_only_folder_is_one_line(run, capsys, monkeypatch, folder):
    monkeypatch.setenv("GIPFEL_RUN", str(run / folder))
    for _ in range(3):
        log(step=1)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_full_disk_is_one_line_and_lost_lines_are_counted(run):
    # A limit of the file size fails like a full disk: the first line fits, the next four do not.
    code = """
import os, resource
from gipfel_widgets import log
import sys
log(step=0)
path = os.environ["GIPFEL_RUN"] + "/metrics.jsonl"
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(path).st_size, hard))
for step in range(1, 5):
    log(step=step)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
for writer in sys.modules["gipfel_widgets.log"]._writers.values():
    writer._retry_ns = 0
log(step=5)
log(step=6)
"""
    done = python(code, GIPFEL_RUN=str(run))
    problem = f"gipfel: {run}/metrics.jsonl can't be written: File too large."
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [f"{problem} The work continues without it."]
    written = [(line["values"]["step"], line.get("lost")) for line in lines(run)]
    assert written == [(0, None), (5, 4), (6, None)]


def test_a_truncated_line_is_terminated(run):
    (run / "metrics.jsonl").write_text('{"time_ns": 1, "mono')
    log(step=1)
    cut, whole = (run / "metrics.jsonl").read_text().splitlines()
    assert cut == '{"time_ns": 1, "mono'
    assert json.loads(whole)["values"] == {"step": 1}


def test_threads_and_forks_write_whole_lines(run):
    def work() -> None:
        for step in range(500):
            log(step=step)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    code = "import os\nfrom gipfel_widgets import log\nlog(step=-1)\n"
    code += "if not os.fork():\n    log(step=-2); os._exit(0)\nos.wait()"
    assert python(code, GIPFEL_RUN=str(run)).returncode == 0
    steps = [line["values"]["step"] for line in lines(run)]
    assert sorted(steps) == [-2, -1, *sorted(list(range(500)) * 4)]


def test_sigkill_leaves_every_call_that_returned(run):
    code = "from gipfel_widgets import log\nfor step in range(10**9): log(step=step); print(step, flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "GIPFEL_RUN": str(run)},
        stdout=subprocess.PIPE,
        text=True,
    )
    last = [int(process.stdout.readline()) for _ in range(200)][-1]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [line["values"]["step"] for line in lines(run)][: last + 1] == list(range(last + 1))


def test_importing_it_imports_nothing_heavy():
    done = python("import sys; from gipfel_widgets import log; log(a=1); print(*sys.modules)")
    assert HEAVY.isdisjoint(name.partition(".")[0] for name in done.stdout.split())


def test_log_is_the_function_after_the_module_is_imported():
    code = "import gipfel_widgets.log\nimport gipfel_widgets\nfrom gipfel_widgets import log, KernelRun\n"
    code += "print(callable(log), log is gipfel_widgets.log)"
    assert python(code).stdout == "True True\n"


def test_module_uses_python_3_9_and_the_standard_library_only():
    tree = ast.parse(Path(MODULE.__file__).read_text(), feature_version=(3, 9))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert imported <= sys.stdlib_module_names


@pytest.mark.parametrize("version", ["3.9", "3.10"])
def test_it_runs_with_an_older_python(run, version):
    python = shutil.which(f"python{version}")
    if not python or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    package = str(Path(MODULE.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {package!r}); sys.dont_write_bytecode = True\n"
    code += "from gipfel_widgets import log\nlog(loss=float('nan'), step=1)"
    done = subprocess.run(
        [python, "-I", "-c", code], env={"GIPFEL_RUN": str(run)}, capture_output=True, text=True
    )
    assert done.stderr == "gipfel: log(loss=nan) is logged as missing.\n"
    assert lines(run)[0]["values"] == {"loss": None, "step": 1}
