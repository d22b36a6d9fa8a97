"""Images and mounts checked on this machine, without entering them."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

from gipfel_cluster.edf import Edf, Mount, check_edf, check_local
from gipfel_cluster.edf.check import missing_checks
from gipfel_cluster.edf.image import (
    can_run,
    image_architecture,
    image_contains,
    image_environment,
    oci_entry_point,
)
from gipfel_cluster.edf.mounts import reference_problem

MACHINES = {"x86_64": 62, "aarch64": 183, "riscv64": 243}


@pytest.fixture(params=["folder", "squashfs"])
def make(request, tmp_path):
    """Packs an unpacked image, or leaves it as it is."""

    def pack():
        if request.param == "folder":
            return tmp_path / "image"
        try:
            subprocess.run(
                ["mksquashfs", tmp_path / "image", tmp_path / "i.sqsh", "-quiet"], check=True, stdout=-3
            )
        except FileNotFoundError:
            pytest.skip("mksquashfs is not installed")
        return tmp_path / "i.sqsh"

    (tmp_path / "image/usr/bin").mkdir(parents=True)
    (tmp_path / "image/work").mkdir()
    return pack


def program(folder, machine):
    """The beginning of an ELF program for a machine, little-endian, 64 bits."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, MACHINES[machine]) + bytes(44)
    (folder / "image/usr/bin/dash").write_bytes(head)
    (folder / "image/usr/bin/bash").symlink_to("dash")


def codes(image, machine="x86_64", **more):
    edf = Edf(name="x", path=None, image=str(image), **more)
    return [(each.code, each.severity) for each in check_local(edf, machine=machine)]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_architecture_is_read_from_a_program(make, tmp_path, machine):
    program(tmp_path, machine)
    image = make()
    assert image_architecture(image) == machine
    assert not codes(image, machine)
    assert not list(missing_checks(Edf(name="x", path=None, image=str(image))))


def test_an_image_for_another_machine_is_refused_by_name(make, tmp_path):
    program(tmp_path, "aarch64")
    edf = Edf(name="x", path=None, image=str(make()))
    (error,) = check_local(edf, machine="x86_64")
    assert error.code == "architecture"
    assert "aarch64" in error.message
    assert "x86_64" in error.message


def test_missing_checks_are_warnings(make, tmp_path):
    image = make()
    assert not codes(image)
    (tmp_path / "x.toml").write_text(f'image = "{image}"')
    checked = check_edf("./x.toml", environment={}, directory=tmp_path, here=True)
    assert [each.code for each in checked.diagnostics] == ["architecture-unknown"]
    assert checked.edf


def test_some_machines_run_programs_of_others():
    assert can_run("x86_64", "i386")
    assert can_run("arm64", "aarch64")
    assert not can_run("aarch64", "x86_64")


def test_a_working_folder_is_in_the_image_or_mounted(make, tmp_path):
    image = make()
    (tmp_path / "data/sub").mkdir(parents=True)
    mounts = (Mount(source=str(tmp_path / "data"), destination="/data"),)
    assert not codes(image, workdir="/work")
    assert not codes(image, workdir="/usr/bin", mounts=mounts)
    assert not codes(image, workdir="/")
    assert not codes(image, workdir="/data/sub", mounts=mounts)
    assert codes(image, workdir="/data/none", mounts=mounts) == [("workdir", "warning")]
    assert codes(image, workdir="/none", mounts=mounts) == [("workdir", "warning")]
    assert codes(image, workdir="/wor*") == [("workdir", "warning")]


def test_a_link_in_an_unpacked_image_does_not_lead_out_of_it(tmp_path):
    (tmp_path / "image/usr/bin").mkdir(parents=True)
    (tmp_path / "image/usr/bin/dash").symlink_to("/bin/sh")
    (tmp_path / "image/etc").symlink_to("/etc")
    assert image_architecture(tmp_path / "image") is None
    assert image_environment(tmp_path / "image") == {}


def as_nobody(check):
    """Return whether a check holds in a process that is not root."""
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os._exit(0 if check() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_source_that_can_not_be_read():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        for mode, file in ((0o644, "open"), (0o200, "closed")):
            with open(f"{name}/{file}", "w", opener=lambda path, flags: os.open(path, flags, 0o600)):
                os.chmod(f"{name}/{file}", mode)
        os.mkdir(f"{name}/folder", 0o600)

        def sources():
            mounts = tuple(
                Mount(source=f"{name}/{each}", destination=f"/{each}") for each in os.listdir(name)
            )
            found = check_local(Edf(name="x", path=None, mounts=mounts))
            wrong = {mounts[int(each.key[len("mounts[") : -1])].destination for each in found}
            return wrong == {"/closed", "/folder"} and all(
                "can't be read by you" in each.message for each in found
            )

        assert as_nobody(sources)


@pytest.mark.parametrize(
    "reference",
    [
        *("ubuntu", "ubuntu:24.04", "library/ubuntu", "nvcr.io#nvidia/pytorch:25.11-py3"),
        *("nvcr.io/nvidia/pytorch:25.11-py3", "user@nvcr.io#nvidia/pytorch", "localhost:5000/a/b:c"),
        *("$oauthtoken@nvcr.io#a/b", "ubuntu@sha256:" + "a" * 64, "a__b/c-d.e:F_1"),
    ],
)
def test_a_well_formed_reference(reference):
    assert reference_problem(reference) == ""


@pytest.mark.parametrize(
    ("reference", "word"),
    [
        ("docker://ubuntu", "docker://"),
        ("Ubuntu", "small letters"),
        ("ubuntu:24 04", "tag"),
        ("ubuntu:", "tag"),
        ("a b#ubuntu", "registry"),
        ("#ubuntu", "registry"),
        ("@ubuntu", "user"),
        ("ubuntu@sha256:12", "digest"),
        ("a//b", "image"),
        ("x" * 300, "image"),
    ],
)
def test_a_reference_that_no_registry_has(reference, word):
    assert word in reference_problem(reference)
    assert codes(reference) == [("reference", "error")]


def test_the_variables_that_every_kind_of_image_keeps(make, tmp_path):
    for name, text in (
        (".singularity.d/env/10-docker2singularity.sh", 'export A="${A:-"1"}"\nexport B="1"\nexport C="1"\n'),
        ("ch/environment", "B=2\nC=2\n"),
        ("etc/environment", "C=3\n"),
    ):
        (tmp_path / "image" / name).parent.mkdir(parents=True)
        (tmp_path / "image" / name).write_text(text)
    assert image_environment(make()) == {"A": "1", "B": "2", "C": "3"}


def test_the_oci_configuration_of_an_unpacked_bundle(tmp_path):
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    (tmp_path / "config.json").write_text(json.dumps({"process": {"env": ["A=oci=1", "B=oci", "bad"]}}))
    (tmp_path / "rootfs/etc/environment").write_text("B=file\n")
    assert image_environment(tmp_path / "rootfs") == {"A": "oci=1", "B": "file"}


def test_the_oci_configuration_of_an_image_layout(tmp_path):
    def blob(name, content):
        (tmp_path / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (tmp_path / "blobs/sha256" / (name * 64)).write_text(json.dumps(content))
        return {"digest": f"sha256:{name * 64}"}

    config = blob("c", {"config": {"Env": ["PATH=/oci"]}})
    manifest = blob("a", {"config": config})
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [manifest]}))
    assert image_environment(tmp_path) == {"PATH": "/oci"}


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"process": 1}', '{"process": {"env": 1}}', '{"manifests": [{"digest": "../x"}]}'],
)
def test_a_broken_oci_configuration_is_none(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "index.json").write_text(content)
    assert image_environment(tmp_path) == {}


def _layout(folder, configuration):
    def blob(name, content):
        (folder / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (folder / "blobs/sha256" / (name * 64)).write_text(json.dumps(content))
        return {"digest": f"sha256:{name * 64}"}

    manifest = blob("a", {"config": blob("c", {"config": configuration})})
    (folder / "index.json").write_text(json.dumps({"manifests": [manifest]}))


@pytest.mark.parametrize(
    "link", ["index.json", "blobs", "blobs/sha256", "config.json", "etc", "etc/environment"]
)
@pytest.mark.parametrize("way", ["absolute", "upwards"])
def test_a_link_in_an_image_leads_to_no_file_of_the_host(tmp_path, link, way):
    secret, image = tmp_path / "host", tmp_path / "image"
    for folder in (secret, image):
        (folder / "etc").mkdir(parents=True)
        _layout(folder, {"Env": ["A=oci"], "Entrypoint": ["secret"]})
    (secret / "etc/environment").write_text("B=secret\n")
    (secret / "config.json").write_text(json.dumps({"process": {"env": ["C=secret"]}}))
    target = secret / link
    if way == "upwards":
        target = Path("../" * 30 + str(target).lstrip("/"))
    (image / link).unlink(missing_ok=True) if not (image / link).is_dir() else shutil.rmtree(image / link)
    (image / link).symlink_to(target)
    assert "secret" not in image_environment(image).values()
    assert (oci_entry_point(image) == ()) == link.startswith(("index", "blobs"))
    (image / link).unlink()
    shutil.copytree(secret / link, image / link) if (secret / link).is_dir() else shutil.copy(
        secret / link, image / link
    )
    assert image_environment(image)


def test_links_of_an_image_lead_to_places_in_it(tmp_path):
    (tmp_path / "usr/etc").mkdir(parents=True)
    (tmp_path / "usr/etc/environment").write_text("A=1\n")
    for target in ("/usr/etc", "usr/etc", "../../usr/etc"):
        (tmp_path / "etc").symlink_to(target)
        assert image_environment(tmp_path) == {"A": "1"}, target
        assert image_contains(tmp_path, "etc/environment")
        assert not image_contains(tmp_path, "etc/passwd")
        (tmp_path / "etc").unlink()
    (tmp_path / "etc").symlink_to("etc")
    assert image_environment(tmp_path) == {}


@pytest.mark.parametrize("kind", ["pipe", "huge"])
def test_what_is_no_table_of_variables_is_not_waited_for(tmp_path, kind):
    (tmp_path / "etc").mkdir()
    for name in ("etc/environment", "index.json", "config.json"):
        if kind == "pipe":
            os.mkfifo(tmp_path / name)
        else:
            with open(tmp_path / name, "wb") as file:
                file.truncate(1 << 40)
    assert image_environment(tmp_path) == {}


@pytest.mark.parametrize("odd", ["a\0b", "\ud800"])
def test_what_no_process_can_be_given_is_left_out_of_a_configuration(tmp_path, odd):
    _layout(tmp_path, {"Env": [f"A={odd}", "B=1"], "Entrypoint": ["sh", odd]})
    assert image_environment(tmp_path) == {"B": "1"}
    assert oci_entry_point(tmp_path) == ()


def test_this_machine_is_no_image_by_whatever_name(tmp_path):
    (tmp_path / "link").symlink_to("/")
    for image in ("/proc/self/root", str(tmp_path / "link"), "/usr/.."):
        (found,) = check_local(Edf(name="x", path=None, image=image))
        assert (found.code, "is this machine itself" in found.message) == ("image", True)
