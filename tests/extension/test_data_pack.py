"""Packing a directory: entries are kept or refused by name, and the same data gives the same bytes."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from data_trees import ODD, contents, make_tree

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli import main
from gipfel_extension.data.manifest import MANIFEST_NAME, read_summary
from gipfel_extension.data.pack import PackRequest, pack
from gipfel_extension.data.squashfs import SquashfsFile
from gipfel_extension.data.verify import load_entries, verify

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="mksquashfs is not installed")


def packed(source: Path, target: Path, **more: object) -> Path:
    pack(PackRequest(source, target, environment=dict(os.environ), **more))
    return target


def unpack(image: Path, target: Path) -> None:
    subprocess.run(["unsquashfs", "-q", "-n", "-d", target, image], check=True, stdout=-3)


def refused(source: Path, target: Path, **more: object) -> str:
    with pytest.raises(GipfelError) as found:
        packed(source, target, **more)
    assert not target.exists()
    assert not list(target.parent.glob(".*packing*"))
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize("access", ["random", "sequential"])
@pytest.mark.parametrize("compression", ["none", "zstd", "gzip"])
def test_every_file_is_read_back_equal(tmp_path: Path, access: str, compression: str) -> None:
    tree = make_tree(tmp_path / "tree")
    image = packed(tree, tmp_path / "a.sqsh", access=access, compression=compression)
    unpack(image, tmp_path / "out")
    found = contents(tmp_path / "out")
    assert found.pop(MANIFEST_NAME)
    assert found == contents(tree)
    assert (tmp_path / "out/run").samefile(tmp_path / "out/deep/run again")
    assert os.stat(os.fsencode(tmp_path / "out/") + b"/" + ODD).st_nlink == 2
    assert os.getxattr(tmp_path / "out/run", "user.label") == b"a\0\xff=b\n"
    assert (tmp_path / "out/sparse").stat().st_blocks * 512 < 2 << 20
    checked = verify(image)
    # Without names of links: 7 regular files.
    assert (checked.valid, checked.problems, checked.files) == (True, (), 7)


@pytest.mark.parametrize(("access", "block_size"), [("random", 128 << 10), ("sequential", 1 << 20)])
def test_the_access_pattern_sets_the_block_size_of_the_image(
    tmp_path: Path, access: str, block_size: int
) -> None:
    image = tmp_path / "a.sqsh"
    assert main(["data", "pack", str(make_tree(tmp_path / "tree")), str(image), "--for", access]) == 0
    with SquashfsFile(image) as opened:
        assert opened.superblock.block_size == block_size
    summary = read_summary(image)
    assert summary
    assert (summary.packing.access, summary.packing.block_size) == (access, block_size)


def test_the_same_data_gives_the_same_bytes(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    shutil.copytree(tree, tmp_path / "copy", symlinks=True)
    for first, second in (("run", "deep/run again"), (os.fsdecode(ODD), "odd-link")):
        (tmp_path / "copy" / second).unlink()
        (tmp_path / "copy" / second).hardlink_to(tmp_path / "copy" / first)
    images = [packed(tree, tmp_path / "a.sqsh"), packed(tmp_path / "copy", tmp_path / "b.sqsh", readers=1)]
    # An unpacked image has the manifest of the image, which is not data.
    unpack(images[0], tmp_path / "out")
    images.append(packed(tmp_path / "out", tmp_path / "c.sqsh"))
    assert len({image.read_bytes() for image in images}) == 1
    (tmp_path / "copy/run").chmod(0o700)
    assert packed(tmp_path / "copy", tmp_path / "d.sqsh").read_bytes() != images[0].read_bytes()


def test_the_time_of_all_files_is_source_date_epoch(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    pack(PackRequest(tree, tmp_path / "a.sqsh", environment=environment))
    unpack(tmp_path / "a.sqsh", tmp_path / "out")
    assert (tmp_path / "out/nothing").stat().st_mtime == 1_700_000_000
    with pytest.raises(GipfelError, match="SOURCE_DATE_EPOCH='yesterday' is not a valid time"):
        pack(PackRequest(tree, tmp_path / "b.sqsh", environment={"SOURCE_DATE_EPOCH": "yesterday"}))


def test_what_is_compressed_already_is_stored(tmp_path: Path) -> None:
    for name, content in (("noise", os.urandom(200_000)), ("words", b"words " * 40_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(content)
        packed(tmp_path / name, tmp_path / f"{name}.sqsh")
    found = [read_summary(tmp_path / f"{name}.sqsh") for name in ("noise", "words")]
    assert [each and each.packing.compression for each in found] == ["none", "zstd"]


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    os.mkfifo(tree / "pipe\nline")
    (tree / "set").touch()
    (tree / "set").chmod(0o4755)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tree / "sock"))
        message = refused(tree, tmp_path / "a.sqsh")
    assert r"pipe\nline is a pipe, a socket or a device" in message
    assert "set is a set-user-id" in message
    assert "sock is a pipe" in message


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become a user who may not read")
def test_unreadable_files_are_named() -> None:
    program = (
        "import os, sys; from pathlib import Path; from gipfel_extension.data.source import scan;"
        "from gipfel_cluster.model import GipfelError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: scan(Path(sys.argv[1]))\nexcept GipfelError as error: print(error)"
    )
    # Another test run may close pytest's own directories to other users.
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        tree.chmod(0o755)
        (tree / "secret").touch(mode=0o600)
        (tree / "closed").mkdir()
        (tree / "closed").chmod(0o700)
        command = [sys.executable, "-c", program, tree]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "closed can't be read (Permission denied), secret can't be read (no permission)" in done.stdout


@pytest.mark.parametrize("size", [1000, 9 << 20])
def test_a_source_that_grows_is_named(tmp_path: Path, size: int) -> None:
    (tmp_path / "tree").mkdir()
    log = tmp_path / "tree/growing.log"
    log.write_bytes(b"x" * size)
    (tmp_path / "tree/quiet").touch()

    def grow(*_: object) -> None:
        with log.open("ab") as file:
            file.write(b"more")

    message = refused(tmp_path / "tree", tmp_path / "a.sqsh", on_plan=grow)
    assert "The data changed while it was packed: growing.log." in message


def test_a_file_that_appears_or_goes_meanwhile_is_noticed(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    message = refused(tree, tmp_path / "a.sqsh", on_plan=lambda *_: (tree / "deep/new").touch())
    assert "changed while it was packed: deep." in message
    message = refused(tree, tmp_path / "a.sqsh", on_plan=lambda *_: (tree / "run").unlink())
    assert "run" in message


def test_targets_are_not_overwritten_or_inside_the_source(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    assert "is inside the directory" in refused(tree, tree / "a.sqsh")
    assert "does not end with .sqsh" in refused(tree, tmp_path / "a.img")
    assert "does not exist" in refused(tree, tmp_path / "none/a.sqsh")
    image = packed(tree, tmp_path / "a.sqsh")
    with pytest.raises(GipfelError, match="exists already"):
        packed(tree, image)
    (tree / "more").touch()
    before = image.read_bytes()
    packed(tree, image, replace=True)
    assert image.read_bytes() != before
    assert verify(image).valid


def test_a_second_packing_of_one_target_is_refused(tmp_path: Path) -> None:
    tree, work = make_tree(tmp_path / "tree"), tmp_path / ".a.sqsh.packing"
    work.mkdir()
    (work / "a.sqsh").write_bytes(b"left behind by a killed one")
    descriptor = os.open(work, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(GipfelError, match="is being packed by another process"):
        packed(tree, tmp_path / "a.sqsh")
    os.close(descriptor)
    assert verify(packed(tree, tmp_path / "a.sqsh")).valid
    assert not work.exists()


def endless_packing(tmp_path: Path) -> list[str]:
    """Return a command that packs a file for longer than any test takes."""
    tree = tmp_path / "tree"
    tree.mkdir()
    with (tree / "large").open("wb") as file:
        file.truncate(1 << 40)
    words = ("gipfel_extension.cli", "data", "pack", str(tree), str(tmp_path / "a.sqsh"))
    return [sys.executable, "-m", *words]


def start_packing(tmp_path: Path) -> "subprocess.Popen[str]":
    """Return a packing when its image grows."""
    process = subprocess.Popen(endless_packing(tmp_path), stderr=subprocess.PIPE, text=True)
    while not list((tmp_path / ".a.sqsh.packing").glob("*.sqsh")):
        assert process.poll() is None
        time.sleep(0.05)
    return process


def programs() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    process = start_packing(tmp_path)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=120)
    assert (process.returncode, messages.splitlines()[-1]) == (130, "gipfel: interrupted.")
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]
    assert str(tmp_path / ".a.sqsh.packing") not in programs()


def test_a_terminal_shows_bar_and_estimate_and_its_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    command = endless_packing(tmp_path)
    process, terminal = pty.fork()
    if not process:
        os.execve(command[0], command, {**os.environ, "COLUMNS": "120", "LINES": "24"})
    shown, deadline = b"", time.monotonic() + 60
    try:
        while shown.count(b" s left") < 3:
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 1 << 12)
        # Ctrl-C, which the terminal sends to all processes in the foreground.
        os.write(terminal, b"\x03")
        with contextlib.suppress(OSError):
            while part := os.read(terminal, 1 << 12):
                shown += part
    finally:
        status = os.waitpid(process, 0)[1]
        os.close(terminal)
    text = shown.decode()
    assert os.waitstatus_to_exitcode(status) == 130, text
    assert "1 file, 1.0 TiB: " in text
    drawn = re.findall("([█░]{24}) +([0-9]+) %  ([0-9.]+ [KMG]iB|[0-9]+ B) of 1.0 TiB, ([0-9]+) s left", text)
    assert len(drawn) >= 3, text
    # A line is drawn over the one before.
    assert text.count("\x1b[1A") >= 2
    assert text.rstrip().endswith("gipfel: interrupted.")
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]
    assert str(tmp_path / ".a.sqsh.packing") not in programs()


def test_packing_restarts_after_it_was_killed(tmp_path: Path) -> None:
    process = start_packing(tmp_path)
    process.kill()
    process.communicate(timeout=120)
    assert {path.name for path in tmp_path.iterdir()} == {"tree", ".a.sqsh.packing"}
    os.truncate(tmp_path / "tree/large", 1 << 20)
    # At once, while the mksquashfs of the killed one may still be ending.
    assert verify(packed(tmp_path / "tree", tmp_path / "a.sqsh")).valid
    deadline = time.monotonic() + 60
    while str(tmp_path / ".a.sqsh.packing") in programs():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert {path.name for path in tmp_path.iterdir()} == {"tree", "a.sqsh", "a.sqsh.json"}
    assert verify(tmp_path / "a.sqsh").valid


@pytest.mark.parametrize("replace", [False, True])
def test_killed_before_the_last_rename_there_is_no_image_that_looks_whole(
    tmp_path: Path, replace: bool
) -> None:
    tree, image = make_tree(tmp_path / "tree"), tmp_path / "a.sqsh"
    if replace:
        packed(tree, image)
        (tree / "more").write_bytes(b"more")
    program = (
        "import os, sys; from pathlib import Path; from gipfel_extension.data.pack import PackRequest, pack\n"
        "real = Path.replace\n"
        "def kill(self, target):\n"
        "    if self.suffix == '.sqsh': os.kill(os.getpid(), 9)\n"
        "    return real(self, target)\n"
        "Path.replace = kill\n"
        "pack(PackRequest(Path(sys.argv[1]), Path(sys.argv[2]), replace=True, environment=dict(os.environ)))"
    )
    assert subprocess.run([sys.executable, "-c", program, tree, image], check=False).returncode == -9
    assert image.exists() == replace
    if replace:
        # The old image, with its old summary.
        assert verify(image).valid
        assert "more" not in {each.path.decode(errors="replace") for each in load_entries(image).values()}
    assert verify(packed(tree, image, replace=replace)).valid
    assert {path.name for path in tmp_path.iterdir()} == {"tree", "a.sqsh", "a.sqsh.json"}


def test_a_replacement_that_fails_leaves_the_old_image_and_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, image = make_tree(tmp_path / "tree"), tmp_path / "a.sqsh"
    packed(tree, image)
    before = (tmp_path / "a.sqsh.json").read_bytes()
    (tree / "more").write_bytes(b"more")
    real = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if self.suffix == ".sqsh":
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        packed(tree, image, replace=True)
    assert (tmp_path / "a.sqsh.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"tree", "a.sqsh", "a.sqsh.json"}
    assert verify(image).valid


def test_a_work_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    tree, work = make_tree(tmp_path / "tree"), tmp_path / ".a.sqsh.packing"
    work.mkdir()
    (work / "theirs").touch()
    work.chmod(0o777)
    with pytest.raises(GipfelError, match="others can write to it"):
        packed(tree, tmp_path / "a.sqsh")
    assert (work / "theirs").exists()
    assert not (tmp_path / "a.sqsh").exists()


def test_a_failure_of_mksquashfs_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make_tree(tmp_path / "tree")
    program = tmp_path / "bin/mksquashfs"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ncase $1 in -version|-help) exec {shutil.which("mksquashfs")} "$@";; esac\n'
        "head -c 100000 >/dev/null; echo 'FATAL ERROR: Failed to write to output: No space left on device' "
        ">&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    message = refused(tree, tmp_path / "a.sqsh")
    assert message.startswith("mksquashfs failed: Failed to write to output: No space left on device. ")


def test_the_command_packs_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = make_tree(tmp_path / "tree")
    (tree / "croissant.json").write_text('{"@context": {}, "name": "odd things"}')
    (tree / "out").symlink_to("/etc/hosts")
    image = str(tmp_path / "a.sqsh")
    assert main(["data", "pack", str(tree), image, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["croissant"]["name"] == "odd things"
    assert document["files"] == 10
    assert "lead out of the directory, such as out: their targets are not packed" in err
    assert main(["data", "show", image]) == 0
    assert "odd things" in capsys.readouterr().out
    assert main(["data", "show", image, "--files", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["entries"]
    assert {each["path"]: each["kind"] for each in listed}["deep/run again"] == "file"
    assert main(["data", "verify", image, "--sample", "50"]) == 0
    assert main(["data", "pack", str(tmp_path / "none"), str(tmp_path / "b.sqsh")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.txt").write_text("a")
    capsys.readouterr()
    assert main(["data", "pack", str(tmp_path / "one"), str(tmp_path / "one.sqsh")]) == 0
    assert "one.sqsh: 1 file, 1 B in " in capsys.readouterr().out
    assert main(["data", "verify", str(tmp_path / "one.sqsh")]) == 0
    assert re.search(r"is whole: \d+ chunks?, 1 file, root hash ", capsys.readouterr().out)


def test_readers_see_no_difference_between_mount_and_source(tmp_path: Path) -> None:
    if shutil.which("squashfuse") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs squashfuse and /dev/fuse")
    tree = make_tree(tmp_path / "tree")
    image = packed(tree, tmp_path / "a.sqsh")
    place = tmp_path / "mounted"
    place.mkdir()
    process = subprocess.Popen(["squashfuse", "-f", image, place])
    try:
        deadline = time.monotonic() + 60
        while not place.is_mount() and time.monotonic() < deadline:
            time.sleep(0.05)
        found = contents(place)
        found.pop(MANIFEST_NAME)
        assert found == contents(tree)
    finally:
        subprocess.run(["fusermount", "-u", place], check=False)
        process.terminate()
        process.wait(30)
