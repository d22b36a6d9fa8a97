"""Scratch folders: private, short, and removed by the next process where the last one was killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

from gipfel_cluster.runs import ScratchFolder

_HOLD = (
    "import sys, time; from pathlib import Path; from gipfel_cluster.runs import ScratchFolder;"
    "f = ScratchFolder.create(Path(sys.argv[1])); print(f.path, flush=True); time.sleep(60)"
)


def old(path: Path) -> Path:
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    return path


def test_a_scratch_folder_is_private_and_short_and_can_be_removed(tmp_path):
    scratch = ScratchFolder.create()
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    assert len(str(scratch.path)) < 30
    (scratch.path / "below").mkdir()
    scratch.remove()
    assert not scratch.path.exists()


def test_folders_of_killed_processes_are_removed_but_not_locked_ones(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        held = old(Path(holder.stdout.readline().strip()))
        ScratchFolder.create(tmp_path).remove()
        assert held.exists(), "a living process holds it"
        holder.kill()
        holder.wait(10)
    ScratchFolder.create(tmp_path).remove()
    assert not held.exists()


def test_other_directories_are_not_removed(tmp_path):
    fresh, file, foreign = (
        tmp_path / "gipfel-fresh",
        tmp_path / "gipfel-file",
        old_folder(tmp_path / "gipfel-x"),
    )
    fresh.mkdir()
    (fresh / "lock").touch()
    old(_touched(file))
    aim = tmp_path / "aim"
    aim.mkdir()
    (tmp_path / "gipfel-link").symlink_to(aim)
    ScratchFolder.create(tmp_path).remove()
    assert fresh.exists()
    assert file.exists()
    assert foreign.exists(), "without a lock it is none of ours"
    assert aim.exists()


def old_folder(path: Path) -> Path:
    path.mkdir()
    return old(path)


def _touched(path: Path) -> Path:
    path.touch()
    return path
