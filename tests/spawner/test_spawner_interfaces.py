"""The choice of JupyterLab or Jupyter Notebook: offered where servers have both, and the page that opens."""

import json
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gipfel_cluster.runtime.distributions import required_distributions
from gipfel_cluster.runtime.model import DESCRIPTION
from gipfel_spawner.form.options import OptionError, UserOptions, describe_options, read_form
from gipfel_spawner.form.page import FieldError, FormContent, render_form
from gipfel_spawner.start import placement


def runtime(folder: Path, **distributions: str) -> str:
    """Write the description of a runtime; nothing of it is started."""
    folder.mkdir()
    content = {"prefix": str(folder), "version": "1", "arch": "x86_64", "key": "k"}
    (folder / DESCRIPTION).write_text(json.dumps({**content, "distributions": distributions}))
    return str(folder)


def offered(path: str, python: str) -> bool:
    return placement.offers_notebook(path, python)


def test_notebook_is_offered_where_container_and_host_have_version_7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old, none = (
        runtime(tmp_path / "new", notebook="7.4.2"),
        runtime(tmp_path / "old", notebook="6.5.7"),
        runtime(tmp_path / "none", jupyterlab="4.4.0"),
    )
    found = {each: offered(each, f"{each}/bin/python3") for each in (new, old, none)}
    assert found == {new: True, old: False, none: False}
    # Servers without a container run with another interpreter: it must have it as well.
    monkeypatch.setattr(placement, "_installed_version", lambda: "")
    assert not offered(new, sys.executable)
    assert not offered("", sys.executable)
    monkeypatch.setattr(placement, "_installed_version", lambda: "7.5.0")
    assert offered(new, sys.executable)
    assert offered("", sys.executable)
    assert not offered(old, sys.executable)
    assert not offered("", "/opt/other/bin/python3")
    assert not offered(str(tmp_path / "absent"), sys.executable)


def test_the_form_shows_the_choice_only_where_there_is_one() -> None:
    assert 'name="interface"' not in render_form(FormContent(cluster="c"))
    chosen = FormContent(cluster="c", has_notebook=True, initial=UserOptions(interface="notebook"))
    assert '<option value="notebook" selected>Jupyter Notebook' in render_form(chosen)
    # A mistake is shown at its field, also after the administrators removed the package.
    mistake = FieldError(field="interface", message="is not installed")
    assert 'id="gipfel-interface-error"' in render_form(FormContent(cluster="c", field_error=mistake))


def test_the_extra_installs_a_version_that_the_form_offers() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (wanted,) = [each for each in project["optional-dependencies"]["notebook"] if each.startswith("notebook")]
    specifiers = {each.operator: each.version for each in Requirement(wanted).specifier}
    assert placement._is_new_enough(specifiers[">="])
    assert specifiers["<"] == "8"
    assert any("notebook" in each for each in project["optional-dependencies"]["dev"])


def test_an_interface_is_one_of_two_and_sets_the_page_that_opens() -> None:
    options = read_form({"interface": ["notebook"], "gpus": ["1"]})
    assert describe_options(options) == "1 GPU · Jupyter Notebook"
    assert placement.interface_environment(options.interface) == {"JUPYTERHUB_DEFAULT_URL": "/tree"}
    assert placement.interface_environment("lab") == {"JUPYTERHUB_DEFAULT_URL": "/lab"}
    assert placement.interface_environment("") == {}
    with pytest.raises(OptionError, match="the interface is not valid"):
        read_form({"interface": ["/evil"]})


def test_a_runtime_takes_notebook_with_it_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "notebook-7.4.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: notebook\nVersion: 7.4.2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {each.name.lower(): each.version for each in required_distributions("lab")}
    assert found["notebook"] == "7.4.2"
    assert "jupyterlab" in found
