"""Checkpoints of ranks: whole or absent after a kill, verified, kept, resumed; their interval and history."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from one_rank import names, saved  # noqa: E402 - with torch alone

from gipfel_extension.data.checkpoints import deletable, find_checkpoints  # noqa: E402
from gipfel_widgets.checkpoint_directory import sizes  # noqa: E402
from gipfel_widgets.checkpoints import CheckpointError, Checkpoints, History, interval  # noqa: E402

CAMPAIGNS = Path(__file__).resolve().parents[1] / "campaigns"


def in_campaign(expression: str) -> Any:
    """Return an expression's value in the campaign's module, of a process that may fork ranks."""
    program = (
        f"import json, sys; sys.path.insert(0, {os.fspath(CAMPAIGNS)!r}); import checkpoints\n"
        f"print(json.dumps(checkpoints.{expression}))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("phase", ["write", "manifest", "retention"])
def test_four_ranks_that_are_killed_leave_a_whole_checkpoint_and_resume_as_two_and_four(phase: str) -> None:
    assert in_campaign(f"measure({phase!r}, 5, 1)") == {"kills": 1, "problems": []}


def test_staggered_ranks_write_in_turns_first_one_of_each_node() -> None:
    times = in_campaign("write_times(1.0)")
    # Ranks 0 and 1 are on one node, ranks 2 and 3 on the other.
    order = sorted(range(4), key=lambda rank: times[rank])
    assert order == [0, 2, 1, 3]
    for earlier, later in pairwise(order):
        began, ended = times[earlier]
        # The turns are a second apart, and each rank has ended when the next one begins.
        assert ended < times[later][0]
        assert times[later][0] - began > 0.3


def test_sizes_of_files_that_are_renamed_meanwhile_are_no_error(tmp_path: Path) -> None:
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            (tmp_path / "file.tmp").touch()
            (tmp_path / "file.tmp").rename(tmp_path / "file")

    writer = threading.Thread(target=write)
    writer.start()
    found = {name for _ in range(5_000) for name, _ in sizes(tmp_path)}
    ended.set()
    writer.join()
    assert found <= {"file", "file.tmp"}


def test_a_damaged_or_torn_checkpoint_is_never_resumed_from(alone: Path) -> None:
    saved(alone, 3, keep=3).close()
    content = bytearray((alone / "step-3/__0_0.distcp").read_bytes())
    content[-1000] ^= 1
    (alone / "step-3/__0_0.distcp").write_bytes(content)
    (alone / "step-4").mkdir()
    (alone / "step-4/__0_0.distcp").write_bytes(b"torn")
    (alone / ".step-5.writing").mkdir()
    state = {"weights": torch.zeros(1000)}
    checkpoints = Checkpoints(alone, every=1)
    assert checkpoints.load(state) == 2
    assert state["weights"].tolist() == [2.0] * 1000
    assert names(alone) == ["step-1", "step-2", "step-3", "step-4"]
    # A new checkpoint takes the damaged one's place, and torn ones of before are deleted.
    checkpoints.save(3, {"weights": torch.ones(1000)})
    checkpoints.save(5, {"weights": torch.ones(1000)})
    checkpoints.close()
    assert names(alone) == ["step-3", "step-5"]


def test_one_that_does_not_verify_deletes_no_older_one(alone: Path) -> None:
    checkpoints = saved(alone, 2, keep=1)
    assert names(alone) == ["step-2"]

    def damage(phase: str, step: int) -> None:
        if phase == "verify":
            with (alone / f".step-{step}.writing/.metadata").open("r+b") as file:
                file.write(b"x")

    checkpoints.on_phase = damage
    checkpoints.save(3, {"weights": torch.ones(1000)})
    with pytest.raises(
        CheckpointError, match=r"step-3 is damaged: \.metadata does not have the content"
    ) as found:
        checkpoints.wait()
    assert "\n" not in str(found.value)
    assert names(alone) == [".step-3.damaged", "step-2"]
    assert checkpoints.load({"weights": torch.zeros(1000)}) == 2


def test_a_kill_while_one_of_the_same_step_is_replaced_loses_neither(alone: Path) -> None:
    saved(alone, 2, keep=2).close()
    checkpoints = Checkpoints(alone)
    seen = []
    checkpoints.on_phase = lambda phase, _step: seen.append((phase, (alone / "step-2").exists()))
    checkpoints.save(2, {"weights": torch.full((1000,), 7.0)})
    checkpoints.close()
    # The old one is there until the new one was read back.
    assert seen[-3:] == [("verify", True), ("rename", True), ("retention", True)]
    assert names(alone) == ["step-1", "step-2"]
    shutil.copytree(alone / "step-2", alone / ".step-2.writing")
    (alone / "step-2").rename(alone / ".step-2.removing")
    state = {"weights": torch.zeros(1000)}
    assert Checkpoints(alone).load(state) == 2
    assert state["weights"][0] == 7.0
    assert names(alone) == ["step-1", "step-2"]


def test_a_new_run_in_a_used_directory_is_not_resumed_from_the_old_one(
    alone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved(alone, 4, keep=3).close()
    fresh = Checkpoints(alone, keep=1, every=1)
    assert fresh.due(1)
    # Killed before its first checkpoint, and restarted.
    state = {"weights": torch.zeros(1000)}
    again = Checkpoints(alone, keep=1, every=1)
    assert again.load(state) == 0
    assert "checkpoints of an earlier run, up to step 4, which are not loaded." in capfd.readouterr().err
    again.save(1, {"weights": torch.full((1000,), -1.0)})
    again.wait()
    again.save(3, {"weights": torch.full((1000,), -3.0)})
    again.close()
    # Of the other run, retention deletes nothing.
    assert names(alone) == ["step-2", "step-3", "step-4"]
    assert Checkpoints(alone).load(state) == 3
    assert state["weights"][0] == -3.0
    # The listing calls the newest of this run the newest, and none of it deletable for the other's sake.
    assert [each.step for each in deletable(find_checkpoints(alone, verify=True), 1)] == [2]


def test_loading_deletes_nothing_and_the_next_save_does(alone: Path) -> None:
    saved(alone, 3, keep=3).close()
    checkpoints = Checkpoints(alone, keep=1)
    assert checkpoints.load({"weights": torch.zeros(1000)}) == 3
    assert names(alone) == ["step-1", "step-2", "step-3"]
    checkpoints.save(4, {"weights": torch.ones(1000)})
    checkpoints.close()
    assert names(alone) == ["step-4"]


def test_copies_files_and_links_of_users_are_never_deleted(alone: Path) -> None:
    checkpoints = saved(alone, 2, keep=2)
    mine = ["my-step-1", "step-0", "step-1-best", "step-1.bak", "step-2-best"]
    for name in ("my-step-1", "step-1-best", "step-1.bak", "step-2-best"):
        shutil.copytree(alone / "step-1", alone / name)
    (alone / "step-0").symlink_to(alone / "step-1-best")
    for step in (3, 4):
        checkpoints.save(step, {"weights": torch.ones(1000)})
    checkpoints.close()
    # Copies take no place among the kept ones, either.
    assert names(alone) == sorted([*mine, "step-3", "step-4"])
    assert (alone / "step-1-best/manifest.json").exists()


def test_a_checkpoint_of_another_model_is_one_line(alone: Path) -> None:
    checkpoints = saved(alone, 1)
    for state in ({"weights": torch.zeros(7)}, {"other": torch.zeros(1000)}):
        with pytest.raises(CheckpointError, match="step-1 can't be loaded into this model: ") as found:
            checkpoints.load(state)
        assert "\n" not in str(found.value)
    assert Checkpoints(alone.parent / "new").load({"weights": torch.zeros(7)}) == 0
    # Values would be rounded to integers.
    with pytest.raises(CheckpointError, match=r"saved torch\.float32 and current torch\.int64 for weights"):
        checkpoints.load({"weights": torch.zeros(1000, dtype=torch.int64)})
    rounded = {"weights": torch.zeros(1000, dtype=torch.bfloat16)}
    assert checkpoints.load(rounded) == 1
    assert rounded["weights"].unique().tolist() == [1.0]


def test_saved_values_without_a_place_are_named(alone: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    checkpoints = Checkpoints(alone, every=1)
    assert checkpoints.due(1)
    checkpoints.save(1, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    checkpoints.wait()
    # Whole parts may be left out, as for an evaluation.
    assert checkpoints.load({"model": model.state_dict()}) == 1
    assert checkpoints.load({"model": model.state_dict(), "optimizer": optimizer.state_dict()}) == 1
    assert capfd.readouterr().err == ""
    fresh = torch.optim.Adam(model.parameters())
    assert checkpoints.load({"model": model.state_dict(), "optimizer": fresh.state_dict()}) == 1
    assert "so they are not loaded: optimizer.state." in capfd.readouterr().err


def test_a_signal_ends_in_a_checkpoint(alone: Path) -> None:
    checkpoints = Checkpoints(alone, every=100)
    assert [checkpoints.due(step) for step in (1, 2)] == [False, False]
    os.kill(os.getpid(), signal.SIGUSR1)
    # Agreed upon in the background of the step after it.
    assert [checkpoints.due(3), checkpoints.due(4), checkpoints.ending] == [False, True, True]
    assert not checkpoints.due(5)


def test_an_earlier_handler_of_the_signal_is_restored(alone: Path) -> None:
    calls: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: calls.append(number))
    checkpoints = Checkpoints(alone, every=100)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert calls == []
    checkpoints.close()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert calls == [signal.SIGUSR1]


def test_a_directory_that_cannot_be_used_is_one_line(alone: Path) -> None:
    alone.write_text("a file")
    with pytest.raises(CheckpointError, match=r"checkpoints/here can't be used: Not a directory\."):
        Checkpoints(alone / "here")


def test_storage_that_fails_while_loading_is_one_line(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(directory: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(directory))

    checkpoints = Checkpoints(alone)
    monkeypatch.setattr("gipfel_widgets.checkpoints.newest", fail)
    with pytest.raises(CheckpointError, match=r"can't be read: Input/output error\. Check"):
        checkpoints.load({"weights": torch.zeros(1000)})


def test_the_automatic_interval_is_dalys_of_measured_values(alone: Path) -> None:
    checkpoints = saved(alone, 1, failure_s=3600.0)
    automatic = Checkpoints(alone, failure_s=3600.0)
    assert automatic.interval_s() == 60.0
    assert not automatic.due(1)
    automatic._last -= 61
    assert [automatic.due(2), automatic.due(3)] == [False, True]
    automatic.save(3, {"weights": torch.ones(10)})
    automatic.wait()
    assert automatic.interval_s() >= 2 * automatic._write_s > 0
    # Young's sqrt(2 d M) is within 5 % here; writing that takes longer than that is the limit.
    assert interval(10.0, 20.0, 36_000.0) == pytest.approx((2 * 10 * 36_000) ** 0.5, rel=0.05)
    assert interval(0.1, 300.0, 36_000.0) == 600.0
    checkpoints.close()


def test_the_history_counts_ends_that_were_not_intended(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    for intended in (True, False, False):
        history = History(path)
        history.start()
        if intended:
            history.end()
    last = History(path)
    last.start()
    assert last.failures == 2
    document = json.loads(path.read_text()) | {"seconds": 10_000.0}
    path.write_text(json.dumps(document | {"starts": 3}))
    now = History(path)
    now.start()
    # Two failures in 10 000 s, half a failure and 500 s from the expectation of one in 1 000 s.
    assert now.failure_s(1_000.0) == pytest.approx(10_500 / 2.5, rel=0.01)
    path.write_text("{}")
    damaged = History(path)
    damaged.start()
    assert damaged.failure_s(1_000.0) == pytest.approx(1_000.0, rel=0.01)


@pytest.mark.parametrize("options", [{"keep": 0}, {"every": 0}, {"directory": ""}])
def test_options_that_make_no_sense_are_refused(
    alone: Path, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GIPFEL_CHECKPOINT", raising=False)
    with pytest.raises(CheckpointError, match="Give a directory, and at least 1"):
        Checkpoints(**{"directory": alone, **options})


def test_four_two_and_four_ranks_on_two_nodes_lose_nothing_to_kills() -> None:
    assert in_campaign("four_two_four()") == []


_BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pydantic", "pyarrow", "yaml", "zmq", "tornado", "plotly", "pynvml"}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
import torch, torch.distributed as dist
from gipfel_widgets import Checkpoints
where = sys.argv[1]
dist.init_process_group("gloo", init_method=f"file://{where}/rendezvous", rank=0, world_size=1)
checkpoints = Checkpoints(f"{where}/kept", local=f"{where}/node", every=1)
checkpoints.save(1, {"w": torch.ones(10)})
checkpoints.close()
try:
    Checkpoints("shared:kept")
except Exception as error:
    print(error)
"""


def test_an_image_with_torch_and_numpy_alone_suffices(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _BLOCKED, os.fspath(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "kept") == ["step-1"]
    assert done.stdout.startswith("'shared:kept' needs pydantic in this image: ")
