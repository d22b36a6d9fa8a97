"""A reduced, seeded run of damaged files, decompression bombs and cyclic archives through the scanner."""

import gzip
import io
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import package_images as images
import pytest
import scanning

from gipfel_extension.gate.advisories.mirror import Mirror
from gipfel_extension.gate.contents.scan import ContentScan
from gipfel_extension.gate.model import Package
from gipfel_extension.gate.scan.targets import scan_targets


def test_damaged_files_never_raise_hang_or_run(tmp_path):
    files = scanning.good_files(tmp_path / "good")
    osv = images.mirror(tmp_path / "osv", images.advisory("A", "PyPI", "x", {"introduced": "0"}))
    wrong = list(scanning.scan_damaged(files, tmp_path / "draws", seed=17, draws=600, advisories=osv))
    assert wrong == []
    assert not scanning.CANARY.exists()


def test_a_damaged_mirror_never_raises(tmp_path):
    package = Package(ecosystem="PyPI", name="x", version="1", path="p")
    archive = images.mirror(tmp_path, images.advisory("A", "PyPI", "x", {"introduced": "0"})) / "PyPI/all.zip"
    content = archive.read_bytes()
    draw = scanning.random.Random(3)
    silent = 0
    for _ in range(300):
        archive.write_bytes(scanning.damaged(content, draw))
        mirror = Mirror(tmp_path)
        silent += not mirror.vulnerabilities([package]) and not mirror.not_judged
    # A checksum covers each record, so that no damage turns the advisory into none.
    assert silent == 0


def layered(tmp_path: Path, layer: bytes) -> ContentScan:
    """Scan an archive with this layer."""
    path = images.oci_archive(tmp_path / "image.tar", [{"placeholder": b""}])
    with tarfile.open(path) as archive:
        members = {each.name: archive.extractfile(each).read() for each in archive.getmembers()}
    members["blobs/sha256/l0"] = layer
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return ContentScan(path, image=True)


def test_a_member_that_is_larger_than_its_archive_ends_the_scan(tmp_path):
    info = tarfile.TarInfo("x.pkl")
    info.size = 1 << 62
    path = tmp_path / "x.tar"
    path.write_bytes(info.tobuf(format=tarfile.GNU_FORMAT) + b"0123456789")
    began = time.process_time()
    document = scan_targets([path], advisories=None, max_age_s=1.0)
    assert document.exit_status("high") == 2
    assert time.process_time() - began < 5


def test_a_member_that_claims_a_terabyte_is_refused_at_once(tmp_path):
    info = tarfile.TarInfo("huge")
    info.size = 1 << 40
    started = time.monotonic()
    scan = layered(tmp_path, gzip.compress(info.tobuf() + bytes(10_000)))
    assert "too much for its size" in scan.not_judged[0]
    assert time.monotonic() - started < 20


def test_a_layer_that_is_cut_off_is_not_judged(tmp_path):
    info = tarfile.TarInfo("a.pkl")
    info.size = 100_000
    scan = layered(tmp_path, gzip.compress(info.tobuf() + b"x" * 1000))
    assert scan.not_judged or scan.items[0].verdict == "not understood"


def test_an_index_that_refers_to_itself_is_not_judged(tmp_path):
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("index.json", "blobs/sha256/m"):
            content = b'{"manifests": [{"digest": "sha256:m"}]}'
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    document = scan_targets([path], advisories=None, max_age_s=1.0)
    assert document.exit_status("high") == 2


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")
def test_an_image_that_unpacks_to_too_much_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("gipfel_extension.gate.contents.entries._UNSUSPICIOUS_BYTES", 10 << 20)
    root = images.put(tmp_path / "root", {"etc/os-release": "ID=debian\nVERSION_ID=12\n"})
    with (root / "sparse").open("wb") as file:
        file.truncate(11 << 20)
    image = tmp_path / "image.sqsh"
    subprocess.run(["mksquashfs", str(root), str(image), "-quiet", "-no-progress"], check=True)
    assert image.stat().st_size < 1 << 20
    assert "too much for its size" in ContentScan(image, image=True).not_judged[0]
