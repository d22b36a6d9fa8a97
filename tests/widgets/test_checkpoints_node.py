"""Checkpoints that go to a rank's node first, from where a process installs them in their directory."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from one_rank import names, saved  # noqa: E402 - with torch alone

from gipfel_cluster.process.locks import lock_holders  # noqa: E402
from gipfel_extension.data.checkpoints import find_checkpoints  # noqa: E402
from gipfel_widgets.checkpoint_directory import begin, crc32_of  # noqa: E402
from gipfel_widgets.checkpoint_drain import Drainer, NodeStaging  # noqa: E402
from gipfel_widgets.checkpoint_writer import turn_order, turns  # noqa: E402
from gipfel_widgets.checkpoints import CheckpointError, Checkpoints  # noqa: E402


def test_files_go_to_the_node_first_and_a_process_installs_them(alone: Path, tmp_path: Path) -> None:
    checkpoints = saved(alone, 3, keep=2, local=tmp_path / "node", limit=1e9)
    assert names(alone) == ["step-2", "step-3"]
    assert {each.state for each in find_checkpoints(alone, verify=True)} == {"verified"}
    assert checkpoints.interval_s() > 0
    (root,) = (tmp_path / "node").iterdir()
    assert root.stat().st_mode & 0o777 == 0o700
    checkpoints.close()
    assert not list(root.glob("step-*"))
    assert not lock_holders(root / "k")
    state = {"weights": torch.zeros(1000)}
    again = Checkpoints(alone, local=tmp_path / "node")
    assert again.load(state) == 3
    assert state["weights"].tolist() == [3.0] * 1000
    again.close()
    assert not lock_holders(root / "k")


def test_a_rank_without_room_on_its_node_writes_to_the_directory(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeStaging, "has_room", lambda _self, count: count < 4000)
    saved(alone, 1, local=tmp_path / "node").close()
    assert [each.state for each in find_checkpoints(alone, verify=True)] == ["verified"]


def staged(alone: Path, tmp_path: Path, **more: object) -> NodeStaging:
    """Write the files of a checkpoint of one rank to a node, as a rank that was killed afterwards."""
    alone.mkdir(exist_ok=True)
    (alone / ".run.json").write_text('{"run": "r"}')
    begin(alone, 5, 1)
    staging = NodeStaging(tmp_path / "node", alone)
    staging.path(5).mkdir()
    for name in ("__0_0.distcp", ".metadata"):
        (staging.path(5) / name).write_bytes(name.encode() * 1000)
    files = {name: crc32_of(staging.path(5) / name) for name in ("__0_0.distcp", ".metadata")}
    part = {"files": {"__0_0.distcp": files["__0_0.distcp"]}, "attempt": 1, "rate": 0.0, "not_before": 1e12}
    staging.put(5, 0, part)
    request = {"run": "r", "keep": 1, "world_size": 1, "stall_s": 0.1, "began": 0.0, "spread_s": 0.0}
    request |= {"files": {".metadata": files[".metadata"]}} | more
    (staging.path(5) / "request.json").write_text(json.dumps(request))
    return staging


def drain(staging: NodeStaging, alone: Path) -> dict[str, Any]:
    read, write = os.pipe()
    os.close(write)
    Drainer(staging.root, alone).run(read)
    os.close(read)
    outcome = staging.root / "outcome.json"
    return json.loads(outcome.read_text()) if outcome.exists() else {}


def test_what_killed_ranks_left_on_a_node_is_completed(alone: Path, tmp_path: Path) -> None:
    assert drain(staged(alone, tmp_path), alone)["problem"] == ""
    assert names(alone) == ["step-5"]
    assert not list((tmp_path / "node").glob("*/step-*"))


def test_files_that_changed_on_the_node_are_not_copied_silently(alone: Path, tmp_path: Path) -> None:
    staging = staged(alone, tmp_path)
    (staging.path(5) / "__0_0.distcp").write_bytes(b"something else")
    assert "__0_0.distcp has changed" in drain(staging, alone)["problem"]
    assert names(alone) == [".step-5.writing"]


def test_what_another_run_or_a_later_attempt_left_is_not_installed(alone: Path, tmp_path: Path) -> None:
    drain(staged(alone, tmp_path, run="earlier"), alone)
    assert names(alone) == [".step-5.writing"]
    staging = staged(alone, tmp_path)
    begin(alone, 5, 2)
    os.rmdir(staging.root / "k")
    (staging.path(5) / "request.json").unlink()
    assert drain(staging, alone) == {}
    assert [each.name for each in (alone / ".step-5.writing").iterdir()] == [".attempt"]


def test_a_node_directory_of_others_is_refused(alone: Path, tmp_path: Path) -> None:
    staging = NodeStaging(tmp_path / "node", alone)
    staging.root.chmod(0o755)
    with pytest.raises(CheckpointError, match="is not yours alone"):
        NodeStaging(tmp_path / "node", alone)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file can't be used: "):
        Checkpoints(alone, local=tmp_path / "file")


def test_ranks_take_turns_by_the_seconds_that_each_needs() -> None:
    # First one rank of each node, then the second ones.
    assert turn_order(["a", "a", "b", "b"]) == [0, 2, 1, 3]
    assert turns([1.0, 2.0, 1.0, 1.0], 60.0) == (2.0, 1)
    assert turns([10.0] * 8, 20.0) == (10.0, 4)
    assert turns([], 60.0) == turns([1.0], 0.0) == (0.0, 1)
