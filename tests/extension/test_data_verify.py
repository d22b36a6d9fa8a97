"""Verifying images: an intact one passes, and anything cut, changed or hidden is reported."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from data_trees import make_tree

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli import main
from gipfel_extension.data.manifest import MANIFEST_NAME, parse_manifest, read_summary, root_of, summary_path
from gipfel_extension.data.pack import PackRequest, hash_chunks, pack
from gipfel_extension.data.squashfs import ImageReadError, SquashfsFile, walk
from gipfel_extension.data.verify import (
    Verification,
    _check_contents,
    _hash_chunks,
    _Sampler,
    load_entries,
    verify,
)

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="mksquashfs is not installed")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image without compression, in which a changed byte is read without an error."""
    path = tmp_path / "a.sqsh"
    tree = make_tree(tmp_path / "tree")
    pack(PackRequest(tree, path, compression="none", environment=dict(os.environ)))
    return path


def forge(image: Path) -> None:
    """Give a changed image a summary that fits its bytes."""
    summary = read_summary(image)
    assert summary is not None
    chunks, size = hash_chunks(image), image.stat().st_size
    root = root_of(size, chunks)
    forged = summary.model_copy(update={"bytes": size, "chunks": chunks, "root": root})
    summary_path(image).write_text(forged.model_dump_json())


def outcome(image: Path) -> Verification | str:
    """The verification, or the one line of an error."""
    try:
        return verify(image)
    except GipfelError as error:
        return str(error)


def plain(source: Path, target: Path, *options: str) -> Path:
    command = ["mksquashfs", source, target, "-noappend", "-quiet", "-no-progress", "-all-root", *options]
    subprocess.run(command, check=True, stdout=-3)
    return target


def test_a_flipped_bit_is_found_that_unsquashfs_does_not_see(image: Path) -> None:
    content = bytearray(image.read_bytes())
    place = content.index(b"compress well", 100_000)
    content[place] ^= 1
    image.write_bytes(content)
    subprocess.run(["unsquashfs", "-cat", image, "deep/text"], check=True, stdout=-3)
    found = verify(image)
    assert found.problems == (
        "1 chunk(s) are damaged, at byte 0.",
        "deep/text does not have the content in the manifest.",
    )
    assert main(["data", "verify", str(image)]) == 1
    # A summary that was made for the changed image does not help: the manifest is inside.
    forge(image)
    assert verify(image).problems == ("deep/text does not have the content in the manifest.",)


def test_an_image_cut_anywhere_is_refused(image: Path) -> None:
    content = image.read_bytes()
    for length in (0, 3, 50, 96, 4096, len(content) // 2, len(content) - 4096):
        image.write_bytes(content[:length])
        found = outcome(image)
        assert isinstance(found, str)
        assert "\n" not in found
        assert "cut off" in found or "is not a SquashFS file" in found
        assert main(["data", "verify", str(image)]) == 2


@pytest.mark.parametrize("compression", ["none", "zstd", "gzip"])
def test_flipped_bytes_never_pass_nor_break_anything(tmp_path: Path, compression: str) -> None:
    source = tmp_path / "tree"
    (source / "below").mkdir(parents=True)
    for number in range(30):
        (source / f"below/{number}").write_bytes(os.urandom(50) * number)
    (source / "link").symlink_to("below")
    image = tmp_path / "a.sqsh"
    pack(PackRequest(source, image, compression=compression, environment=dict(os.environ)))
    content = image.read_bytes()
    used = SquashfsFile(image).superblock.bytes_used
    draw = random.Random(5)
    for position in [*range(0, 96, 9), *(draw.randrange(96, used) for _ in range(25))]:
        changed = bytearray(content)
        changed[position] ^= 1 << draw.randrange(8)
        image.write_bytes(changed)
        found = outcome(image)
        assert isinstance(found, str) or not found.valid
        # The same with hashes that fit: some bytes, such as times, are in no manifest, but nothing breaks.
        kept = summary_path(image).read_bytes()
        forge(image)
        outcome(image)
        summary_path(image).write_bytes(kept)


def test_devices_and_set_user_id_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/root-shell").touch()
    (tmp_path / "tree/root-shell").chmod(0o4755)
    image = plain(
        tmp_path / "tree", tmp_path / "a.sqsh", "-p", "sda b 666 0 0 8 0", "-p", "null c 666 0 0 1 3"
    )
    found = verify(image)
    assert not found.valid
    lines = "\n".join(found.problems)
    assert "sda is a block device." in lines
    assert "null is a character device." in lines
    assert "root-shell is a set-user-id or set-group-id file." in lines
    assert "a.sqsh has no manifest: it was not packed by gipfel." in lines
    assert "a.sqsh.json is missing" in lines


@pytest.mark.parametrize("special", ["device", "set-user-id"])
def test_an_image_with_devices_or_set_user_id_files_gets_no_mount(
    tmp_path: Path, special: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/tool").touch()
    (tmp_path / "tree/deep/tool").chmod(0o4755 if special == "set-user-id" else 0o755)
    added = ("-p", "deep/sda b 666 0 0 8 0") if special == "device" else ()
    image = plain(tmp_path / "tree", tmp_path / "a.sqsh", *added)
    assert main(["data", "mount", str(image)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    found = "sda is a block device" if special == "device" else "tool is a set-user-id or set-group-id file"
    assert f"{image} is not safe to mount: deep/{found}." in printed.err
    assert len(printed.err.splitlines()) <= 2


def test_a_manifest_that_lies_is_found(tmp_path: Path, image: Path) -> None:
    out = tmp_path / "out"
    subprocess.run(["unsquashfs", "-q", "-n", "-d", out, image], check=True, stdout=-3)
    (out / "extra").write_text("not declared")
    (out / "run").chmod(0o711)
    (out / "nothing").write_text("something")
    (out / "self").unlink()
    (out / "deep/loop").unlink()
    (out / "deep/loop").symlink_to("/etc")
    plain(out, image)
    forge(image)
    found = verify(image)
    changed = "is not as the manifest says: its kind, mode, size or target differs."
    assert set(found.problems) == {
        "extra is not in the manifest.",
        "self is in the manifest, but not in the image.",
        f"run {changed}",
        f"deep/run again {changed}",
        f"deep/loop {changed}",
        f"nothing {changed}",
    }


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"files": 1}, "a.sqsh.json says 1 files, and the manifest 2."),
        ({"data_bytes": 7}, "a.sqsh.json says 7 bytes of files, and the manifest 36."),
        ({"croissant": {"@context": {}, "name": "pears"}}, "a.sqsh.json has other Croissant metadata"),
        ({"croissant": None}, "a.sqsh.json has other Croissant metadata than the image."),
        (
            {"packing": {"access": "sequential", "compression": "none", "block_size": 131_072}},
            "a.sqsh.json says other settings of packing than the manifest.",
        ),
        (
            {"removals": [{"root": "0" * 64, "removed": "2026-01-01T00:00:00Z", "paths": 3}]},
            "a.sqsh.json says 3 removed paths, and the manifest 0.",
        ),
    ],
)
def test_a_summary_that_lies_is_found(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    tree, path = tmp_path / "tree", tmp_path / "a.sqsh"
    tree.mkdir()
    (tree / "croissant.json").write_text('{"@context": NaN, "name": "pairs"}')
    (tree / "b.txt").write_text("b\n")
    pack(PackRequest(tree, path, compression="none", environment=dict(os.environ)))
    assert verify(path).valid
    content = json.loads(summary_path(path).read_text())
    assert content["croissant"] == {"@context": None, "name": "pairs"}
    summary_path(path).write_text(json.dumps(content | change))
    found = verify(path).problems
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_directories_that_contain_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tree/inner-directory").mkdir(parents=True)
    image = plain(tmp_path / "tree", tmp_path / "a.sqsh", "-noI")
    with SquashfsFile(image) as opened:
        root = opened.superblock.root
    content = bytearray(image.read_bytes())
    entry = content.index(b"inner-directory") - 8
    content[entry : entry + 2] = (root & 0xFFFF).to_bytes(2, "little")
    image.write_bytes(content)
    with SquashfsFile(image) as opened, pytest.raises(GipfelError, match="directories contain each other"):
        list(walk(opened))


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_names_that_leave_the_image_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / ("x" * len(name))).touch()
    image = plain(tmp_path / "tree", tmp_path / "a.sqsh", "-noI")
    content = bytearray(image.read_bytes())
    with SquashfsFile(image) as opened:
        place = content.index(b"x" * len(name), opened.superblock.directory_table)
    content[place : place + len(name)] = name.encode()
    image.write_bytes(content)
    with SquashfsFile(image) as opened, pytest.raises(GipfelError, match="a name is not valid"):
        list(walk(opened))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"version":', '"ersion":', "is not valid: ersion"),
        ('"root":"', '"root":"..', "is not valid: root"),
        ("{", "[" * 100_000, "can't be read"),
        ('"bytes":', '"bytes":1', "its root hash is not that of its chunks"),
    ],
)
def test_a_summary_that_is_not_valid_is_one_line(
    image: Path, old: str, new: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = summary_path(image)
    text = path.read_text().replace(" ", "").replace("\n", "")
    assert old in text
    path.write_text(text.replace(old, new, 1))
    found = verify(image)
    assert len(found.problems) == 1
    assert line in found.problems[0]
    assert main(["data", "show", str(image)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_summary_that_counts_other_files_is_named(image: Path) -> None:
    path = summary_path(image)
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "files": summary["files"] - 1}))
    (problem,) = verify(image).problems
    assert f"says {summary['files'] - 1} files, and the manifest {summary['files']}" in problem


def test_pipes_and_missing_files_keep_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.sqsh")
    for name in ("a.sqsh", "none.sqsh"):
        assert main(["data", "verify", str(tmp_path / name)]) == 2


def test_an_error_of_the_storage_is_no_verdict_on_the_image(image: Path, tmp_path: Path) -> None:
    entries = load_entries(image)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with SquashfsFile(image) as opened:
            nodes = {node.path: node for node in walk(opened)}
            # Reads of a directory fail, as those of a disk with a defect do.
            os.dup2(directory, opened._file.fileno())
            with pytest.raises(ImageReadError, match=f"{image} can't be read: Is a directory"):
                _check_contents(opened, entries, nodes, _Sampler(100, None))
        with pytest.raises(ImageReadError, match=f"{image} can't be read"):
            _hash_chunks(image, directory, [0, 1])
    finally:
        os.close(directory)


def test_a_sample_reads_a_share(image: Path) -> None:
    counts = [verify(image, percent=30, seed=seed).files for seed in range(30)]
    assert 0 <= min(counts) < max(counts) < 7
    assert MANIFEST_NAME not in load_entries(image)


@pytest.mark.parametrize("kind", [[], {}, None, 1])
def test_a_manifest_line_with_a_kind_that_is_not_text_is_refused(kind: object) -> None:
    lines = [b'{"gipfel_manifest":1}', json.dumps({"path": "a", "kind": kind, "mode": "0644"}).encode()]
    with pytest.raises(ValueError, match="a line is not valid"):
        list(parse_manifest(lines))


def test_a_manifest_with_too_many_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "a.sqsh"
    pack(PackRequest(make_tree(tmp_path / "tree"), image, environment=dict(os.environ)))
    monkeypatch.setattr("gipfel_extension.data.verify.MAX_ENTRIES", 2)
    with pytest.raises(GipfelError, match="it has too many lines"):
        load_entries(image)
