"""Storage classes: where each one is configured, defaults, names below them, and wrong values."""

from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.storage_classes import CLASS_NAMES, StorageClasses, node_stores, resolve_path


def _directories(environment: dict[str, str]) -> dict[str, Path | None]:
    classes = StorageClasses.load(environment)
    return {name: classes.directory(name, environment) for name in CLASS_NAMES}


def test_variables_come_before_the_users_file_and_that_before_the_sites(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(
        "fast: /local/$USER\nshared: {directory: /scratch/$USER, kubernetes: cephfs}\nkeep: /store\n"
    )
    home = tmp_path / "home"
    (home / ".gipfel").mkdir(parents=True)
    (home / ".gipfel" / "storage.yaml").write_text("keep: ~/kept\n")
    environment = {"HOME": str(home), "USER": "me", "GIPFEL_STORAGE": str(site)}
    assert _directories(environment) == {
        "fast": Path("/local/me"),
        "shared": Path("/scratch/me"),
        "keep": home / "kept",
    }
    environment["GIPFEL_STORAGE_SHARED"] = "/other"
    found = StorageClasses.load(environment)
    assert (found.shared.directory, found.shared.kubernetes) == ("/other", "cephfs")
    assert found.origins["shared"] == "GIPFEL_STORAGE_SHARED"
    assert node_stores(environment)["nvme"].parent == Path("/local/me")


def test_a_workstation_needs_no_configuration(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    assert _directories(environment)["keep"] == _directories(environment)["shared"] == tmp_path
    assert _directories({**environment, "SCRATCH": "/scratch/me"})["shared"] == Path("/scratch/me")
    assert resolve_path("keep:runs/7", environment) == str(tmp_path / "runs/7")
    assert resolve_path("/a/keep:b", environment) == "/a/keep:b"


def test_wrong_values_are_named_with_their_place(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    environment = {"HOME": str(tmp_path), "GIPFEL_STORAGE": str(site)}
    for text, words in (
        ("fast: /a\nkeeep: /b\n", "line 2: 'keeep' is not a known key"),
        ("fast: relative\n", "line 1: fast.directory"),
        ("fast: 7\n", "line 1"),
        ('fast: "/a\\nb"\n', "line break"),
    ):
        site.write_text(text)
        with pytest.raises(GipfelError, match=words):
            StorageClasses.load(environment)
    site.unlink()
    with pytest.raises(GipfelError, match="can't be read"):
        StorageClasses.load(environment)
    own = {"HOME": str(tmp_path), "GIPFEL_STORAGE_KEEP": "$NONE/x"}
    with pytest.raises(GipfelError, match=r"\$NONE is not set"):
        resolve_path("keep:a", own)
    with pytest.raises(GipfelError, match="leads out"):
        resolve_path("keep:../a", own)
    with pytest.raises(GipfelError, match="not a directory"):
        StorageClasses.load({**own, "GIPFEL_STORAGE_KEEP": "relative"})
