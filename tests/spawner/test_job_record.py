"""The digest of an image in a run's record: of its content, computed once, beside the job."""

import hashlib
import os
from pathlib import Path

import pytest

from gipfel_cluster.edf import Edf
from gipfel_cluster.image_digest import DIGESTS, BackgroundDigest
from gipfel_cluster.job.record import image_identity
from gipfel_cluster.runs import user_cache

SECONDS = 60


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return user_cache(DIGESTS, {"HOME": str(tmp_path)})


def edf(image: Path | str) -> Edf:
    return Edf(name="e", path=None, image=str(image))


def computed(image: Path, cache: Path, **options: float) -> tuple[str | None, int]:
    """Return what the thread finds, and how often it says so."""
    identity = image_identity(edf(image), cache)
    said: list[None] = []
    digest = BackgroundDigest(identity, cache, lambda: said.append(None), delay_s=0, **options)
    digest.wait(SECONDS)
    digest.stop()
    return identity["digest"], len(said)


def test_images_with_different_content_have_different_digests(tmp_path, cache):
    # Superblock, size and time are the same, as of images that are made reproducibly.
    images = [tmp_path / "a.sqsh", tmp_path / "b.sqsh"]
    for image, byte in zip(images, (b"a", b"b"), strict=True):
        image.write_bytes(b"hsqs" + b"0" * (3 << 20) + byte)
        os.utime(image, (1, 1))
        assert image_identity(edf(image), cache)["digest"] is None
        assert computed(image, cache) == (f"sha256:{hashlib.sha256(image.read_bytes()).hexdigest()}", 1)


def test_the_digest_of_an_unchanged_file_is_computed_once(tmp_path, cache):
    image = tmp_path / "a.sqsh"
    image.write_bytes(b"first")
    first, _ = computed(image, cache)
    # Known when the next job starts, and nothing is left to compute.
    assert image_identity(edf(image), cache)["digest"] == first
    assert computed(image, cache) == (first, 0)
    link = tmp_path / "link.sqsh"
    link.symlink_to(image)
    assert image_identity(edf(link), cache)["digest"] == first
    assert (cache.stat().st_mode & 0o777, len(list(cache.iterdir()))) == (0o700, 1)
    # Another content of the same length and time.
    about = image.stat()
    image.write_bytes(b"other")
    os.utime(image, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert image_identity(edf(image), cache)["digest"] is None
    assert computed(image, cache)[0] != first
    next(cache.iterdir()).write_text("[" * 100_000)
    assert image_identity(edf(image), cache)["digest"] is None


def test_the_digest_stops_with_the_job_and_at_its_time_limit(tmp_path, cache):
    image = tmp_path / "a.sqsh"
    with image.open("wb") as file:
        file.truncate(4 << 30)
    identity = image_identity(edf(image), cache)
    digest = BackgroundDigest(identity, cache, pytest.fail, delay_s=0, bytes_per_s=1 << 20)
    digest.stop()
    digest.wait(SECONDS)
    assert identity["digest"] is None
    assert computed(image, cache, limit_s=0.01) == (None, 0)
    assert not cache.exists()


def test_images_without_a_digest(tmp_path, cache):
    name = f"ghcr.io/a/b@sha256:{'0' * 64}"
    assert image_identity(edf(name), cache)["digest"] == f"sha256:{'0' * 64}"
    assert image_identity(edf("ubuntu:24.04"), cache)["digest"] is None
    assert image_identity(edf(tmp_path), cache)["digest"] is None
    assert image_identity(edf(tmp_path / "none"), cache) == {"path": f"{tmp_path}/none", "digest": None}
    assert image_identity(None, cache) is None
    os.mkfifo(tmp_path / "pipe")
    assert computed(tmp_path / "pipe", cache) == (None, 0)
