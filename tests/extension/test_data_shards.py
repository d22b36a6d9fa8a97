"""WebDataset shards and back, hostile tar files, and removing paths from an image."""

import errno
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from data_trees import contents, make_tree

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli import main
from gipfel_extension.data.layers import RemoveRequest, find_layers, remove
from gipfel_extension.data.manifest import MANIFEST_NAME, read_summary
from gipfel_extension.data.pack import PackRequest, pack
from gipfel_extension.data.shards import read_index, scan_shards, verify_shards
from gipfel_extension.data.verify import compare, load_entries, verify
from gipfel_extension.data.webdataset import ShardRequest, hash_file, root_of_shards, split_name, write_shards

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="mksquashfs is not installed")

_CROISSANT = '{"@context": {}, "name": "pairs"}'


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Return 30 samples of an image and a label in two directories, with metadata."""
    draw = random.Random(4)
    for number in range(30):
        stem = tmp_path / "tree" / ("train" if number % 3 else "test") / f"{number:03d}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        stem.with_suffix(".jpg").write_bytes(draw.randbytes(draw.randint(0, 9_000)))
        stem.with_suffix(".cls.txt").write_text(str(number))
    (tmp_path / "tree/croissant.json").write_text(_CROISSANT)
    return tmp_path / "tree"


def test_shards_hold_whole_samples_and_become_the_same_files_again(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = tmp_path / "shards"
    index = write_shards(ShardRequest(pairs, shards, shard_bytes=40_000))
    assert len(index.shardlist) > 2
    assert (sum(each.nsamples for each in index.shardlist), index.files) == (30, 60)
    seen = []
    for each in index.shardlist:
        with tarfile.open(shards / each.url) as archive:
            members = [name for member in archive if (name := split_name(member.name.encode()))]
        keys = [key for key, _ in members]
        assert {keys.count(key) for key in keys} == {2}
        assert all(first == second for first, second in zip(keys[::2], keys[1::2], strict=True))
        seen += sorted(set(keys))
    assert seen == sorted(set(seen))
    assert json.loads((shards / "index.json").read_text())["__kind__"] == "wids-shard-index-v1"
    assert main(["data", "verify", str(shards)]) == 0
    assert "shards is whole: " in capsys.readouterr().out
    image = tmp_path / "a.sqsh"
    assert main(["data", "pack", str(shards), str(image), "--from", "webdataset"]) == 0
    assert verify(image).valid
    assert compare(image, pairs).is_empty
    summary = read_summary(image)
    assert summary
    assert summary.croissant == json.loads(_CROISSANT)


def test_the_same_files_give_the_same_shards(pairs: Path, tmp_path: Path) -> None:
    roots = {
        write_shards(ShardRequest(pairs, tmp_path / f"shards-{number}", 40_000, readers=number)).root
        for number in (1, 8)
    }
    assert len(roots) == 1
    assert not list(tmp_path.glob(".*"))


def test_what_shards_cannot_hold_is_named(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    with pytest.raises(GipfelError) as found:
        write_shards(ShardRequest(tree, tmp_path / "shards"))
    for name in (r"caf\xe9", "dangling", "deep/loop", "self"):
        assert name in str(found.value)
    (tmp_path / "case").mkdir()
    for name in ("a.jpg", "a.JPG", "b.jpg"):
        (tmp_path / "case" / name).touch()
    with pytest.raises(GipfelError, match=r"can't hold a\.jpg: "):
        write_shards(ShardRequest(tmp_path / "case", tmp_path / "shards"))
    assert not list(tmp_path.glob("*shards*"))


def test_names_without_a_dot_are_kept_and_named(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/README").touch()
    (tmp_path / "tree/linked.bin").write_bytes(b"content")
    (tmp_path / "tree/also.bin").hardlink_to(tmp_path / "tree/linked.bin")
    write_shards(
        ShardRequest(
            tmp_path / "tree", tmp_path / "shards", on_plan=lambda source, _: notes.extend(source.notes)
        )
    )
    assert notes == ["WebDataset's readers skip 1 file(s) without a dot, such as README"]
    assert compare(tmp_path / "tree", _packed_shards(tmp_path)).changed == ("linked.bin",)


def _packed_shards(tmp_path: Path) -> Path:
    pack(
        PackRequest(tmp_path / "shards", tmp_path / "a.sqsh", scan=scan_shards, environment=dict(os.environ))
    )
    return tmp_path / "a.sqsh"


def test_shards_that_cannot_be_read_are_not_called_damaged(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = tmp_path / "shards"
    write_shards(ShardRequest(pairs, shards, shard_bytes=40_000))

    def fail(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("gipfel_extension.data.shards.hash_file", fail)
        assert main(["data", "verify", str(shards)]) == 2
    assert "shard-000000.tar can't be read: Input/output error." in capsys.readouterr().err
    index = (shards / "index.json").read_bytes()
    (shards / "index.json").unlink()
    (shards / "index.json").mkdir()
    assert main(["data", "verify", str(shards)]) == 2
    (shards / "index.json").rmdir()
    (shards / "index.json").write_bytes(index)
    assert main(["data", "verify", str(shards)]) == 0


def test_shards_that_are_missing_or_damaged_are_refused(pairs: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    write_shards(ShardRequest(pairs, shards, shard_bytes=40_000))
    first, second = shards / "shard-000000.tar", shards / "shard-000001.tar"
    content = bytearray(first.read_bytes())
    content[5_000] ^= 1
    first.write_bytes(content)
    assert "shard-000000.tar is damaged" in verify_shards(shards).problems[0]
    content[5_000] ^= 1
    first.write_bytes(content)
    assert verify_shards(shards).valid
    second.rename(tmp_path / "elsewhere")
    assert "shard-000001.tar is missing" in verify_shards(shards).problems[0]
    (tmp_path / "elsewhere").rename(second)
    (shards / "more.tar").touch()
    assert "more.tar is not in the index" in verify_shards(shards).problems[0]
    (shards / "more.tar").unlink()
    index = read_index(shards)
    assert index
    (shards / "index.json").write_text(
        index.model_copy(update={"root": "0" * 64}).model_dump_json(by_alias=True)
    )
    assert "its root hash is not that of its shards" in verify_shards(shards).problems[0]


def test_changed_metadata_beside_shards_are_refused(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = tmp_path / "shards"
    write_shards(ShardRequest(pairs, shards, shard_bytes=40_000))
    (shards / "croissant.json").write_text(_CROISSANT.replace("pairs", "pears"))
    found = verify_shards(shards)
    assert not found.valid
    assert len(found.problems) == 1
    assert "croissant.json is damaged: it is not as the index says." in found.problems[0]
    assert main(["data", "pack", str(shards), str(tmp_path / "a.sqsh"), "--from", "webdataset"]) == 1
    assert "croissant.json is damaged" in capsys.readouterr().err
    assert not (tmp_path / "a.sqsh").exists()


def test_metadata_beside_shards_are_kept_only_if_the_index_has_them(pairs: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    write_shards(ShardRequest(pairs, shards))
    (shards / "index.json").unlink()
    image = _packed_shards(tmp_path)
    summary = read_summary(image)
    assert summary
    assert summary.croissant == json.loads(_CROISSANT)
    assert verify(image).valid
    assert compare(image, pairs).is_empty
    # A file that was put beside shards without metadata belongs to no data set.
    (pairs / "croissant.json").unlink()
    shutil.rmtree(shards)
    image.unlink()
    write_shards(ShardRequest(pairs, shards))
    (shards / "croissant.json").write_text(_CROISSANT)
    summary = read_summary(_packed_shards(tmp_path))
    assert summary
    assert summary.croissant is None
    assert compare(image, pairs).is_empty


def test_a_removed_member_is_found_although_all_hashes_are_right(pairs: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    index = write_shards(ShardRequest(pairs, shards, shard_bytes=40_000))
    first = index.shardlist[0]
    with tarfile.open(shards / first.url) as archive:
        kept = [(each, archive.extractfile(each)) for each in archive if not each.isdir()][:-1]
        with tarfile.open(tmp_path / "less.tar", "w") as less:
            for member, content in kept:
                less.addfile(member, content)
    (tmp_path / "less.tar").replace(shards / first.url)
    changed = first.model_copy(
        update={
            "sha256": hash_file(shards / first.url),
            "filesize": (shards / first.url).stat().st_size,
        }
    )

    def problems(**counts: int) -> tuple[str, ...]:
        own = {name: count for name, count in counts.items() if name != "data_bytes"}
        listed = (changed.model_copy(update=own), *index.shardlist[1:])
        more = {"shardlist": listed, "root": root_of_shards(listed)}
        if "data_bytes" in counts:
            more["data_bytes"] = counts["data_bytes"]
        (shards / "index.json").write_text(index.model_copy(update=more).model_dump_json(by_alias=True))
        return verify_shards(shards).problems

    files = len(kept)
    size = sum(each.stat().st_size for each in pairs.rglob("*.*") if each.name != "croissant.json")
    missing = first.nfiles - files
    assert missing == 1
    assert f"has {files} files, and index.json says {first.nfiles}." in problems()[0]
    assert f"index.json says {first.nsamples + 1}." in problems(nfiles=files, nsamples=first.nsamples + 1)[0]
    assert f"bytes of files, and index.json says {size}." in problems(nfiles=files)[0]


def _member(name: str, size: int = 0, **more: object) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size = size
    for key, value in more.items():
        setattr(found, key, value)
    return found


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (_member("../out.bin"), "is not a name in a data set"),
        (_member("/etc/cron.d/job"), "is not a name in a data set"),
        (_member(".gipfel-manifest.jsonl"), "is not a name in a data set"),
        (_member("a/" * 300 + "b"), "is not a name in a data set"),
        (_member("a.jpg", type=tarfile.SYMTYPE, linkname="/etc/shadow"), "is a link, a device"),
        (_member("a.jpg", type=tarfile.LNKTYPE, linkname="/etc/shadow"), "is a link, a device"),
        (_member("sda", type=tarfile.BLKTYPE), "is a link, a device"),
        (_member("su", mode=0o4755), "is a link, a device"),
        (_member("a.jpg", 1 << 50), "damaged|is cut off"),
        (_member("b.txt"), "b.txt is there twice"),
        (_member("b.txt/c.txt"), "b.txt is a file and a directory"),
        (_member("c.txt", pax_headers={"comment": "x" * (2 << 20)}), "is damaged"),
        (_member("c.txt", pax_headers={"size": "-1024"}), "is cut off|damaged|twice"),
    ],
)
def test_hostile_members_are_refused(tmp_path: Path, member: tarfile.TarInfo, problem: str) -> None:
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards/a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(_member("b.txt", 1), io.BytesIO(b"b"))
        archive.addfile(member)
    with pytest.raises(GipfelError, match=problem) as found:
        _packed_shards(tmp_path)
    assert "\n" not in str(found.value)
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


@pytest.mark.parametrize("size", [0, 100, 700, 1100, 2000])
def test_a_cut_shard_without_an_index_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "shards").mkdir()
    path = tmp_path / "shards/a.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a.txt", "b.txt"):
            archive.addfile(_member(name, 600), io.BytesIO(bytes(600)))
    os.truncate(path, size)
    with pytest.raises(GipfelError, match=r"damaged|cut off"):
        scan_shards(tmp_path / "shards")


def test_a_compressed_shard_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards/a.tar", "w:gz") as archive:
        archive.addfile(_member("a.txt", 600), io.BytesIO(bytes(600)))
    with pytest.raises(GipfelError, match="is not an uncompressed tar file"):
        scan_shards(tmp_path / "shards")


@pytest.mark.parametrize("access", ["random", "sequential"])
def test_removal_leaves_a_tombstone_and_a_new_root(tmp_path: Path, access: str) -> None:
    tree, image = make_tree(tmp_path / "tree"), tmp_path / "a.sqsh"
    before = pack(
        PackRequest(tree, image, access=access, environment={**os.environ, "SOURCE_DATE_EPOCH": "7"})
    )
    more = tmp_path / "more"
    more.mkdir()
    (more / "new").touch()
    assert main(["data", "add", str(image), str(more)]) == 0
    noise = (tree / "deep/er/noise").read_bytes()
    after = remove(RemoveRequest(image, [b"deep/er", b"run"], dict(os.environ)))
    assert after.root != before.root
    assert [each.root for each in after.removals] == [before.root]
    assert (after.origin, after.packing) == (before.origin, before.packing)
    assert verify(image).valid
    assert [path.name for path in find_layers(image)] == ["a.1.sqsh"]
    entries = load_entries(image)
    assert entries[b"deep/er/noise"].kind == "removed"
    assert entries[b"deep/er/noise"].sha256 == hashlib.sha256(noise).hexdigest()
    assert (entries[b"deep/er"].kind, entries[b"deep/er"].sha256) == ("removed", "")
    # The other name of a hard-linked file has its content now.
    shutil.rmtree(tree / "deep/er")
    (tree / "run").unlink()
    assert compare(image, tree).is_empty
    subprocess.run(["unsquashfs", "-q", "-n", "-d", tmp_path / "out", image], check=True, stdout=-3)
    found = contents(tmp_path / "out")
    assert found.pop(MANIFEST_NAME)
    assert found == contents(tree)
    assert (tmp_path / "out/nothing").stat().st_mtime == 7
    assert noise[:200] not in image.read_bytes()
    with pytest.raises(GipfelError, match="has no run"):
        remove(RemoveRequest(image, [b"run"], dict(os.environ)))
    (more / "run").touch()
    assert main(["data", "add", str(image), str(more)]) == 1


def test_a_damaged_image_is_not_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree, image = make_tree(tmp_path / "tree"), tmp_path / "a.sqsh"
    pack(PackRequest(tree, image, compression="none", environment=dict(os.environ)))
    content = bytearray(image.read_bytes())
    content[content.index(b"some words")] ^= 1
    image.write_bytes(content)
    assert main(["data", "remove", str(image), "run"]) == 1
    assert "a.sqsh is not whole: 1 chunk(s) are damaged" in capsys.readouterr().err
    assert image.read_bytes() == content
