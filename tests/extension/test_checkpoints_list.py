"""Checkpoints that are found in a directory, of any format: states, hashes, and what may be deleted."""

import json
import os
import struct
import time
from pathlib import Path

import pytest

from gipfel_extension.cli import main
from gipfel_extension.data.checkpoints import (
    MANIFEST_NAME,
    METADATA_NAME,
    RUN_NAME,
    ManifestError,
    deletable,
    find_checkpoints,
    hash_file,
    newest,
    read_manifest,
)
from gipfel_extension.job.checkpoints import storage_quota


def write_checkpoint(directory: Path, number: int, **more: object) -> Path:
    """Write a small checkpoint with a manifest, as ranks would."""
    path = directory / f"step-{number}"
    path.mkdir(parents=True)
    for name in ("__0_0.distcp", METADATA_NAME):
        (path / name).write_bytes(f"{name} of {number}".encode() * 100)
    manifest = {
        "version": 1,
        "step": number,
        "time_ns": number * 10**9,
        "world_size": 1,
        "stall_s": 0.25,
        "write_s": 2.5,
        "files": {each.name: hash_file(each) for each in sorted(path.iterdir())},
    }
    (path / MANIFEST_NAME).write_text(json.dumps(manifest | more))
    return path


def age(path: Path) -> None:
    """Make files look as if they were last changed two hours ago."""
    then = time.time() - 7200
    for each in (*path.glob("*"), path):
        os.utime(each, (then, then))


def states(directory: Path, *, verify: bool = False) -> dict[str, str]:
    return {each.path.name: each.state for each in find_checkpoints(directory, verify=verify)}


def test_states_are_told_apart(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write_checkpoint(tmp_path, step)
    flipped = bytearray((tmp_path / "step-2/__0_0.distcp").read_bytes())
    flipped[5] ^= 1
    (tmp_path / "step-2/__0_0.distcp").write_bytes(flipped)
    os.truncate(tmp_path / "step-3/__0_0.distcp", 10)
    (tmp_path / "step-4/.metadata").unlink()
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-6").mkdir()
    (tmp_path / "step-6/.metadata").touch()
    (tmp_path / ".step-7.writing").mkdir()
    for name in ("step-5", ".step-7.writing"):
        age(tmp_path / name)
    (tmp_path / "notes").mkdir()
    found = states(tmp_path)
    assert found == {
        "step-1": "whole", "step-2": "whole", "step-3": "damaged", "step-4": "damaged",
        "step-5": "torn", "step-6": "unhashed", ".step-7.writing": "torn",
    }  # fmt: skip
    assert states(tmp_path, verify=True) == found | {"step-1": "verified", "step-2": "damaged"}
    (tmp_path / "step-6/.metadata").unlink()
    chosen = newest(tmp_path)
    assert chosen
    assert chosen.step == 1


@pytest.mark.parametrize(
    "more",
    [
        {"files": {"../../etc/passwd": [1, "0" * 64]}},
        {"files": {"a": [-1, "0" * 64]}},
        {"files": {"a": ["1", "0" * 64]}},
        {"files": {"a": 1}},
        {"files": {}},
        {"files": []},
        {"step": "1"},
        {"stall_s": None},
        {"time_ns": -1},
        {"version": 2},
    ],
)
def test_a_manifest_that_lies_is_refused(tmp_path: Path, more: dict[str, object]) -> None:
    path = write_checkpoint(tmp_path, 1, **more)
    with pytest.raises(ManifestError, match="has a manifest that is not valid"):
        read_manifest(path)
    assert states(tmp_path) == {"step-1": "damaged"}
    assert newest(tmp_path) is None


def test_a_manifest_of_another_step_and_links_are_noticed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, step=2)
    path = write_checkpoint(tmp_path, 3)
    (path / "__0_0.distcp").rename(tmp_path / "elsewhere")
    (path / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(write_checkpoint(tmp_path, 4) / "more")
    (tmp_path / "step-4" / MANIFEST_NAME).unlink()
    os.mkfifo(tmp_path / "step-4" / MANIFEST_NAME)
    found = {each.step: each for each in find_checkpoints(tmp_path, verify=True)}
    assert {each.state for each in found.values()} == {"damaged"}
    assert "is of step 2 according to its manifest" in found[1].problem


def test_files_of_other_programs_are_checked_for_their_end(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"weights": torch.zeros(1000)}, tmp_path / "whole.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:-30])
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(8)
    (tmp_path / "whole.safetensors").write_bytes(content)
    (tmp_path / "cut.safetensors").write_bytes(content[:-1])
    (tmp_path / "lies.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + header)
    (tmp_path / "empty.safetensors").touch()
    assert states(tmp_path)["cut.pt"] == "writing"
    age(tmp_path)
    assert states(tmp_path) == {
        "whole.pt": "unhashed", "cut.pt": "torn", "whole.safetensors": "unhashed",
        "cut.safetensors": "torn", "lies.safetensors": "torn", "empty.safetensors": "torn",
    }  # fmt: skip


def test_only_verified_newer_ones_make_an_older_one_deletable(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write_checkpoint(tmp_path, step)
    (tmp_path / ".step-5.writing").mkdir()
    age(tmp_path / ".step-5.writing")
    unread = find_checkpoints(tmp_path)
    assert [each.path.name for each in deletable(unread, 2)] == [".step-5.writing"]
    read = find_checkpoints(tmp_path, verify=True)
    assert [each.step for each in deletable(read, 2)] == [1, 2, 5]
    (tmp_path / "step-4/__0_0.distcp").write_bytes(b"damaged")
    damaged = find_checkpoints(tmp_path, verify=True)
    assert [each.step for each in deletable(damaged, 2)] == [1, 4, 5]


def test_a_checkpoint_in_progress_is_not_deletable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path, 280)
    work = tmp_path / ".step-300.writing"
    work.mkdir()
    (work / "__0_0.distcp").write_bytes(b"so far")
    (tmp_path / "step-290").mkdir()
    found = find_checkpoints(tmp_path)
    assert {each.path.name: each.state for each in found if each.step != 280} == {
        ".step-300.writing": "writing", "step-290": "writing",
    }  # fmt: skip
    assert deletable(found, 1) == []
    assert main(["checkpoints", str(tmp_path)]) == 0
    assert "is being written" in capsys.readouterr().out
    # Hours after the last byte it is what a kill has left, and still not the newest.
    age(work)
    (tmp_path / "step-290").rmdir()
    assert [each.path for each in deletable(find_checkpoints(tmp_path), 1)] == [work]
    assert main(["checkpoints", str(tmp_path)]) == 0
    # A file that still grows is in progress, too.
    os.utime(work / "__0_0.distcp")
    assert deletable(find_checkpoints(tmp_path), 1) == []


def test_one_that_is_deleted_while_listing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        write_checkpoint(tmp_path, step)

    def deleting(path: Path) -> int:
        if path.name == "step-2":
            raise FileNotFoundError(path)
        return 1

    monkeypatch.setattr("gipfel_extension.data.checkpoints._size", deleting)
    assert states(tmp_path) == {"step-1": "whole"}
    chosen = newest(tmp_path)
    assert chosen
    assert chosen.step == 1


def test_the_newest_is_that_of_the_run_that_the_directory_names(tmp_path: Path) -> None:
    for step, run in ((10, "new"), (20, "new"), (100, "old"), (200, "old")):
        write_checkpoint(tmp_path, step, run=run)
    assert [each.step for each in deletable(find_checkpoints(tmp_path, verify=True), 2)] == []
    assert [each.step for each in deletable(find_checkpoints(tmp_path, verify=True), 1)] == [10, 100]
    (tmp_path / RUN_NAME).write_text('{"run": "new"}')
    chosen = newest(tmp_path)
    assert chosen
    assert chosen.step == 20
    os.truncate(tmp_path / "step-200/.metadata", 1)
    assert main(["checkpoints", str(tmp_path)]) == 0
    (tmp_path / RUN_NAME).write_text('{"run": "other"}')
    assert newest(tmp_path) is None
    assert main(["checkpoints", str(tmp_path)]) == 1


def test_the_command_shows_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, step)
    assert main(["checkpoints", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["checkpoint", "step-1", "step-2", "step-3"]
    assert "0.25 s" in out
    assert err == ""
    assert main(["checkpoints", str(tmp_path), "--verify"]) == 0
    out, err = capsys.readouterr()
    assert "step-1" in next(line for line in out.splitlines() if line.endswith("verified  deletable"))
    assert err == "gipfel: 1 may be deleted: 3.3 KiB\n"
    assert main(["checkpoints", str(tmp_path), "--verify", "--keep", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["deletable"] for each in document["checkpoints"]] == [True, True, False]
    assert document["checkpoints"][2] == {
        "path": str(tmp_path / "step-3"), "format": "gipfel", "state": "verified", "problem": "",
        "bytes": sum(path.stat().st_size for path in (tmp_path / "step-3").iterdir()),
        "step": 3, "time_ns": 3 * 10**9, "world_size": 1, "stall_s": 0.25, "write_s": 2.5, "run": "",
        "model": "", "deletable": False,
    }  # fmt: skip
    os.truncate(tmp_path / "step-3/__0_0.distcp", 1)
    assert main(["checkpoints", str(tmp_path)]) == 1
    assert "__0_0.distcp has 1 bytes instead of" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert main(["checkpoints", str(tmp_path / "empty")]) == 1
    assert capsys.readouterr().err == "gipfel: There are no checkpoints.\n"


def test_the_command_finds_the_directories_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path / "runs"))
    run = tmp_path / "runs/alps-17"
    (run / "launches/1").mkdir(parents=True)
    (run / "record.json").write_text("{}")
    assert main(["checkpoints", "alps-17"]) == 1
    assert "No launch of alps-17 has a checkpoint directory" in capsys.readouterr().err
    write_checkpoint(tmp_path / "kept", 7)
    (run / "launches/1/plan.json").write_text(json.dumps({"checkpoint": str(tmp_path / "kept")}))
    assert main(["checkpoints", "alps-17"]) == 0
    assert "step-7" in capsys.readouterr().out
    assert main(["checkpoints", "alps-18"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    (run / "launches/1/plan.json").write_text(json.dumps({"checkpoint": str(tmp_path / "gone")}))
    assert main(["checkpoints", "alps-17"]) == 2
    assert "gone can't be read: No such file or directory." in capsys.readouterr().err


def write_safetensors(path: Path, tensors: dict[str, int]) -> None:
    """Write a file with tensors of so many 32-bit values."""
    header, place = {}, 0
    for name, count in tensors.items():
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [place, place + 4 * count]}
        place += 4 * count
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(place))


def write_trainer(directory: Path, step: int, tensors: dict[str, int], **state: object) -> Path:
    """Write a directory as Hugging Face's Trainer does."""
    path = directory / f"checkpoint-{step}"
    path.mkdir(parents=True)
    write_safetensors(path / "model.safetensors", tensors)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step} | state))
    return path


def test_a_flipped_bit_in_a_file_of_torch_save_is_found_by_its_checksums(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"weights": torch.arange(1000.0)}, tmp_path / "flipped.pt")
    torch.save({"weights": torch.arange(1000.0)}, tmp_path / "whole.pt")
    content = bytearray((tmp_path / "flipped.pt").read_bytes())
    content[content.index(torch.arange(1000.0).numpy().tobytes()[400:500])] ^= 1
    (tmp_path / "flipped.pt").write_bytes(content)
    assert states(tmp_path) == {"flipped.pt": "unhashed", "whole.pt": "unhashed"}
    assert states(tmp_path, verify=True) == {"flipped.pt": "damaged", "whole.pt": "verified"}
    (found,) = (each for each in find_checkpoints(tmp_path, verify=True) if each.state == "damaged")
    assert "does not have the content that was written" in found.problem


def test_directories_of_the_trainer_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (5, 10):
        write_trainer(tmp_path, step, {"a": 2, "b": 3})
    assert states(tmp_path) == {"checkpoint-5": "unhashed", "checkpoint-10": "unhashed"}
    cut = tmp_path / "checkpoint-5/model.safetensors"
    os.truncate(cut, cut.stat().st_size - 1)
    (write_trainer(tmp_path, 15, {"a": 2}) / "trainer_state.json").unlink()
    write_trainer(tmp_path, 20, {"a": 2}, global_step=21)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    sharded = write_trainer(tmp_path, 25, {"a": 2})
    (sharded / "model.safetensors").rename(sharded / "model-1.safetensors")
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    write_trainer(tmp_path, 30, {"a": 2, "c": 1})
    age(tmp_path / "checkpoint-15")
    found = {each.step: each for each in find_checkpoints(tmp_path)}
    assert {step: each.state for step, each in found.items()} == {
        5: "damaged", 10: "unhashed", 15: "torn", 20: "damaged", 25: "damaged", 30: "unhashed",
    }  # fmt: skip
    assert found[5].problem == "model.safetensors is cut off"
    assert found[20].problem == "is of step 21 according to its trainer_state.json"
    assert found[25].problem == "model-2.safetensors is missing or not valid"
    assert main(["checkpoints", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "other tensors than checkpoint-30" in next(line for line in out.splitlines() if "-10 " in line)


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [([0, 4], "size is not that of its shape"), ([8, 16], "overlap or leave holes"), ([0, 8], "is cut off")],
)
def test_safetensors_whose_places_lie_are_refused(tmp_path: Path, offsets: list[int], problem: str) -> None:
    text = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": offsets}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    age(tmp_path)
    (found,) = find_checkpoints(tmp_path)
    assert problem in found.problem
    assert not found.can_resume


@pytest.mark.parametrize(
    ("command", "text", "problem"),
    [
        (r"printf '17\t\033[31mTiB'", "17       [31mTiB", ""),
        ("false", "", "it printed nothing, and its exit status is 1"),
        ("no-such-program", "", "No such file"),
        ("echo 'x", "", "No closing quotation"),
    ],
)
def test_the_sites_quota_command_may_fail_and_print_anything(command: str, text: str, problem: str) -> None:
    shown, failed = storage_quota({"GIPFEL_STORAGE_QUOTA": command})
    assert shown == text
    assert problem in failed


def test_endless_output_of_the_sites_quota_command_is_cut() -> None:
    shown, failed = storage_quota({"GIPFEL_STORAGE_QUOTA": "yes"})
    assert shown.startswith("y\ny\n")
    assert len(shown) <= 20_001
    assert not failed
