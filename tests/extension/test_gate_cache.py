"""The cache of scans: for unchanged files, and never for those that could not be judged."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import model_zoo as zoo
import package_images as images
import pytest

from gipfel_cluster.image_digest import cached_digest
from gipfel_extension.cli import main
from gipfel_extension.gate.kept import KeptScan, KeptScans, file_key
from gipfel_extension.gate.scan import targets
from gipfel_extension.gate.scan.cache import Digest, ScanCache

INTRODUCED = {"introduced": "0"}


@pytest.fixture
def image(tmp_path) -> Path:
    files = {
        "etc/os-release": b"ID=alpine\nVERSION_ID=3.99\n",
        "usr/lib/python3/site-packages/x-1.dist-info/METADATA": images.metadata("x", "1").encode(),
    }
    return settled(images.oci_archive(tmp_path / "image.tar", [files]))


@pytest.fixture(autouse=True)
def settle_at_once(monkeypatch):
    monkeypatch.setattr("gipfel_extension.gate.scan.cache._SETTLED_S", -1.0)


def settled(path: Path) -> Path:
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def scans(monkeypatch) -> list[Path]:
    """The targets that are really scanned from now on."""
    seen = []
    real = targets._scanned
    monkeypatch.setattr(
        targets,
        "_scanned",
        lambda target, *rest, **more: seen.append(target) or real(target, *rest, **more),
    )
    return seen


def scanned(path: Path, cache: Path, osv: Path | None = None, **options):
    return targets.scan_targets(
        [path], advisories=osv, max_age_s=7 * 86400.0, cache=ScanCache(cache), **options
    )


def test_an_image_that_has_not_changed_is_scanned_once(tmp_path, image, monkeypatch):
    osv = images.mirror(tmp_path / "osv", images.advisory("A", "PyPI", "x", INTRODUCED))
    seen = scans(monkeypatch)
    first = scanned(image, tmp_path / "cache", osv)
    again = scanned(image, tmp_path / "cache", osv)
    assert seen == [image]
    assert again.model_dump(exclude={"advisories_age_s"}) == first.model_dump(exclude={"advisories_age_s"})
    assert first.digests == {str(image): Digest(image).value()}
    assert [each.id for each in again.vulnerabilities] == ["A"]
    assert scanned(image, tmp_path / "cache", osv, packages_only=True).digests == {}
    assert len(seen) == 2


def test_scans_and_jobs_share_the_digests_of_images(tmp_path, image):
    cache = ScanCache(None, tmp_path / "digests")
    options = {"advisories": None, "max_age_s": 1.0, "cache": cache}
    digest = targets.scan_targets([image], **options).digests[str(image)]
    (entry,) = cache.digests.glob("*.json")
    assert cached_digest(cache.digests, str(image), image.stat()) == digest
    entry.write_text(entry.read_text().replace(digest, "sha256:known"))
    assert targets.scan_targets([image], **options).digests == {str(image): "sha256:known"}
    os.utime(image, (1, 1))
    assert targets.scan_targets([image], **options).digests == {str(image): digest}


def test_a_new_mirror_counts_at_once(tmp_path, image):
    osv = images.mirror(tmp_path / "osv", images.advisory("A", "PyPI", "other", INTRODUCED))
    assert scanned(image, tmp_path / "cache", osv).vulnerabilities == ()
    images.mirror(osv, images.advisory("B", "PyPI", "x", INTRODUCED))
    assert [each.id for each in scanned(image, tmp_path / "cache", osv).vulnerabilities] == ["B"]
    (osv / "PyPI/all.zip").write_bytes(b"PK half")
    assert "can't be read" in scanned(image, tmp_path / "cache", osv).not_judged[0]
    (osv / "PyPI/all.zip").unlink()
    assert "no advisory data" in scanned(image, tmp_path / "cache", osv).not_judged[0]


@pytest.mark.parametrize("how", ["content", "size", "replaced", "code"])
def test_what_has_changed_is_scanned_again(how, tmp_path, image, monkeypatch):
    scanned(image, tmp_path / "cache")
    seen = scans(monkeypatch)
    if how == "content":
        content = image.read_bytes()
        image.write_bytes(content.replace(b"blobs/sha256/l0", b"blobs/sha256/lX"))
        # The same size and modification time: the change time differs.
        settled(image)
    elif how == "size":
        image.write_bytes(image.read_bytes() + bytes(512))
        settled(image)
    elif how == "replaced":
        copy = Path(f"{image}.new")
        copy.write_bytes(image.read_bytes().replace(b"blobs/sha256/l0", b"blobs/sha256/lX"))
        settled(copy).replace(image)
    else:
        monkeypatch.setattr("gipfel_extension.gate.scan.cache.code_digest", lambda: "other rules")
    scanned(image, tmp_path / "cache")
    assert seen == [image]


def test_what_could_not_be_judged_is_never_kept(tmp_path, monkeypatch):
    empty = settled(images.oci_archive(tmp_path / "empty.tar", [{"a": b""}]))
    seen = scans(monkeypatch)
    for _ in range(2):
        assert scanned(empty, tmp_path / "cache").exit_status("high") == 2
    assert len(seen) == 2


def test_a_file_that_has_just_changed_is_not_kept(tmp_path, image, monkeypatch):
    monkeypatch.setattr("gipfel_extension.gate.scan.cache._SETTLED_S", 1e9)
    scanned(image, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'{"key": 3}', b"\xff" * 100])
def test_a_broken_entry_is_scanned_again(content, tmp_path, monkeypatch):
    model = tmp_path / "model.pkl"
    model.write_bytes(zoo.SYSTEM)
    first = scanned(settled(model), tmp_path / "cache")
    (entry,) = (tmp_path / "cache").iterdir()
    assert (entry.stat().st_mode & 0o777, entry.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    entry.write_bytes(content)
    assert scanned(model, tmp_path / "cache") == first


def test_the_command_keeps_results_unless_told_not_to(tmp_path, image, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GIPFEL_ADVISORIES", raising=False)
    seen = scans(monkeypatch)
    assert [main(["scan", str(image), "--json"]) for _ in range(2)] == [2, 2]
    assert len(seen) == 1
    main(["scan", str(image), "--no-cache"])
    assert len(seen) == 2
    assert json.loads(capsys.readouterr().out.splitlines()[0])["digests"]


def test_a_kept_result_is_printed_without_the_readers_of_formats(image, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GIPFEL_ADVISORIES", raising=False)
    assert main(["scan", str(image)]) == 2
    program = (
        f"import sys; from gipfel_extension.cli import main; print(main(['scan', {str(image)!r}]));"
        "print(sorted(each for each in sys.modules if each.startswith(('gipfel_extension', 'pydantic'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *_, status, loaded = done.stdout.splitlines()
    assert (status, "gate.kept" in loaded, "pydantic" in loaded) == ("2", True, False)
    assert not any(f"gipfel_extension.{each}'" in loaded for each in ("gate.scan.targets", "cli.launch"))


def test_a_copy_of_an_image_is_not_scanned_again(tmp_path, monkeypatch):
    key = b"-----BEGIN OPENSSH PRIVATE KEY-----\n" + b"a" * 300
    files = {"etc/os-release": b"ID=alpine\nVERSION_ID=3.99\n", "srv/id_ed25519": key}
    files["usr/lib/python3/site-packages/x-1.dist-info/METADATA"] = images.metadata("x", "1").encode()
    image = settled(images.oci_archive(tmp_path / "image.tar", [files]))
    first = scanned(image, tmp_path / "cache")
    copy = tmp_path / "other/copy.tar"
    copy.parent.mkdir()
    copy.write_bytes(image.read_bytes())
    seen = scans(monkeypatch)
    second = scanned(settled(copy), tmp_path / "cache")
    assert (seen, second.digests) == ([], {str(copy): first.digests[str(image)]})
    assert [each.path for each in first.items] == [f"{image}!srv/id_ed25519", str(image)][: len(first.items)]
    assert second.model_dump_json() == first.model_dump_json().replace(str(image), str(copy))
    # An image of the same size is read once for its digest, and then scanned.
    content = copy.read_bytes()
    copy.write_bytes(content.replace(b"blobs/sha256/l0", b"blobs/sha256/lX"))
    assert scanned(settled(copy), tmp_path / "cache").not_judged
    assert seen == [copy]


def test_the_device_counts_where_its_number_is_stable(tmp_path):
    status = list(tmp_path.stat())
    disk, other_disk = (os.stat_result([*status[:2], os.makedev(8, n), *status[3:]]) for n in (1, 2))
    mount, other_mount = (os.stat_result([*status[:2], os.makedev(0, n), *status[3:]]) for n in (50, 60))
    assert file_key(disk) != file_key(other_disk)
    assert file_key(mount) == file_key(other_mount)


def kept_key(scans: KeptScans, image: Path, osv: Path, **changed) -> str:
    options = {"targets": [image], "advisories": osv, "exceptions": None, "words": ["all"]}
    return scans.key(**(options | changed))


def test_all_that_a_kept_result_depends_on_is_in_its_key(tmp_path, image, monkeypatch):
    osv = images.mirror(tmp_path / "osv", images.advisory("A", "PyPI", "x", INTRODUCED))
    exceptions = tmp_path / "exceptions.toml"
    exceptions.write_text("")
    kept = KeptScans(tmp_path / "kept")
    key = kept_key(kept, image, osv)
    assert key == kept_key(kept, image, osv) != ""
    assert kept_key(kept, tmp_path, osv) == kept_key(kept, tmp_path / "none", osv) == ""
    others = [
        kept_key(kept, image, osv, words=["packages"]),
        kept_key(kept, image, osv, advisories=None),
        kept_key(kept, image, osv, exceptions=exceptions),
    ]
    images.mirror(osv, images.advisory("B", "PyPI", "x", INTRODUCED))
    others.append(kept_key(kept, image, osv))
    exceptions.write_text("# changed")
    others.append(kept_key(kept, image, osv, exceptions=exceptions))
    os.utime(image, (1, 1))
    others.append(kept_key(kept, image, osv))
    monkeypatch.setattr("gipfel_extension.gate.kept.code_digest", lambda: "other rules")
    others.append(kept_key(kept, image, osv))
    assert len({key, *others}) == len(others) + 1


def test_a_kept_result_is_used_until_its_advisories_are_too_old(tmp_path):
    kept = KeptScans(tmp_path / "kept")
    scan = KeptScan(((True, "note"), (False, "summary")), '{"items":[]}', {"high": 1}, time.time() - 100)
    kept.keep("a", scan)
    assert kept.read("a", 200.0) == scan
    assert json.loads(scan.to_json())["advisories_age_s"] == pytest.approx(100, abs=20)
    assert kept.read("a", 50.0) is None
    assert kept.read("b", 200.0) is None
    for content in (b"", b"{", b"{}\n{}", b"[]\n{}", b"\xff", b"[" * 9000 + b"\n{}", b'{"lines": 3}\n{}'):
        (tmp_path / "kept/a.json").write_bytes(content)
        assert kept.read("a", 200.0) is None


def test_the_command_prints_the_same_the_second_time(tmp_path, image, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    osv = images.mirror(tmp_path / "osv", images.advisory("A", "PyPI", "x", INTRODUCED))
    monkeypatch.setenv("GIPFEL_ADVISORIES", str(osv))
    seen = scans(monkeypatch)
    printed = []
    for _ in range(2):
        for options in ([], ["--json"]):
            assert main(["scan", str(image), "--max-age", "1e6", *options]) == 1
            printed.append(capsys.readouterr())
    assert len(seen) == 1
    assert printed[0] == printed[2]
    first, second = (json.loads(printed[each].out) for each in (1, 3))
    assert first.pop("advisories_age_s") <= second.pop("advisories_age_s")
    assert first == second
    assert main(["scan", str(image), "--max-age", "1e6", "--fail-on", "critical"]) == 0
