"""The folders with which an image's own Python becomes a kernel, and the program that uses them."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import kept_runtime
import packaging
import pytest

from gipfel_cluster.runtime import kernels, start
from gipfel_cluster.runtime.build import is_current
from gipfel_cluster.runtime.distributions import SITE_PACKAGES
from gipfel_cluster.runtime.kernels import (
    VERSIONS,
    collect_kernels,
    install_kernels,
    kernel_directory_name,
    kernel_key,
)
from gipfel_cluster.runtime.model import Description, Runtime

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def quiet(_: str) -> None:
    pass


def distribution(folder: Path, name: str, version: str, *requires: str, module: str = "") -> None:
    """A distribution with one module, installed in a folder."""
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
    (metadata / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
    (folder / f"{module or name}.py").write_text(f"version = {version!r}\n")


def kept(cache: Path, version: str) -> Path:
    """A folder in the cache as a build leaves it."""
    key = kernel_key(version)
    folder = cache / f"{kernel_directory_name(version)}-{key}"
    (folder / "pack").mkdir(parents=True)
    (folder / "pack/module.py").write_text("# the same in every version\n" * 500)
    (folder / "folder.json").write_text(json.dumps({"key": key, "glibc": [2, 28]}))
    return folder


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """A runtime's folder with a kernel for this version that wants two packages."""
    top = tmp_path / "runtime" / "kernels"
    ours = top / kernel_directory_name(HERE)
    distribution(ours, "ipykernel", "7.0", "first>=2", "second", "third>=1; extra == 'docs'")
    distribution(ours, "first", "2.5", "second>=3", module="first_module")
    distribution(ours, "second", "3.1")
    (ours / "folder.json").write_text(json.dumps({"glibc": [2, 5], "modules": {"first": ["first_module"]}}))
    for name in ("gipfel", "older"):
        (top / name).mkdir()
    (top / "start.py").write_bytes(Path(start.__file__).read_bytes())
    # The one that ipykernel would bring along.
    (ours / "packaging").symlink_to(Path(packaging.__file__).parent)
    return tmp_path / "runtime"


def seen(runtime: Path, image: Path | None, code: str) -> list[str]:
    """Return what a Python without packages prints after `prepare`, with an image's packages before it."""
    program = (
        f"import runpy\nstart = runpy.run_path({str(runtime / 'kernels/start.py')!r})\n"
        f"for line in start['prepare'](): print(line)\n{code}"
    )
    environment = {"PYTHONPATH": str(image)} if image else {}
    base = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run(
        [base, "-S", "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_starts_a_kernel_is_python_of_the_oldest_version() -> None:
    ast.parse(Path(start.__file__).read_text(), feature_version=(3, 9))
    imported = {
        alias.name
        for node in ast.walk(ast.parse(Path(start.__file__).read_text()))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_the_images_packages_win_and_the_runtimes_come_last(runtime: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    distribution(image, "first", "2.0", module="first_module")
    distribution(image, "second", "9.0")
    printed = seen(
        runtime, image, "import first_module, second, sys\nprint(first_module.version, second.version)\n"
        "print(*sys.path[-2:])",
    )  # fmt: skip
    assert printed == ["2.0 9.0", f"{runtime}/kernels/{kernel_directory_name(HERE)} {runtime}/kernels/gipfel"]


def test_a_package_that_is_too_old_for_the_kernel_is_replaced_with_a_log_line(
    runtime: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    distribution(image, "first", "1.0", module="first_module")
    distribution(image, "second", "2.0")
    printed = seen(runtime, image, "import first_module, second; print(first_module.version, second.version)")
    assert printed[-1] == "2.5 3.1"
    assert sorted(printed[:-1]) == [
        "The image's first 1.0 is too old for a kernel (>=2): the runtime's 2.5 is used.",
        "The image's second 2.0 is too old for a kernel (>=3): the runtime's 3.1 is used.",
    ]


def test_an_image_with_a_complete_ipykernel_is_not_changed(runtime: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    distribution(image, "ipykernel", "5.0", "first")
    distribution(image, "first", "1.0", module="first_module")
    code = "import ipykernel, first_module; print(ipykernel.version, first_module.version)"
    assert seen(runtime, image, code) == ["5.0 1.0"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sys.implementation.name = 'pypy'", "is pypy"),
        ("sysconfig.get_config_var = lambda name: 'x86_64-linux-musl'", "uses musl"),
        ("os.confstr = lambda name: 'glibc 2.4'", "glibc 2.4 is older than 2.5"),
        ("sys.version_info = (3, 99, 0)", "The runtime has no kernel"),
    ],
)
def test_an_unsupported_python_is_reported_in_one_line(runtime: Path, change: str, said: str) -> None:
    path = str(runtime / "kernels/start.py")
    program = f"import os, runpy, sys, sysconfig\n{change}\nsys.argv = ['start.py', '--check']\n"
    program += f"runpy.run_path({path!r}, run_name='__main__')"
    base = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run([base, "-S", "-c", program], env={}, capture_output=True, text=True, timeout=60)
    problem = json.loads(done.stdout)["problem"]
    assert said in problem
    assert "\n" not in problem


def test_folders_that_are_kept_are_linked_and_not_fetched(tmp_path: Path) -> None:
    folder = kept(tmp_path / "cache", "3.9")
    told: list[str] = []
    found = collect_kernels(
        ["3.9"], cache=tmp_path / "cache", previous=tmp_path / "none", progress=told.append
    )
    assert (found, told) == ({"cp39": folder}, [])
    tree = tmp_path / "tree"
    tree.mkdir()
    install_kernels(found, tree)
    assert (tree / "kernels/cp39/pack/module.py").samefile(folder / "pack/module.py")
    assert (tree / "kernels/start.py").is_file()


@pytest.mark.parametrize("version", [(3, 9), (3, 10)])
def test_an_older_python_has_log_and_a_line_on_the_rest(tmp_path: Path, version: tuple[int, int]) -> None:
    tree = tmp_path / "tree"
    packages = tree / SITE_PACKAGES
    packages.mkdir(parents=True)
    source = Path(__file__).parents[2] / "widgets/gipfel_widgets"
    shutil.copytree(source, packages / "gipfel_widgets", ignore=shutil.ignore_patterns("__pycache__"))
    install_kernels({}, tree)
    for name in ("__init__.py", "log.py"):
        ast.parse((packages / "gipfel_widgets" / name).read_text(), feature_version=version)
    # The real one where this machine has it, else this one under its number.
    python = shutil.which("python{}.{}".format(*version))
    real = python and not subprocess.run([python, "-c", ""], capture_output=True).returncode
    program = f"import sys; sys.version_info = {(*version, 0)!r} + sys.version_info[3:]\n"
    program += "import gipfel_widgets\ngipfel_widgets.log(loss=1)\ngipfel_widgets.measure"
    done = subprocess.run(
        [python if real else sys.executable, "-I", "-c",
         f"import sys; sys.path.append({str(tree / 'kernels/older')!r})\n{program}"],
        env={"GIPFEL_RUN": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    said = "gipfel_widgets needs Python 3.11 or newer; this kernel is Python {}.{}.".format(*version)
    assert said in done.stderr.splitlines()[-1]
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["values"] == {"loss": 1}


def test_folders_of_the_runtime_that_is_replaced_serve_too(tmp_path: Path) -> None:
    previous = tmp_path / "runtime"
    (previous / "kernels").mkdir(parents=True)
    kept(tmp_path, "3.12").rename(previous / "kernels/cp312")
    found = collect_kernels(["3.12"], cache=tmp_path / "cache", previous=previous, progress=quiet)
    assert found == {"cp312": previous / "kernels/cp312"}


def test_without_a_network_one_line_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tmp_path / "cache", "3.9")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    told: list[str] = []
    found = collect_kernels(
        ["3.9", "3.10", "3.14"], cache=tmp_path / "cache", previous=tmp_path / "none", progress=told.append
    )
    assert set(found) == {"cp39"}
    assert told[-1].startswith("without kernels for an image's Python 3.10, 3.14: pip: ")
    assert not [path for path in (tmp_path / "cache").iterdir() if "building" in path.name]


def test_widgets_come_along_where_they_can_run() -> None:
    asked = {version: kernels._requirements(version) for version in VERSIONS}
    assert all(any(each.startswith("ipykernel") for each in names) for names in asked.values())
    assert not any(each.startswith("numpy") for each in asked["3.10"])
    assert {each.split(">")[0] for each in asked["3.11"]} >= {"numpy", "pyarrow", "plotly", "anywidget"}
    assert len({kernel_key(version) for version in VERSIONS}) == len(VERSIONS)


def test_markers_are_read_for_the_version_that_is_asked_for() -> None:
    found = {
        "ipykernel": {"requires_dist": ["old; python_version < '3.10'", "new; python_version >= '3.10'"]},
        "new": {},
    }
    assert kernels._closure(found, ["ipykernel>=6"], "3.9") == ({"ipykernel"}, {"old"})
    assert kernels._closure(found, ["ipykernel>=6"], "3.13") == ({"ipykernel", "new"}, set())


def test_a_runtime_with_more_kernels_than_asked_for_is_current() -> None:
    keys = {kernel_directory_name(version): kernel_key(version) for version in ("3.9", "3.11")}
    facts = {"prefix": "/p", "version": "1", "arch": "x", "key": "k", "distributions": {}}
    there = Description(**facts, kernels=keys)
    described = Description(**facts)
    assert is_current(there, described, ["3.9"])
    assert is_current(there, described, [])
    assert not is_current(there, described, ["3.9", "3.12"])
    assert not is_current(there, described.model_copy(update={"key": "another"}), [])


def test_a_cluster_of_this_machine_serves_kernels_for_images_from_its_first_start_on(tmp_path, monkeypatch):
    asked = []

    def build(folder, *, kernels, progress):
        asked.append(kernels)
        folder.mkdir(exist_ok=True)
        (folder / "runtime.json").touch()
        return Runtime.from_current_interpreter()

    monkeypatch.setattr(kept_runtime, "build_runtime", build)
    monkeypatch.setenv("GIPFEL_RUNTIME", str(tmp_path / "runtime"))
    for _ in range(2):
        kept_runtime.runtime_to_serve(quiet)
    # The second time those that are there are kept.
    assert asked == [kernels.VERSIONS, None]
