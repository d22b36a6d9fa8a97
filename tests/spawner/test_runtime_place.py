"""A directory that appears complete or not at all, with one builder at a time."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime.installation import Installation, hardlink_duplicates

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def quiet(_: str) -> None:
    pass


def publish(folder: Path, content: str) -> None:
    with Installation.begin(folder, progress=quiet) as place:
        (place.building / "runtime.json").write_text(content)
        place.publish()


def earlier_trees(parent: Path) -> list[Path]:
    return sorted(parent.glob(".runtime.old-*"))


def long_ago(tree: Path) -> Path:
    """The name that a replaced folder would have, had that been 15 days earlier."""
    start, seconds, end = tree.name.rsplit("-", 2)
    return tree.with_name(f"{start}-{int(seconds, 16) - 15 * 86400:x}-{end}")


@contextmanager
def holder(*command: str) -> Iterator[int]:
    """A process that answers once it runs, and ends with its input."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"ready\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            finally:
                process.kill()


def last_descendant(pid: int) -> int:
    children = psutil.Process(pid).children(recursive=True)
    return children[-1].pid if children else pid


def test_published_content_replaces_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    for content in ("old", "new"):
        publish(folder, content)
    assert (folder / "runtime.json").read_text() == "new"
    assert folder.stat().st_mode & 0o777 == 0o755
    (earlier,) = tmp_path.glob(".runtime.old-*")
    assert (earlier / "runtime.json").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"runtime", ".runtime.lock", earlier.name}


def test_an_empty_folder_is_filled_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    publish(folder, "new")
    assert {path.name for path in tmp_path.iterdir()} == {"runtime", ".runtime.lock"}


@needs_bwrap
def test_a_mounted_replaced_runtime_stays_readable(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    publish(folder, "old")
    root = ("--ro-bind", "/", "/", "--tmpfs", "/srv", "--ro-bind", str(folder), "/srv/runtime")
    with holder("bwrap", *root, "cat") as held:
        publish(folder, "new")
        publish(folder, "newer")
        (aged,) = [path for path in earlier_trees(tmp_path) if (path / "runtime.json").read_text() == "old"]
        aged = aged.rename(long_ago(aged))
        publish(folder, "newest")
        seen = Path(f"/proc/{last_descendant(held)}/root/srv/runtime/runtime.json")
        assert seen.read_text() == "old"
        assert aged.is_dir()
    publish(folder, "last")
    assert not aged.exists()


def test_a_replaced_runtime_in_use_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    with Installation.begin(folder, progress=quiet) as place:
        (place.building / "runtime.json").write_text("old")
        shutil.copy(shutil.which("cat") or "", place.building / "program")
        place.publish()
    with holder(str(folder / "program")):
        publish(folder, "new")
        (aged,) = earlier_trees(tmp_path)
        aged = aged.rename(long_ago(aged))
        publish(folder, "newer")
        assert (aged / "program").is_file()
    publish(folder, "newest")
    assert not aged.exists()


def test_a_replaced_runtime_is_kept_for_invisible_processes(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    publish(folder, "old")
    publish(folder, "new")
    (recent,) = earlier_trees(tmp_path)
    aged, foreign = long_ago(recent), tmp_path / ".runtime.old-mine"
    foreign.mkdir()
    shutil.copytree(recent, aged)
    told: list[str] = []
    with Installation.begin(folder, progress=told.append):
        assert recent.is_dir()
        assert foreign.is_dir()
        assert not aged.exists()
    assert told == [f"keeping 1 replaced runtimes that may be in use, first {recent}"]


def test_an_interrupted_build_leaves_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    (folder / "runtime.json").write_text("old")

    def interrupted() -> None:
        with Installation.begin(folder, progress=quiet) as place:
            (place.building / "runtime.json").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (folder / "runtime.json").read_text() == "old"
    assert not list(tmp_path.glob(".*building*"))


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path: Path) -> None:
    leftover = tmp_path / ".runtime.building-killed"
    leftover.mkdir()
    (leftover / "half").touch()
    with Installation.begin(tmp_path / "runtime", progress=quiet):
        assert not leftover.exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_something_else_is_never_replaced(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "thesis"
    if kind == "file":
        folder.write_text("mine")
    else:
        folder.mkdir()
        (folder / "chapter").touch()
    with pytest.raises(GipfelError, match="not a runtime"), Installation.begin(folder, progress=quiet):
        pytest.fail("was let in")
    assert folder.exists()


def test_a_second_builder_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    order: list[str] = []
    waits = threading.Event()

    def second() -> None:
        with Installation.begin(folder, progress=lambda _: waits.set()):
            order.append("second")

    with Installation.begin(folder, progress=quiet):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_equal_files_share_their_content_and_others_do_not(tmp_path: Path) -> None:
    for name, content in (("a", "x" * 5000), ("b", "x" * 5000), ("c", "y" * 5000)):
        (tmp_path / name).write_text(content)
    (tmp_path / "d").write_text("x" * 5000)
    (tmp_path / "d").chmod(0o755)
    hardlink_duplicates(tmp_path)
    assert (tmp_path / "a").samefile(tmp_path / "b")
    assert not (tmp_path / "a").samefile(tmp_path / "c")
    assert not (tmp_path / "a").samefile(tmp_path / "d")
