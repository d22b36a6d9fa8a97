"""Dependencies in notebooks, ``Pipfile.lock`` and ``yarn.lock``."""

import json
import re
from pathlib import Path

import pytest

from gipfel_extension.cli import main
from gipfel_extension.gate.dependencies import dependency_findings
from gipfel_extension.gate.package_index import PackageIndex


def rules(name: str, text: str) -> set[str]:
    return {each.rule for each in dependency_findings(name, text.encode())}


def _write_notebook(path: Path, *cells: str, output: str = "") -> Path:
    outputs = [{"output_type": "stream", "name": "stdout", "text": [output]}] if output else []
    found = [
        {"cell_type": "code", "source": each.splitlines(keepends=True), "outputs": outputs} for each in cells
    ]
    path.write_text(json.dumps({"cells": found, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


@pytest.mark.parametrize(
    ("cell", "rules"),
    [
        ("!pip install torhc==1.0 acme-core==1", {"similar-name"}),
        ("!pip install --extra-index-url https://a/simple acme-core==1", {"extra-index", "own-name"}),
        ("x = 1\n!pip install -i http://a/simple numpy==1", {"insecure-index"}),
        ("%pip install --extra-index-url https://a/simple \\\n  torch", {"extra-index", "unpinned-install"}),
        ("%%bash\npip install torch\ncurl https://a | sh", {"unpinned-install", "piped-script"}),
        ("lines = !uv pip install numpy", {"unpinned-install"}),
        ("!conda install numpy", {"unpinned-install"}),
        ("!pip install numpy==1\n# !pip install torch\nx = 'pip install torch'\n%time f()", set()),
    ],
)
def test_shell_lines_of_notebooks_are_judged_like_set_up_steps(cell, rules, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GIPFEL_OWN_PACKAGES", "acme-*")
    for name in ("a.ipynb", "a.json"):
        notebook = _write_notebook(tmp_path / name, "1", cell)
        serious = bool(rules - {"unpinned-install"})
        assert main(["scan", "--no-cache", str(notebook), "--json"]) == serious
        document = json.loads(capsys.readouterr().out)
        (item,) = document["items"]
        assert {each["rule"] for each in item["findings"]} == rules
        # Without a mirror, whether the own name is public is not known, and this is said.
        assert any("own packages" in line for line in document["not_scanned"]) == ("acme" in cell)
        assert all(each["message"].startswith("cell 2: ") and each["fix"] for each in item["findings"])
    if "torhc" in cell:
        steps = dependency_findings("a.setup", cell[1:].encode(), PackageIndex(None, ["acme-*"]))
        assert [each["fix"] for each in item["findings"]] == [each.fix for each in steps]


def test_secrets_in_cells_and_outputs_of_notebooks_are_found(tmp_path, capsys):
    token = "hf_" + "aB3" * 12
    for cell, output in ((f"login('{token}')", ""), ("print(token)", token), ("print(1)", "1")):
        notebook = _write_notebook(tmp_path / "a.ipynb", cell, output=output)
        assert main(["scan", "--no-cache", str(notebook), "--json"]) == (token in cell + output)
        shown = capsys.readouterr().out
        assert ('"secret"' in shown) == (token in cell + output)
        assert token not in shown


_PIPFILE = {
    "_meta": {"sources": [{"name": "site", "url": "https://pypi.site/simple", "verify_ssl": True}]},
    "default": {
        "numpy": {"hashes": ["sha256:1"], "version": "==1.0"},
        "x": {"git": "https://a/x", "ref": "1"},
    },
    "develop": {},
}
_PIPFILE_TEXT = json.dumps(_PIPFILE, indent=4)
_YARN_TEXT = """# yarn lockfile v1


"@acme/x@^1.0", "@acme/x@^1.1":
  version "1.1.0"
  resolved "https://npm.site/@acme/x/-/x-1.1.0.tgz#%s"
  integrity sha512-1
  dependencies:
    y "^1.0"

y@^1.0:
  version "1.0.0"
  resolved "https://npm.site/y/-/y-1.0.0.tgz"
  integrity sha512-2
""" % ("a" * 40)
_BERRY_TEXT = """__metadata:
  version: 8

"alias@npm:@acme/x@^1":
  version: 1.1.0
  resolution: "@acme/x@npm:1.1.0"
  checksum: 10/1
  languageName: node

"mac@npm:1":
  version: 1.0.0
  resolution: "mac@npm:1.0.0"
  conditions: os=darwin

"own@workspace:.":
  version: 0.0.0-use.local
  resolution: "own@workspace:."
"""
_PUBLIC_NPM = "https://registry" + ".yarnpkg.com"


@pytest.mark.parametrize(
    ("name", "text", "rules"),
    [
        ("Pipfile.lock", _PIPFILE_TEXT, set()),
        ("Pipfile.lock", _PIPFILE_TEXT.replace("https://pypi", "http://pypi"), {"insecure-index"}),
        ("Pipfile.lock", _PIPFILE_TEXT.replace("true", "false"), {"insecure-index"}),
        ("Pipfile.lock", _PIPFILE_TEXT.replace('"sha256:1"', ""), {"no-hashes"}),
        ("Pipfile.lock", _PIPFILE_TEXT.replace("numpy", "nunpy"), {"similar-name"}),
        (
            "Pipfile.lock",
            _PIPFILE_TEXT.replace("pypi.site", "pypi" + ".org").replace("numpy", "acme-x"),
            {"own-name"},
        ),
        ("yarn.lock", _YARN_TEXT, set()),
        ("yarn.lock", _YARN_TEXT.replace("https://", "http://"), {"insecure-index"}),
        ("yarn.lock", _YARN_TEXT.replace("integrity", "other"), {"no-hashes"}),
        ("yarn.lock", _YARN_TEXT.replace("https://npm.site", _PUBLIC_NPM), {"own-name"}),
        ("yarn.lock", _BERRY_TEXT, set()),
        ("yarn.lock", _BERRY_TEXT.replace("checksum", "other"), {"no-hashes"}),
        ("yarn.lock", _BERRY_TEXT.replace("mac@npm:1.0.0", "mac@http://a/mac.tgz"), {"insecure-index"}),
    ],
)
def test_lock_files_of_pipenv_and_yarn_are_read(name, text, rules):
    found = dependency_findings(name, text.encode(), PackageIndex(None, ["acme-*", "@acme/*"]))
    assert {each.rule for each in found} == rules
    assert all(each.fix for each in found)
    for each in found:
        if each.rule != "insecure-index":
            assert re.match(r"Line [1-9]", each.message), each


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, text) for name in ("Pipfile.lock", "yarn.lock") for text in ("{}", "[1]", "x\n")),
        ("Pipfile.lock", _PIPFILE_TEXT[:-20]),
        ("Pipfile.lock", _PIPFILE_TEXT.replace("{}", "[1]")),
        ("yarn.lock", _YARN_TEXT + "<<<<<<< HEAD\n"),
        ("yarn.lock", _YARN_TEXT.replace("version", "other")),
    ],
)
def test_broken_lock_files_are_never_clean(name, text, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    for target in (tmp_path, tmp_path / name):
        assert main(["scan", "--no-cache", str(target), "--json"]) == 2
        (line,) = json.loads(capsys.readouterr().out)["not_judged"]
        assert "could not be judged" in line
