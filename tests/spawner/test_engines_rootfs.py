import os

import pytest

from gipfel_cluster.engines.sandbox.rootfs import Layers, write_identity
from gipfel_cluster.namespaces import SandboxError


@pytest.fixture
def layers(tmp_path):
    lower = tmp_path / "lower"
    (lower / "usr/lib").mkdir(parents=True)
    (lower / "private").mkdir(mode=0o750)
    (lower / "etc").mkdir()
    (lower / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nme:x:7:7::/old:/bin/sh\n")
    (lower / "lib").symlink_to("usr/lib")
    (lower / "var").mkdir()
    (lower / "var/run").symlink_to("/run")
    (lower / "out").symlink_to("../../../etc")
    (lower / "round").symlink_to("about")
    (lower / "about").symlink_to("round")
    (tmp_path / "upper").mkdir()
    return Layers(str(lower), str(tmp_path / "upper"))


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/", "/"),
        ("/lib/x", "/usr/lib/x"),
        ("/var/run/a/b", "/run/a/b"),
        ("/out/x", "/etc/x"),
        ("/../a//b/.", "/a/b"),
    ],
)
def test_links_are_followed_inside_the_image(layers, path, resolved):
    assert layers.resolve(path) == resolved


def test_a_circle_of_links_is_an_error(layers):
    with pytest.raises(SandboxError):
        layers.make_directory("/round/x")


def test_folders_are_made_above_with_the_mode_of_those_below(layers, tmp_path):
    assert layers.make_directory("/lib/deep/er") == "/usr/lib/deep/er"
    assert (tmp_path / "upper/usr/lib/deep/er").is_dir()
    assert not (tmp_path / "lower/usr/lib/deep").exists()
    layers.make_directory("/private/x")
    assert (tmp_path / "upper/private").stat().st_mode & 0o777 == 0o750


def test_a_file_and_a_folder_do_not_replace_each_other(layers, tmp_path):
    with pytest.raises(SandboxError):
        layers.make_directory("/etc/passwd/x")
    with pytest.raises(SandboxError):
        layers.make_file("/usr/lib")
    layers.make_file("/etc/passwd")
    assert not (tmp_path / "upper/etc/passwd").exists()
    layers.make_file("/new/file")
    assert (tmp_path / "upper/new/file").read_bytes() == b""


def test_the_user_has_one_line_and_the_others_keep_theirs(layers, tmp_path):
    unknown = 3_000_000_000
    write_identity(layers, unknown, unknown, "/home/me", "me")
    assert (tmp_path / "upper/etc/passwd").read_text().splitlines() == [
        f"me:x:{unknown}:{unknown}::/home/me:/bin/sh",
        "root:x:0:0:root:/root:/bin/sh",
    ]
    write_identity(layers, unknown, unknown, "/a:b\nroot", "no:good\n")
    assert (tmp_path / "upper/etc/passwd").read_text().startswith(f"user{unknown}:x:{unknown}:{unknown}::/:")
    assert os.listdir(tmp_path / "lower/etc") == ["passwd"]
