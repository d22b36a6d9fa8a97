"""The cache of scans: for unchanged files, and never for those that could not be judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gipfel_cluster.image_digest import cached_digest
from gipfel_extension.cli import main
from gipfel_extension.gate.scan import targets
from gipfel_extension.gate.scan.cache import Digest, ScanCache

sys.path.insert(0, str(Path(__file__).parent))

import model_zoo as zoo
import package_images as images

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
        image.write_bytes(content.replace(b"alpine", b"debian"))
        # The same size and modification time: the change time differs.
        settled(image)
    elif how == "size":
        image.write_bytes(image.read_bytes() + bytes(512))
        settled(image)
    elif how == "replaced":
        copy = Path(f"{image}.new")
        copy.write_bytes(image.read_bytes())
        settled(copy).replace(image)
    else:
        monkeypatch.setattr("gipfel_extension.gate.scan.cache._code", lambda: "other rules")
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
        "print(sorted(each for each in sys.modules if each.startswith('gipfel_extension')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *_, status, loaded = done.stdout.splitlines()
    assert (status, "gate.scan.targets" in loaded) == ("2", True)
    readers = ("gate.scan.one_target", "gate.contents.scan", "gate.models.pickles", "gate.index_listing")
    assert not any(f"gipfel_extension.{each}'" in loaded for each in (*readers, "cli.launch"))
