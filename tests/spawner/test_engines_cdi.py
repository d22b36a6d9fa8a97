"""CDI specifications that are broken, hostile or not readable for every user."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from gipfel_cluster.edf import Edf
from gipfel_cluster.engines.devices import Hardware, default_device, host_driver, named_device
from gipfel_cluster.model import GipfelError

GOOD = """
cdiVersion: 0.6.0
kind: nvidia.com/gpu
devices:
- name: all
  containerEdits:
    deviceNodes: [{path: /dev/null}]
    hooks:
    - {hookName: createContainer, path: /bin/touch, args: [touch, HOOKED]}
"""
BROKEN = {
    "no yaml": "a: [b",
    "a tag that makes an object": "!!python/object/apply:os.system [touch HOOKED]",
    "deep": "[" * 100_000,
    "deep blocks": "- " * 100_000,
    "a number for a path": GOOD.replace("/dev/null", "3"),
    "a relative path": GOOD.replace("/dev/null", "dev/null"),
    "a nul": GOOD.replace("/dev/null", '"/dev/\\0"'),
    "no variable": GOOD + "    env: ['=x']\n",
    "long": "#" * (2 << 20),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_specification_is_an_error_if_its_device_is_requested(tmp_path, what):
    (tmp_path / "a.yaml").write_text(BROKEN[what].replace("HOOKED", str(tmp_path / "HOOKED")))
    with pytest.raises(GipfelError, match=r"a\.yaml can't be read") as error:
        named_device("nvidia.com/gpu=all", [str(tmp_path)])
    assert len(str(error.value)) < 500
    assert not (tmp_path / "HOOKED").exists()


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_specification_does_not_hide_devices_of_others(tmp_path, what):
    (tmp_path / "a.yaml").write_text(BROKEN[what])
    hardware = Hardware(cdi_directories=(str(tmp_path),), libraries=lambda: "")
    assert hardware.devices_for(Edf(name="x", path=None)).devices is None
    (tmp_path / "b.yaml").write_text(GOOD)
    given = hardware.devices_for(Edf(name="x", path=None, devices=("nvidia.com/gpu=all",)))
    assert [each.source for each in given.devices or ()] == ["/dev/null"]


def test_without_devices_no_specification_is_required(tmp_path):
    (tmp_path / "a.yaml").write_text(GOOD.replace("all", "MIG-1"))
    assert default_device("nvidia.com/gpu=all", [str(tmp_path)]) is None
    with pytest.raises(GipfelError, match=r"Choose one of nvidia\.com/gpu=MIG-1"):
        named_device("nvidia.com/gpu=all", [str(tmp_path)])


def test_the_hooks_of_a_specification_are_not_run(tmp_path):
    (tmp_path / "a.yaml").write_text(GOOD.replace("HOOKED", str(tmp_path / "HOOKED")))
    assert named_device("nvidia.com/gpu=all", [str(tmp_path)])
    assert not (tmp_path / "HOOKED").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can become another user.")
def test_specifications_without_permission_are_ignored():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        folder = Path(name, "cdi")
        (folder / "private").mkdir(parents=True, mode=0o700)
        (folder / "a.yaml").write_text(
            GOOD
            + f"    mounts: [{{hostPath: {folder}/private/libcuda.so.1,"
            + " containerPath: /usr/lib/libcuda.so.1}]\n"
        )
        (folder / "private").chmod(0o700)
        process = os.fork()
        if process == 0:
            try:
                os.setuid(65534)
                hardware = Hardware(cdi_directories=(str(folder),), libraries=lambda: "")
                seen = hardware.devices_for(Edf(name="x", path=None)).driver
                unseen = Hardware(cdi_directories=(str(folder / "private"),), libraries=lambda: "")
                os._exit(0 if (seen, unseen.devices_for(Edf(name="x", path=None)).driver) == ((), ()) else 1)
            except BaseException as error:
                sys.stderr.write(repr(error))
            finally:
                os._exit(2)
        assert os.waitpid(process, 0)[1] == 0


def test_the_driver_is_what_the_loader_knows_with_all_its_names(tmp_path):
    for name in ("libcuda.so.570.1", "libnvidia-ml.so.570.1", "libz.so.1"):
        (tmp_path / name).touch()
    for name in ("libcuda", "libnvidia-ml"):
        (tmp_path / f"{name}.so.1").symlink_to(f"{name}.so.570.1")
        (tmp_path / f"{name}.so").symlink_to(f"{name}.so.1")
    lines = [
        f"\t{each}.so.1 (libc6,x86-64) => {tmp_path}/{each}.so.1"
        for each in ("libcuda", "libnvidia-ml", "libz")
    ]
    lines.append(f"\tlibcuda.so.1 (libc6) => {tmp_path}/of-32-bits.so.1")
    which = {"nvidia-smi": str(tmp_path / "libz.so.1")}.get
    found = host_driver("\n".join(lines), machine="x86_64", which=which)
    assert [(Path(each.source).name, each.destination, each.links) for each in found] == [
        ("libcuda.so.570.1", "", ("libcuda.so", "libcuda.so.1")),
        ("libnvidia-ml.so.570.1", "", ("libnvidia-ml.so", "libnvidia-ml.so.1")),
        ("libz.so.1", "/usr/bin/nvidia-smi", ()),
    ]
    assert host_driver("\n".join(lines[1:]), machine="x86_64", which=which) == ()
