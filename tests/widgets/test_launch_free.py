"""The form of a launch cell lists the processes that hold its GPUs, and stops exactly these."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ipywidgets as ipw
import pytest

from gipfel_extension.training.launch import Launch
from gipfel_widgets.launch_cell import LaunchCell

_LIMIT_S = 120
_NVIDIA_SMI = """\
#!/bin/sh
case "$1" in
  --query-gpu=*) echo "0, GPU-a, Exclusive_Process" ;;
  *)
    for pid in {pids}; do
      grep -qs "^State:.[^ZX]" /proc/$pid/status && echo "$pid, GPU-a, python3"
    done ;;
esac
exit 0
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job with one GPU in name only, which this process is in."""
    run = tmp_path / "alps-7"
    run.mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "train.py").write_text("print('TRAINED')\n")
    path = f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"HOME": str(tmp_path), "PATH": path, "GIPFEL_RUN": str(run), "CUDA_VISIBLE_DEVICES": "0"}
    for name in list(os.environ):
        if name.startswith(("GIPFEL_", "SLURM")):
            monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def kernel(job: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Stands for another kernel of the same server."""
    process = subprocess.Popen(["sleep", "1000"], env={**os.environ, "JPY_SESSION_NAME": "big <b>.ipynb"})
    yield process
    process.kill()
    process.wait()


def _hold(job: Path, *pids: int) -> None:
    program = job / "bin" / "nvidia-smi"
    program.write_text(_NVIDIA_SMI.format(pids=" ".join(map(str, pids))))
    program.chmod(0o755)


def _until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + _LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


class _Form:
    """The displayed form."""

    def __init__(self) -> None:
        self.cell = LaunchCell(script="train.py", launcher="srun", in_job=True, gpus_per_node=1)
        self.cell._show_form()

    @property
    def said(self) -> str:
        return str(self.cell._message.value)

    def buttons(self) -> dict[str, ipw.Button]:
        return {each.description: each for each in self.cell._row.children}

    def press(self, name: str) -> None:
        """Press a button and wait until the others can be pressed again."""
        self.buttons()[name].click()
        _until(lambda: not any(each.disabled for each in self.buttons().values()))


def test_who_holds_the_gpu_is_ended_by_a_button_and_the_launch_runs(
    job: Path, kernel: subprocess.Popen[bytes]
) -> None:
    _hold(job, kernel.pid)
    form = _Form()
    form.press("Launch")
    assert f"pid {kernel.pid} (the kernel of big &lt;b&gt;.ipynb)" in form.said
    assert f"pid {kernel.pid} (the kernel of big <b>.ipynb)" in form.buttons()["Stop these processes"].tooltip
    # A check offers it, too, and ends nothing.
    form.press("Check")
    assert kernel.poll() is None
    form.press("Stop these processes")
    assert kernel.wait(_LIMIT_S) == -15
    assert "Stopped: pid" in form.said
    assert set(form.buttons()) == {"Check", "Launch"}
    form.press("Launch")
    made: Launch = form.cell.launch
    assert made.wait(_LIMIT_S) == 0
    assert "TRAINED" in (made.folder / "rank-0.log").read_text()


def test_a_kernel_that_holds_the_gpu_itself_is_told_to_be_restarted_and_the_launch_is_kept(job: Path) -> None:
    _hold(job, os.getpid())
    form = _Form()
    form.press("Launch")
    assert "Restart Kernel" in form.said
    assert "gipfel rerun 1" in form.said
    assert set(form.buttons()) == {"Check", "Launch"}
    assert Launch.open(job / "alps-7" / "launches" / "1").resumed_spec.target == str(job / "train.py")
