"""An interactive launch cell: it returns at once, and the launch outlives the kernel."""

import queue
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from gipfel_extension.training.launch import Launch
from gipfel_widgets.output import LIVE

_LIMIT_S = 120.0
#: What a notebook keeps of a launch: the server's view finds it by its ID, other programs show the rest.
_SAVED = {"text/plain", "text/html", LIVE}
_README = Path(__file__).resolve().parents[2] / "README.md"
_PROGRAM = """\
import os, pathlib, time
step = 0
while not pathlib.Path("go").exists():
    step += 1
    print("rank", os.environ["RANK"], "step", step, flush=True)
    time.sleep(0.2)
"""

_CHANGING = """\
import threading, time
from gipfel_widgets.launch_widget import LaunchWidget
view = LaunchWidget()

def change():
    for step in range(1_000_000):
        view.document = {"phase": "running", "step": step}
        time.sleep(0.0005)

threading.Thread(target=change, daemon=True).start()
"""


class _Kernel:
    """A kernel with a frontend that shows what comes."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder))
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=_LIMIT_S)
        self.documents: list[dict[str, Any]] = []
        self.lines: list[Any] = []
        self.shown: list[dict[str, Any]] = []
        self.comm = ""

    def run(self, source: str) -> list[str]:
        """Run a cell to its end; the traceback's lines where it fails."""
        asked = self.client.execute(source, allow_stdin=True)
        failed: list[str] = []
        end = time.monotonic() + _LIMIT_S
        while time.monotonic() < end:
            message = self.look(1.0)
            if message is None or message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "error":
                failed = message["content"]["traceback"]
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return failed
        raise AssertionError("the cell does not end")

    def look(self, limit_s: float) -> dict[str, Any] | None:
        """Take what the kernel says next."""
        try:
            message: dict[str, Any] = self.client.get_iopub_msg(timeout=limit_s)
        except queue.Empty:
            return None
        content = message["content"]
        kind = message["msg_type"]
        if kind == "comm_open" and "document" in content["data"].get("state", {}):
            self.comm = content["comm_id"]
        elif kind == "comm_msg" and content["comm_id"] == self.comm:
            data = content["data"]
            if "document" in data.get("state", {}):
                self.documents.append(data["state"]["document"])
            elif data.get("method") == "custom" and data["content"]["type"] == "logs":
                self.lines += data["content"]["lines"]
        elif kind in {"display_data", "update_display_data"}:
            self.shown.append(content["data"])
        return message

    def look_until(self, check: Callable[[], Any]) -> None:
        end = time.monotonic() + _LIMIT_S
        while not check():
            assert time.monotonic() < end
            self.look(0.2)

    def press(self, message: dict[str, Any]) -> None:
        """Send what the page sends."""
        content = {"comm_id": self.comm, "data": {"method": "custom", "content": message}}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", content))

    def state(self) -> dict[str, Any]:
        """Ask for the whole state of the view as a page does after a reload, which takes the first answer."""
        content = {"comm_id": self.comm, "data": {"method": "request_state"}}
        asked = self.client.session.msg("comm_msg", content)
        self.client.shell_channel.send(asked)
        end = time.monotonic() + _LIMIT_S
        while time.monotonic() < end:
            message = self.look(1.0)
            if message is not None and message["parent_header"].get("msg_id") == asked["header"]["msg_id"]:
                data = message["content"].get("data", {})
                if data.get("method") == "update":
                    found: dict[str, Any] = data["state"]
                    return found
        raise AssertionError("the view does not answer")

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernels(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], _Kernel]]:
    run = runs / "local-1"
    (run / "telemetry").mkdir(parents=True)
    monkeypatch.setenv("GIPFEL_RUN", str(run))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("GIPFEL_ENGINE", raising=False)
    started: list[_Kernel] = []

    def start() -> _Kernel:
        started.append(_Kernel(tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.close()
    for folder in (run / "launches").glob("[0-9]*"):
        launch = Launch(folder)
        launch.stop()
        assert launch.wait(_LIMIT_S) is not None


def test_a_reloaded_page_finds_a_view_that_changes_all_the_time(kernels: Callable[[], _Kernel]) -> None:
    kernel = kernels()
    assert kernel.run(_CHANGING) == []
    kernel.look_until(lambda: len(kernel.documents) > 2)
    states = [kernel.state() for _ in range(20)]
    assert {each.get("_model_module") for each in states} == {"anywidget"}
    assert states[-1]["document"]["step"] > states[0]["document"]["step"]


def _readme_cell() -> str:
    """Return the launch cell of the README as it is copied from there."""
    blocks = re.findall(r"^ *```\n( *%%launch.*?)^ *```$", _README.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = blocks
    return textwrap.dedent(found)


def test_the_readmes_cell_runs_as_it_is_in_a_new_kernel(runs: Path, kernels: Callable[[], _Kernel]) -> None:
    kernel = kernels()
    assert kernel.run("import sys; assert 'gipfel_extension' not in sys.modules") == []
    assert kernel.run(_readme_cell()) == []
    launch = Launch.open(runs / "local-1" / "launches" / "1")
    assert launch.wait(_LIMIT_S) == 0
    kernel.look_until(lambda: set(kernel.shown[-1]) == _SAVED)
    for rank in (0, 1):
        # A rank's log is what it printed: rank 0 is run by papermill, and nothing of that is seen.
        assert (launch.folder / f"rank-{rank}.log").read_text() == f"rank {rank} of 2: the sum is 3\n"
        assert f"rank {rank} of 2: the sum is 3" in kernel.shown[-1]["text/html"]


def test_a_cell_ends_when_its_launch_has_started_and_another_kernel_finds_it(
    tmp_path: Path, runs: Path, kernels: Callable[[], _Kernel]
) -> None:
    (tmp_path / "train.py").write_text(_PROGRAM)
    cell = "%launch --gpus-per-node 2 --script train.py"
    kernel = kernels()
    assert kernel.run(cell) == []
    kernel.look_until(lambda: {line[0] for line in kernel.lines} == {0, 1})
    # The command and the pre-flight were there before anything ran.
    before = [each for each in kernel.documents if each["phase"] == "preflight"]
    assert "torch.distributed.run" in before[-1]["command"]
    assert {each["verdict"] for each in before[-1]["preflight"]} == {"pass"}
    assert "application/vnd.jupyter.widget-view+json" in kernel.shown[0]
    # Before it starts nothing can name it; afterwards a saved notebook does.
    assert [each[LIVE] for each in kernel.shown] == [{}, {"launch": "local-1/1"}]
    launch = Launch.open(runs / "local-1" / "launches" / "1")
    assert launch.state.phase == "running"
    # Run again, it is the same one; a mistake is one line.
    assert kernel.run(cell) == []
    assert not (launch.folder.parent / "2").exists()
    (said,) = kernel.run("%launch --script gone.py")
    assert "gone.py" in said
    assert "\n" not in said
    # It is said once, and nothing looks as if ranks had run.
    assert "gone.py" not in kernel.shown[-1]["text/plain"].partition("\n")[0]
    assert kernel.documents[-1]["status"] == "not started"
    assert (kernel.documents[-1]["phase"], kernel.documents[-1]["message"]) == ("preflight", "")

    kernel.manager.signal_kernel(9)
    kernel.look_until(lambda: not kernel.manager.is_alive())
    size = (launch.folder / "rank-1.log").stat().st_size
    end = time.monotonic() + _LIMIT_S
    while (launch.folder / "rank-1.log").stat().st_size <= size:
        assert time.monotonic() < end
        time.sleep(0.2)

    other = kernels()
    assert other.run("from gipfel_widgets import launch\nlaunch(1)") == []
    other.look_until(lambda: any(each["status"] == "running" for each in other.documents))
    other.press({"type": "logs", "rank": 0})
    other.look_until(lambda: any(line[1] == "rank 0 step 1" for line in other.lines))
    for odd in ({"type": "logs", "rank": "x"}, {"type": []}, {}):
        other.press(odd)
    other.press({"type": "stop"})
    other.look_until(lambda: launch.state.ended)
    assert launch.state.outcome == "stopped"
    # What is kept needs no kernel.
    other.look_until(lambda: set(other.shown[-1]) == _SAVED)
    assert "launch 1 train: stopped" in other.shown[-1]["text/html"]
    assert (launch.folder / "exit.json").exists()
