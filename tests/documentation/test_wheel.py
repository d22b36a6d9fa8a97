"""Check that one wheel is built from three directories, and that an sdist installs without Node.js."""

import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VIEWS = [path.stem for path in (ROOT / "extension/src/widgets").glob("*.tsx") if path.stem != "host"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / "extension/gipfel_extension/labextension/static/style.js").exists():
        pytest.skip("the panel is not built: make install")
    folder, tree = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("tree") / "gipfel"
    _copy_sources(tree)
    # --sdist then --wheel from it: the wheel is built in a folder without node_modules.
    subprocess.run(
        [sys.executable, "-m", "build", "-o", str(folder), str(tree)], check=True, timeout=600,
        stdout=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin", "HOME": str(folder)} | _pip_settings(),
    )  # fmt: skip
    return folder


def _copy_sources(tree: Path) -> None:
    """Copy what git tracks and what is built: in build/, other tests make images meanwhile."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, tree / name)
    for folder in ("extension/gipfel_extension/labextension", "widgets/gipfel_widgets/static"):
        shutil.copytree(ROOT / folder, tree / folder)


def _pip_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}


def test_the_wheel_holds_four_packages_panel_notebooks_and_entry_points(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    tops = {name.split("/")[0] for name in names}
    assert {"gipfel_cluster", "gipfel_spawner", "gipfel_extension", "gipfel_widgets"} <= tops
    data = [name.partition("/data/")[2] for name in names if "/data/" in name]
    assert "etc/jupyter/jupyter_server_config.d/gipfel_extension.json" in data
    assert "share/jupyter/labextensions/@gipfel/extension/package.json" in data
    assert "etc/ipython/ipython_kernel_config.json" in data
    assert "share/jupyter/gipfel/notebooks/measure-saturation.ipynb" in data
    assert not [name for name in names if name.startswith("gipfel_extension/labextension")], "shipped twice"
    assert "gipfel_extension/vetting/protocols/quick.yaml" in names
    assert "gipfel_extension/vetting/checks/probes/collective.py" in names
    for view in VIEWS:
        assert f"gipfel_widgets/static/{view}.js" in names
        assert f"gipfel_widgets/static/{view}.css" in names
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {**project["entry-points"], "console_scripts": project["scripts"]}
    read = configparser.ConfigParser(delimiters=("=",))
    read.optionxform = str  # type: ignore[assignment,method-assign] - names keep their case
    read.read_string(points)
    assert {group: dict(read[group]) for group in read.sections()} == wanted
    for group, entries in wanted.items():
        for name, value in entries.items():
            assert EntryPoint(name, value, group).load(), value
    assert wheel.stat().st_size < 4_500_000


def test_the_source_distribution_brings_the_built_panel(built):
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = archive.getnames()
    assert [name for name in names if name.endswith("labextension/static/style.js")]
    for view in VIEWS:
        assert [name for name in names if name.endswith(f"gipfel_widgets/static/{view}.js")]
    assert not [name for name in names if "node_modules" in name]


def test_panel_and_widgets_have_every_style_rule_of_the_views():
    # A bundler drops a style sheet without a word if `sideEffects` in package.json does not name it.
    static = ROOT / "extension/gipfel_extension/labextension/static"
    if not (static / "style.js").exists():
        pytest.skip("the panel is not built: make install")
    panel = "".join(path.read_text() for path in static.glob("*.js"))
    styles = ROOT / "extension/style/views"
    assert _selectors(styles / "base.css")
    for view in VIEWS:
        widget = (ROOT / f"widgets/gipfel_widgets/static/{view}.css").read_text()
        for selector in _selectors(styles / "base.css") + _selectors(styles / f"{view}.css"):
            assert selector in panel, f"{view}: rebuild the panel"
            assert _minified(selector) in widget, f"{view}: rebuild the views"


def _minified(selector: str) -> str:
    return re.sub(r"\s*([>+~,{])\s*", r"\1", selector).replace("::", ":")


def _selectors(sheet: Path) -> list[str]:
    """Return the lines that begin rules of one selector; a script has quotes and line ends in other forms."""
    return [line for line in sheet.read_text().splitlines() if re.fullmatch(r"\.[^'\"]+ \{", line)]
