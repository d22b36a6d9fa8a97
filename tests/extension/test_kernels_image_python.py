"""Choice of the Python of an image that becomes a kernel, and its names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

from gipfel_cluster.runtime.kernels import install_kernels
from gipfel_extension.kernels import check_python, find_image_python, offer_image_kernel, rank_kernel

OLD = "#!/bin/sh\ncase \"$1\" in -c) echo 3.6;; *) echo 'SyntaxError' >&2; exit 1;; esac\n"


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """A mounted runtime whose packages for this version are this environment's."""
    folder = tmp_path / "runtime"
    packages = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    packages.mkdir(parents=True)
    (packages / "site-packages").symlink_to(Path(sys.prefix) / packages.relative_to(folder) / "site-packages")
    install_kernels({}, folder)
    (folder / "bin").mkdir()
    program(folder / "bin/python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    own = folder / "share/jupyter/kernels/python3"
    own.mkdir(parents=True)
    (own / "kernel.json").write_text(json.dumps({"display_name": "Python (Gipfel)", "argv": ["x"]}))
    return folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image's folder of programs."""
    folder = tmp_path / "image/bin"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def environment(tmp_path: Path, image: Path) -> dict[str, str]:
    run = tmp_path / "run"
    run.mkdir()
    (run / "record.json").write_text(json.dumps({"edf": {"name": "torch-25"}}))
    return {
        "GIPFEL_ENGINE": "bubblewrap",
        "GIPFEL_RUN": str(run),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "j"),
        "PATH": f"{tmp_path}/nowhere:{image}",
    }


def specifications(environment: dict[str, str]) -> dict[str, dict[str, object]]:
    folder = environment["JUPYTER_PATH"].split(os.pathsep)[0]
    return {path.parent.name: json.loads(path.read_text()) for path in Path(folder).glob("kernels/*/*.json")}


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def plain_python(path: Path) -> None:
    """A Python without packages, as an image's."""
    base = getattr(sys, "_base_executable", sys.executable)
    program(path, f'#!/bin/sh\nexec {base} -S "$@"\n')


def test_the_first_python_on_the_path_is_found_and_never_the_runtimes(runtime: Path, image: Path) -> None:
    path = f"{runtime}/bin:relative:{image}"
    assert find_image_python(path, runtime) is None
    plain_python(image / "python")
    assert find_image_python(path, runtime) == f"{image}/python"
    plain_python(image / "python3")
    assert find_image_python(path, runtime) == f"{image}/python3"


def test_image_kernel_is_python3_and_the_runtimes_is_renamed(
    runtime: Path, image: Path, environment: dict[str, str]
) -> None:
    plain_python(image / "python3")
    assert offer_image_kernel(environment, runtime=runtime) == ""
    found = specifications(environment)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert {name: each["display_name"] for name, each in found.items()} == {
        "python3": f"Python {version} (torch-25)",
        "gipfel": "Python (Gipfel)",
    }
    assert found["python3"]["argv"] == [
        f"{image}/python3", f"{runtime}/kernels/start.py", "-f", "{connection_file}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"GIPFEL_ENGINE": "host"}, {"PATH": "/nowhere"}, {"JUPYTER_RUNTIME_DIR": ""}]
)
def test_outside_of_containers_nothing_changes(
    runtime: Path, image: Path, environment: dict[str, str], change: dict[str, str]
) -> None:
    plain_python(image / "python3")
    environment |= change
    before = dict(environment)
    assert offer_image_kernel(environment, runtime=runtime) == ""
    assert environment == before


def test_too_old_python_reports_its_version_and_the_reason(
    runtime: Path, image: Path, environment: dict[str, str]
) -> None:
    found = check_python(str(program(image / "python3", OLD)), runtime / "kernels/start.py")
    assert (found.version, found.problem) == (
        "3.6", "The image's Python 3.6 is too old for the runtime's kernels.",
    )  # fmt: skip
    assert offer_image_kernel(environment, runtime=runtime) == found.problem
    assert list(specifications(environment)) == ["image"]


def test_python_that_does_not_run_is_reported(runtime: Path, image: Path) -> None:
    broken = program(image / "python3", "#!/nowhere/python\n")
    assert (
        check_python(str(broken), runtime / "kernels/start.py").problem
        == f"The image's {broken} does not run."
    )


def test_unusable_kernel_answers_every_cell_with_the_reason(
    runtime: Path, image: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program(image / "python3", OLD)
    problem = offer_image_kernel(environment, runtime=runtime)
    monkeypatch.setenv("JUPYTER_PATH", environment["JUPYTER_PATH"])
    manager = KernelManager(kernel_name="image", transport="ipc")
    manager.start_kernel(stderr=subprocess.DEVNULL)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        reply = client.execute("1 + 1", reply=True, timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert (reply["content"]["status"], reply["content"]["evalue"]) == ("error", problem)


def test_ranks_without_ipykernel_are_served_as_images_are(runtime: Path, image: Path) -> None:
    plain_python(image / "python3")
    python = str(image / "python3")
    argv, problem = rank_kernel(python, runtime)
    assert (argv[:2], problem) == ((python, f"{runtime}/kernels/start.py"), "")
    argv, problem = rank_kernel(python, Path(sys.prefix))
    assert not argv
    assert problem == f"The ranks' Python {python} can't be the kernel of rank 0: it has no ipykernel."
    argv, _ = rank_kernel(sys.executable, runtime)
    assert argv[1:3] == ("-m", "ipykernel_launcher")
