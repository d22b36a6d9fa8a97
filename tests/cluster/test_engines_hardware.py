"""The GPU driver's files and named devices in containers, with a small library that stands in for CUDA's."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from engine_containers import ENGINES, Containers
from unix_users import UnixUser

from gipfel_cluster.engines.devices import Hardware

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="Users are made by root only."),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="This machine has no C compiler."),
]

LIBRARY = "int cuInit(unsigned flags) { return 4242 + (int)flags; }\n"
#: Linked as programs of an image are: to the name that the driver gives, found by the image's own loader.
PROGRAM = "int cuInit(unsigned); int main(void) { return cuInit(0) == 4242 ? 42 : 1; }\n"
VERSION = "libcuda.so.570.1"


@pytest.fixture(scope="module")
def driver(engine_place: Path) -> Path:
    """A driver as its installer leaves it, and an image with a program that needs it."""
    folder = engine_place / "driver"
    folder.mkdir()
    (folder / "cuda.c").write_text(LIBRARY)
    (folder / "needs.c").write_text(PROGRAM)
    calls = (
        ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / VERSION, folder / "cuda.c"],
        ["-o", engine_place / "root/usr/bin/needs-cuda", folder / "needs.c", folder / VERSION],
    )
    for words in calls:
        subprocess.run(["gcc", *words], check=True)
    (folder / "libcuda.so.1").symlink_to(VERSION)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    smi = folder / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'stands in for nvidia-smi'\n")
    smi.chmod(0o755)
    subprocess.run(["chmod", "-R", "a+rX", engine_place], check=True)
    image = engine_place / "needs.sqsh"
    command = ["mksquashfs", engine_place / "root", image, "-quiet", "-no-progress", "-all-root"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def listed(driver: Path) -> str:
    kind = {"x86_64": "libc6,x86-64", "aarch64": "libc6,AArch64"}[os.uname().machine]
    lines = (f"libcuda.so.1 ({kind}) => {driver}/libcuda.so.1", f"libz.so.1 ({kind}) => /nowhere")
    return "".join(f"\t{line}\n" for line in ("2 libs found in cache", *lines))


def specification(driver: Path) -> dict[str, object]:
    """Return what nvidia-ctk writes, in short; the node is one that every machine has."""
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {
                "name": "all",
                "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/full"}]},
            }
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "OF_THE_SPECIFICATION=yes"],
            "mounts": [
                {"hostPath": f"{driver}/{VERSION}", "containerPath": f"/usr/lib/elsewhere/{VERSION}"},
                {"hostPath": f"{driver}/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi"},
            ],
        },
    }


@pytest.fixture(params=[*ENGINES])
def containers(
    request: pytest.FixtureRequest,
    engine_place: Path,
    engine_user: UnixUser,
    driver: Path,
) -> Iterator[Containers]:
    reason = ENGINES[request.param]().unavailable_reason()
    if reason:
        pytest.skip(reason)
    containers = Containers(engine_place, engine_user, request.param, str(engine_place / "needs.sqsh"))
    containers.hardware = Hardware(cdi_directories=(), libraries=lambda: listed(driver))
    yield containers
    containers.end()


def specified(containers: Containers, driver: Path, *, as_yaml: bool) -> None:
    folder = containers.scratch / "cdi"
    folder.mkdir()
    if as_yaml:
        (folder / "nvidia.yaml").write_text(yaml.safe_dump(specification(driver)))
    else:
        (folder / "nvidia.json").write_text(json.dumps(specification(driver)))
    containers.hardware = Hardware(cdi_directories=(str(folder),), libraries=lambda: "")


@pytest.mark.parametrize("image", ["needs.sqsh", "root"])
def test_a_program_of_the_image_finds_the_hosts_driver(containers, engine_place, image):
    containers.image = str(engine_place / image)
    status, _, err = containers.run("needs-cuda")
    assert status == 42, err
    assert containers.shell("ls -l /usr/lib/*/libcuda.so* >&2; touch /usr/lib/*/libcuda.so.1")[0] != 0


def test_without_a_driver_on_the_host_there_is_none(containers):
    containers.hardware = Hardware(cdi_directories=(), libraries=lambda: "")
    status, _, err = containers.run("needs-cuda")
    assert status == 127
    assert "libcuda.so.1" in err


@pytest.mark.parametrize("value", ["void", ""])
def test_the_edf_switches_the_driver_off(containers, value):
    assert containers.run("needs-cuda", env={"NVIDIA_VISIBLE_DEVICES": value})[0] == 127


def test_the_job_switches_the_driver_off(containers):
    assert containers.run("needs-cuda", environment={"NVIDIA_VISIBLE_DEVICES": "void"})[0] == 127


@pytest.mark.parametrize("as_yaml", [False, True])
def test_a_specification_says_which_files_are_the_driver(containers, driver, as_yaml):
    specified(containers, driver, as_yaml=as_yaml)
    status, out, err = containers.shell("nvidia-smi; needs-cuda")
    assert (status, out) == (42, "stands in for nvidia-smi\n"), err


def test_a_device_by_name_is_its_nodes_files_and_variables(containers, driver):
    specified(containers, driver, as_yaml=False)
    script = "ls /dev/nvidia0 /dev/fuse; echo $OF_THE_SPECIFICATION $NVIDIA_VISIBLE_DEVICES; needs-cuda"
    status, out, err = containers.shell(script, devices=["nvidia.com/gpu=all"])
    assert (status, out) == (42, "/dev/nvidia0\nyes\n"), err
    assert "/dev/fuse" in err
