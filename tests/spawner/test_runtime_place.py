"""A folder appears complete or not at all, and one builder works at a time."""

import threading
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime.place import Place, share_content


def quiet(_: str) -> None:
    pass


def test_published_content_replaces_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    for content in ("old", "new"):
        with Place.beside(folder, progress=quiet) as place:
            (place.building / "runtime.json").write_text(content)
            place.publish()
    assert (folder / "runtime.json").read_text() == "new"
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {path.name for path in tmp_path.iterdir()} == {"runtime", ".runtime.lock"}


def test_an_interrupted_build_leaves_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    (folder / "runtime.json").write_text("old")

    def interrupted() -> None:
        with Place.beside(folder, progress=quiet) as place:
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
    with Place.beside(tmp_path / "runtime", progress=quiet):
        assert not leftover.exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_something_else_is_never_replaced(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "thesis"
    if kind == "file":
        folder.write_text("mine")
    else:
        folder.mkdir()
        (folder / "chapter").touch()
    with pytest.raises(GipfelError, match="no runtime"), Place.beside(folder, progress=quiet):
        pytest.fail("was let in")
    assert folder.exists()


def test_a_second_builder_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    order: list[str] = []
    waits = threading.Event()

    def second() -> None:
        with Place.beside(folder, progress=lambda _: waits.set()):
            order.append("second")

    with Place.beside(folder, progress=quiet):
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
    share_content(tmp_path)
    assert (tmp_path / "a").samefile(tmp_path / "b")
    assert not (tmp_path / "a").samefile(tmp_path / "c")
    assert not (tmp_path / "a").samefile(tmp_path / "d")
