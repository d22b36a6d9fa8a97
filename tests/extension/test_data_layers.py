"""Comparing data sets, adding layers, and the mounts of an EDF."""

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest
from data_trees import make_tree
from s3_stand_in import s3_stand_in

from gipfel_cluster.edf import check_edfs
from gipfel_cluster.model import GipfelError
from gipfel_extension.cli import main
from gipfel_extension.data.fetch import fetch, read_list
from gipfel_extension.data.layers import RemoveRequest, find_layers, remove
from gipfel_extension.data.pack import PackRequest, pack
from gipfel_extension.data.verify import compare, load_entries, verify

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="mksquashfs is not installed")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree")


@pytest.fixture
def image(tmp_path: Path, tree: Path) -> Path:
    pack(PackRequest(tree, tmp_path / "a.sqsh", environment=dict(os.environ)))
    return tmp_path / "a.sqsh"


def test_an_image_equals_its_directory_until_that_changes(image: Path, tree: Path) -> None:
    assert compare(image, tree).is_empty
    (tree / "new\nline").touch()
    (tree / "empty").rmdir()
    (tree / "nothing").write_text("x")
    (tree / "deep/text").chmod(0o600)
    found = compare(image, tree)
    assert (found.added, found.removed, found.changed) == (
        (r"new\nline",),
        ("empty",),
        ("deep/text", "nothing"),
    )
    assert main(["data", "diff", str(image), str(tree)]) == 1
    os.mkfifo(tree / "pipe")
    with pytest.raises(GipfelError, match="can't be compared: pipe"):
        compare(image, tree)
    assert main(["data", "diff", str(image), str(image)]) == 0
    assert main(["data", "diff", str(image), str(tree / "none")]) == 2


def test_a_layer_extends_an_image_and_knows_it(
    image: Path, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = image.read_bytes()
    for number in (1, 2):
        more = tmp_path / f"more-{number}"
        (more / "deep").mkdir(parents=True)
        (more / f"deep/file-{number}").write_text("more")
        assert main(["data", "add", str(image), str(more)]) == 0
    assert image.read_bytes() == before
    layers = find_layers(image)
    assert [path.name for path in layers] == ["a.1.sqsh", "a.2.sqsh"]
    assert all(verify(path).valid for path in layers)
    # Both have deep/file-2.
    capsys.readouterr()
    assert main(["data", "add", str(image), str(tmp_path / "more-2")]) == 1
    assert "a.sqsh already has deep/file-2." in capsys.readouterr().err
    # The image below a layer was replaced.
    (tree / "nothing").write_text("x")
    pack(PackRequest(tree, image, replace=True, environment=dict(os.environ)))
    assert main(["data", "mount", str(image)]) == 1
    assert "a.1.sqsh is not a layer of a.sqsh as it is now." in capsys.readouterr().err


def test_the_mount_is_accepted_by_edf_check(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/file").touch()
    assert main(["data", "add", str(image), str(tmp_path / "more")]) == 0
    capsys.readouterr()
    assert main(["data", "mount", str(image), "--at", "/data"]) == 0
    line = capsys.readouterr().out
    assert tomllib.loads(line)["mounts"] == [f"{image}:/data:sqsh", f"{tmp_path}/a.1.sqsh:/data.1:sqsh"]
    (tmp_path / "root/bin").mkdir(parents=True)
    (tmp_path / "env.toml").write_text(f'image = "{tmp_path}/root"\n{line}')
    (checked,) = check_edfs([str(tmp_path / "env.toml")], environment={}, directory=tmp_path, here=True)
    assert checked.valid, checked.diagnostics
    assert [each for each in checked.diagnostics if each.key.startswith("mount")] == []


@pytest.mark.parametrize("name", ["a:b", "a$b", 'a"b', "a\nb"])
def test_a_path_that_an_edf_cannot_have_is_refused(
    image: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / name
    odd.mkdir()
    shutil.copy(image, odd)
    assert main(["data", "mount", str(odd / "a.sqsh")]) == 1
    assert "can't be written in an EDF" in capsys.readouterr().err
    assert main(["data", "mount", str(image), "--at", f"/{name}"]) == 1


def test_an_image_that_is_cut_is_not_mounted(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image.write_bytes(image.read_bytes()[:-4096])
    assert main(["data", "mount", str(image), "--json"]) == 1
    assert "is cut off" in capsys.readouterr().err


def test_help_and_json(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("pack", "add", "verify", "show", "diff", "mount"):
        assert main(["data", command, "--help"]) == 0
        assert "Exit status:" in capsys.readouterr().out
    assert main(["data", "verify", str(image), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True
    assert main(["data", "diff", str(image), str(image), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"added": [], "removed": [], "changed": []}


def test_items_by_url_keep_url_hash_and_time_and_changed_ones_are_refused(tmp_path: Path) -> None:
    directory, image = tmp_path / "set", tmp_path / "set.sqsh"
    with s3_stand_in() as service:
        service.objects = {"a.jpg": b"picture", "b.jpg": b"second"}
        service.is_open = True
        url = service.environment["AWS_ENDPOINT_URL"]
        (tmp_path / "urls").write_text(f"# items\n{url}/sets/a.jpg\ns3://sets/b.jpg deep/b.jpg\n")
        wanted = read_list(tmp_path / "urls")

        def run(**how: bool) -> tuple[int, int]:
            return fetch(wanted, directory, service.environment, now=lambda: "2030-01-01T00:00:00Z", **how)

        assert run() == (2, 0)
        assert (run(), run(check=True)) == ((0, 2), (0, 2))
        summary = pack(PackRequest(directory, image))
        entry = load_entries(image)[b"a.jpg"]
        assert (entry.url, entry.fetched) == (f"{url}/sets/a.jpg", "2030-01-01T00:00:00Z")
        assert (summary.files, verify(image).valid, compare(directory, image).is_empty) == (2, True, True)
        service.objects["a.jpg"] = b"changed"
        with pytest.raises(GipfelError, match=r"a\.jpg has changed since 2030-01-01T00:00:00Z"):
            run(check=True)
        service.cut = True
        (directory / "a.jpg").unlink()
        with pytest.raises(GipfelError, match=r"a\.jpg can't be fetched: the answer was cut off"):
            run()
    # Of an item that is deleted a tombstone is left, and the root hash is another one.
    again = pack(PackRequest(directory, image, replace=True))
    gone = load_entries(image)[b"a.jpg"]
    assert (gone.kind, gone.url, gone.sha256) == ("removed", entry.url, entry.sha256)
    assert again.root != summary.root
    assert verify(image).valid
    remove(RemoveRequest(image, (b"deep/b.jpg",), {}))
    assert load_entries(image)[b"deep/b.jpg"].url == "s3://sets/b.jpg"
    (directory / "deep/b.jpg").write_bytes(b"SECOND")
    with pytest.raises(GipfelError, match=r"not what was fetched by URL: deep/b\.jpg"):
        pack(PackRequest(directory, image, replace=True))
    assert sorted(each.name for each in directory.iterdir()) == [".gipfel-fetched.jsonl", "deep"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ftp://host/a", "no URL of http"),
        ("file:///etc/passwd", "no URL of http"),
        ("https://me:word@host/a", "a key in its URL"),
        ("https://host/a?X-Amz-Signature=1", "a key in its URL"),
        ("https://host/a ../a", "no path below"),
        ("https://host/a /a", "no path below"),
        ("https://host/", "no path below"),
        ("https://host/a .gipfel-fetched.jsonl", "a reserved name"),
        ("https://host/a b c", "too many words"),
    ],
)
def test_a_line_that_is_no_item_is_refused_by_its_number(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "urls").write_text(f"https://host/x\n{line}\n")
    with pytest.raises(GipfelError, match=rf"Line 2 of urls is not valid: it has {words}") as caught:
        read_list(tmp_path / "urls")
    assert "word@" not in str(caught.value)
